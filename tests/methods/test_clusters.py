"""CFL, IFCA, FedEM, FedAMP and FedFomo: golden numbers, which models a client gets, degenerate settings."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.core.errors import ConfigError
from fedloom.core.records import get_number
from fedloom.methods import METHODS
from fedloom.methods.cfl import bipartition, cluster_of
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.fedem import children, responsibilities, sample_shares
from fedloom.methods.fedfomo import length_of, mixed, raw_weights
from fedloom.methods.ifca import moved
from fedloom.methods.parts.several_models import draws_weights, models_in
from golden_world import (
    EVERYBODY,
    SHARED_BASELINES,
    WORLD,
    GoldenNet,
    golden_entries,
    golden_run,
    matches,
    mistakes,
    personal,
    probe,
)
from support import Tiny, TinyBN, Uniform, after, configured, furthest, same_tree, world

GOLD = golden_entries("cfl ifca fedem fedamp fedfomo")


# -- cfl ---------------------------------------------------------------------------------------------------------------
CFL = METHODS.get("cfl")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [0, 1, 2, 3]]
EVERYBODY_CFL = [[0, 1, 2]] * 3
EAGER = {"eps1": 1e9, "eps2": 0.0, "first_split": 1}


def fingerprint_cfl(federation):
    """Client k's model counts k + 1 times."""
    return sum((k + 1) * probe(personal(federation, k)) for k in range(3))


def test_momentum_of_one_model_is_refused():
    with pytest.raises(ConfigError, match=r"cfl\+servermomentum: .* moves one model, and every cluster has its own"):
        world(configured("cfl+servermomentum"), [[0, 1]] * 4)


def test_cfl_golden_rounds():
    for rounds in (1, 2, 3):
        federation, servers = golden_run(CFL, rounds, drawn=EVERYBODY_CFL, **GOLD["cfl"]["options"])
        server, wanted = servers[-1], GOLD["cfl"]["out"][f"round{rounds}"]
        assert matches({"": server["similarity"]}, {"": wanted["similarity"]}, tolerance=1e-6)
        groups = [[k for k in range(3) if cluster_of(server, k) == number] for number in range(3)]
        assert sorted(group for group in groups if group) == sorted(wanted["clusters"])
        assert sorted(client for norm in wanted["norms"] for client in norm["clients"]) == EVERYBODY_CFL[0]
        for client, model in wanted["models"].items():
            assert matches(personal(federation, int(client)), model)
        assert abs(fingerprint_cfl(federation) - wanted["probe"]) < 1e-6
        assert server["mean_norm"] == pytest.approx(min(norm["mean_norm"] for norm in wanted["norms"]), abs=1e-7)
        assert server["max_norm"] == pytest.approx(max(norm["max_norm"] for norm in wanted["norms"]), abs=1e-7)
    assert all(abs(fingerprint_cfl(federation) - value) > 1e-5 for value in mistakes(GOLD["cfl"]))


@pytest.mark.parametrize(
    ("options", "name"), [({"weights": "samples"}, "size_weights_probe"), ({"eps1": 0.0}, "never_split_probe")]
)
def test_golden_variants(options, name):
    federation, _ = golden_run(CFL, 3, drawn=EVERYBODY_CFL, **{**GOLD["cfl"]["options"], **options})
    assert abs(fingerprint_cfl(federation) - GOLD["cfl"][name]) < 1e-6


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_golden_bipartition(linkage):
    gold = GOLD["cfl"]["bipartition"]
    apart = bipartition(torch.tensor(gold["similarity"]), linkage)
    groups = [(apart == side).nonzero()[:, 0].tolist() for side in (False, True)]
    assert sorted(groups) == sorted(gold[linkage])


def test_without_splits_it_is_fedavg_with_equal_weights():
    ours, theirs = (
        after(world(method, LABELS, net=TinyBN, participation=0.5), 3)
        for method in (configured("cfl", eps1=0.0), Uniform())
    )
    assert same_tree(ours.federation.server["model"], theirs.federation.server["model"])
    assert "cfl.partial_participation" in {found.code for found in ours.federation.initial_diagnostics}


def test_opposite_changes_split_exactly_and_two_members_never():
    toy = world(configured("cfl", **EAGER), LABELS)
    server, model = toy.federation.server, toy.task.init
    step = [torch.ones_like(value) for value in model.values()]
    uploads = {
        k: {"model": {n: v + sign * s for (n, v), s in zip(model.items(), step, strict=True)}, "samples": 1}
        for k, sign in enumerate((1, -1, 1, -1))
    }
    context = replace(toy.federation.server_context(), round=1)
    new = toy.method.aggregate(server, uploads, context)
    assert new["clusters"].tolist() == [0, 1, 0, 1]
    assert float(new["mean_norm"]) < 1e-5
    assert [float(tree["fc.bias"][0] - model["fc.bias"][0]) for tree in models_in(new, 2)] == pytest.approx([1, -1])
    again = toy.method.aggregate(new, uploads, context)
    assert again["clusters"].tolist() == [0, 1, 0, 1]


def test_a_cluster_waits_for_pairs_that_never_met():
    toy = world(configured("cfl", **EAGER), LABELS)
    uploads = {k: {"model": {n: v + k + 1 for n, v in toy.task.init.items()}, "samples": 1} for k in range(4)}
    context, server = replace(toy.federation.server_context(), round=1), toy.federation.server
    for pair in ((0, 1), (2, 3), (0, 2), (1, 3), (0, 3)):
        server = toy.method.aggregate(server, {k: uploads[k] for k in pair}, context)
        assert not server["clusters"].any()
    server = toy.method.aggregate(server, {k: uploads[k] for k in (1, 2)}, context)
    assert server["clusters"].any()
    assert toy.method.figures(server, context)["clusters"] == 2


# -- ifca --------------------------------------------------------------------------------------------------------------
SECOND = SHARED_BASELINES["world"]["init_2"]
LABELS_IFCA = [[0, 0, 0, 0, 1], [0, 0, 1, 0], [2, 2, 3, 2, 3, 2], [3, 3, 2]]
IFCA = METHODS.get("ifca")


class GoldenIfca(IFCA):
    """Begins with the two golden models."""

    def server_init(self, ctx):
        second = {name: torch.tensor(value, dtype=torch.float64) for name, value in SECOND.items()}
        return super().server_init(ctx) | {"model.1": second}


def fingerprint_ifca(server):
    """Of both models: the first counts once, the second twice."""
    first, second = models_in(server, GOLD["ifca"]["options"]["clusters"])
    return probe(first) + 2 * probe(second)


def test_ifca_golden_rounds():
    found = {}

    class Noting(GoldenIfca):
        def end(self, work, state, ctx):
            payload, state = super().end(work, state, ctx)
            found[ctx.round, ctx.client] = work.collected["losses"], payload["cluster"]
            return payload, state

    _, servers = golden_run(Noting, rounds=3)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["ifca"]["out"][f"round{number}"]
        for model, tree in zip(models_in(server, GOLD["ifca"]["options"]["clusters"]), wanted["models"], strict=True):
            assert matches(model, tree)
        assert abs(fingerprint_ifca(server) - wanted["probe"]) < 1e-6
        for client, expected in wanted["losses"].items():
            losses, picked = found[number, int(client)]
            assert losses.tolist() == pytest.approx(expected, abs=1e-5)
            assert picked == wanted["picked"][client]
    assert abs(fingerprint_ifca(servers[-1]) - GOLD["ifca"]["WRONG_highest_loss"]) > 1e-3


def test_golden_uniform_mean():
    _, servers = golden_run(GoldenIfca, rounds=3, weights="uniform")
    assert abs(fingerprint_ifca(servers[-1]) - GOLD["ifca"]["uniform_probe"]) < 1e-6


def test_of_equal_starts_all_take_the_first_and_the_run_says_so():
    class Equal(IFCA):
        def server_init(self, ctx):
            return super().server_init(ctx) | {"model.1": ctx.task.init}

    toy = after(world(Equal(), LABELS_IFCA), 1)
    assert same_tree(toy.federation.server["model.1"], toy.task.init)
    assert "ifca.one_model" in {found.code for report in toy.reports for found in report.diagnostics}


@pytest.mark.parametrize(("clusters", "taken", "reported"), [(2, [0, 0], True), (1, [0, 0], False), (2, [0], False)])
def test_one_cluster_or_one_participant_takes_one_model_by_itself(clusters, taken, reported):
    toy = world(configured("ifca", clusters=clusters), LABELS_IFCA)
    uploads = {client: {"samples": 1, "cluster": cluster} for client, cluster in enumerate(taken)}
    found = toy.method.diagnostics(toy.federation.server, uploads, toy.federation.server_context())
    assert [diagnostic.code for diagnostic in found] == (["ifca.one_model"] if reported else [])


def test_a_model_that_nobody_took_stays_and_a_strange_number_is_left_out():
    toy = world(configured("ifca"), LABELS_IFCA)
    server, change = toy.federation.server, {n: torch.ones_like(v) for n, v in toy.task.init.items()}
    uploads = {k: {"model": change, "samples": 1, "cluster": c} for k, c in ((0, 1), (1, 9))}
    new = toy.method.aggregate(server, uploads, toy.federation.server_context())
    assert same_tree(new["model"], server["model"])
    assert same_tree(new["model.1"], moved(server["model.1"], change))
    (found,) = toy.method.diagnostics(new, uploads, toy.federation.server_context())
    assert (found.code, found.figure) == ("ifca.unknown_model", 1)


def test_a_shared_body_is_the_mean_over_all():
    toy = after(world(configured("ifca", share_body=True), LABELS_IFCA, net=TinyBN), 2)
    first, second = models_in(toy.federation.server, 2)
    same = {name: torch.equal(first[name], second[name]) for name in first}
    assert {name for name in first if not same[name]} == {"head.weight", "head.bias"}


def test_a_client_is_tested_with_the_model_that_fits_its_training_data():
    federation, _ = golden_run(GoldenIfca, rounds=3)
    live, worker = federation.engine.worker.net_of_client(0), federation.engine.worker
    for client in EVERYBODY:
        x, y = torch.tensor(WORLD["x"][client], dtype=torch.float64), torch.tensor(WORLD["y"][client])
        trees = models_in(federation.server, GOLD["ifca"]["options"]["clusters"])
        cluster = min(range(2), key=lambda j: float(cross_entropy(GoldenNet().functional.logits(trees[j], x), y)))
        ctx = federation.client_context(client, 3)
        offered = federation.method.predictors(federation.server, {}, federation.server_context(client))
        worker.adapt(live, offered["personal"], ctx, federation.train.tensor(client))
        assert same_tree({name: value.detach() for name, value in live.tree.items()}, trees[cluster])


def test_first_models_are_drawn_where_they_can_be():
    drawn, noisy = (
        world(configured("ifca"), LABELS_IFCA, net="mlp", shape=(1, 2, 2)),
        world(configured("ifca"), LABELS_IFCA),
    )
    assert not draws_weights(noisy.task)
    codes = [[found.code for found in toy.federation.initial_diagnostics] for toy in (drawn, noisy)]
    assert "ifca.noisy_starts" in codes[1]
    first, second = models_in(noisy.federation.server, 2)
    assert 0 < furthest(first, second) < 0.5


# -- fedem -------------------------------------------------------------------------------------------------------------
FEDEM = METHODS.get("fedem")


class GoldenFedem(FEDEM):
    """Begins with the two golden models."""

    def server_init(self, ctx):
        second = {f"component1.{n}": torch.tensor(v, dtype=torch.float64) for n, v in SECOND.items()}
        return {"model": super().server_init(ctx)["model"] | second}


def model(server, number):
    prefix = f"component{number}."
    return {n.removeprefix(prefix): v for n, v in server["model"].items() if n.startswith(prefix)}


def fingerprint_fedem(server):
    return probe(model(server, 0)) + 2 * probe(model(server, 1))


def test_fedem_golden_rounds():
    first = {}

    class Noting(GoldenFedem):
        def begin(self, payload, state, ctx):
            self.place = ctx.round, ctx.client
            return super().begin(payload, state, ctx)

        def loss(self, net, batch, consts):
            first.setdefault(self.place, sample_shares(net, batch, {"prior": consts["prior"]}).detach())
            return super().loss(net, batch, consts)

    for rounds in (1, 2):
        federation, servers = golden_run(Noting, rounds, **GOLD["fedem"]["options"])
        wanted = GOLD["fedem"]["out"][f"round{rounds}"]
        assert all(matches(model(servers[-1], j), wanted["models"][j], tolerance=1e-6) for j in range(2))
        for client, shares in wanted["pi"].items():
            state = federation.states[int(client)]
            assert max(abs(float(get_number(state, f"share.{j}")) - share) for j, share in enumerate(shares)) < 1e-6
        assert abs(fingerprint_fedem(servers[-1]) - wanted["probe"]) < 1e-5
        for client, q in wanted["q"].items():
            found = first[rounds, int(client)]
            assert matches({"": found[found[:, 0].argsort()]}, {"": sorted(q)}, tolerance=1e-6)  # batches are shuffled
    mistakes = ("WRONG_hard_assignment", "federatedscope_pi_for_q_probe", "authors_all_clients_in_the_mean_probe")
    assert all(abs(fingerprint_fedem(servers[-1]) - GOLD["fedem"][name]) > 1e-3 for name in mistakes)


def test_golden_predictions_mix_probabilities_and_not_logits():
    federation, _ = golden_run(GoldenFedem, 2, **GOLD["fedem"]["options"])
    facts, ctx = federation.client_context(2, 2), federation.server_context(2)
    offered = federation.method.predictors(federation.server, federation.state_of(facts), ctx)["personal"]
    live = federation.engine.worker.net_of_client(2)
    live.load(offered.tree)
    probabilities = offered.logits(live.net.eval(), torch.tensor(WORLD["x"][2], dtype=torch.float64)).detach().exp()
    wanted = torch.tensor(GOLD["fedem"]["out"]["probabilities_of_client_2"], dtype=torch.float64)
    assert torch.allclose(probabilities, wanted, rtol=0, atol=1e-6)
    assert abs(probe({"": probabilities}, [""]) - GOLD["fedem"]["probabilities_probe"]) < 1e-5
    shares = GOLD["fedem"]["out"]["round2"]["pi"]["2"]
    x = torch.tensor(WORLD["x"][2], dtype=torch.float64)
    logits = sum(share * net(x) for share, net in zip(shares, children(live.net), strict=True))
    mistaken = probe({"": logits.softmax(1).detach()}, [""])
    assert abs(mistaken - GOLD["fedem"]["WRONG_mixed_logits_probe"]) < 1e-6, "the mistake is what this entry says"
    assert abs(probe({"": probabilities}, [""]) - mistaken) > 1e-3


def test_equal_models_leave_the_shares_and_components_start_apart():
    shares = torch.tensor([0.2, 0.5, 0.3])
    assert torch.allclose(responsibilities(torch.ones(4, 3), shares), shares.expand(4, 3))
    toy = world(configured("fedem"), LABELS)
    starts = [model(toy.federation.server, number) for number in range(3)]
    assert min(furthest(starts[0], starts[1]), furthest(starts[1], starts[2])) > 1e-3
    assert "fedem.noisy_starts" in {found.code for found in toy.federation.initial_diagnostics}


def test_a_newcomer_finds_its_shares_before_its_test():
    toy = after(world(configured("fedem"), LABELS), 2)
    ctx, live = toy.federation.client_context(0, 2), toy.worker.loaded_nets[0]
    offered = toy.method.predictors(toy.federation.server, {}, toy.federation.server_context(0))["personal"]
    predictor, _ = toy.worker.adapt(live, offered, ctx, toy.job(0).indices)
    x = toy.data.x[:4]
    assert not torch.allclose(offered.logits(live.net.eval(), x), predictor.logits(live.net, x))
    assert torch.allclose(predictor.logits(live.net, x).exp().sum(1), torch.ones(4), atol=1e-5)


# -- fedamp ------------------------------------------------------------------------------------------------------------
FEDAMP = METHODS.get("fedamp")
LABELS_FEDAMP = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [2, 2]]
DRAWN = [*WORLD["rounds"], [0, 1]][:3]


def options(**changed):
    names = {"alpha": "alpha", "lambda": "weight", "sigma": "sigma"}
    return {"kernel": "exponential"} | {names[key]: value for key, value in GOLD["fedamp"]["options"].items()} | changed


def fingerprint_fedamp(federation, participants):
    return sum(probe(federation.states[client]["model"]) for client in participants)


def test_fedamp_golden_rounds():
    clouds = []

    class Noting(FEDAMP):
        def down(self, server, client, ctx):
            payload = super().down(server, client, ctx)
            clouds.append(
                (ctx.round, client, payload["weights"], self.partner_weights(*self._models(server, client, ctx)))
            )
            return payload

    for rounds in (1, 2, 3):
        clouds.clear()
        federation, _ = golden_run(Noting, rounds, drawn=DRAWN, **options())
        wanted = GOLD["fedamp"]["out"][f"round{rounds}"]
        for client, tree in wanted["own"].items():
            assert matches(federation.states[int(client)]["model"], tree)
        for number, client, cloud, weights in clouds:
            if number == rounds:
                assert matches(cloud, wanted["cloud"][str(client)])
                others = [w for other, w in sorted(wanted["weights"][str(client)].items()) if other != str(client)]
                assert weights == pytest.approx(others, abs=1e-7)
        assert abs(fingerprint_fedamp(federation, DRAWN[rounds - 1]) - wanted["probe"]) < 1e-7
    others = mistakes(GOLD["fedamp"], *(name for name in GOLD["fedamp"] if "pfllib" in name))
    assert all(abs(fingerprint_fedamp(federation, DRAWN[2]) - value) > 1e-5 for value in others)


def test_golden_among_the_last_participants():
    federation, _ = golden_run(FEDAMP, 3, drawn=DRAWN, **options(among="participants"))
    assert abs(fingerprint_fedamp(federation, DRAWN[2]) - GOLD["fedamp"]["pfllib_last_participants_only_probe"]) < 1e-7


def clouds_of(method, trees):
    server = {f"client.{k}": tree for k, tree in enumerate(trees)} | {"round": 1}
    server |= {f"round.{k}": 1 for k in range(len(trees))}
    return [method.down(server, k, None)["weights"] for k in range(len(trees))]


def test_two_clouds_sum_to_the_sum_of_the_models():
    trees = [{"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([0.5, 3.0])}]
    clouds = clouds_of(configured("fedamp", kernel="exponential", sigma=20.0), trees)
    assert torch.allclose(clouds[0]["w"] + clouds[1]["w"], trees[0]["w"] + trees[1]["w"])
    weight = math.exp(-25.25 / 20) / 20  # |w_0 - w_1|^2 = 0.25 + 25
    assert torch.allclose(clouds[0]["w"], (1 - weight) * trees[0]["w"] + weight * trees[1]["w"])


def test_cosine_weights_by_hand_and_a_diverged_model_has_none():
    method = configured("fedamp", sigma=2.0, own_share=0.25)
    own, same, turned = (
        {"w": torch.tensor([1.0, 0.0])},
        {"w": torch.tensor([3.0, 0.0])},
        {"w": torch.tensor([0.0, 1.0])},
    )
    weights = method.partner_weights(own, [same, turned])
    assert weights == pytest.approx([0.75 * math.exp(2) / (math.exp(2) + 1), 0.75 / (math.exp(2) + 1)])
    lost = {"w": torch.tensor([math.nan, 0.0])}
    for kernel in ("cosine", "exponential"):
        assert configured("fedamp", kernel=kernel).partner_weights(own, [lost, same])[0] == 0
        assert clouds_of(configured("fedamp", kernel=kernel), [own, lost, same])[0]["w"].isfinite().all()
    assert method.partner_weights(own, [lost]) == [0]


def test_statistics_of_batch_norm_neither_travel_nor_mix():
    toy = world(configured("fedamp"), LABELS_FEDAMP, net=TinyBN)
    toy.federation.step()
    sent = set(toy.federation.server["client.0"])
    assert {"norm.weight", "fc.weight"} <= sent
    assert not any("running" in name or "tracked" in name for name in sent)


def test_it_says_when_nobody_learns_from_anybody():
    def codes(**own):
        toy = world(configured("fedamp", **own), LABELS_FEDAMP, net=Tiny)
        toy.federation.step()
        uploads = {client: {} for client in range(4)}
        return [d.code for d in toy.method.diagnostics(toy.federation.server, uploads, toy.federation.server_context())]

    assert codes() == []
    assert codes(kernel="exponential", sigma=1e-4) == ["fedamp.alone"]
    assert codes(kernel="exponential", sigma=1.0, alpha=5.0) == ["fedamp.negative_own"]


# -- fedfomo -----------------------------------------------------------------------------------------------------------
FEDFOMO = METHODS.get("fedfomo")
LABELS_FEDFOMO = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [2, 2, 0]]
GOLDEN = {"drawn_validation": False, "explore": 0.0, **GOLD["fedfomo"]["options"]}


def golden(rounds, **options):
    return golden_run(FEDFOMO, rounds, drawn=DRAWN, **GOLDEN, **options)


def fingerprint_fedfomo(federation, participants=DRAWN[2]):
    return sum(probe(personal(federation, client)) for client in participants)


def mixed_shares(raw):
    """The share of each model in a mix, read from models that differ in one entry each, at a distance of 1."""
    if not raw:
        return {}
    eye = torch.eye(len(raw), dtype=torch.float64)
    models, start = [{"w": row} for row in eye], {"w": torch.zeros(len(raw), dtype=torch.float64)}
    losses = torch.tensor([0.0, *(-weight for weight in raw.values())], dtype=torch.float64)
    lengths = torch.tensor([0.0] + [1.0] * len(raw))
    found = mixed(start, {"models": [start, *models], "losses": losses, "lengths": lengths})
    return dict(zip(raw, found["w"].tolist(), strict=True))


def test_fedfomo_golden_rounds():
    rows = torch.eye(3, dtype=torch.float64)
    for number in (1, 2, 3):
        federation, servers = golden(number)
        wanted = GOLD["fedfomo"]["out"][f"round{number}"]
        for client, tree in wanted["own"].items():
            state = federation.states[int(client)]
            assert matches(state["model"], tree, tolerance=1e-5)
            assert matches(state["base"], wanted["start"][client], tolerance=1e-5)
            raw = wanted["weights"][client]["raw"]
            for other, weight in raw.items():
                rows[int(client), int(other)] += weight
            used = mixed_shares(wanted["weights"][client]["raw"])
            assert used == pytest.approx(wanted["weights"][client]["used"], abs=1e-6)
        assert abs(fingerprint_fedfomo(federation, DRAWN[number - 1]) - wanted["probe"]) < 1e-5
        assert torch.allclose(servers[-1]["affinity"].double(), rows, rtol=0, atol=1e-4)
    assert torch.allclose(
        rows, torch.tensor(GOLD["fedfomo"]["out"]["affinity"], dtype=torch.float64), rtol=0, atol=1e-6
    )
    others = mistakes(GOLD["fedfomo"], *(name for name in GOLD["fedfomo"] if "flbench" in name))
    assert all(abs(fingerprint_fedfomo(federation) - value) > 1e-4 for value in others)


def test_golden_base_of_its_own_latest_and_squared_lengths():
    assert (
        abs(fingerprint_fedfomo(golden(3, base="own")[0]) - GOLD["fedfomo"]["flbench_base_is_own_latest_probe"]) < 1e-5
    )
    assert abs(fingerprint_fedfomo(golden(3, norm="squared")[0]) - GOLD["fedfomo"]["WRONG_norm_squared"]) < 1e-5


@pytest.mark.parametrize(("norm", "name"), [("l1", "l1"), ("squared", "l2"), ("by_tensor", "l2_root")])
def test_golden_lengths_of_the_released_code(norm, name):
    _, servers = golden(2, norm=norm)
    for other, weight in GOLD["fedfomo"]["authors_raw_of_client_1_in_round_2"][name].items():
        assert abs(float(servers[-1]["affinity"][1, int(other)]) - weight) < 2e-5


def test_validation_samples_are_the_golden_ones_and_never_train():
    federation, _ = golden(1)
    part, streams = federation.method._validation(), federation.tasks[0].streams
    for client, rows in GOLD["fedfomo"]["validation_rows"].items():
        indices = torch.arange(WORLD["n"][int(client)])
        assert part.of(indices, streams, int(client)).tolist() == rows
        trains = part.others.of(indices, streams, int(client)).tolist()
        assert sorted([*trains, *rows]) == indices.tolist()


def test_raw_weights_by_hand():
    losses, lengths = torch.tensor([2.0, 1.0, 3.0, math.nan, 0.5]), torch.tensor([0.0, 2.0, 4.0, 1.0, math.inf])
    assert raw_weights(losses, lengths).tolist() == [0, 0.5, -0.25, 0, 0]
    base, change = (
        {"w": torch.zeros(2), "b": torch.zeros(1)},
        {"w": torch.tensor([3.0, -4.0]), "b": torch.tensor([12.0])},
    )
    lengths = [length_of(change, base, norm) for norm in ("l2", "l1", "squared", "by_tensor")]
    assert lengths == [13, 19, 169, 17]


def test_a_mix_ignores_the_scale_of_losses_and_stays_without_gain():
    models = [{"w": torch.tensor([value])} for value in (0.0, 1.0, 4.0)]
    consts = {"models": models, "lengths": torch.tensor([0.0, 1.0, 4.0])}
    one = mixed(models[0], consts | {"losses": torch.tensor([1.0, 0.5, 0.0])})
    assert float(one["w"]) == pytest.approx((0.5 * 1 + 0.25 * 4) / 0.75)
    tenfold = mixed(models[0], consts | {"losses": torch.tensor([10.0, 5.0, 0.0])})
    assert torch.allclose(one["w"], tenfold["w"])
    assert same_tree(mixed(models[0], consts | {"losses": torch.tensor([1.0, 1.5, 2.0])}), models[0])


def test_a_client_gets_the_models_it_likes_best_or_drawn_ones():
    toy = world(configured("fedfomo", models=2, explore=0.0), LABELS_FEDFOMO)
    affinity = torch.tensor([[1.0, -3.0, 5.0, 2.0]] + [[0.0] * 4] * 3)
    server = {f"client.{k}": {"w": torch.tensor([k])} for k in range(4)} | {"affinity": affinity}

    def of(method, round_, client=0):
        return set(method.down(server, client, ServerContext(toy.task, round_, client=client)))

    assert of(toy.method, 2) == {"client.2", "client.3"}
    explores = configured("fedfomo", models=1, explore=1.0, explore_decay=0.5)
    found = {round_: of(explores, round_) for round_ in range(1, 4)}
    assert found[3] == {"client.2"}, "the probability has fallen to 0"
    falling, always = (configured("fedfomo", models=1, explore=1.0, explore_decay=decay) for decay in (1.0, 0.0))
    for client in range(4):  # in round 1 nothing has fallen, and in round 2 all of it
        assert of(falling, 1, client) == of(always, 1, client)
        assert of(falling, 2, client) == of(configured("fedfomo", models=1, explore=0.0), 2, client)
    many = configured("fedfomo", models=1, explore=1.0, explore_decay=0.0)
    assert {"client.1"} in [of(many, round_) for round_ in range(1, 20)]
    assert of(toy.method, 2, 9) <= {f"client.{k}" for k in range(4)}, "a newcomer likes nobody yet"
    everybody = configured("fedfomo", models=9)
    assert of(everybody, 2) == {"client.1", "client.2", "client.3"}


def test_without_models_to_mix_each_client_trains_alone():
    toy = after(world(configured("fedfomo"), LABELS_FEDFOMO, net=TinyBN), 1)
    assert all(same_tree(state["base"], toy.task.init) for state in toy.federation.states.values())
    assert furthest(toy.federation.states[0]["model"], toy.task.init) > 0


def test_it_says_when_nobody_gains():
    toy = after(world(configured("fedfomo"), LABELS_FEDFOMO, net=Tiny), 2)
    context = toy.federation.server_context()

    def codes(*rows):
        uploads = {k: {"raw": torch.tensor(row)} for k, row in enumerate(rows)}
        return [found.code for found in toy.method.diagnostics(toy.federation.server, uploads, context)]

    assert codes([2.0, -1.0], [-0.5, 1.0]) == ["fedfomo.alone"]
    assert codes([2.0, 1.0], [-0.5, 1.0]) == codes([1.0, 0.0], [0.0, 1.0]) == []
