"""Client-level differential privacy: the noisy mean in numpy, what bounds a client, who is drawn, epsilon, refusals."""

import sys
from math import comb, exp, inf, log, sqrt

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.methods import METHODS, TRAINABLE, ServerContext
from fedloom.methods.wrappers import privacy as accountant
from fedloom.methods.wrappers.privacy import DP, Options
from golden_world import GOLDEN, WORLD, golden_run, matches, noting_uploads
from support import Recording, Tiny, TinyBN, TinyInstance, after, configured, same_bits, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
GOLD = GOLDEN["privacy"]
PROTO = {"weights": "uniform"}  # FedProto's server then needs nothing but means


def flat(tree):
    return torch.cat([value.flatten().double() for value in tree.values()]).numpy()


def noise_of(task, key, shapes, round_=1):
    rng = task.streams.numpy(f"dp.{key}", round_)
    return np.concatenate([rng.standard_normal(tuple(shape)).ravel() for shape in shapes])


def uploads_of(name, net=Tiny, **options):
    """What the clients send in round 1 without privacy."""
    toy = after(world(configured(name, **options), LABELS, net=net, engine=Recording), 1)
    return [done.upload for done in toy.federation.engine.done]


# -- golden numbers ------------------------------------------------------------------------------------------
def test_golden_mean(monkeypatch):
    """The noise of the sum is that of the file's clients together: normal numbers of each, added up."""
    options, clients = GOLD["options"], [int(client) for client in GOLD["clients"]]
    given = {name: sum(np.array(options["normal"][str(k)][name]) for k in clients) for name in WORLD["init"]}
    kind, uploads = noting_uploads(METHODS.get("fedavg"))
    golden_run(kind, 1, drawn=[clients])
    for client, wanted in GOLD["clients"].items():
        sent = uploads["round1"][client]["model"]
        change = {n: value - torch.tensor(WORLD["init"][n], dtype=torch.float64) for n, value in sent.items()}
        length = float(np.linalg.norm(flat(change)))
        assert length == pytest.approx(wanted["length"], abs=1e-7)
        assert matches({n: v * min(1, options["clip"] / length) for n, v in change.items()}, wanted["clipped"])

    class Given:
        def __init__(self):
            self.left = iter(given.values())

        def standard_normal(self, shape):
            return next(self.left).reshape(shape)

    plain = Streams.numpy
    monkeypatch.setattr(
        Streams, "numpy", lambda self, *key, **by: Given() if key[0] == "dp.model" else plain(self, *key, **by)
    )
    keys = {"dp_clip": options["clip"], "dp_noise": options["noise_multiplier"], "dp_sampling": "fixed"}
    _, servers = golden_run(METHODS.get("fedavg+dp"), 1, drawn=[clients], **keys)
    assert matches(servers[0]["model"], GOLD["server"])


# -- the mechanism -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_a_mean_is_the_sum_of_cut_changes_and_noise_over_the_number_of_participants(clip):
    toy = after(world(configured("fedavg+dp", dp_clip=clip, dp_noise=0.02), LABELS), 1)
    old = flat(toy.task.init)
    changes = [flat(upload["model"]) - old for upload in uploads_of("fedavg")]
    cut = [change * min(1, clip / np.linalg.norm(change)) for change in changes]
    noise = 0.02 * clip * noise_of(toy.task, "model", [v.shape for v in toy.task.init.values()])
    wanted = old + (np.sum(cut, axis=0) + noise) / 5  # not weighted by samples
    assert np.allclose(flat(toy.federation.server["model"]), wanted, rtol=1e-6, atol=1e-7)


def test_all_trees_of_a_client_are_cut_together():
    """SCAFFOLD sends weights and the change of its control: one vector, one length."""
    clip = 0.05
    toy = after(world(configured("scaffold+dp", dp_clip=clip, dp_noise=0.01), LABELS), 1)
    old, sums = flat(toy.task.init), 0.0
    for upload in uploads_of("scaffold"):
        change = np.concatenate([flat(upload["model"]) - old, flat(upload["control"])])
        sums = sums + change * min(1, clip / np.linalg.norm(change))
    shapes = [v.shape for v in toy.task.init.values()]
    noise = np.concatenate([noise_of(toy.task, key, shapes) for key in ("model", "control")])
    mean = (sums + 0.01 * clip * noise) / 5
    server = toy.federation.server
    assert np.allclose(flat(server["model"]), old + mean[: len(old)], rtol=0, atol=1e-6)
    assert np.allclose(flat(server["control"]), mean[len(old) :], rtol=0, atol=1e-6)
    assert server["dp.releases"] == 1


@pytest.mark.parametrize(("row_clip", "longest"), [(None, 0.5), (0.1, 0.2)])
def test_class_tables_are_cut_on_their_own_and_counted_with_noise(row_clip, longest):
    """All rows together to 0.5, or each row to 0.1, so that 4 rows have length 0.2."""
    z, options = 0.01, {"dp_table_clip": 0.5, "dp_noise": 0.01, "dp_row_clip": row_clip}
    toy = after(world(configured("fedproto+dp", **options, **PROTO), LABELS), 1)
    rows, holders = np.zeros((4, 6)), np.zeros(4)
    for upload in uploads_of("fedproto", **PROTO):
        table = upload["prototypes"]
        values = table.values.double().numpy()
        if row_clip is not None:
            lengths = np.linalg.norm(values, axis=1, keepdims=True)
            values = values * np.minimum(1, row_clip / np.maximum(lengths, 1e-12))
        rows += values * min(1, 0.5 / np.linalg.norm(values))
        holders += table.held.numpy()
    rng = toy.task.streams.numpy("dp.prototypes", 1)
    rows += z * longest * rng.standard_normal((4, 6))
    holders += z * 2 * rng.standard_normal(4)  # a client of all 4 classes has length 2
    found = toy.federation.server["prototypes"]
    assert np.allclose(found.values.numpy(), rows / np.maximum(holders, 1)[:, None], rtol=0, atol=1e-6)
    assert found.held.all()
    assert toy.federation.server["dp.releases"] == 2


def test_a_class_that_nobody_holds_is_masked_where_the_noise_is_small():
    toy = after(world(configured("fedproto+dp", dp_noise=0.01, **PROTO), [[0, 1], [1, 0], [0]]), 1)
    assert toy.federation.server["prototypes"].held.tolist() == [True, True, False, False]


@pytest.mark.parametrize("bad", [1e30, inf, float("nan")])
@pytest.mark.parametrize("name", ["fedavg+dp", "fedproto+dp"])
def test_one_client_moves_a_sum_by_no_more_than_the_length(name, bad):
    """Whatever it sends: the same round, with and without its contribution, with the same noise."""
    options = PROTO if "proto" in name else {}
    key = "prototypes" if options else "model"
    toy = world(configured(name, dp_clip=0.3, dp_table_clip=0.3, **options), LABELS)
    uploads = dict(enumerate(uploads_of(name.removesuffix("+dp"), **options)))

    def bent(value):
        if isinstance(value, ClassTable):
            return ClassTable(torch.full_like(value.values, bad) * value.held[:, None], value.held)
        return {n: torch.full_like(v, bad) for n, v in value.items()} if isinstance(value, dict) else value

    def told(payloads):
        server = toy.method.aggregate(toy.federation.server, payloads, toy.federation.server_context())[key]
        return server.values.double().numpy().ravel() if options else flat(server)

    one = told(uploads)
    other = told(uploads | {3: {n: bent(v) for n, v in uploads[3].items()}})
    assert np.isfinite(other).all()
    if not options:
        assert 0 < np.linalg.norm(one - other) * 5 <= 2 * 0.3 + 1e-5


def test_counters_and_private_statistics_stay_where_they_are():
    toy = after(world(configured("fedbn+dp"), LABELS, net=TinyBN), 2)
    assert toy.federation.server["model"].keys() == {"fc.weight", "fc.bias", "head.weight", "head.bias"}
    assert toy.federation.states[0]["model"]["norm.num_batches_tracked"] > 0


@pytest.mark.parametrize("name", ["fedavg+dp", "scaffold+dp"])
def test_frozen_parameters_get_no_noise_and_take_none_of_that_of_the_others(name):
    def frozen_body():
        net = Tiny()
        net.fc.requires_grad_(False)
        return net

    toy = after(world(configured(name, dp_clip=0.05), LABELS, net=frozen_body), 2)
    trees = {key: value for key, value in toy.federation.server.items() if isinstance(value, dict)}
    frozen = {"fc.weight", "fc.bias"}
    assert toy.task.frozen == frozen
    assert all(torch.equal(trees["model"][entry], toy.task.init[entry]) for entry in frozen)
    free = toy.task.init.keys() - frozen
    assert all(not (tree[entry] == toy.task.init[entry]).any() for tree in trees.values() for entry in free)
    noise = noise_of(toy.task, "model", [toy.task.init[entry].shape for entry in ("head.weight", "head.bias")])
    first = after(world(configured(name, dp_clip=1e-9, dp_noise=1e9), LABELS, net=frozen_body), 1)
    moved = [first.federation.server["model"][entry] - toy.task.init[entry] for entry in ("head.weight", "head.bias")]
    assert np.allclose(flat(dict(enumerate(moved))), noise / 5, rtol=0, atol=1e-5)


def test_noise_is_of_the_round_and_the_seed_alone():
    servers = [after(world(configured("fedavg+dp"), LABELS, seed=seed), 2).federation.server for seed in (3, 3, 4)]
    assert same_bits(servers[0], servers[1])
    assert not same_bits(servers[0], servers[2])


# -- who is drawn --------------------------------------------------------------------------------------------
def context(toy, round_):
    return ServerContext(toy.task, round_, participants=toy.federation.clients_per_round)


def test_each_client_is_drawn_independently():
    toy = world(configured("fedavg+dp"), [[0]] * 20, participation=0.3, rounds=2000)
    drawn = [toy.method.select({}, 6, context(toy, round_)) for round_ in range(1, 2001)]
    sizes = np.array([len(chosen) for chosen in drawn])
    assert sizes.mean() == pytest.approx(6, abs=4 * np.sqrt(4.2 / 2000))
    assert sizes.var() == pytest.approx(4.2, rel=0.2)  # 20 x 0.3 x 0.7: their number varies
    assert np.bincount(np.concatenate(drawn), minlength=20).min() > 500


def test_a_round_for_which_nobody_is_drawn_is_noise_alone():
    toy = world(configured("fedavg+dp"), [[0, 1]] * 2, participation=0.5, rounds=50)
    empty = next(r for r in range(1, 50) if not toy.method._drawn_by_chance(1, context(toy, r)))
    toy.federation.round = empty - 1
    toy.federation.step()
    noise = noise_of(toy.task, "model", [v.shape for v in toy.task.init.values()], empty)
    assert np.allclose(flat(toy.federation.server["model"]), flat(toy.task.init) + noise, rtol=0, atol=1e-5)
    assert toy.federation.server["dp.rounds"] == 1


def test_the_method_does_not_learn_how_many_came():
    """FedDyn's h moves by alpha m / N of the mean change, whoever turns up for the m = 3 of N = 5."""
    for seed in range(9):
        toy = after(world(configured("feddyn+dp", alpha=0.5), LABELS, participation=0.6, seed=seed), 1)
        if len(toy.reports[0].participants) != 3:
            break
    else:
        pytest.fail("every draw has the mean number")
    h, model = (flat(toy.federation.server[key]) for key in ("h", "model"))
    mean = model + h / 0.5
    assert np.allclose(h, -0.5 * 3 / 5 * (mean - flat(toy.task.init)), rtol=0, atol=1e-5)


# -- epsilon -------------------------------------------------------------------------------------------------


def test_epsilon_of_the_moments_accountants_paper():
    """Abadi et al., CCS 2016, 1607.00133, Section 3.2: q = 0.01, sigma = 4, T = 10,000, delta = 1e-5 give epsilon 1.26.

    Their bound by hand, at whole orders; today's conversion of the same moments is a little better.
    """
    q, sigma, rounds, delta = 0.01, 4.0, 10_000, 1e-5

    def moment(order):  # Mironov et al. 2019, 1908.10530, Eq. (6)
        terms = (
            comb(order, k) * (1 - q) ** (order - k) * q**k * exp((k * k - k) / (2 * sigma**2)) for k in range(order + 1)
        )
        return log(sum(terms)) / (order - 1)

    by_hand = min(rounds * moment(order) + log(1 / delta) / (order - 1) for order in range(2, 40))
    assert by_hand == pytest.approx(1.26, abs=0.005)
    ours = accountant.epsilon(sigma, 1, rounds, 1, 100, "poisson", delta)
    assert 0.75 * by_hand < ours < by_hand


@pytest.mark.parametrize(("sampling", "noise"), [("poisson", 1.0), ("fixed", 0.5)])  # a replaced client moves twice
def test_epsilon_without_sampling_is_that_of_one_gaussian(sampling, noise):
    """Balle and Wang, ICML 2018, 1805.06530, Theorem 8: delta of a Gaussian at epsilon, here with 2 x 3 releases."""
    z, delta = 4.0, 1e-3
    spent = accountant.epsilon(z, 2, 3, 10, 10, sampling, delta)
    std = noise * z / sqrt(6)
    exact = norm.cdf(0.5 / std - spent * std) - exp(spent) * norm.cdf(-0.5 / std - spent * std)
    assert 0.999 * delta < exact <= delta


def test_epsilon_of_hardly_any_noise_is_large_and_quick():
    assert 4e4 < accountant.epsilon(0.01, 1, 10, 10, 10, "poisson", 0.01) < 6e4


def test_noise_far_above_a_step_is_reported_before_training():
    toy = world(configured("fedavg+dp", dp_noise=30.0, dp_delta=1e-3), LABELS)
    (report,) = toy.federation.initial_diagnostics
    weights = sum(toy.task.init[name].numel() for name in toy.task.names(TRAINABLE))
    assert report.code == "dp.loud_noise"
    assert report.figure == pytest.approx(30 * sqrt(weights) / 5)


def test_rounds_report_what_was_spent():
    toy = after(world(configured("fedavg+dp", dp_noise=2.0), LABELS), 3)
    spent = [report.figures["epsilon"] for report in toy.reports]
    assert spent == [accountant.epsilon(2.0, 1, r, 5, 5, "poisson", 0.2) for r in (1, 2, 3)]
    assert spent[0] < spent[1] < spent[2]
    assert {report.figures["delta"] for report in toy.reports} == {0.2}
    own = after(world(configured("fedavg+dp", dp_noise=2.0, dp_delta=1e-3), LABELS), 1).reports[0].figures
    assert own["delta"] == 1e-3
    assert own["epsilon"] > spent[0]
    assert after(world(configured("fedavg"), LABELS), 1).reports[0].figures == {}


def test_a_large_delta_is_reported():
    (found,) = world(configured("fedavg+dp"), LABELS).federation.initial_diagnostics
    assert (found.code, found.figure) == ("dp.large_delta", 0.2)
    assert world(configured("fedavg+dp", dp_delta=1e-3), LABELS).federation.initial_diagnostics == []


# -- engines and other wrappers ------------------------------------------------------------------------------


def test_the_method_says_nothing_of_single_uploads():
    """FedSSA reports classes with one holder; with noise it must not look."""
    names = ("fedssa", "fedssa+dp")
    plain, private = (after(world(configured(name), [[0, 1], [2, 3]]), 1).reports[0] for name in names)
    assert any("one_holder" in diagnostic.code for diagnostic in plain.diagnostics)
    assert not any("one_holder" in diagnostic.code for diagnostic in private.diagnostics)


# -- refusals ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("local+dp", r"dp replaces the mean of what clients send, and here there is none \(sent: nothing\)"),
        ("fpl+dp", r"the server needs each client's own prototypes, which noise on a mean does not hide"),
        ("fednova+dp", r"the server needs each client's own norm"),
        ("fedavg+median+dp", r"has a robust mean already: dp would find no mean to add noise to"),
        ("fedavg+dp+median", r"has a mean with noise already: median would replace it, and the noise with it"),
        ("fedavg+normbound+dp", r"has a robust mean already"),
        ("fedavg+dp+dp", r"has dp already"),
    ],
)
def test_refused_methods(name, why):
    with pytest.raises(ConfigError, match=why):
        configured(name)


def test_refused_before_the_run():
    with pytest.raises(
        ConfigError, match=r"dw\.class_counts, dw\.soft_labels would reach the server without noise; name dp"
    ):
        world(configured("fedavg+dp+dw"), LABELS)
    with pytest.raises(ConfigError, match=r"batch norm's statistics are shared \(norm\.running_mean, .* as fedbn"):
        world(configured("fedavg+dp"), LABELS, net=TinyBN)
    with pytest.raises(
        ConfigError, match=r"buffers are shared \(norm\.running_mean, .* constants with persistent=False"
    ):
        world(configured("fedavg+dp"), LABELS, net=TinyInstance)
    with pytest.raises(ConfigError, match=r"delta = 1 / clients = 1 promises nothing; set dp_delta"):
        world(configured("fedavg+dp"), [[0, 1]])


def test_refused_hooks():
    base = type(configured("fedavg"))
    closing = type("Closing", (DP, type("Base", (base,), {"closing": lambda self: self})), {"Options": Options})
    choosing = type("Choosing", (DP, type("Base", (base,), {"select": lambda *_: [0]})), {"Options": Options})
    with pytest.raises(ConfigError, match="the round after the last one would send a mean without noise"):
        world(closing(), LABELS)
    opening = type("Opening", (DP, type("Base", (base,), {"opening": lambda self: self})), {"Options": Options})
    with pytest.raises(ConfigError, match="the round before the first one would send a mean without noise"):
        world(opening(), LABELS)
    with pytest.raises(ConfigError, match="the method chooses its clients"):
        world(choosing(), LABELS)


def test_a_mean_that_goes_past_the_noise_is_refused():
    toy = world(configured("fedavg+dp"), LABELS)
    uploads = {0: {"model": toy.task.init, "samples": 1}}
    with pytest.raises(ConfigError, match="a mean of other uploads of model than a round's has no noise"):
        toy.method.mean(uploads)
    with pytest.raises(ConfigError, match=r"model is put together outside of Method\.mean"):
        toy.method.reduce("model", [toy.task.init], [1.0])


def test_without_the_accountant_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"the package dp-accounting is not installed; install fedloom\[dp\]"):
        world(configured("fedavg+dp"), LABELS)
