"""Heads and calibrations of a closing round: golden moments and heads, splits of samples, limits."""

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import get_table
from fedloom.core.tables import ClassTable
from fedloom.methods.ccvr import CCVR, Calibration, pooled, virtual_features
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Batch
from fedloom.methods.contract.sample_statistics import ClassCovariances
from fedloom.methods.fed3r import RidgeHead
from fedloom.methods.fedcgs import GaussianHead
from fedloom.methods.fedcof import CovarianceHead, covariances
from fedloom.methods.fedncm import MeansHead
from fedloom.methods.parts.one_shot import gaussian_head, shrunk
from golden_world import CLASS_KNOWLEDGE, CLASSES, EVERYBODY, WORLD, golden_entries, golden_run, matches, probe, refuted
from support import Recording, Through, Tiny, TinyBN, after, configured, same_bits, same_tree, world

GOLD = golden_entries("ccvr fedcgs fedcof")


# -- ccvr --------------------------------------------------------------------------------------------------------------
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 2, 2, 0, 1], [0], [2, 2, 2, 1, 0, 2, 2, 2, 1], [], [0, 0]]


def test_golden_moments_at_the_first_weights():
    seen = {}

    class Noting(Calibration):
        def aggregate(self, server, uploads, ctx):
            seen.update(uploads)
            return super().aggregate(server, uploads, ctx)

    class Golden(CCVR):
        def closing(self):
            return Noting(self.options)

    golden_run(Golden, rounds=1, lr=0.0)  # the round moves nothing
    assert list(seen) == EVERYBODY  # all clients, whoever took part
    for client, upload in seen.items():
        assert matches({"": get_table(upload, "means").values}, {"": GOLD["ccvr"]["means"][client]}, tolerance=2e-6)
        flat = [[number for row in matrix for number in row] for matrix in GOLD["ccvr"]["covariances"][client]]
        assert matches({"": get_table(upload, "covariances").values}, {"": flat}, tolerance=2e-6)
    means, covariances = pooled(seen)
    assert matches({"": means.values}, {"": GOLD["ccvr"]["pooled_means"]}, tolerance=2e-6)
    assert matches({"": covariances}, {"": GOLD["ccvr"]["pooled_covariances"]}, tolerance=2e-6)
    counts = torch.tensor(WORLD["class_counts"]).sum(0).double()
    biased = covariances * ((counts - 1) / counts).view(-1, 1, 1)  # GGEUR divides by the number of samples
    assert matches({"": means.values}, {"": CLASS_KNOWLEDGE["ggeur"]["means"]}, tolerance=2e-6)
    assert matches({"": biased}, {"": CLASS_KNOWLEDGE["ggeur"]["covariances"]}, tolerance=2e-6)


def test_pooled_moments_are_those_of_all_samples():
    rng, statistic = np.random.default_rng(0), ClassCovariances("z")
    z = torch.from_numpy(rng.normal(5, 2, (60, 3)))  # far from 0, where a difference of squares cancels
    y = torch.from_numpy(np.repeat([0, 1, 3], 20))
    parts = torch.tensor_split(torch.from_numpy(rng.permutation(59)), 3)  # the last sample of class 3 is a client's own
    uploads = {}
    for client, rows in enumerate([*parts, torch.tensor([59])]):
        counts = torch.bincount(y[rows], minlength=4)
        sums = torch.zeros(4, 3, dtype=torch.float64).index_add(0, y[rows], z[rows])
        covariances = statistic.result(statistic.add({}, z[rows], Batch(z[rows], y[rows]), 4))
        means = ClassTable.from_sums(sums, counts).to(torch.float32)
        uploads[client] = {"means": means, "covariances": covariances, "class_counts": counts}
    means, covariances = pooled(uploads)
    assert means.held.tolist() == [True, True, False, True]
    for label in (0, 1, 3):
        assert np.allclose(means.values[label], z[y == label].mean(0), atol=1e-6)
        assert np.allclose(covariances[label], np.cov(z[y == label].numpy().T), atol=1e-5)
    assert not covariances[2].any()


def test_padded_rows_and_batches_do_not_change_covariances():
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 2)))
    y, statistic = torch.tensor([0, 0, 0, 1, 1, 0, 2]), ClassCovariances("z")
    whole = statistic.result(statistic.add({}, z, Batch(z, y), 4))
    first = statistic.add({}, z[:3], Batch(z[:3], y[:3]), 4)
    rest, mask = torch.cat([z[3:], z[:2] + 9]), torch.tensor([True] * 4 + [False] * 2)
    parts = statistic.result(statistic.add(first, rest, Batch(rest, torch.cat([y[3:], y[:2]]), mask), 4))
    assert torch.allclose(whole.values, parts.values, atol=1e-6)
    assert whole.held.tolist() == [True, True, True, False]
    assert np.allclose(whole.values[0].view(2, 2), np.cov(z[[0, 1, 2, 5]].numpy().T), atol=1e-6)
    assert not whole.values[2:].any()  # one sample, and none


def test_virtual_features_have_the_moments_of_their_class():
    toy = world(configured("ccvr"), LABELS)
    values = torch.tensor([[1.0, -2.0], [0.0, 0.0], [4.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    held = torch.tensor([True, False, True, False])
    covariances = torch.zeros(4, 2, 2, dtype=torch.float64)
    covariances[0] = torch.tensor([[2.0, 1.0], [1.0, 1.5]])
    covariances[2] = torch.tensor([[1.0, 1.0], [1.0, 1.0]])  # singular
    z, labels = virtual_features(ClassTable(values, held), covariances, 40_000, ServerContext(toy.task, 6))
    assert labels.unique(return_counts=True)[1].tolist() == [40_000, 40_000]
    for label in (0, 2):
        drawn = z[labels == label]
        assert torch.allclose(drawn.mean(0), values[label], atol=0.03)
        assert np.allclose(np.cov(drawn.numpy().T), covariances[label], atol=0.05)


def test_virtual_features_move_little_when_a_covariance_does():
    """Eigenvectors of equal variances turn by any angle for the smallest change, and their signs are free."""
    toy = world(configured("ccvr"), LABELS)
    mean = ClassTable(torch.zeros(4, 6, dtype=torch.float64), torch.tensor([True, False, False, False]))
    plain = torch.eye(6, dtype=torch.float64).repeat(4, 1, 1)
    tilted = plain + 1e-9 * torch.from_numpy(np.random.default_rng(0).standard_normal((6, 6)))
    drawn = [virtual_features(mean, c + c.mT, 50, ServerContext(toy.task, 6))[0] for c in (plain, tilted)]
    assert torch.allclose(*drawn, atol=1e-6)


def test_ccvr_until_the_last_round_it_is_fedavg_and_then_the_head_alone_moves():
    ours, plain = (
        after(world(configured(name), LABELS, net=TinyBN, rounds=3, participation=0.5, engine=Recording), 2)
        for name in ("ccvr", "fedavg")
    )
    assert same_bits(ours.federation.server, plain.federation.server)
    for toy in (ours, plain):
        toy.federation.step()
    one, other = (toy.federation.server["model"] for toy in (ours, plain))
    head = ("head.weight", "head.bias")
    assert same_tree({n: v for n, v in one.items() if n not in head}, {n: v for n, v in other.items() if n not in head})
    assert all(not torch.equal(one[name], other[name]) for name in head)
    last = [done.client for done in ours.federation.engine.done][-5:]
    assert last == [0, 1, 2, 3, 5]  # everybody with data
    assert torch.isfinite(one["head.weight"]).all()


def test_calibration_mends_a_head_that_one_client_bent():
    """It calls everything class 0."""
    toy = world(
        configured("ccvr", server_lr=0.1, server_epochs=20),
        [[0] * 8 + [1] * 8, [2] * 8 + [3] * 8],
        net=TinyBN,
        rounds=1,
    )
    frozen = toy.net.functional

    def accuracy(tree):
        return float((frozen.logits(tree, toy.data.x).argmax(1) == toy.data.y).float().mean())

    bent = dict(toy.federation.server["model"])
    bent["head.bias"] = bent["head.bias"] + torch.tensor([5.0, 0, 0, 0])
    toy.federation.server = {"model": bent}
    toy.federation.method.select = lambda server, count, ctx: []  # nobody trains
    toy.federation.step()
    assert accuracy(bent) == 0.25
    assert accuracy(toy.federation.server["model"]) > 0.6


# -- fedcgs ------------------------------------------------------------------------------------------------------------
GAMMA = GOLD["fedcgs"]["options"]["gamma"]
HEAD = ("head.weight", "head.bias")


def golden_head(kind, clients=EVERYBODY, **options):
    """The head that a closing round makes at the first weights."""
    federation, _ = golden_run(kind, 1, drawn=[list(clients)], **options)
    return dict(federation.server["head"])


def final(toy):
    """The server's model as it is tested."""
    return toy.method.predictors(toy.federation.server, None, toy.federation.server_context())["global"].tree


@pytest.mark.parametrize(
    ("entry", "clients", "gamma"),
    [("out", EVERYBODY, GAMMA), ("without_client_1", (0, 2), GAMMA), ("gamma_0", EVERYBODY, 0.0)],
)
def test_fedcgs_golden_heads(entry, clients, gamma):
    if GOLD["fedcgs"][entry] is None:  # the covariance is nearly singular
        return
    head = golden_head(GaussianHead, clients, gamma=gamma)
    assert matches(head, {name: GOLD["fedcgs"][entry][name] for name in HEAD})
    finite = {name: torch.where(value == -1e6, 0.0, value) for name, value in head.items()}
    assert abs(probe(finite, HEAD) - GOLD["fedcgs"][entry]["probe"]) < 1e-7
    if entry == "out":
        assert refuted(head, GOLD["fedcgs"], HEAD)


def test_golden_covariance_within_classes():
    assert (
        abs(
            probe(golden_head(GaussianHead, gamma=GAMMA, covariance="within"), HEAD)
            - GOLD["fedcgs"]["within_classes_probe"]
        )
        < 1e-7
    )


def test_the_bias_of_a_ridge_head_masks_classes_that_nobody_holds():
    assert not golden_head(RidgeHead)["head.bias"].any()
    missing = golden_head(RidgeHead, (0, 2))
    absent = WORLD["held_by_one_client"]["E"]
    assert missing["head.bias"].tolist() == [-1e6 if class_ == absent else 0 for class_ in range(CLASSES)]


@pytest.mark.parametrize("name", ["fedcgs", "fed3r"])
def test_any_split_of_the_samples_gives_the_same_head(name):
    samples = [label for part in LABELS for label in part]
    heads = []
    for split in (LABELS, [samples], [samples[:2], samples[2:]]):
        toy = world(configured(name, body="first"), split, rounds=1)
        toy.federation.step()
        heads.append(final(toy))
    assert all(torch.allclose(heads[0][n], other[n], atol=1e-5) for other in heads[1:] for n in HEAD)


@pytest.mark.parametrize("name", ["fedcgs", "fedcof", "fedncm", "fed3r"])
def test_fedcgs_until_the_last_round_it_is_fedavg_and_then_the_head_alone_moves(name):
    ours, plain = (
        after(world(configured(n), LABELS, net=TinyBN, rounds=3, participation=0.5, engine=Recording), 2)
        for n in (name, "fedavg")
    )
    assert same_bits(ours.federation.server, plain.federation.server)
    for toy in (ours, plain):
        toy.federation.step()
    one, other = (final(toy) for toy in (ours, plain))
    assert same_tree({n: v for n, v in one.items() if n not in HEAD}, {n: v for n, v in other.items() if n not in HEAD})
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert [done.client for done in ours.federation.engine.done][-5:] == [0, 1, 2, 3, 5]  # everybody with data
    assert one["head.weight"].isfinite().all()
    assert not one["head.weight"][3].any()
    assert float(one["head.bias"][3]) == -1e6  # nobody holds class 3


@pytest.mark.parametrize("name", ["fedcgs", "fedcof", "fedncm", "fed3r"])
def test_a_body_that_comes_trained_stays_and_nothing_travels_before_the_end(name):
    toy = world(configured(name, body="first"), LABELS, net=TinyBN, rounds=2, engine=Recording)
    toy.federation.step()
    assert same_tree(toy.federation.server["model"], toy.task.init)
    assert all(job.payload == {} for job in toy.federation.engine.jobs)
    toy.federation.step()
    moved = final(toy)
    assert all(torch.equal(value, toy.task.init[n]) for n, value in moved.items() if n not in HEAD)
    right = (toy.net.functional.logits(moved, toy.data.x).argmax(1) == toy.data.y).float().mean()
    assert float(right) > 0.6


def test_dead_features_get_a_little_variance_and_are_reported():
    toy = world(configured("fedcgs", "authors", body="first"), LABELS, rounds=1, engine=Recording)
    with torch.no_grad():
        toy.task.init["fc.weight"][0], toy.task.init["fc.bias"][0] = 0.0, -1.0  # its ReLU is always 0
    toy.federation.server = {"model": toy.task.init}
    toy.federation.step()
    assert toy.federation.server["head"]["head.weight"].isfinite().all()
    closing = toy.method.closing()
    uploads = {done.client: done.upload for done in toy.federation.engine.done if "squares" in done.upload}
    found = closing.diagnostics(toy.federation.server, uploads, toy.federation.server_context())
    assert [diagnostic.code for diagnostic in found] == ["fedcgs.condition", "fedcgs.missing_classes"]


def test_a_diverged_run_keeps_its_model():
    upload = {"squares": torch.full((6, 6), torch.nan), "class_sums": torch.ones(4, 6), "class_shares": torch.ones(4)}
    toy = world(configured("fedcgs"), LABELS, net=Tiny)
    for name in ("fedcgs", "fed3r"):
        closing = configured(name).closing()
        after_it = closing.aggregate(
            toy.federation.server, {0: upload | {"samples": 4}}, toy.federation.server_context()
        )
        assert same_tree(after_it["model"], toy.task.init)


def test_refusals():
    with pytest.raises(ConfigError, match="fedcgs needs a head with a bias"):
        world(configured("fedcgs"), LABELS, net=lambda: Through(torch.eye(4, 5)))


@pytest.mark.parametrize("entry", [entry for entry in ("out", "without_client_1", "gamma_0") if GOLD["fedcgs"][entry]])
def test_golden_heads_of_golden_statistics(entry):
    counts = torch.tensor(WORLD["class_counts"]).double()
    counts = (counts[[0, 2]] if entry == "without_client_1" else counts).sum(0)
    gold = {
        name: torch.tensor(value, dtype=torch.float64)
        for name, value in GOLD["fedcgs"][entry].items()
        if name != "probe"
    }
    means, covariance = ClassTable(gold["means"], gold["held"].bool()), gold["covariance"]
    rows, bias = gaussian_head(means, covariance, counts / counts.sum())
    wanted = gold["head.weight"]
    size = len(covariance) * max(1.0, float(wanted.abs().max()))
    # of numbers with eight decimals; as residuals, a nearly singular covariance does not enlarge them
    residual = 1e-8 * size * max(1.0, float(covariance.abs().max()))
    assert torch.allclose(rows @ covariance, wanted @ covariance, rtol=0, atol=residual)
    assert torch.allclose(bias, gold["head.bias"], rtol=0, atol=residual * size)


def test_a_class_that_nobody_holds_is_never_predicted_and_has_a_finite_gradient():
    values = torch.tensor([[1.0, 0.0], [7.0, 7.0]], requires_grad=True)
    covariance = torch.eye(2, requires_grad=True)
    rows, bias = gaussian_head(ClassTable(values, torch.tensor([True, False])), covariance, torch.tensor([1.0, 0.0]))
    assert rows[1].tolist() == [0, 0]
    assert bias.tolist() == [-0.5, -1e6]
    (rows.sum() + bias.sum()).backward()
    assert values.grad.isfinite().all()
    assert covariance.grad.isfinite().all()


def test_shrinking_keeps_the_trace_and_reaches_the_identity():
    covariance = torch.tensor([[4.0, 1.0], [1.0, 0.0]])
    assert float(shrunk(covariance, 0.3).trace()) == pytest.approx(4.0)
    assert torch.equal(shrunk(covariance, 0.0), covariance.double())
    assert torch.equal(shrunk(covariance, 1.0), 2 * torch.eye(2).double())


def test_a_singular_covariance_raises():
    with pytest.raises(torch.linalg.LinAlgError):
        gaussian_head(ClassTable(torch.ones(1, 2), torch.tensor([True])), torch.zeros(2, 2), torch.ones(1))


# -- fedcof ------------------------------------------------------------------------------------------------------------


def golden_rows(kind, clients=EVERYBODY, **options):
    """The rows of the head that a closing round makes at the first weights."""
    federation, _ = golden_run(kind, 1, drawn=[list(clients)], **options)
    return {"head.weight": federation.server["head"]["head.weight"]}


@pytest.mark.parametrize(("entry", "clients"), [("out", EVERYBODY), ("without_client_1", (0, 2))])
def test_fedcof_golden_heads(entry, clients):
    rows = golden_rows(CovarianceHead, clients, **GOLD["fedcof"]["options"])
    assert matches(rows, {"head.weight": GOLD["fedcof"][entry]["head.weight"]}, tolerance=2e-6)
    assert abs(probe(rows, ["head.weight"]) - GOLD["fedcof"][entry]["probe"]) < 1e-5
    if entry == "out":
        assert refuted(rows, GOLD["fedcof"], ["head.weight"])


def test_golden_fed3r():
    rows = golden_rows(RidgeHead, ridge=GOLD["fedcof"]["siblings"]["fed3r_lambda"])
    assert matches(rows, {"head.weight": GOLD["fedcof"]["siblings"]["fed3r"]})


def test_golden_fedncm():
    assert matches(golden_rows(MeansHead), {"head.weight": GOLD["fedcof"]["siblings"]["fedncm"]}, tolerance=2e-6)


def test_with_a_sample_a_client_the_covariance_is_the_unbiased_one():
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    held, counts = torch.ones(6, 1, dtype=torch.bool), torch.ones(6, 1).double()
    tables = ClassTable(z.unsqueeze(1), held)
    found = covariances(tables, counts, tables.mean_over_clients(counts))
    assert torch.allclose(found[0], torch.cov(z.T), atol=1e-12)
    one = ClassTable(z[:1].unsqueeze(1), held[:1])
    assert not covariances(one, counts[:1], one.mean_over_clients(counts[:1])).any()


@pytest.mark.parametrize(("entry", "clients"), [("out", EVERYBODY), ("without_client_1", (0, 2))])
def test_golden_covariances(entry, clients):
    seen, gold = {}, GOLD["fedcof"][entry]

    class Noting(CovarianceHead):
        def gram(self, means, spread, totals):
            seen.update(held=means.held, spread=spread, gram=super().gram(means, spread, totals))
            return seen["gram"]

    golden_rows(Noting, clients, **GOLD["fedcof"]["options"])
    assert seen["held"].tolist() == gold["held"]
    assert torch.allclose(seen["spread"], torch.tensor(gold["covariances"]).double(), atol=2e-6)
    assert torch.allclose(seen["gram"], torch.tensor(gold["gram"]).double(), atol=1e-5)


def test_a_large_gamma_leads_to_the_direction_of_the_means():
    near = golden_rows(CovarianceHead, gamma=1e9)["head.weight"]
    assert torch.allclose(near, golden_rows(MeansHead)["head.weight"], atol=1e-5)


def test_classes_of_one_holder_are_reported():
    toy = world(configured("fedcof"), [[0, 1], [1, 2]], rounds=1, engine=Recording)
    toy.federation.step()
    uploads = {done.client: done.upload for done in toy.federation.engine.done if "means" in done.upload}
    (found,) = toy.method.closing().diagnostics({}, uploads, toy.federation.server_context())
    assert (found.code, found.figure) == ("fedcof.one_holder", 3.0)  # 0, 2 and 3
