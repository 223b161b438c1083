"""Classes in a report: what is never found is said first, and a matrix, recalls and a calibration curve are drawn."""

import dataclasses
import html
import json
import math
import re

import pytest

from fedloom.results.report.class_results import calibration, class_results, majority_class
from fedloom.results.report.page import page
from fedloom.results.table import grouped

CLASSES = ["healthy", "pneumonia", "<script>alert(1)</script>"]
BINS = [None, [4.0, 0.5, 0.75], [12.0, 0.9, 1.0]]


def recalls(matrix):
    return [row[k] / sum(row) if sum(row) else None for k, row in enumerate(matrix)]


@pytest.fixture
def hospital(make_result, make_scenario):
    def run(method="fedavg", seed=0, matrix=((14, 0, 0), (4, 0, 0), (2, 0, 0)), classes=CLASSES, **more):
        confusion = [list(row) for row in matrix]
        details = {
            "balanced_accuracy": {"chance": 1 / 3, "confusion": confusion},
            "recall": {"by_class": recalls(confusion)},
            "precision": {"by_class": recalls([list(column) for column in zip(*confusion, strict=True)])},
            "ece": {"bins": BINS},
        }
        accuracy = sum(row[k] for k, row in enumerate(confusion)) / sum(map(sum, confusion))
        world = make_scenario(classes=len(classes)) | {"classes": list(classes)}
        metrics = {"balanced_accuracy": 1 / 3, "majority_global": 0.7, "majority_own": 0.8}
        numbers = {"details": details, "metrics": metrics, "world": world} | more
        return make_result(method, seed, (accuracy,), **numbers)

    return run


def first(text):
    return re.search(r'<aside class="notes first".*?</aside>', text, flags=re.DOTALL)[0]


def test_what_is_never_found_is_said_before_everything_else(hospital):
    note = "accuracy 70.0 % is not above the 70.0 % that always predicting the most frequent class, healthy, gives"
    text = page([hospital(degenerate=[note])])
    assert text.index("<h1>") < text.index('class="notes first"') < text.index('class="verdict"')
    assert "fedavg finds no case of the classes pneumonia (4 samples) and &lt;script&gt;" in first(text)
    assert "fedavg is not above the majority baseline: accuracy 70.0 %, and 70.0 % by always" in first(text)
    assert text.count("not above") == 1  # the diagnostic says the same once more
    assert "<script>alert" not in text


def test_a_class_that_one_seed_finds_is_no_warning(hospital):
    runs = [hospital(), hospital(seed=1, matrix=((14, 0, 0), (0, 4, 0), (0, 0, 2)))]
    text = page(runs)
    assert "notes first" not in text
    (group,) = grouped(runs)
    results = class_results(group)
    assert results.confusion == [[28, 0, 0], [4, 4, 0], [2, 0, 2]]
    assert (results.support, results.recall) == ([[14, 14], [4, 4], [2, 2]], [1.0, 0.5, 0.5])
    assert results.precision == [28 / 34, 1.0, 1.0]
    assert results.largest_confusions(1) == [(4, 1, 0)]
    assert "pneumonia taken for healthy: 4" in text
    assert "All 2 seeds together." in text
    assert "Recall and precision: all 2 seeds together. Test samples: of one seed." in text


def test_sizes_of_classes_are_those_of_one_seed(hospital):
    matrices = (
        ((14, 0, 0), (4, 0, 0), (2, 0, 0)),
        ((14, 0, 0), (5, 0, 0), (2, 0, 0)),
        ((14, 0, 0), (3, 0, 0), (2, 0, 0)),
    )
    runs = [hospital(seed=seed, matrix=matrix) for seed, matrix in enumerate(matrices)]
    (group,) = grouped(runs)
    assert class_results(group).support_texts() == ["14", "3 to 5", "2"]
    text = page(runs)
    assert (
        "no case of the classes pneumonia (3 to 5 samples) and &lt;script&gt;alert(1)&lt;/script&gt; (2 samples)"
        in text
    )


def test_rows_with_equal_faults_share_a_sentence_and_many_are_counted(hospital, monkeypatch):
    text = page([hospital("fedavg"), hospital("fedsc")])
    assert "fedavg and fedsc find no case of the classes pneumonia" in first(text)
    assert "Recall by class" in text
    assert text.count("confusion, recall and calibration") == 2
    monkeypatch.setattr("fedloom.results.report.class_charts._MOST_ROWS", 2)
    many = page([hospital(f"method{k}", matrix=((14, 0, 0), (4 + k, 0, 0), (2, 0, 0))) for k in range(14)])
    assert "14 of 14 rows find no case of some class" in first(many)
    assert "Matrices of the first 2 of 14 rows" in many


def test_calibration_adds_bins_over_seeds(hospital):
    (group,) = grouped([hospital(), hospital(seed=1)])
    curve = calibration(group)
    assert curve.bins[0] is None
    assert [n for n, *_ in curve.bins[1:]] == [8.0, 24.0]
    assert curve.error() == pytest.approx((8 * 0.25 + 24 * 0.1) / 32)
    text = page(group.results)
    error = f"{100 * curve.error():.1f} %"
    assert f"ECE {error} of the bins of all 2 seeds together, {error} as a mean over seeds. Dotted" in text
    assert f"ECE {error}. Dotted: perfect calibration." in page([hospital()])
    assert "confidence 90.0 %, correct 100.0 %, 24 samples" in text


def test_errors_of_calibration_that_cancel_are_in_the_mean_over_seeds(hospital):
    """One seed is too sure of itself and the other one too little: their bins together are calibrated."""
    runs = [hospital(), hospital(seed=1)]
    for run, correct in zip(runs, (0.4, 0.6), strict=True):
        run.numbers["details"]["ece"] = {"bins": [None, [10.0, 0.5, correct]]}
    (group,) = grouped(runs)
    curve = calibration(group)
    assert (curve.error(), curve.errors) == (pytest.approx(0.0), pytest.approx([0.1, 0.1]))
    assert "ECE 0.0 % of the bins of all 2 seeds together, 10.0 % as a mean over seeds." in page(runs)


def test_the_baseline_is_that_of_the_protocol(hospital):
    assert "70.0 %, the accuracy of always predicting the most frequent class" in page([hospital()])
    personal = page([hospital(protocol="personal/local")])
    assert "80.0 %, the accuracy of always predicting each client&#39;s most frequent class." in personal
    run = hospital()
    run.scenario["class_counts"] = [[1, 5, 2], [0, 1, 3], [0, 0, 1]]
    assert majority_class(run) == 1
    assert majority_class(hospital(world=run.scenario | {"clients": 9})) is None  # of three alone counts are kept


def test_without_recorded_classes_the_page_says_how_to_get_them(make_result):
    assert "`fedloom evaluate RUN DATA`" in page([make_result()])


def test_a_hundred_classes_and_more_than_a_matrix_keeps(hospital):
    classes = [f"class number {k}" for k in range(100)]
    matrix = [[10 * (i == j) + (j == (i + 1) % 100) for j in range(100)] for i in range(100)]
    text = page([hospital(matrix=matrix, classes=classes)])
    assert "All 100 classes as a table" in text
    assert "The 40 classes of 100 with the lowest recall." in text
    assert "class n…ber 99" in text
    assert len(text) < 400_000
    run = hospital(matrix=matrix, classes=classes)
    del run.numbers["details"]["balanced_accuracy"]["confusion"]
    without = page([run])
    assert "Confusion matrix" not in without
    assert "Recall of each class" in without


def test_the_matrix_of_any_client_is_in_the_page_the_least_accurate_first(hospital, monkeypatch):
    kept = {"global/local": {"0": {"confusion": [0, 0, 4]}, "2": {"confusion": [0, 0, 1, 1, 0, 3]}}}
    run = dataclasses.replace(hospital(protocol="global/local"), client_details=kept)

    def matrices(text):
        found = re.search(r'data-matrices="([^"]*)"', text)
        return found and json.loads(html.unescape(found[1]))

    text = page([run])
    assert matrices(text) == {"classes": CLASSES, "clients": [[2, [0, 0, 1, 1, 0, 3]], [0, [0, 0, 4]]]}
    assert "2 of 3 clients; Result.confusion(client) has those recorded." in text
    monkeypatch.setattr("fedloom.results.report.class_results._MOST_CELLS", 2)
    assert [client for client, _ in matrices(page([run]))["clients"]] == [2]
    monkeypatch.setattr("fedloom.results.report.class_charts._MOST_WITH_CLIENTS", 1)
    assert matrices(page([run, hospital("fedsc")])) is None
    assert matrices(page([hospital()])) is None


def test_every_client_is_in_a_table_that_folds(make_result):
    text = page([make_result("local", protocol="personal/local", client_accuracies=(0.25, 0.5, 1.0))])
    assert "<summary>local: each of 3 clients</summary>" in text
    assert re.search(r'client 1</span></th><td[^>]*data-value="24">24</td>', "".join(text.splitlines()))
    assert "Clients that were not tested" not in text
    of_two = page([make_result("local", protocol="personal/local", client_accuracies=(0.25, 0.5), clients=3)])
    assert "Seed 0, last test. Clients that were not tested: 1." in of_two
    many = [make_result(f"method{k}", client_accuracies=(0.25, 0.5)) for k in range(5)]
    assert "each of 2 clients" not in page(many)


def test_a_class_without_samples_and_a_client_alone(hospital, make_scenario):
    matrix = ((14, 0, 0), (0, 0, 0), (2, 0, 4))
    run = hospital(matrix=matrix, client_accuracies=(0.9,), protocol="global/local")
    text = page([run])
    assert "notes first" not in text
    assert "no sample" in text
    assert not any(math.isnan(value) for value in class_results(grouped([run])[0]).precision if value is not None)
