"""Methods that exchange a row per class: golden numbers, predictors, rows of absent classes, limits."""

import math
from dataclasses import replace

import pytest
import torch

from fedloom.core.records import get_table, get_tree
from fedloom.methods import METHODS, Batch, ClassTable
from fedloom.methods.contract.sample_statistics import LabelledRows
from fedloom.methods.fedorgp import kept, means_of_kept
from fedloom.methods.fedtgp import margin_of
from fedloom.methods.parts.measures import generated
from fedloom.methods.parts.prototypes import UNKNOWN, nearest
from fedloom.methods.protonorm import spread_rows
from golden_world import (
    SIZES,
    WORLD,
    assert_golden,
    golden_entries,
    golden_run,
    matches,
    mistakes,
    noting_uploads,
    personal,
    probe,
    refuted,
    variant_probe,
)
from support import CLASSES, Recording, Tiny, TinyBN, configured, same_bits, same_tree, world

GOLD = golden_entries("fedproto fedtgp fedorgp protonorm fedgh fedpcl fedproc fd feddistill")


# -- fedproto ----------------------------------------------------------------------------------------------------------
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]


def rows(server):
    return {"": get_table(server, "prototypes").values}


@pytest.mark.parametrize("name", ["fedproto", "protonorm"])
def test_golden_nearest_prototypes(name):
    federation, _ = golden_run(METHODS.get(name), **RUNS[name])
    x, net = federation.scenario.train_set.x, federation.engine.worker.loaded_nets[0].net
    for client, wanted in enumerate(GOLD[name]["out"]["nearest"]):
        state = federation.state_of(federation.client_context(client, 3))
        nearest = federation.method.predictors(federation.server, state, federation.server_context())["nearest"]
        net.load_state_dict(nearest.tree)
        assert nearest.logits(net, x[SIZES[client] : SIZES[client + 1]]).argmax(1).tolist() == wanted


def test_average_model_offers_a_global_predictor():
    for average, kinds in ((True, {"global", "nearest"}), (False, set())):
        toy = world(configured("fedproto", average_model=average), LABELS)
        assert toy.method.predictors(toy.federation.server, None, toy.federation.server_context()).keys() == kinds
        assert toy.method.spec.architectures == ("one" if average else "any")
        assert ("model" in toy.method.spec.sends) is average


def test_as_the_authors_test_a_client_chooses_among_its_own_classes():
    toy = world(configured("fedproto", "authors"), LABELS, engine=Recording)
    toy.federation.step()
    assert "class_counts" not in toy.federation.engine.done[0].upload
    for client, labels in enumerate(LABELS):
        state = toy.federation.state_of(toy.federation.client_context(client, 1))
        offered = toy.method.predictors(toy.federation.server, state, toy.federation.server_context(client))
        scores = offered["nearest"].logits(toy.net, toy.data.x)
        assert set(scores.argmax(1).tolist()) <= set(labels)
        assert bool((scores[:, [c for c in range(CLASSES) if c not in labels]] == UNKNOWN).all())


def test_prototypes_of_the_last_epoch_are_taken_while_the_weights_move():
    later, during = (
        world(configured("fedproto", prototypes_from=way), LABELS, epochs=2) for way in ("after_training", "last_epoch")
    )
    for toy in (later, during):
        toy.federation.step()
    assert same_bits(later.federation.states[0], during.federation.states[0])
    assert not torch.equal(*(get_table(t.federation.server, "prototypes").values for t in (later, during)))


def test_classes_without_a_prototype_score_below_all_others():
    net = Tiny()
    x = torch.tensor([[1.0, -1, 0.5, 2, 0], [-2, 1, 1, 0, 0.3], [0, 3, -1, 0.5, 1]])
    z = net.features(x).detach()
    table = ClassTable(torch.stack([z[0], z[1] + 9, z[2], z[0]]), torch.tensor([True, True, True, False]))
    assert nearest(net, x, table).argmax(1)[[0, 2]].tolist() == [0, 2]
    assert nearest(net, x, table)[:, 3].tolist() == [UNKNOWN] * 3


# -- fedtgp ------------------------------------------------------------------------------------------------------------
FEDTGP = METHODS.get("fedtgp")


class GoldenFedtgp(FEDTGP):
    """Begins with the golden generator, and says its margins."""

    def server_init(self, ctx):
        given = {name: torch.tensor(value).double() for name, value in GOLD["fedtgp"]["generator_init"].items()}
        return super().server_init(ctx) | {"generator": given}

    def aggregate(self, server, uploads, ctx):
        tables = ClassTable.stack([get_table(upload, "prototypes") for upload in uploads.values()])
        return super().aggregate(server, uploads, ctx) | {"margin": margin_of(tables, self.options.margin)}


def test_golden_margins_of_fedtgp():
    gold = GOLD["fedtgp"]["out"]
    federation, servers = assert_golden(GoldenFedtgp, GOLD["fedtgp"], tolerance=2e-6, **GOLD["fedtgp"]["options"])
    for number, server in enumerate(servers, 1):
        assert server["margin"] == pytest.approx(gold[f"round{number}"]["margin"], abs=2e-6)
    for client, wanted in gold["own_probes"].items():
        assert abs(probe(federation.states[int(client)]["model"]) - wanted) < 2e-6
    assert matches(servers[-1]["generator"], gold["generator"], tolerance=2e-6)


def test_the_margin():
    held = torch.tensor([[True, True, True], [True, False, False]])
    values = torch.tensor([[[0.0, 0], [3, 0], [0, 4]], [[0, 0], [0, 0], [0, 0]]])
    assert margin_of(ClassTable(values, held), 100.0) == 4.0  # nearest: 3, 3, 4
    assert margin_of(ClassTable(values, held), 2.5) == 2.5
    alone = torch.tensor([[True, False, False], [True, False, False]])
    assert margin_of(ClassTable(values, held).keep_classes(alone), 100.0) == 100.0


def test_a_prototype_that_lies_on_a_row_has_a_finite_gradient():
    toy = world(configured("fedtgp", server_epochs=2), LABELS)
    server = toy.federation.server
    rows = generated(server["generator"])
    uploads = {0: {"prototypes": ClassTable(rows, torch.ones(4, dtype=torch.bool))}}
    new = toy.method.aggregate(server, uploads, toy.federation.server_context())
    assert all(math.isfinite(float(value.sum())) for value in new["generator"].values())


# -- fedorgp -----------------------------------------------------------------------------------------------------------
FEDORGP = METHODS.get("fedorgp")


class GoldenFedorgp(FEDORGP):
    """Begins with the golden generator."""

    def server_init(self, ctx):
        given = {name: torch.tensor(value).double() for name, value in GOLD["fedorgp"]["generator_init"].items()}
        return super().server_init(ctx) | {"generator": given}


def of_all(federation, server):
    """The fingerprint of the prototypes, then the nets of all clients."""
    trees = {
        f"{client}/{name}": federation.states[client]["model"][name] for client in range(3) for name in WORLD["init"]
    }
    return probe(rows(server) | trees, ["", *trees])


@pytest.mark.parametrize("entry", ["out", "adaptive"])
def test_golden_generators_of_fedorgp(entry):
    gold, run = GOLD["fedorgp"], GOLD["fedorgp"]["options"] | {"adaptive": entry == "adaptive"}
    federation, servers = assert_golden(GoldenFedorgp, gold, entry, tolerance=2e-6, **run)
    for client, wanted in gold[entry]["own_probes"].items():
        assert abs(probe(federation.states[int(client)]["model"]) - wanted) < 2e-6
    assert matches(servers[-1]["generator"], gold[entry]["generator"], tolerance=2e-6)
    assert abs(of_all(federation, servers[-1]) - gold[entry]["probe_of_all"]) < 1e-5
    assert abs(of_all(federation, servers[-1]) - gold["WRONG_euclidean_pull_probe_of_all"]) > 1e-3


def test_features_without_length_have_no_gradient():
    z = torch.zeros(1, 3, requires_grad=True)
    distance = configured("fedorgp").distance(z, torch.ones(1, 3))
    assert distance.tolist() == [1.0]
    (gradient,) = torch.autograd.grad(distance.sum(), z)
    assert gradient.tolist() == [[0.0, 0.0, 0.0]]


def test_more_classes_than_features_are_reported():
    toy = world(configured("fedorgp"), LABELS)
    assert toy.method.examine([toy.task], 2) == []
    (found,) = toy.method.examine([replace(toy.task, num_classes=9)], 2)
    assert found.code == "fedorgp.more_classes_than_features"


def test_golden_filter():
    points = torch.tensor(GOLD["fedorgp"]["filter"]["points"], dtype=torch.float64)
    assert kept(points, 0.5).tolist() == GOLD["fedorgp"]["filter"]["kept"]
    rows = LabelledRows(torch.cat([points, points[:2]]), torch.tensor([2] * len(points) + [0] * 2))
    means = means_of_kept(rows, 4, 0.5)
    assert means.held.tolist() == [True, False, True, False]
    inside = torch.tensor(GOLD["fedorgp"]["filter"]["kept"])
    assert torch.allclose(means.values[2], points[inside].mean(0).float())
    assert torch.allclose(means.values[0], points[:2].mean(0).float())


def test_the_share_decides_between_a_long_and_a_turned_feature():
    near = torch.tensor([[1.0, 0.02 * k] for k in range(-4, 5)], dtype=torch.float64)
    far, turned = torch.tensor([[1.9, 0.0]]).double(), torch.tensor([[0.98, 0.17]]).double()
    rows = torch.cat([near, far, turned])
    by_cosine, by_distance = kept(rows, 0.01), kept(rows, 0.99)
    assert by_cosine[9], "a long feature of the right direction stays, by cosine"
    assert not by_distance[9]
    assert kept(torch.cat([rows, torch.full((1, 2), torch.nan).double()]), 0.5).all(), "a diverged client loses nothing"


def test_a_filtered_round_sends_means_of_the_features_that_are_kept():
    toy = world(configured("fedorgp", filtered=True), [[0] * 9, [1, 0]], net=TinyBN)
    job = toy.job(0)
    done = toy.worker.run(job)
    x, _ = toy.samples(0)
    toy.net.load_state_dict(done.state["model"])
    z = toy.net.eval().features(x).detach().double()
    assert torch.allclose(done.upload["prototypes"].values[0], z[kept(z, 0.5)].mean(0).float(), atol=1e-6)


# -- protonorm ---------------------------------------------------------------------------------------------------------


def held(values):
    return ClassTable(torch.as_tensor(values), torch.ones(len(values), dtype=torch.bool))


def test_golden_means_of_protonorm():
    kind, uploads = noting_uploads(METHODS.get("protonorm"))
    golden_run(kind, **RUNS["protonorm"])
    for number, sent in uploads.items():
        means = ClassTable.stack([get_table(upload, "prototypes") for upload in sent.values()]).mean_over_clients()
        assert matches({"": means.values}, {"": GOLD["protonorm"]["out"][number]["means"]}, tolerance=2e-6)


def test_four_points_in_three_dimensions_become_a_tetrahedron():
    gold = GOLD["protonorm"]["tetrahedron"]
    points = spread_rows(held(torch.tensor(gold["points"]).double()), 2000, 0.1, 0.9).values
    assert torch.allclose(points @ points.T, torch.tensor(gold["cosines"]).double(), rtol=0, atol=5e-4)


def test_without_steps_rows_are_directions_and_a_mean_without_length_has_none():
    table = ClassTable(torch.tensor([[3.0, 4.0], [0.0, 0.0], [7.0, 7.0]]), torch.tensor([True, True, False]))
    spread = spread_rows(table, 0, 0.1, 0.9)
    assert spread.held.tolist() == [True, False, False]
    assert torch.allclose(spread.values[0], torch.tensor([0.6, 0.8]).double())
    assert not bool(spread.values[1:].any())


def test_what_cannot_be_spread_is_reported():
    toy = world(configured("protonorm"), LABELS)
    context = toy.federation.server_context()
    values = torch.tensor([[3.0, 4, 0, 0, 0, 0], [3.0, 4, 0, 0, 0, 0], [0.0] * 6, [0.0] * 6])
    uploads = {0: {"prototypes": ClassTable(values, torch.tensor([True, True, True, False]))}}
    server = toy.method.aggregate(toy.federation.server, uploads, context)
    codes = [found.code for found in toy.method.diagnostics(server, uploads, context)]
    assert codes == ["protonorm.no_direction", "protonorm.equal_prototypes", "protonorm.scale"]
    fine = {0: {"prototypes": held(torch.eye(4, 6) * 80)}}
    server = toy.method.aggregate(toy.federation.server, fine, context)
    assert toy.method.diagnostics(server, fine, context) == []


def test_unspread_and_at_length_1_the_pull_is_that_of_fedproto():
    methods = configured("protonorm", scale=1.0, server_steps=0), configured("fedproto")
    z, rows = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(method.distance(z, rows) for method in methods))


# -- fedgh -------------------------------------------------------------------------------------------------------------
HEAD, BODY = ("head.weight", "head.bias"), ("fc.weight", "fc.bias")


class Kept(METHODS.get("fedgh")):
    """Keeps the head as a client left it."""

    def end(self, work, state, ctx):
        payload, own = super().end(work, state, ctx)
        return payload, own | {"trained": {name: work.tree[name] for name in HEAD}}


def test_golden_heads_of_fedgh():
    federation, servers = assert_golden(Kept, GOLD["fedgh"], own=None, tolerance=2e-6, **GOLD["fedgh"]["options"])
    assert all(server["model"].keys() == set(HEAD) for server in servers)
    for client, own in GOLD["fedgh"]["out"]["own"].items():
        state, tested = federation.states[int(client)], personal(federation, int(client))
        assert matches(state["model"] | state["trained"], own, tolerance=2e-6)
        assert same_tree({n: tested[n] for n in HEAD}, servers[-1]["model"])
        assert matches(tested, {name: own[name] for name in BODY}, tolerance=2e-6)


def test_without_server_epochs_the_head_stays():
    _, servers = golden_run(METHODS.get("fedgh"), rounds=2, server_epochs=0)
    assert matches(servers[-1]["model"], {name: WORLD["init"][name] for name in HEAD}, tolerance=0)


# -- fedpcl ------------------------------------------------------------------------------------------------------------
FEDPCL = METHODS.get("fedpcl")


def golden(rounds=3):
    return golden_run(FEDPCL, rounds, tau=GOLD["fedpcl"]["options"]["temperature"])


def told_fedpcl(federation):
    """What the golden probes cover: the prototypes, then the bodies of all clients."""
    tree = {"rows": get_table(federation.server, "prototypes").values}
    for client in range(3):
        own = federation.state_of(federation.client_context(client, federation.round))["model"]
        tree |= {f"{client}/{name}": own[name] for name in GOLD["fedpcl"]["out"]["own"][str(client)]}
    return tree


def test_fedpcl_golden_rounds():
    federation, servers = golden()
    for number, server in enumerate(servers, 1):
        wanted, table = GOLD["fedpcl"]["out"][f"round{number}"], get_table(server, "prototypes")
        assert matches({"": table.values}, {"": wanted["rows"]}, tolerance=2e-6)
        assert table.held.tolist() == wanted["held"]
    for client, own in GOLD["fedpcl"]["out"]["own"].items():
        tree = federation.state_of(federation.client_context(int(client), 3))["model"]
        assert matches(tree, own, tolerance=2e-6)
    for number in (1, 2, 3):
        last = told_fedpcl(golden(number)[0])
        assert abs(probe(last, last) - GOLD["fedpcl"]["out"][f"round{number}"]["probe"]) < 2e-5
    assert all(abs(probe(last, last) - value) > 1e-4 for value in mistakes(GOLD["fedpcl"]))


def test_round_1_sends_class_means_and_trains_nothing():
    toy = world(configured("fedpcl"), LABELS, net=TinyBN)
    report = toy.federation.step()
    assert report.steps == 0
    for client in range(len(LABELS)):
        assert same_bits({"": toy.federation.states[client]["model"]}, {"": toy.task.init})


def test_a_client_predicts_among_its_own_classes_and_one_without_means_among_all_known():
    toy = world(configured("fedpcl"), LABELS, participation=0.5)
    toy.federation.step()
    senders = toy.federation.server["senders"].tolist()
    for client, labels in enumerate(LABELS):
        state = toy.federation.state_of(toy.federation.client_context(client, 1))
        offered = toy.method.predictors(toy.federation.server, state, toy.federation.server_context(client))
        scores = offered["personal"].logits(toy.net, toy.data.x)
        held = get_table(toy.federation.server, "prototypes").held.tolist()
        classes = set(labels) if client in senders else {c for c, known in enumerate(held) if known}
        assert {c for c in range(4) if bool((scores[:, c] != UNKNOWN).all())} == classes


def test_classes_that_nobody_has_sent_are_reported():
    toy = world(configured("fedpcl"), LABELS)
    toy.federation.step()
    context = toy.federation.server_context()
    means = get_table(toy.federation.states[2], "prototypes")
    known = get_table(toy.federation.server, "prototypes").held
    uploads = {2: {"prototypes": means}}
    assert toy.method.diagnostics({"known": known}, uploads, context) == []
    (found,) = toy.method.diagnostics({"known": torch.tensor([True, True, False, False])}, uploads, context)
    assert (found.code, found.figure) == ("fedpcl.unknown_classes", 1.0)
    assert toy.method.diagnostics({"known": torch.zeros(4, dtype=torch.bool)}, uploads, context) == []


# -- fedproc -----------------------------------------------------------------------------------------------------------
FEDPROC = METHODS.get("fedproc")


class Planned(FEDPROC):
    """As if as many rounds were planned as the golden numbers say."""

    def begin(self, payload, state, ctx):
        rounds = GOLD["fedproc"]["options"]["planned_rounds"]
        return super().begin(payload, state, replace(ctx, task=replace(ctx.task, rounds=rounds)))


SPREAD = {"iterations": "server_steps", "rate": "server_lr", "momentum": "server_momentum"}
RELEASED = {"learns_at_once": False, "prototypes_from": "last_epoch"}
RUNS = {
    "fedproto": GOLD["fedproto"]["options"],
    "protonorm": {SPREAD.get(k, k): v for k, v in GOLD["protonorm"]["options"].items()} | {"keep_absent": False},
}


@pytest.mark.parametrize(
    ("kind", "name", "variant", "run"),
    [
        (METHODS.get("fedproto"), "fedproto", "out", RUNS["fedproto"] | {"others": ["drop_absent_probe"]}),
        (METHODS.get("protonorm"), "protonorm", "out", RUNS["protonorm"]),
        (Planned, "fedproc", "out", {"keep_absent": False}),
        (Planned, "fedproc", "released", {"keep_absent": False, **RELEASED}),
    ],
)
def test_golden_rounds(kind, name, variant, run):
    assert_golden(kind, GOLD[name], variant, tolerance=2e-6, **run)


@pytest.mark.parametrize(
    ("name", "variant", "run"),
    [("fedproto", "uniform_probe", {"weights": "uniform"}), ("protonorm", "keep_absent_probe", {"keep_absent": True})],
)
def test_golden_variants(name, variant, run):
    assert abs(variant_probe(METHODS.get(name), GOLD[name], **RUNS[name] | run) - GOLD[name][variant]) < 2e-6


@pytest.mark.parametrize("options", [{}, {"learns_at_once": False}])
def test_the_last_round_is_fedavgs(options):
    """With a share of 0; both begin it with the same weights."""
    mine, fedavg = (
        world(configured(name, **o), LABELS, net=TinyBN, rounds=2) for name, o in (("fedproc", options), ("fedavg", {}))
    )
    mine.federation.step()
    fedavg.federation.server, fedavg.federation.round = {"model": mine.federation.server["model"]}, 1
    for toy in (mine, fedavg):
        toy.federation.step()
    assert same_bits({"": mine.federation.server["model"]}, {"": fedavg.federation.server["model"]})


def test_in_the_released_form_round_1_learns_nothing():
    toy = world(configured("fedproc", learns_at_once=False), LABELS)
    first = get_tree(toy.federation.server, "model")
    toy.federation.step()
    assert same_bits({"": first}, {"": toy.federation.server["model"]})


def test_a_single_round_is_reported():
    toy = world(configured("fedproc"), LABELS, rounds=1)
    assert [found.code for found in toy.method.examine([toy.task], 2)] == ["fedproc.one_round"]
    toy.federation.step()
    assert toy.method.examine([replace(toy.task, rounds=2)], 2) == []


# -- fd ----------------------------------------------------------------------------------------------------------------
FD = METHODS.get("fd")


def all_nets(federation):
    states = (federation.state_of(federation.client_context(client, 1)) for client in range(3))
    return sum(probe(state["model"]) for state in states)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_fd_golden_rounds(rounds):
    federation, servers = golden_run(FD, rounds=rounds, **GOLD["fd"]["options"])
    for number, server in enumerate(servers, 1):
        sent = GOLD["fd"]["out"][f"round{number}"]["sent"]
        assert server["senders"].tolist() == [int(client) for client in sent]
        for values, held, wanted in zip(*_parts(server), sent.values(), strict=True):
            assert matches({"": values}, {"": wanted["rows"]}, tolerance=2e-6)
            assert held.tolist() == wanted["held"]
    assert abs(all_nets(federation) - GOLD["fd"]["out"][f"round{rounds}"]["probe"]) < 6e-6
    if rounds == 3:
        for client, own in GOLD["fd"]["out"]["own"].items():
            assert matches(federation.states[int(client)]["model"], own, tolerance=2e-6)
        assert abs(all_nets(federation) - GOLD["fd"]["WRONG_own_row_too"]) > 1e-3


@pytest.mark.parametrize("outputs_from", ["training", "last_epoch"])
def test_golden_outputs_of_training(outputs_from):
    """Collected at the steps, before each: of both epochs."""
    federation, _ = golden_run(FD, rounds=3, outputs_from=outputs_from, **GOLD["fd"]["options"])
    near = abs(all_nets(federation) - GOLD["fd"]["during_probe"]) < 6e-6
    assert near == (outputs_from == "training")
    assert configured("fd", "paper").options.outputs_from == "training"


def _parts(server):
    table = get_table(server, "outputs")
    return table.values, table.held


def test_two_holders_receive_each_others_rows_and_a_sole_one_nothing():
    toy = world(configured("fd"), [[0, 0, 1], [0, 1, 2], [3, 3]], engine=Recording)
    toy.federation.step()
    sent = {done.client: get_table(done.upload, "outputs") for done in toy.federation.engine.done}
    received = {
        client: get_table(toy.method.down(toy.federation.server, client, toy.federation.server_context()), "targets")
        for client in range(3)
    }
    assert received[0].held.tolist() == [True, True, True, True]
    assert torch.equal(received[0].values[:2], sent[1].values[:2])
    assert torch.equal(received[1].values[:2], sent[0].values[:2])
    assert received[1].held.tolist() == [True, True, False, True]
    assert received[2].held.tolist() == [True, True, True, False]


@pytest.mark.parametrize("outputs_from", ["training", "last_epoch"])
def test_outputs_of_an_epoch_are_those_before_each_step(outputs_from):
    toy = world(configured("fd", outputs_from=outputs_from), LABELS, batch_size=9)
    first = torch.softmax(toy.net(toy.data.x[:5]), 1).detach()
    toy.federation.step()
    mine = get_table(toy.federation.server, "outputs").values[0]
    labels = torch.tensor(LABELS[0])
    for label in (0, 1):
        assert torch.allclose(mine[label], first[labels == label].mean(0), atol=1e-6)


# -- feddistill --------------------------------------------------------------------------------------------------------


def test_golden_soft_labels_of_feddistill():
    _, servers = golden_run(METHODS.get("feddistill"), rounds=2, **GOLD["feddistill"]["options"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD["feddistill"]["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        assert matches({"": get_table(server, "soft_labels").values}, {"": wanted["rows"]}, tolerance=2e-6)
    assert refuted(servers[-1]["model"], GOLD["feddistill"])


def test_ema_is_the_share_of_the_new_rows():
    last = torch.eye(3)
    after = {}
    for ema in (0.2, 1.0):
        toy = world(configured("feddistill", ema=ema), [[0, 1, 2], [0, 1, 2, 0]])
        toy.federation.step()
        after[ema] = get_table(toy.federation.server, "soft_labels").values[:3, :3]
    assert torch.allclose(after[0.2], 0.2 * after[1.0] + 0.8 * last, atol=1e-6)
    assert not torch.allclose(after[1.0], last, atol=0.1)


@pytest.mark.parametrize("compares", ["log_probabilities", "probabilities"])
def test_the_divergence_by_hand(compares):
    """Outputs q that are the soft label: KL is 0; with outputs in place of their logs it is sum q (log q - q) < 0."""
    method = configured("feddistill", compares=compares)
    toy = world(method, LABELS)
    x = toy.data.x[:1]
    said = torch.softmax(toy.net(x), 1).detach()
    label = torch.tensor([2])
    rows = torch.zeros(4, 4)
    rows[2] = said
    got = method.loss(toy.net, Batch(x, label), {"soft_labels": rows}).terms["distillation"]
    by_hand = float((said * said.log() - said * said).sum()) if compares == "probabilities" else 0.0
    assert float(got.detach()) == pytest.approx(by_hand, abs=1e-6)


def test_dw_goes_over_it():
    """FedDW, Table IV, has this pair."""
    toy = world(METHODS.get("feddistill+dw").configured("sound", {}), LABELS)
    toy.federation.step()
    toy.federation.step()
    assert {"model", "soft_labels", "dw.soft_labels"} <= toy.federation.server.keys()


def test_the_row_of_a_class_that_nobody_held_goes_back_to_its_unit_vector():
    toy = world(configured("feddistill"), [[0, 0], [1]])
    last = ClassTable(torch.full((4, 4), 0.25), torch.ones(4, dtype=torch.bool))
    toy.federation.server = toy.federation.server | {"soft_labels": last}
    toy.federation.step()
    row = get_table(toy.federation.server, "soft_labels").values[3]
    assert row.tolist() == [0.125, 0.125, 0.125, 0.625]
