"""Floco against golden numbers of two rounds and a projection; its points; degenerate settings; what it reports."""

import pytest
import torch

from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.floco import (
    ENDS,
    logits_at,
    principal_components,
    project_to_simplex,
    riesz_energy,
    spread_on_simplex,
)
from golden_world import SHARED_BASELINES, golden_run, matches, probe
from support import TinyBN, after, configured, same_bits, world

GOLD = SHARED_BASELINES["floco"]
FIRST_ENDS = torch.tensor(GOLD["options"]["ends"], dtype=torch.float64)
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [2, 2, 0, 1]]
FLOCO = METHODS.get("floco")


class Golden(FLOCO):
    """Begins with the golden ends, and takes the golden points."""

    def server_init(self, ctx):
        model = super().server_init(ctx)["model"]
        return super().server_init(ctx) | {"model": model | {"head.weight": FIRST_ENDS[0], ENDS: FIRST_ENDS[1:]}}

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        points = torch.tensor(GOLD["options"]["alphas"][ctx.round - 1][ctx.client], dtype=torch.float64)
        start.consts["points"] = iter(points)
        return start

    def point(self, z, consts):
        return next(consts["points"])


class AtTheMiddle(Golden):
    def point(self, z, consts):
        return torch.full((3,), 1 / 3, dtype=z.dtype)


def as_golden(server):
    model = server["model"]
    ends = {f"end{i}": value for i, value in enumerate(torch.cat([model["head.weight"][None], model[ENDS]]))}
    return model | ends


def fingerprint(server):
    return probe(as_golden(server), GOLD["out"]["round1"]["server"])


def test_golden_rounds():
    _, servers = golden_run(Golden, 2, ends=3, tau=9)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(as_golden(server), wanted["server"])
        assert abs(fingerprint(server) - wanted["probe"]) < 1e-7
    mistaken = fingerprint(golden_run(AtTheMiddle, 2, ends=3, tau=9)[1][-1])
    assert abs(mistaken - GOLD["WRONG_always_the_centre"]) < 1e-7
    assert abs(fingerprint(servers[-1]) - mistaken) > 1e-3


def test_golden_projection():
    wanted = GOLD["projection"]
    centres = spread_on_simplex(torch.tensor(GOLD["options"]["kappa"], dtype=torch.float64))
    assert torch.allclose(centres, torch.tensor(wanted["centres"], dtype=torch.float64), rtol=0, atol=1e-8)
    assert abs(riesz_energy(centres) - wanted["energy"]) < 1e-8
    size = wanted["z"]
    at_size = project_to_simplex(torch.tensor(GOLD["options"]["kappa"], dtype=torch.float64), size) / size
    assert torch.allclose(centres, at_size, rtol=0, atol=1e-7)


def test_a_projection_is_nearest_and_components_keep_distances():
    rows = torch.tensor([[0.2, 0.9, -0.4], [5.0, 5.0, 5.0]], dtype=torch.float64)
    near = project_to_simplex(rows, 1.0)
    assert torch.allclose(near, torch.tensor([[0.15, 0.85, 0.0], [1 / 3] * 3], dtype=torch.float64))
    assert torch.equal(spread_on_simplex(rows[:1]), near[:1])
    points = torch.tensor([[1.0, 0.0, 2.0, 1.0], [0.0, 3.0, 1.0, 0.0], [2.0, 2.0, 0.0, 5.0]], dtype=torch.float64)
    scores = principal_components(points, 4)
    assert torch.allclose(torch.pdist(scores), torch.pdist(points))
    assert not scores[:, 2:].any(), "three points span two directions"
    assert torch.allclose(scores.sum(0), torch.zeros(4, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(principal_components(points[[2, 0, 1]], 4), scores[[2, 0, 1]])


def test_equal_ends_give_the_same_output_everywhere():
    toy = world(configured("floco", ends=3), LABELS)
    with torch.no_grad():
        toy.net.extra.ends.copy_(toy.net.head.weight.expand(2, -1, -1))
    z = torch.randn(5, 6)
    one, other = (logits_at(toy.net, z, torch.tensor(point)) for point in ([0.2, 0.3, 0.5], [1.0, 0.0, 0.0]))
    assert torch.allclose(one, other, atol=1e-6)
    assert torch.allclose(one, toy.net.head(z), atol=1e-6)


def test_points_lie_on_the_simplex_and_then_around_the_centre():
    method, z = configured("floco", ends=4, rho=0.3), torch.zeros(1, 2)
    anywhere = torch.stack([method.point(z, {}) for _ in range(200)])
    assert torch.allclose(anywhere.sum(1), torch.ones(200))
    assert (anywhere >= 0).all()
    assert anywhere.max() > 0.8, "all of the simplex, ends included"
    centre = torch.tensor([1.0, 0.0, 0.0, 0.0])
    ways = torch.stack([method.point(z, {"centre": centre}) for _ in range(200)]) - centre
    lengths = ways.abs().sum(1)
    assert 0.25 < lengths.max() <= 0.3 + 1e-6
    assert lengths.min() < 0.05
    assert (ways < 0).any()
    assert (ways > 0).any()


def test_all_clients_train_in_the_round_before_tau_and_then_have_places():
    toy = after(world(configured("floco", ends=3, tau=3), LABELS, net=TinyBN, participation=0.5), 3)
    assert [len(report.participants) for report in toy.reports] == [2, 4, 2]
    server = toy.federation.server
    assert server["placed"].all()
    assert torch.allclose(server["centres"].sum(1), torch.ones(4))
    assert "centre" in toy.method.down(server, 1, toy.federation.server_context(1))
    tested = toy.method.predictors(server, {}, toy.federation.server_context(2))["personal"]
    x, net = toy.data.x[:3], toy.net.eval()
    at_centre = logits_at(net, net.features(x), server["centres"][2])
    assert torch.equal(tested.logits(net, x), at_centre)
    newcomer = toy.method.predictors(server, {}, toy.federation.server_context(9))["personal"]
    shared = toy.method.predictors(server, None, toy.federation.server_context())["global"]
    assert torch.equal(newcomer.logits(net, x), shared.logits(net, x))


def test_changes_of_another_length_or_not_finite_place_nobody():
    toy = world(configured("floco", ends=3, tau=2), LABELS)
    model, context = toy.federation.server["model"], ServerContext(toy.task, 1)
    good = torch.randn(3 * 4 * 6)
    ends = [good, good[:5], torch.full_like(good, torch.inf), -good]
    uploads = {k: {"model": model, "ends": change, "samples": 1} for k, change in enumerate(ends)}
    server = toy.method.aggregate(toy.federation.server, uploads, context)
    assert server["placed"].tolist() == [True, False, False, True]
    assert torch.equal(server["centres"][1:3], torch.full((2, 3), 1 / 3))


def test_without_rho_a_client_trains_at_its_centre():
    runs = [after(world(configured("floco", ends=3, tau=2, rho=0.0), LABELS, seed=seed), 1) for seed in (3, 3)]
    server = runs[0].federation.server
    assert same_bits(server, runs[1].federation.server)
    centre = server["centres"][1]
    assert torch.equal(runs[0].method.point(torch.zeros(1, 6), {"centre": centre}), centre)


@pytest.mark.parametrize(("options", "code"), [({"tau": 9}, "no_parts"), ({"tau": 2}, "few_clients")])
def test_it_says_before_the_run_what_the_parts_cannot_be(options, code):
    toy = world(configured("floco", **options), LABELS)
    assert [found.code for found in toy.federation.initial_diagnostics] == [f"floco.{code}"]


def test_it_says_when_all_clients_have_one_place():
    toy = after(world(configured("floco", ends=2, tau=2), LABELS), 1)
    context, server = toy.federation.server_context(), toy.federation.server
    assert toy.method.diagnostics(server, {}, context) == []
    (found,) = toy.method.diagnostics(server | {"centres": torch.full((4, 2), 0.5)}, {}, context)
    assert found.code == "floco.one_place"


@pytest.mark.parametrize(("rounds", "first"), [(10, 5), (7, 3), (5, 2), (1, 2)])
def test_parts_begin_after_half_of_the_rounds(rounds, first):
    task = world(configured("floco", ends=3), LABELS, rounds=rounds).task
    assert configured("floco", ends=3).first_round(task) == first
    assert configured("floco", ends=3, tau=4).first_round(task) == 4
    assert configured("floco", ends=1).first_round(task) > rounds + 1
