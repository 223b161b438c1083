"""The table "Which method should I try?" says what the committed studies say."""

from pathlib import Path
from statistics import fmean

import pytest

from benchmarks import advice
from benchmarks.cells import read_cells
from benchmarks.tables import pictures
from fedloom.diagnosis.evidence import evidence

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "methods" / "README.md"
SKEWED, VERY_SKEWED = ("all-methods", "alpha-0.2"), ("all-methods", "alpha-0.05")
DOMAINS, LONG_TAIL, NETS = ("digit-domains", ""), ("long-tail", ""), ("two-classes", "")
ARCHITECTURES = "heterogeneous-models", ""
# Methods of a row, the plain method that they are ahead of, where, and the mean gain in points, at least and at most.
AHEAD = [
    (("fed3r", "fedcgs", "fednh", "feddyn", "ccvr"), "fedavg", VERY_SKEWED, 17, 27),
    (("fed3r", "fedcgs", "fednh", "feddyn", "ccvr"), "fedavg", SKEWED, 3, 5),
    (("fed3r", "fedncm", "ccvr", "fednh", "fedcgs", "fedcof", "fedlc"), "fedavg", LONG_TAIL, 14, 23),
    (("fedsc",), "fedavg", DOMAINS, 2.5, 2.5),
    (("fedco2", "fedproto", "fd"), "local", DOMAINS, 2, 3),
    (("fedpcl", "fd", "fedorgp", "fedl2g"), "local", NETS, 0.5, 1.2),
    (("fedproto", "fedkd"), "local", ARCHITECTURES, 1.7, 1.9),
    (("fedproto", "fedssa"), "local", VERY_SKEWED, 0.6, 2.8),
    (("fedproto", "fedssa"), "local", SKEWED, 0.6, 2.8),
]


@pytest.mark.parametrize(("methods", "plain", "setting", "at_least", "at_most"), AHEAD)
def test_methods_are_ahead_on_all_seeds(methods, plain, setting, at_least, at_most):
    study, name = setting
    accuracies = {label: cell["accuracies"] for label, cell in read_cells(study).items()}
    page = PAGE.read_text(encoding="utf-8")
    assert any(all(f"[`{method}`]" in line for method in methods) for line in page.splitlines())
    for method in methods:
        pairs = zip(accuracies[f"{name}/{method}"], accuracies[f"{name}/{plain}"], strict=True)
        gains = [100 * (ours - theirs) for ours, theirs in pairs]
        assert min(gains) > 0
        digits = 1 if isinstance(at_least, float) else 0  # as many as the table has
        assert at_least <= round(fmean(gains), digits) <= at_most


@pytest.mark.parametrize(("clients", "at_least", "at_most"), [("hundred-clients", 4, 5), ("authorities", 2, 3)])
def test_tuned_fedavg_and_its_like_are_ahead_of_local_training_at_honest_scale(clients, at_least, at_most):
    cells = read_cells("honest-scale") | read_cells("honest-scale-rest")
    own = {
        label: cell["tested"]["personal/local"]["accuracy"]
        for label, cell in cells.items()
        if clients in label and "personal/local" in (cell["tested"] or {})
    }
    local = own[f"{clients}/local"]
    for method in ("fedavg+finetune", "fedrod", "fedbabu", "fedper"):
        pairs = zip(own[f"{clients}/{method}"], local, strict=False)  # two methods have the first three seeds
        gains = [100 * (ours - theirs) for ours, theirs in pairs]
        assert min(gains) > 0
        assert at_least <= round(fmean(gains)) <= at_most


def test_few_megabytes_travel_where_the_table_says_so():
    for name, cell in read_cells("all-methods").items():
        if name.endswith(("/fedproto", "/fedssa")):
            assert cell["bytes_up"] + cell["bytes_down"] < 1.5e6


def test_with_different_nets_two_methods_are_as_good_as_local_training():
    accuracies = {label: cell["accuracies"] for label, cell in read_cells("two-classes").items()}
    for method in ("fedproto", "fedssa"):
        pairs = zip(accuracies[f"/{method}"], accuracies["/local"], strict=True)
        assert all(abs(100 * (ours - theirs)) < 0.5 for ours, theirs in pairs)


def test_four_robust_means_lose_two_points_at_most():
    rows = read_cells("attacks")
    attacks = {name.partition("/")[0] for name in rows}
    for mean in ("median", "trimmed", "multikrum", "geomedian"):
        accuracies = {attack: fmean(rows[f"{attack}/{mean}"]["accuracies"]) for attack in attacks}
        assert all(100 * (accuracies["nobody"] - accuracy) <= 2 for accuracy in accuracies.values())


def test_the_picture_counts_every_method_of_its_setting():
    rows = read_cells("all-methods")
    assert pictures.picture().startswith(b"\x89PNG")
    higher, others = 0, 0
    for protocol, plain in pictures.BASELINES.items():
        labels = [label for label, _ in pictures.ranked(rows, protocol)]
        higher += len(labels) - 1 - labels.index(plain)
        others += len(labels) - 1
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert f"Of the {others} other rows, {higher} have a higher mean" in " ".join(page.split())


def test_the_methods_named_first_follow_from_the_forecast_of_advice():
    page = PAGE.read_text(encoding="utf-8")
    assert "{{ table advice-first }}" in page
    row = evidence()["forecasts"]["global"]["methods"][0]
    assert f"`{row['method']}` ({row['gain']:+.1f} points" in advice.first_sentence()
    listed = next(line for line in page.splitlines() if line.startswith("| hold different classes | one model for all"))
    assert f"[`{row['method']}`]" in listed
