"""Robust means: golden numbers, class by class, around any method with a mean, and refusals."""

import math

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.methods import METHODS, Sent, Spec
from fedloom.methods.contract.method import WRAPPERS, Method
from fedloom.methods.wrappers import robust, robust_rules
from golden_world import GOLDEN, SHARED_BASELINES, matches
from support import TinyBN, same_bits, world

REDUCERS = GOLDEN["reducers"]
ROWS = torch.tensor(REDUCERS["options"]["updates"], dtype=torch.float64)
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
FAULTY, KEPT = REDUCERS["options"]["faulty"], REDUCERS["options"]["keep"]
OPTIONS = {
    "median": {},
    "trimmed": {"trimmed_share": REDUCERS["options"]["trim"] / len(ROWS)},
    "krum": {"krum_faulty": FAULTY},
    "multikrum": {"multikrum_faulty": FAULTY, "multikrum_kept": KEPT},
    "geomedian": {"geomedian_steps": 2000},
}
WORDS = [*OPTIONS, "bulyan", "normbound"]
BULYAN = SHARED_BASELINES["bulyan"]
WANTED = {
    "median": "median",
    "trimmed": "trimmed_mean",
    "krum": "krum",
    "multikrum": "multi_krum",
    "geomedian": "geometric_median",
}


def wrapped(base, word, **options):
    return METHODS.get(f"{base}+{word}").configured("sound", options)


@pytest.mark.parametrize("word", OPTIONS)
def test_golden(word):
    method = wrapped("fedavg", word, **OPTIONS[word])
    trees = [{"w": row, "count": torch.tensor(7)} for row in ROWS]
    found = method.reduce("model", trees, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert matches(found, {"w": REDUCERS[WANTED[word]]}, tolerance=1e-7)
    assert found["count"] == 7


def test_krum_scores():
    scores = robust_rules.krum_scores(ROWS, FAULTY)
    assert torch.allclose(scores, torch.tensor(REDUCERS["krum_scores"], dtype=torch.float64), rtol=0, atol=1e-7)
    assert scores.argsort(stable=True)[:KEPT].tolist() == REDUCERS["krum_chosen"]


@pytest.mark.parametrize("word", OPTIONS)
def test_a_class_table_is_taken_class_by_class_among_those_who_hold_it(word):
    method = wrapped("fedavg", word, **OPTIONS[word])
    held = torch.ones(7, 3, dtype=torch.bool)
    held[4:, 1], held[:, 2] = False, False
    values = torch.where(held[:, :, None], torch.stack([ROWS, ROWS * 2, ROWS * 3], 1), 0.0)
    found = method.reduce("model", [ClassTable(v, h) for v, h in zip(values, held, strict=True)], [1.0] * 7)
    assert found.held.tolist() == [True, True, False]
    assert torch.allclose(found.values[0], torch.tensor(REDUCERS[WANTED[word]]).double(), rtol=0, atol=1e-7)
    own = method.reduce("model", [{"w": row * 2} for row in ROWS[:4]], [1.0] * 4)["w"]
    assert torch.allclose(found.values[1], own)


@pytest.mark.parametrize("word", [*OPTIONS, "bulyan", "normbound"])
@pytest.mark.parametrize("base", ["fedskc", "fedprox+dw"])
def test_it_reaches_every_method_that_has_a_mean(base, word):
    options = {"normbound": {"normbound_length": 1e-3}, "bulyan": {"bulyan_faulty": 0}}.get(word, {})
    methods = METHODS.get(base).configured("sound", {}), wrapped(base, word, **options)
    plain, other = (world(method, LABELS) for method in methods)
    for toy in (plain, other):
        toy.federation.step()
    assert not same_bits(plain.federation.server, other.federation.server)


@pytest.mark.parametrize("word", [*OPTIONS, "normbound"])
def test_an_upload_of_nonsense_does_not_decide(word):
    """One client of five sends a model of millions; the mean goes there, and a robust one does not."""

    def largest(name):
        class Broken(METHODS.get(name)):
            def end(self, work, state, ctx):
                payload, state = super().end(work, state, ctx)
                if ctx.client == 3:
                    payload["model"] = {n: torch.full_like(v, 1e6) for n, v in payload["model"].items()}
                return payload, state

        toy = world(Broken(Broken.Options()), LABELS, net=TinyBN)
        toy.federation.step()
        return max(float(v.abs().max()) for v in toy.federation.server["model"].values() if v.is_floating_point())

    assert largest("fedavg") > 1e5
    assert largest(f"fedavg+{word}") < 100


def test_what_is_a_change_already_is_bounded_as_one():
    """SCAFFOLD sends the change of its control: how long the server's control is does not matter."""
    toy = world(wrapped("scaffold", "normbound", normbound_length=0.5), LABELS)
    far = {name: torch.full_like(value, 9.0) for name, value in toy.federation.server["control"].items()}
    sent = {name: torch.ones_like(value) for name, value in far.items()}
    found = toy.method._bounded("control", sent, toy.federation.server | {"control": far})
    length = torch.cat([value.flatten() for value in found.values()]).norm()
    assert length == pytest.approx(0.5, rel=1e-5)


def test_norm_bound_golden():
    zero = {"w": torch.zeros(6, dtype=torch.float64)}
    rows = torch.stack([robust.bounded(zero, {"w": row}, REDUCERS["options"]["bound"])["w"] for row in ROWS])
    weights = np.array(REDUCERS["options"]["n"], dtype=float)
    assert np.allclose(weights @ rows.numpy() / weights.sum(), REDUCERS["norm_bounded_mean"], rtol=0, atol=1e-7)


def test_bulyan_golden():
    rows = torch.tensor(BULYAN["options"]["updates"], dtype=torch.float64)
    picked = robust_rules.bulyan_picked(rows, BULYAN["options"]["faulty"])
    assert picked == BULYAN["picked"]
    assert (len(picked), len(picked) - 2 * BULYAN["options"]["faulty"]) == (BULYAN["theta"], BULYAN["beta"])
    assert matches({"": robust_rules.median(rows[picked])}, {"": BULYAN["median"]})
    method = wrapped("fedavg", "bulyan", bulyan_faulty=BULYAN["options"]["faulty"])
    found = method.reduce("model", [{"w": row} for row in rows], [float(k) for k in range(1, 8)])
    assert matches(found, {"w": BULYAN["out"]}, tolerance=1e-7)
    wrong = [name for name in BULYAN if name.startswith("WRONG_")]
    assert len(wrong) == 3
    assert not any(matches(found, {"w": BULYAN[name]}, tolerance=1e-3) for name in wrong)


def test_bulyan_takes_the_first_of_equal_uploads():
    assert robust_rules.bulyan_picked(torch.ones(7, 2), 1) == [0, 1, 2, 3, 4]


class Narrow(Method):
    """Client k sends the first rows of the head's bias, its own number of them; the server averages what they hold."""

    spec = Spec(sends={"model": Sent(sliced=True)})

    def aggregate(self, server, uploads, ctx):
        return {"model": self.mean(uploads, weights="uniform", within=server["model"])}


SLICES = {k: {"model": {"w": torch.tensor(row)}} for k, row in enumerate([[9.0, 1.0, 5.0], [2.0, 4.0], [4.0]])}
SERVER = {"model": {"w": torch.tensor([0.0, 0.0, 0.0, 7.0])}}


@pytest.mark.parametrize(
    ("word", "result"), [("median", [4.0, 2.5, 5.0, 7.0]), ("trimmed", [5.0, 2.5, 5.0, 7.0]), (None, [5, 2.5, 5, 7])]
)
def test_rules_of_coordinates_take_each_number_over_its_holders(word, result):
    kind = WRAPPERS.get(word)(Narrow) if word else Narrow
    assert kind(kind.Options()).aggregate(SERVER, SLICES, None)["model"]["w"].tolist() == result


def test_the_norm_bound_takes_a_slice_from_a_slice():
    kind = WRAPPERS.get("normbound")(Narrow)
    uploads = {0: {"model": {"w": torch.tensor([3.0, 4.0])}}}
    assert kind(kind.Options()).aggregate(SERVER, uploads, None)["model"]["w"].tolist() == pytest.approx(
        [0.6, 0.8, 0.0, 7.0]
    )


@pytest.mark.parametrize("word", ["krum", "multikrum", "bulyan", "geomedian", "dp"])
def test_rules_of_whole_uploads_refuse_slices(word):
    kind = WRAPPERS.get(word)(Narrow)
    message = "compares whole uploads, and each client sends other entries of model; take"
    with pytest.raises(ConfigError, match="would be told without noise" if word == "dp" else message):
        kind(kind.Options())


def test_refusals():
    none = r"local\+krum: krum replaces the mean .* here there is none \(sent: nothing\)"
    with pytest.raises(ConfigError, match=none):
        wrapped("local", "krum")
    with pytest.raises(ConfigError, match=r"fedavg\+krum has a robust mean already: median would"):
        METHODS.get("fedavg+krum+median")
    with pytest.raises(ConfigError, match="has krum already"):
        METHODS.get("fedavg+krum+krum")
    with pytest.raises(ConfigError, match=r"faulty = 2 needs 7 participants a round, here are 5; lower krum_faulty"):
        world(wrapped("fedavg", "krum", krum_faulty=2), LABELS)
    with pytest.raises(ConfigError, match=r"faulty = 1 needs 7 participants a round, here are 5; lower bulyan_faulty"):
        world(wrapped("fedavg", "bulyan"), LABELS)


@pytest.mark.parametrize("name", ["fedprox+dw+krum", "fedavg+dw+median", "fedavg+dw+normbound"])
def test_it_goes_around_a_wrapper_that_sends_something(name):
    toy = world(METHODS.get(name).configured("sound", {"dw_mu": 0.5}), LABELS)
    toy.federation.step()
    toy.federation.step()
    assert "dw.soft_labels" in toy.federation.server


@pytest.mark.parametrize("word", WORDS)
def test_what_an_outer_wrapper_sends_must_not_pass_it_by(word):
    message = rf"dw.soft_labels would reach the server past {word}; name {word} after the wrapper that sends it"
    with pytest.raises(ConfigError, match=message):
        world(METHODS.get(f"fedavg+{word}+dw").configured("sound", {}), [[0, 1]] * 9)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    ("base", "which"),
    [
        ("fed3r", "after the last"),
        ("fedncm", "after the last"),
        ("ccvr", "after the last"),
        ("feddbe", "before the first"),
    ],
)
def test_rounds_of_their_own_are_refused(word, base, which):
    """Their heads and goals would be plain sums and means, which one bad client decides."""
    with pytest.raises(ConfigError, match=rf"{word} does not act on the round {which} one, in which clients send \w+"):
        world(wrapped(base, word), [[0, 1]] * 9)


NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def broken(name, bad, clients, **options):
    """The method; some clients send a model in which one number is `bad`."""

    class Broken(METHODS.get(name)):
        def end(self, work, state, ctx):
            upload, state = super().end(work, state, ctx)
            if ctx.client in clients:
                upload["model"] = {n: v.clone() for n, v in upload["model"].items()}
                upload["model"]["fc.weight"].view(-1)[3] = bad
            return upload, state

    return Broken(Broken.configured("sound", options).options)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_an_upload_that_is_not_finite_is_left_out_and_reported(word, bad):
    labels = [[0, 1, 2, 3], [1, 1, 2], [0, 3], [2, 3, 2, 1], [0, 0], [1, 2, 3], [3, 0], [1, 2]]
    toy = world(broken(f"fedavg+{word}", NOT_FINITE[bad], {3}), labels)
    report = toy.federation.step()
    absent = world(wrapped("fedavg", word), labels)
    absent.method.select = lambda server, count, ctx: [0, 1, 2, 4, 5, 6, 7]
    absent.federation.step()
    assert same_bits(toy.federation.server, absent.federation.server)
    told = [d for d in report.diagnostics if d.code == f"{word}.not_finite"]
    assert [d.message for d in told] == [
        f"in round 1, 1 of 8 uploads have numbers that are not finite: {word} leaves them out"
    ]
    assert [d.figure for d in told] == [1.0]


def test_a_run_in_which_everything_diverged_goes_on_as_ever():
    toy = world(broken("fedavg+median", math.nan, set(range(5))), LABELS)
    report = toy.federation.step()
    assert toy.federation.server["model"]["fc.weight"].isnan().any()
    assert not any("not_finite" in d.code for d in report.diagnostics)


def test_numbers_that_only_a_broken_client_holds_stay_the_servers():
    kind = WRAPPERS.get("median")(Narrow)
    uploads = {0: {"model": {"w": torch.tensor([9.0, 1.0, math.nan])}}, **{k: SLICES[k] for k in (1, 2)}}
    assert kind(kind.Options()).aggregate(SERVER, uploads, None)["model"]["w"].tolist() == [3.0, 4.0, 0.0, 7.0]


@pytest.mark.parametrize(("share", "is_reported"), [(0.2, True), (0.25, False), (0.0, False)])
def test_a_trimmed_mean_that_trims_nobody_says_so(share, is_reported):
    """A share of 0 asks for the plain mean."""
    diagnostics = world(wrapped("fedavg", "trimmed", trimmed_share=share), LABELS[:4]).federation.initial_diagnostics
    message = "trimmed_share = 0.2 of 4 participants leaves nobody out: the mean is plain; the two must multiply to 1"
    assert [d.message for d in diagnostics] == ([f"{message} or more"] if is_reported else [])


def test_multi_krum_keeps_no_faulty_upload():
    with pytest.raises(ConfigError, match=r"multikrum_kept = 5 of 5 participants .*; take at most 4"):
        world(wrapped("fedavg", "multikrum", multikrum_kept=5), LABELS)
    world(wrapped("fedavg", "multikrum", multikrum_kept=4), LABELS)
