"""Methods with data or training at the server, or guided by it: golden numbers, what is drawn, limits."""

import dataclasses
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import get_table
from fedloom.data.dataset import Dataset
from fedloom.methods import METHODS, Collect
from fedloom.methods.contract.phases import Batch, Train
from fedloom.methods.feddf import model_of
from fedloom.methods.fedgen import crowding, generated
from fedloom.methods.fedl2g import GUIDING
from golden_world import (
    CLASS_KNOWLEDGE,
    WORLD,
    golden_entries,
    golden_run,
    matches,
    noting_uploads,
    personal,
    probe,
    refuted,
)
from support import (
    ENGINES,
    Tiny,
    TinyBN,
    after,
    configured,
    dataset,
    furthest,
    handmade,
    mixed,
    same_bits,
    same_tree,
    world,
)

GOLD = golden_entries("fedmd feddf fedgen")


# -- fedmd -------------------------------------------------------------------------------------------------------------
FEDMD = METHODS.get("fedmd")
LABELS_FEDMD = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]
RUN_FEDMD = {
    "digest_epochs": GOLD["fedmd"]["options"]["digest_steps"],
    "digest_lr": GOLD["fedmd"]["options"]["digest_lr"],
}


class GoldenFedmd(FEDMD):
    """FedMD whose clients begin with the golden world's own first weights."""

    def client_init(self, ctx):
        first = GOLD["fedmd"]["first"][str(ctx.client)]
        return {"model": {name: torch.tensor(value, dtype=torch.float64) for name, value in first.items()}}


class TwoExchanges(GoldenFedmd):
    """The paper's order: of two rounds with the same participants, the first only asks for logits."""

    def phases(self, start, ctx):
        phases = super().phases(start, ctx)
        return [p for p in phases if ctx.round % 2 == 0 or isinstance(p, Collect)]


NAMES = [f"{client}.{name}" for client in range(3) for name in WORLD["init"]]


def joined(federation):
    """The nets of all clients, which the golden probes cover, as one tree."""
    return {f"{client}.{name}": value for client in range(3) for name, value in personal(federation, client).items()}


def own_nets(federation, entry, tolerance):
    return all(matches(personal(federation, int(k)), own, tolerance=tolerance) for k, own in entry["own"].items())


def test_golden_rounds_of_one_exchange():
    federation, servers = golden_run(GoldenFedmd, **RUN_FEDMD)
    entry = GOLD["fedmd"]["one_exchange"]
    for number in (1, 2):
        wanted = entry[f"round{number + 1}"]["consensus"]
        assert matches({"": servers[number - 1]["consensus"]}, {"": wanted}, tolerance=2e-6)
    assert own_nets(federation, entry, 2e-6)
    for number in (1, 2, 3):
        after_it, _ = golden_run(GoldenFedmd, number, **RUN_FEDMD)
        assert abs(probe(joined(after_it), NAMES) - entry[f"round{number}"]["probe"]) < 2e-6


@pytest.mark.parametrize(("entry", "distance"), [("out", "absolute"), ("squared", "squared")])
def test_golden_rounds_of_two_exchanges(entry, distance):
    drawn = [participants for participants in WORLD["rounds"] for _ in range(2)]
    federation, servers = golden_run(TwoExchanges, drawn=drawn, distance=distance, **RUN_FEDMD)
    for number in range(3):
        wanted = GOLD["fedmd"][entry][f"round{number + 1}"]["consensus"]
        assert matches({"": servers[2 * number]["consensus"]}, {"": wanted}, tolerance=2e-6)
    assert own_nets(federation, GOLD["fedmd"][entry], 2e-6)
    for number in (1, 2, 3):
        after_it, _ = golden_run(TwoExchanges, 2 * number, drawn=drawn, distance=distance, **RUN_FEDMD)
        assert abs(probe(joined(after_it), NAMES) - GOLD["fedmd"][entry][f"round{number}"]["probe"]) < 2e-6
    assert refuted(joined(federation), GOLD["fedmd"], NAMES)


def test_clients_draw_first_weights_of_their_own():
    ctx = SimpleNamespace(task=SimpleNamespace(fresh=lambda client: {"w": torch.tensor(client)}), client=2)
    assert int(configured("fedmd", "authors").client_init(ctx)["model"]["w"]) == 2


def test_findings():
    toy = world(handmade("fedmd"), LABELS_FEDMD)
    assert [found.code for found in toy.method.examine([toy.task], 3)] == ["fedmd.alike_nets"]
    assert configured("fedmd", "authors").examine([toy.task], 3) == []
    assert not any(isinstance(phase, Train) and phase.on == "received" for phase in toy.worker.begin(toy.job(0)).phases)


# -- feddf -------------------------------------------------------------------------------------------------------------
FEDDF = METHODS.get("feddf")
LABELS_FEDDF = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
PLAIN = {"server_optimizer": "sgd", "cosine": False, "server_batch_size": None}


def test_feddf_golden_rounds():
    _, servers = golden_run(FEDDF, rounds=2, **GOLD["feddf"]["options"], **PLAIN)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["feddf"]["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=5e-9)
        assert abs(probe(server["model"]) - wanted["probe"]) < 5e-8
    assert refuted(servers[-1]["model"], GOLD["feddf"])


def test_labels_at_the_server_are_never_read():
    public = dataset([0, 1, 2, 3, 0])
    other = dataclasses.replace(public, y=torch.full((5,), -7), classes=("unknown",))
    toys = [after(world(configured("feddf"), LABELS_FEDDF, public=data), 2) for data in (public, other)]
    assert same_bits(*(toy.federation.server for toy in toys))


def test_each_architecture_is_taught_by_all():
    torch.manual_seed(0)
    federation = mixed(configured("feddf", steps=20), [Tiny(), TinyBN()], LABELS_FEDDF, participation=0.5)
    federation.method.select = lambda server, count, ctx: [[0, 2], [1, 2], [0, 3]][ctx.round - 1]
    federation.step()
    assert model_of(1) not in federation.server  # nobody with the second net took part
    first = federation.job(1, 2)
    assert first.payload == {}
    assert same_tree(federation.method.begin(first.payload, {}, first.ctx).tree, federation.tasks[1].init)
    federation.step()
    own = federation.engine.done[-2]
    assert own.client == 1
    taught, sent = federation.server[model_of(1)], own.upload["model"]
    assert list(taught) == list(federation.tasks[1].init)
    assert 1e-4 < furthest(taught, sent) < 1.0  # the mean of one upload, moved towards both
    federation.step()
    assert same_tree(federation.engine.jobs[-1].payload["model"], taught)
    assert federation.method.predictors(federation.server, {}, federation.server_context(1)).keys() == {"personal"}


@pytest.mark.parametrize("wrapper", ["dw", "topk"])
def test_a_wrapper_takes_one_architecture(wrapper):
    after(world(METHODS.get(f"feddf+{wrapper}").configured("sound", {"steps": 3}), LABELS_FEDDF), 2)
    with pytest.raises(
        ConfigError, match=rf"feddf\+{wrapper}: a wrapper works on one architecture, the clients have 2"
    ):
        mixed(configured(f"feddf+{wrapper}"), [Tiny(), TinyBN()], LABELS_FEDDF)


def test_what_the_server_lacks_is_one_line():
    toy = world(configured("fedavg"), LABELS_FEDDF)
    with pytest.raises(
        ConfigError, match=r"feddf needs data at the server, and it has none: set scenario\.public"
    ) as said:
        type(toy.federation)(configured("feddf"), toy.federation.engine, [toy.task], toy.scenario, participation=1.0)
    assert "\n" not in str(said.value)
    nothing = Dataset(toy.data.x[:0], toy.data.y[:0], toy.data.classes)
    with pytest.raises(ConfigError, match="it has none"):
        world(configured("feddf"), LABELS_FEDDF, public=nothing)


# -- fedgen ------------------------------------------------------------------------------------------------------------
ROUNDED = 5e-9 + 1e-10  # half of the golden file's last digit, and the rounding of float64 in our sums
FEDGEN = METHODS.get("fedgen")
LABELS_FEDGEN = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 2, 2, 0, 1], [0], [2, 2, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
SMALL = {"noise": 2, "hidden": 4, "server_lr": GOLD["fedgen"]["options"]["lr"], "server_steps": 2, "adam": False}


def exactly(values):
    return torch.tensor(values, dtype=torch.float64)


class GoldenFedgen(FEDGEN):
    """Begins with the golden generator, draws the golden noise and labels, and keeps clients' weights and losses."""

    def server_init(self, ctx):
        given = {name: exactly(value) for name, value in GOLD["fedgen"]["generator_init"].items()}
        return super().server_init(ctx) | {"generator": given}

    def drawn(self, counts, rng):
        return exactly(GOLD["fedgen"]["options"]["noise"]), torch.tensor(GOLD["fedgen"]["options"]["labels"])


class FromTheFirstWeights(GoldenFedgen):
    """Clients begin with the first weights in every round, and make one step in the second."""

    def begin(self, payload, state, ctx):
        return super().begin(payload | {"model": ctx.task.init}, state, ctx)

    def phases(self, start, ctx):
        return [replace(phase, steps=1 if ctx.round == 2 else None) for phase in super().phases(start, ctx)]


def test_golden_generator():
    _, (server,) = golden_run(GoldenFedgen, rounds=1, **SMALL)
    assert matches(server["generator"], GOLD["fedgen"]["generator"], tolerance=ROUNDED)
    assert not matches(server["generator"], GOLD["fedgen"]["generator_init"], tolerance=1e-3)


def test_golden_client():
    _, servers = golden_run(FromTheFirstWeights, drawn=[[0, 2], [0]], **SMALL)
    assert matches(servers[-1]["model"], GOLD["fedgen"]["client"], tolerance=ROUNDED)


def test_the_first_loss_weighs_heads_by_who_holds_the_class():
    """By hand, from the golden heads after training: class 1 has no holder, and adds nothing."""
    seen = []

    class Noting(GoldenFedgen):
        def aggregate(self, server, uploads, ctx):
            noise, labels = self.drawn(None, None)
            z = generated(server["generator"], noise, labels)
            total = torch.zeros(len(labels), dtype=torch.float64)
            held = torch.tensor(WORLD["class_counts"]).double()
            for client, upload in uploads.items():
                head = upload["model"]
                each = torch.nn.functional.cross_entropy(
                    z @ head["head.weight"].T + head["head.bias"], labels, reduction="none"
                )
                total += held[client][labels] / held[list(uploads)].sum(0)[labels].clamp(min=1) * each
            seen.append(float(total.mean()))
            return super().aggregate(server, uploads, ctx)

    golden_run(Noting, rounds=1, **SMALL)
    assert seen[0] == pytest.approx(GOLD["fedgen"]["first_loss"], abs=ROUNDED)


def test_classes_that_no_participant_holds_are_not_drawn():
    method = configured("fedgen", draws=500)
    noise, labels = method.drawn(torch.tensor([6, 0, 2, 0]), np.random.default_rng(0))
    counts = torch.bincount(labels, minlength=4)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert 320 < int(counts[0]) < 430  # three of four
    assert noise.shape == (500, 32)
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)


def test_generated_features_reach_the_head_alone():
    toy = after(world(configured("fedgen"), LABELS_FEDGEN, net=TinyBN), 1)
    job = toy.job(1, round_=2)
    start = toy.method.begin(job.payload, {}, job.ctx)
    assert start.consts["z"].shape == (32, 6)
    terms = toy.method.loss(toy.net, Batch(*toy.samples(1)), start.consts).terms
    gradients = torch.autograd.grad(terms["ce_generated"], list(toy.net.parameters()), allow_unused=True)
    moved = {n for (n, _), g in zip(toy.net.named_parameters(), gradients, strict=True) if g is not None}
    assert moved == {"head.weight", "head.bias"}
    other = toy.job(3, round_=2)
    assert not torch.equal(toy.method.begin(other.payload, {}, other.ctx).consts["z"], start.consts["z"])


def test_the_generator_learns_what_the_heads_call_a_class():
    toy = after(world(configured("fedgen", server_steps=300, server_lr=1e-2), LABELS_FEDGEN), 1)
    server, labels = toy.federation.server, torch.tensor([0, 1, 2] * 20)
    z = generated(server["generator"], torch.randn(60, 32, generator=torch.Generator().manual_seed(0)), labels)
    said = (z @ server["model"]["head.weight"].T + server["model"]["head.bias"]).argmax(1)
    assert float((said == labels).float().mean()) > 0.9


def test_crowding_by_hand():
    noise, z = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0], [2.0]])
    assert float(crowding(noise, z)) == pytest.approx(np.exp(-(5 * 2 + 5 * 2) / 4))
    assert float(crowding(noise, torch.zeros(2, 1))) == 1.0


# -- fedl2g ------------------------------------------------------------------------------------------------------------
FEDL2G = METHODS.get("fedl2g")
GOLDEN_FEDL2G = CLASS_KNOWLEDGE["fedl2g"]
LABELS_FEDL2G = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
RUN_FEDL2G = {**GOLDEN_FEDL2G["options"], "drawn_quiz": False}


def golden_kind(entry):
    class Golden(FEDL2G):
        def server_init(self, ctx):
            return {"guiding": torch.tensor(entry["first_guiding"], dtype=torch.float64)}

    return Golden


@pytest.mark.parametrize("guides", ["logits", "features"])
def test_fedl2g_golden_rounds(guides):
    entry = GOLDEN_FEDL2G[guides]
    kind, uploads = noting_uploads(golden_kind(entry))
    federation, servers = golden_run(kind, guides=guides, **RUN_FEDL2G)
    for number, server in enumerate(servers, 1):
        wanted = entry["out"][f"round{number}"]
        assert matches(server, {"guiding": wanted["guiding"]})
        assert abs(probe(server, ["guiding"]) - wanted["probe"]) < 1e-6
        tables = [get_table(upload, "guiding") for upload in uploads[f"round{number}"].values()]
        assert torch.stack([table.held for table in tables]).any(0).tolist() == wanted["held"]
    for client, own in entry["out"]["own"].items():
        assert matches(personal(federation, int(client)), own)
        assert abs(probe(personal(federation, int(client))) - entry["out"]["own_probes"][client]) < 1e-6
    assert refuted(servers[-1], entry, ["guiding"])


def test_without_rate_the_vectors_stand_still_and_the_run_says_so():
    toy = after(world(configured("fedl2g", server_lr=0.0), LABELS_FEDL2G, net=TinyBN), 2)
    assert torch.equal(toy.federation.server["guiding"], toy.task.init[GUIDING])
    assert "fedl2g.vectors_stand_still" in [one.code for one in toy.reports[0].diagnostics]


def test_only_classes_of_the_study_set_are_sent_and_a_single_sample_sends_none():
    toy = world(configured("fedl2g", quiz=1), LABELS_FEDL2G, net=Tiny)
    for client in range(4):
        held = get_table(toy.worker.run(toy.job(client)).upload, "guiding").held
        labels = {*LABELS_FEDL2G[client]} if len(LABELS_FEDL2G[client]) > 1 else set()
        assert {*held.nonzero()[:, 0].tolist()} <= labels
        assert bool(held.any()) == (client < 3)


def test_while_it_warms_up_only_the_vectors_learn():
    toy = after(world(configured("fedl2g", warm_up=1), LABELS_FEDL2G[:3], net=TinyBN), 1)
    for client in range(3):
        private = {name: value for name, value in toy.task.init.items() if name != GUIDING}
        assert same_tree(toy.federation.states[client]["model"], private)
    assert not torch.equal(toy.federation.server["guiding"], toy.task.init[GUIDING])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_with_one_sample_waits_for_the_end_of_the_warm_up(engine):
    toy = after(world(configured("fedl2g", warm_up=1), LABELS_FEDL2G, net=Tiny), 1, engine)
    state = toy.federation.states[3]["model"]
    assert all(torch.equal(value, toy.task.init[name]) for name, value in state.items())
    later = after(world(configured("fedl2g", warm_up=1), LABELS_FEDL2G, net=Tiny), 2, engine).federation.states[3][
        "model"
    ]
    assert not any(torch.equal(value, toy.task.init[name]) for name, value in later.items())


def test_quiz_samples_never_train():
    method, seen = configured("fedl2g", quiz=2), []
    loss = method.loss
    method.loss = lambda net, batch, consts: seen.extend(batch.x.tolist()) or loss(net, batch, consts)
    toy = after(world(method, [LABELS_FEDL2G[2]], net=Tiny, rounds=3), 3)
    rows = [row for row in toy.samples(0)[0].tolist() if row in seen]
    assert len(rows) == 4
