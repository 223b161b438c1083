"""FedL2G against golden numbers of three rounds, for guided logits and for guided features; who sends which vectors."""

import pytest
import torch

from fedloom.core.records import get_table
from fedloom.methods import METHODS
from fedloom.methods.fedl2g import GUIDING
from golden_world import CLASS_KNOWLEDGE, golden_run, matches, noting_uploads, personal, probe, refuted
from support import ENGINES, Tiny, TinyBN, after, configured, same_tree, world

FEDL2G = METHODS.get("fedl2g")
GOLDEN = CLASS_KNOWLEDGE["fedl2g"]
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
RUN = {**GOLDEN["options"], "drawn_quiz": False}


def golden_kind(entry):
    class Golden(FEDL2G):
        def server_init(self, ctx):
            return {"guiding": torch.tensor(entry["first_guiding"], dtype=torch.float64)}

    return Golden


@pytest.mark.parametrize("guides", ["logits", "features"])
def test_golden_rounds(guides):
    entry = GOLDEN[guides]
    kind, uploads = noting_uploads(golden_kind(entry))
    federation, servers = golden_run(kind, guides=guides, **RUN)
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
    toy = after(world(configured("fedl2g", server_lr=0.0), LABELS, net=TinyBN), 2)
    assert torch.equal(toy.federation.server["guiding"], toy.task.init[GUIDING])
    assert "fedl2g.vectors_stand_still" in [one.code for one in toy.reports[0].diagnostics]


def test_only_classes_of_the_study_set_are_sent_and_a_single_sample_sends_none():
    toy = world(configured("fedl2g", quiz=1), LABELS, net=Tiny)
    for client in range(4):
        held = get_table(toy.worker.run(toy.job(client)).upload, "guiding").held
        labels = {*LABELS[client]} if len(LABELS[client]) > 1 else set()
        assert {*held.nonzero()[:, 0].tolist()} <= labels
        assert bool(held.any()) == (client < 3)


def test_while_it_warms_up_only_the_vectors_learn():
    toy = after(world(configured("fedl2g", warm_up=1), LABELS[:3], net=TinyBN), 1)
    for client in range(3):
        private = {name: value for name, value in toy.task.init.items() if name != GUIDING}
        assert same_tree(toy.federation.states[client]["model"], private)
    assert not torch.equal(toy.federation.server["guiding"], toy.task.init[GUIDING])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_with_one_sample_waits_for_the_end_of_the_warm_up(engine):
    toy = after(world(configured("fedl2g", warm_up=1), LABELS, net=Tiny), 1, engine)
    state = toy.federation.states[3]["model"]
    assert all(torch.equal(value, toy.task.init[name]) for name, value in state.items())
    later = after(world(configured("fedl2g", warm_up=1), LABELS, net=Tiny), 2, engine).federation.states[3]["model"]
    assert not any(torch.equal(value, toy.task.init[name]) for name, value in later.items())


def test_quiz_samples_never_train():
    method, seen = configured("fedl2g", quiz=2), []
    loss = method.loss
    method.loss = lambda net, batch, consts: seen.extend(batch.x.tolist()) or loss(net, batch, consts)
    toy = after(world(method, [LABELS[2]], net=Tiny, rounds=3), 3)
    rows = [row for row in toy.samples(0)[0].tolist() if row in seen]
    assert len(rows) == 4
