"""Robust means: golden numbers, class by class, around any method with a mean, and refusals."""

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.methods import METHODS
from fedloom.methods.wrappers import robust
from golden_world import GOLDEN, matches
from support import TinyBN, near, same_bits, world

REDUCERS = GOLDEN["reducers"]
ROWS = torch.tensor(REDUCERS["options"]["updates"], dtype=torch.float64)
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
OPTIONS = {
    "median": {},
    "trimmed": {"trimmed_share": 2 / 7},
    "krum": {"krum_faulty": 2},
    "multikrum": {"multikrum_faulty": 2, "multikrum_kept": 3},
    "geomedian": {"geomedian_steps": 2000},
}
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
    scores = robust.krum_scores(ROWS, REDUCERS["options"]["faulty"])
    assert torch.allclose(scores, torch.tensor(REDUCERS["krum_scores"], dtype=torch.float64), rtol=0, atol=1e-7)


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


@pytest.mark.parametrize("word", [*OPTIONS, "normbound"])
@pytest.mark.parametrize("base", ["fedskc", "fedprox+dw"])
def test_it_reaches_every_method_that_has_a_mean(base, word):
    options = {"normbound_length": 1e-3} if word == "normbound" else {}
    methods = METHODS.get(base).configured("sound", {}), wrapped(base, word, **options)
    plain, other = (world(method, LABELS) for method in methods)
    for toy in (plain, other):
        toy.federation.step()
    assert not same_bits(plain.federation.server, other.federation.server)


@pytest.mark.parametrize("word", OPTIONS)
def test_it_reaches_header_rows(word):
    plain, other = (world(m, LABELS) for m in (METHODS.get("fedssa").configured("sound", {}), wrapped("fedssa", word)))
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


def test_a_bounded_change_has_its_length_and_direction():
    old = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0]), "count": torch.tensor(3)}
    new = {"w": torch.tensor([4.0, 2.0]), "b": torch.tensor([4.0]), "count": torch.tensor(5)}
    found = robust.bounded(old, new, 2.5)
    assert torch.allclose(found["w"], torch.tensor([2.5, 2.0]))
    assert torch.allclose(found["b"], torch.tensor([2.0]))
    assert found["count"] == 5
    assert robust.bounded(old, new, 5.0) is new


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


@pytest.mark.parametrize("name", ["fedprox+dw+krum", "fedprox+krum+dw", "fedavg+dw+median", "fedavg+median+dw"])
def test_wrappers_nest_in_any_order(name):
    toy = world(METHODS.get(name).configured("sound", {"dw_mu": 0.5}), LABELS)
    toy.federation.step()
    toy.federation.step()
    assert "dw.soft_labels" in toy.federation.server


def test_on_equal_uploads_every_rule_is_the_mean():
    tree = {"w": torch.tensor([0.1, -0.7, 3.0])}
    for word in OPTIONS:
        found = wrapped("fedavg", word).reduce("model", [tree] * 5, [1.0] * 5)
        assert near({"model": found}, {"model": tree}, 1e-6)
