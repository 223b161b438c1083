"""CFL against golden numbers of three rounds, its bipartition, and when a cluster may split."""

from dataclasses import replace

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS
from fedloom.methods.cfl import bipartition, cluster_of
from fedloom.methods.parts.several_models import models_in
from golden_world import SHARED_BASELINES, golden_run, matches, mistakes, personal, probe
from support import TinyBN, Uniform, after, configured, same_tree, world

GOLD = SHARED_BASELINES["cfl"]
CFL = METHODS.get("cfl")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [0, 1, 2, 3]]
EVERYBODY = [[0, 1, 2]] * 3
EAGER = {"eps1": 1e9, "eps2": 0.0, "first_split": 1}


def fingerprint(federation):
    """Client k's model counts k + 1 times."""
    return sum((k + 1) * probe(personal(federation, k)) for k in range(3))


def test_momentum_of_one_model_is_refused():
    with pytest.raises(ConfigError, match=r"cfl\+servermomentum: .* moves one model, and every cluster has its own"):
        world(configured("cfl+servermomentum"), [[0, 1]] * 4)


def test_golden_rounds():
    for rounds in (1, 2, 3):
        federation, servers = golden_run(CFL, rounds, drawn=EVERYBODY, **GOLD["options"])
        server, wanted = servers[-1], GOLD["out"][f"round{rounds}"]
        assert matches({"": server["similarity"]}, {"": wanted["similarity"]}, tolerance=1e-6)
        groups = [[k for k in range(3) if cluster_of(server, k) == number] for number in range(3)]
        assert sorted(group for group in groups if group) == sorted(wanted["clusters"])
        assert sorted(client for norm in wanted["norms"] for client in norm["clients"]) == EVERYBODY[0]
        for client, model in wanted["models"].items():
            assert matches(personal(federation, int(client)), model)
        assert abs(fingerprint(federation) - wanted["probe"]) < 1e-6
        assert server["mean_norm"] == pytest.approx(min(norm["mean_norm"] for norm in wanted["norms"]), abs=1e-7)
        assert server["max_norm"] == pytest.approx(max(norm["max_norm"] for norm in wanted["norms"]), abs=1e-7)
    assert all(abs(fingerprint(federation) - value) > 1e-5 for value in mistakes(GOLD))


@pytest.mark.parametrize(
    ("options", "name"), [({"weights": "samples"}, "size_weights_probe"), ({"eps1": 0.0}, "never_split_probe")]
)
def test_golden_variants(options, name):
    federation, _ = golden_run(CFL, 3, drawn=EVERYBODY, **{**GOLD["options"], **options})
    assert abs(fingerprint(federation) - GOLD[name]) < 1e-6


@pytest.mark.parametrize("linkage", ["complete", "single"])
def test_golden_bipartition(linkage):
    gold = GOLD["bipartition"]
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
