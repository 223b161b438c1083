"""pFedFDA against golden numbers of two rounds, personal heads and the choice of beta; its degenerate settings."""

import pytest
import torch

from fedloom.methods import METHODS, Start
from fedloom.methods.pfedfda import Gaussians, gaussians_of, halves, held_out_loss, least_in_unit_box, smoothed_shares
from golden_world import CLASS_KNOWLEDGE, CLASSES, WIDTH, WORLD, GoldenNet, golden_run, matches, probe, refuted
from support import TinyBN, after, configured, world

GOLD = CLASS_KNOWLEDGE["pfedfda"]
PFEDFDA = METHODS.get("pfedfda")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
NAMES = ["fc.weight", "fc.bias", "means", "covariance"]
FIRST = torch.tensor(GOLD["first_means"], dtype=torch.float64)
EYE = torch.eye(WIDTH, dtype=torch.float64)
RIDGES = {"identity": 1e-4 + EYE, "small": 1e-4 * EYE}


class Golden(PFEDFDA):
    """pFedFDA that begins with the golden world's means, and whose predictors are asked for after round 2."""

    def server_init(self, ctx):
        return super().server_init(ctx) | {"means": FIRST}


def golden(ridge, **options):
    given = {name: GOLD["options"][name] for name in ("beta", "eps")} | options
    return golden_run(Golden, drawn=GOLD["options"]["rounds"], ridge=ridge, mask_unknown=False, **given)


def covered(server):
    return server["model"] | {name: server[name] for name in ("means", "covariance")}


def personal_head(federation, client):
    """The head of a client's test, after its statistics pass."""
    worker, facts = federation.engine.worker, federation.client_context(client, federation.round)
    offered = federation.method.predictors(federation.server, {}, federation.server_context(client))
    indices = federation.scenario.train.tensor(client)
    tested, _ = worker.adapt(worker.loaded_nets[0], offered["personal"], facts, indices)
    return tested.tree


@pytest.mark.parametrize(("entry", "ridge"), [("out", "identity"), ("small_ridge", "small")])
def test_golden_rounds_and_personal_heads(entry, ridge):
    federation, servers = golden(ridge)
    wanted = GOLD[entry]
    for number, server in enumerate(servers, 1):
        expected = wanted[f"round{number}"]
        assert matches(server["model"], expected["server"])
        assert matches(covered(server), {"means": expected["means"], "covariance": expected["cov"]})
        assert abs(probe(covered(server), NAMES) - expected["probe"]) < 1e-6
    heads = wanted["personal_heads"] if "personal_heads" in wanted else GOLD["personal_heads"]
    for client, head in heads.items():
        assert matches(personal_head(federation, int(client)), head, tolerance=1e-6)
    assert refuted(covered(servers[-1]), GOLD, NAMES)


def test_golden_of_features_after_training():
    _, servers = golden("identity", features_from="after_training")
    assert abs(probe(covered(servers[-1]), NAMES) - GOLD["after_training_probe"]) < 1e-6


@pytest.mark.parametrize("client", [int(client) for client in GOLD["validation"]["values"]])
def test_golden_choice_of_beta(client):
    x, y = torch.tensor(WORLD["x"][client], dtype=torch.float64), torch.tensor(WORLD["y"][client])
    z, priors = GoldenNet().features(x).detach(), smoothed_shares(y.bincount(minlength=CLASSES), 1e-4)
    held = torch.ones(CLASSES, dtype=torch.bool)
    loss = held_out_loss(z, y, Gaussians(FIRST, EYE), RIDGES["identity"], lambda found: found.head(priors, 1e-4, held))
    values = [float(loss(torch.tensor(tried, dtype=torch.float64))) for tried in GOLD["validation"]["tried"]]
    assert values == pytest.approx(GOLD["validation"]["values"][str(client)], abs=1e-7)
    best = float(least_in_unit_box(loss, torch.tensor([0.5], dtype=torch.float64)))
    assert best == pytest.approx(GOLD["validation"]["best"][str(client)], abs=1e-4)


def test_the_search_for_shares_ends_where_features_are_huge():
    """Along (1, -1) nothing changes, and along (1, 1) so much that a small multiple of the identity is lost."""

    def valley(shares: torch.Tensor) -> torch.Tensor:
        return 1e20 * (shares.sum() - 0.75).square()

    def ridge(shares: torch.Tensor) -> torch.Tensor:
        return -1e20 * (shares.sum() - 0.75).square()

    start = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert float(ridge(least_in_unit_box(ridge, start))) < float(ridge(start))
    assert float(valley(least_in_unit_box(valley, start))) < float(valley(start))
    assert least_in_unit_box(lambda shares: (shares - 2).log().sum(), start).tolist() == [0.5, 0.5]


def test_halves_take_the_samples_of_a_class_in_turn():
    assert halves(torch.tensor([3, 1, 3, 3, 0, 1])).tolist() == [0, 0, 1, 0, -1, 1]
    assert halves(torch.tensor([2, 0, 1])) is None


def test_a_single_feature_has_the_ridge_as_its_covariance():
    found = gaussians_of(torch.ones(1, 5), torch.tensor([1]), FIRST, RIDGES["small"])
    assert torch.equal(found.covariance, RIDGES["small"])
    assert found.means[1].tolist() == [1.0] * 5
    assert torch.equal(found.means[0], FIRST[0])


def test_with_beta_0_the_gaussians_never_move_and_heads_differ_in_their_bias_alone():
    toy = after(world(configured("pfedfda", beta=0.0), LABELS, net=TinyBN), 2)
    first = toy.method.server_init(toy.federation.server_context())
    for name in ("means", "covariance"):
        assert torch.allclose(toy.federation.server[name], first[name], atol=1e-6)
    starts = [toy.method.begin(job.payload, {}, job.ctx).tree for job in map(toy.job, (0, 1))]
    assert torch.equal(starts[0]["head.weight"], starts[1]["head.weight"])
    assert not torch.equal(starts[0]["head.bias"], starts[1]["head.bias"])


def test_a_class_that_nobody_holds_is_never_predicted():
    toy = after(world(configured("pfedfda"), LABELS, net=TinyBN), 2)
    for client in range(4):
        assert float(personal_head(toy.federation, client)["head.bias"][3]) < -1e3
    assert toy.federation.server["held"].tolist() == [True, True, True, False]


def test_findings_and_refusals():
    toy = world(configured("pfedfda"), LABELS)
    server = toy.federation.server | {"betas": torch.ones(2)}
    (found,) = toy.method.diagnostics(server, {}, toy.federation.server_context())
    assert found.code == "pfedfda.beta_at_bound"
    assert "pfedfda.covariance_outweighs" not in [one.code for one in toy.method.examine([toy.task], 3)]
    assert toy.method.adapt(Start({}, {}), toy.job(0).ctx)
