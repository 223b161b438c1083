"""IFCA against golden numbers of three rounds; which model a client takes, and what a model that nobody takes does."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.methods import METHODS
from fedloom.methods.ifca import moved
from fedloom.methods.parts.several_models import draws_weights, models_in
from golden_world import EVERYBODY, SHARED_BASELINES, WORLD, GoldenNet, golden_run, matches, probe
from support import TinyBN, after, configured, furthest, same_tree, world

GOLD = SHARED_BASELINES["ifca"]
SECOND = SHARED_BASELINES["world"]["init_2"]
LABELS = [[0, 0, 0, 0, 1], [0, 0, 1, 0], [2, 2, 3, 2, 3, 2], [3, 3, 2]]
IFCA = METHODS.get("ifca")


class Golden(IFCA):
    """Begins with the two golden models."""

    def server_init(self, ctx):
        second = {name: torch.tensor(value, dtype=torch.float64) for name, value in SECOND.items()}
        return super().server_init(ctx) | {"model.1": second}


def fingerprint(server):
    """Of both models: the first counts once, the second twice."""
    first, second = models_in(server, GOLD["options"]["clusters"])
    return probe(first) + 2 * probe(second)


def test_golden_rounds():
    found = {}

    class Noting(Golden):
        def end(self, work, state, ctx):
            payload, state = super().end(work, state, ctx)
            found[ctx.round, ctx.client] = work.collected["losses"], payload["cluster"]
            return payload, state

    _, servers = golden_run(Noting, rounds=3)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        for model, tree in zip(models_in(server, GOLD["options"]["clusters"]), wanted["models"], strict=True):
            assert matches(model, tree)
        assert abs(fingerprint(server) - wanted["probe"]) < 1e-6
        for client, expected in wanted["losses"].items():
            losses, picked = found[number, int(client)]
            assert losses.tolist() == pytest.approx(expected, abs=1e-5)
            assert picked == wanted["picked"][client]
    assert abs(fingerprint(servers[-1]) - GOLD["WRONG_highest_loss"]) > 1e-3


def test_golden_uniform_mean():
    _, servers = golden_run(Golden, rounds=3, weights="uniform")
    assert abs(fingerprint(servers[-1]) - GOLD["uniform_probe"]) < 1e-6


def test_of_equal_starts_all_take_the_first_and_the_run_says_so():
    class Equal(IFCA):
        def server_init(self, ctx):
            return super().server_init(ctx) | {"model.1": ctx.task.init}

    toy = after(world(Equal(), LABELS), 1)
    assert same_tree(toy.federation.server["model.1"], toy.task.init)
    assert "ifca.one_model" in {found.code for report in toy.reports for found in report.diagnostics}


@pytest.mark.parametrize(("clusters", "taken", "reported"), [(2, [0, 0], True), (1, [0, 0], False), (2, [0], False)])
def test_one_cluster_or_one_participant_takes_one_model_by_itself(clusters, taken, reported):
    toy = world(configured("ifca", clusters=clusters), LABELS)
    uploads = {client: {"samples": 1, "cluster": cluster} for client, cluster in enumerate(taken)}
    found = toy.method.diagnostics(toy.federation.server, uploads, toy.federation.server_context())
    assert [diagnostic.code for diagnostic in found] == (["ifca.one_model"] if reported else [])


def test_a_model_that_nobody_took_stays_and_a_strange_number_is_left_out():
    toy = world(configured("ifca"), LABELS)
    server, change = toy.federation.server, {n: torch.ones_like(v) for n, v in toy.task.init.items()}
    uploads = {k: {"model": change, "samples": 1, "cluster": c} for k, c in ((0, 1), (1, 9))}
    new = toy.method.aggregate(server, uploads, toy.federation.server_context())
    assert same_tree(new["model"], server["model"])
    assert same_tree(new["model.1"], moved(server["model.1"], change))
    (found,) = toy.method.diagnostics(new, uploads, toy.federation.server_context())
    assert (found.code, found.figure) == ("ifca.unknown_model", 1)


def test_a_shared_body_is_the_mean_over_all():
    toy = after(world(configured("ifca", share_body=True), LABELS, net=TinyBN), 2)
    first, second = models_in(toy.federation.server, 2)
    same = {name: torch.equal(first[name], second[name]) for name in first}
    assert {name for name in first if not same[name]} == {"head.weight", "head.bias"}


def test_a_client_is_tested_with_the_model_that_fits_its_training_data():
    federation, _ = golden_run(Golden, rounds=3)
    live, worker = federation.engine.worker.net_of_client(0), federation.engine.worker
    for client in EVERYBODY:
        x, y = torch.tensor(WORLD["x"][client], dtype=torch.float64), torch.tensor(WORLD["y"][client])
        trees = models_in(federation.server, GOLD["options"]["clusters"])
        cluster = min(range(2), key=lambda j: float(cross_entropy(GoldenNet().functional.logits(trees[j], x), y)))
        ctx = federation.client_context(client, 3)
        offered = federation.method.predictors(federation.server, {}, federation.server_context(client))
        worker.adapt(live, offered["personal"], ctx, federation.train.tensor(client))
        assert same_tree({name: value.detach() for name, value in live.tree.items()}, trees[cluster])


def test_first_models_are_drawn_where_they_can_be():
    drawn, noisy = world(configured("ifca"), LABELS, net="mlp", shape=(1, 2, 2)), world(configured("ifca"), LABELS)
    assert not draws_weights(noisy.task)
    codes = [[found.code for found in toy.federation.initial_diagnostics] for toy in (drawn, noisy)]
    assert "ifca.noisy_starts" in codes[1]
    first, second = models_in(noisy.federation.server, 2)
    assert 0 < furthest(first, second) < 0.5
