"""Ours beside theirs: every printed value is there, and says what it is."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables.gains import gains
from fedloom.papers.compared_values import as_markdown, compare_orders, compare_values, limitations
from fedloom.papers.measurements import CellResults, measure, measurements_csv, read_measurements
from fedloom.papers.recipe import Recipe, find_recipe
from fedloom.results.result import Result
from fedloom.runs.storage.log import Row, main_protocol
from toy_results import MakeResult, toy_scenario, with_test_samples


@pytest.fixture
def make_result(make_result: MakeResult) -> MakeResult:
    return with_test_samples(make_result, 10_000)


def one(found: Sequence[Any], row: str, **keys: Any) -> Any:
    (line,) = [x for x in found if x.row == row and all(getattr(x, key) == value for key, value in keys.items())]
    return line


def beside(name: str, done: CellResults) -> list[Any]:
    return compare_values(find_recipe(name), measure(find_recipe(name), done))


def test_values_beside_theirs_and_what_was_not_run(make_result: MakeResult, tmp_path: Path) -> None:
    recipe = find_recipe("feddw/table1")
    runs = [make_result("fedavg", seed, [accuracy]) for seed, accuracy in enumerate((0.9930, 0.9932, 0.9931))]
    done = {("mnist-practical", "FedAvg"): runs, ("mnist-practical", "FedDW [authors]"): runs[:1]}
    values = measure(recipe, done)
    found = compare_values(recipe, values)
    fedavg = one(found, "FedAvg", column="mnist-practical")
    assert (fedavg.theirs, fedavg.verdict.word, fedavg.seeds) == (99.31, "reproduced", [0, 1, 2])
    assert fedavg.ours == pytest.approx([99.30, 99.32, 99.31])
    assert one(found, "MOON", column="mnist-practical").verdict.why == "not run"
    assert one(found, "FedDW [authors]", column="mnist-practical").verdict.why.startswith("released code")
    assert len(found) == 96 + 2 * 8
    limits = " ".join(limitations(found))
    assert "mnist-practical: one seed only, which decides nothing: FedDW [authors]." in limits
    seeds = "seeds 0, 1 and 2 for FedAvg; seed 0 for FedDW [authors]"
    assert f"mnist-practical: methods were run with different seeds ({seeds})." in limits
    assert "mnist-practical: not run yet: MOON, FedBABU, FedUV" in limits
    assert "Columns not run yet: cifar10-practical, cifar100-practical" in limits
    page = as_markdown(recipe, values, "the paper's own setting")
    assert (
        "| mnist-practical | FedAvg          | acc_pct   | 3       | 99.31 ± 0.01 | 99.31 ± 0.20 | reproduced" in page
    )
    assert "Seeds are not printed either." in page
    assert "| mnist-practical | FedAvg          | 0.0" in page  # core minutes
    (tmp_path / "t.csv").write_text(measurements_csv(values))
    assert read_measurements(tmp_path / "t.csv") == values
    assert len(values) == 4


def test_time_that_several_cores_shared_is_not_that_of_one(make_result: MakeResult, tmp_path: Path) -> None:
    recipe = find_recipe("feddw/table1")
    runs = [make_result("fedavg", seed, [0.99], engine=engine) for seed, engine in enumerate(("serial", "processes"))]
    one, several = measure(recipe, {("mnist-practical", "FedAvg"): runs})
    assert (one.seconds, several.seconds) == (2.5, None)
    (line,) = [line for line in compare_values(recipe, [one, several]) if line.was_run]
    assert line.seconds == 2.5
    assert "core minutes" in as_markdown(recipe, [one, several], "")
    assert "core minutes" not in as_markdown(recipe, [several], "")
    (tmp_path / "t.csv").write_text(measurements_csv([one, several]))
    assert read_measurements(tmp_path / "t.csv") == [one, several]


def test_what_failed_is_told_with_its_reason_and_is_not_called_not_run(make_result: MakeResult) -> None:
    recipe, missing = find_recipe("feddw/table1"), "DataError: source cifar10: no folder"
    values = measure(recipe, {("mnist-practical", "FedAvg"): [make_result("fedavg", 0, [0.99])]})
    failed = {
        ("mnist-practical", "FedAvg"): {1: "ValueError: nan", 2: "OSError: full"},
        ("mnist-practical", "MOON"): {0: "ValueError: nan"},
        ("cifar10-practical", "FedAvg"): {0: missing, 1: missing},
    }
    found = compare_values(recipe, values, failed)
    assert one(found, "FedAvg", column="mnist-practical").verdict.word == "undecided"
    assert one(found, "MOON", column="mnist-practical").verdict.why == "failed: ValueError: nan"
    limits = limitations(found, failed)
    assert "mnist-practical: failed: FedAvg (seed 1) and MOON (seed 0): ValueError: nan" in limits
    assert "mnist-practical: failed: FedAvg (seed 2): OSError: full" in limits
    assert f"cifar10-practical: failed: FedAvg (seeds 0 and 1): {missing}" in limits
    (rest,) = [text for text in limits if text.startswith("mnist-practical: not run yet: ")]
    assert "MOON" not in rest
    (rest,) = [text for text in limits if text.startswith("cifar10-practical: not run yet: ")]
    assert rest.startswith("cifar10-practical: not run yet: MOON, ")
    assert all(f"- {text}" in as_markdown(recipe, values, "", failed) for text in limits)


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("column,row\n")
    with pytest.raises(ValueError, match="need column, row, metric"):
        read_measurements(tmp_path / "t.csv")


def test_overrides_that_change_nothing_are_none() -> None:
    fedssa: Recipe = find_recipe("fedssa/table1")
    assert fedssa.changing(["rounds=100", "engine.workers=2"]) == ["rounds=100"]
    assert fedssa.changing(["scenario.path=here", "scenario.paths.usps=there"]) == []  # where files are is no setting
    assert fedssa.changing(["rounds=500", "seed=0", "batch_size=64"]) == []  # the recipe's own values
    assert fedssa.changing(["rounds=500", "rounds=20"], "small") == ["rounds=500"]  # which its small scale has not


def test_a_printed_maximum_is_not_compared_with_a_single_run(make_result: MakeResult) -> None:
    recipe = find_recipe("fedssa/table1")
    done = {("cifar10-10-clients", "FedSSA"): [make_result("fedssa", seed, [0.9857]) for seed in range(3)]}
    for changed in ("", "with rounds=100 local_epochs=1"):
        found = compare_values(recipe, measure(recipe, done, changed, False))
        verdict = one(found, "FedSSA", column="cifar10-10-clients").verdict
        assert verdict.word == "not comparable"
        assert verdict.why.startswith("the paper prints the best result of a search")


def test_a_margin_as_wide_as_the_claim_is_named(make_result: MakeResult) -> None:
    done = {
        (column, "FedDW"): [make_result("feddw", seed, [0.9]) for seed in range(3)]
        for column in ("mnist-practical", "cifar10-practical")
    }
    found = beside("feddw/table1", done)  # printed gains over FedAvg: 0.21 and 2.80
    why = [one(found, "FedDW", column=column).verdict.why for column in ("mnist-practical", "cifar10-practical")]
    assert [text.endswith("margin is as wide as the claim") for text in why] == [True, False]


def test_another_setting_is_compared_in_its_order_alone(make_result: MakeResult) -> None:
    recipe, accuracies = (
        find_recipe("fedsc/table5"),
        {"L1": 0.1, "L2": 0.2, "Cosine": 0.3, "KL": 0.25, "Angle-wise": 0.4},
    )
    done = {("cifar10", row): [make_result("fedsc", 0, [value])] for row, value in accuracies.items()}
    found = compare_values(recipe, measure(recipe, done, "small scale", False))
    assert {line.verdict.why.partition(";")[0] for line in found} == {"another setting: only their order is compared"}
    (order,) = compare_orders(recipe, found)
    assert order.agreement is not None
    assert order.agreement.n == 5
    del done["cifar10", "Angle-wise"]
    page = as_markdown(recipe, measure(recipe, done, "small scale", False), "small scale")
    assert "4 rows: too few to tell an order from chance |" in page
    assert "order |" not in as_markdown(recipe, [], "small scale")


def test_values_without_a_spread_are_told(make_result: MakeResult) -> None:
    seeds = {"L1": (0.1, 0.1), "L2": (0.2, 0.1), "KL": (0.1,)}
    done = {("cifar10", row): [make_result("fedsc", k, [v]) for k, v in enumerate(of)] for row, of in seeds.items()}
    told = [text for text in limitations(beside("fedsc/table5", done)) if "the same value on every seed" in text]
    assert told == ["cifar10: the same value on every seed, as of nets that answer one class always: L1."]
    base = {("cifar10", "FedAvg (no module)"): [make_result("fedavg", k, [0.5 + k / 10]) for k in range(2)]}
    assert not any(
        "the same value" in text for text in limitations(beside("fedskc/table5", base))
    )  # its gain over itself


def test_rounds_gains_domains_and_predictors(make_result: MakeResult) -> None:
    curve = (0.1, 0.3, 0.5)
    rounds = beside("fedsc/table3", {("cifar10", "FedAvg"): [make_result("fedavg", 0, curve)]})
    assert one(rounds, "FedAvg", column="cifar10", metric="rounds_to_40").ours == [3]
    assert one(rounds, "FedAvg", column="cifar10", metric="rounds_to_80").verdict.why == "1 of 1 seed did not get there"
    both = {
        ("cifar10", "FedAvg (no module)"): [make_result("fedavg", 0, [0.5]), make_result("fedavg", 1, [0.6])],
        ("cifar10", "LCL"): [make_result("fedskc", 0, [0.55])],
    }
    gain = one(beside("fedskc/table5", both), "LCL", column="cifar10", metric="gain_over_fedavg_points")
    assert gain.ours == pytest.approx([5.0])
    itself = one(beside("fedskc/table5", both), "FedAvg (no module)", column="cifar10", metric=gain.metric)
    assert itself.verdict.word == "not comparable"
    assert {order.metric for order in compare_orders(find_recipe("fedskc/table5"), beside("fedskc/table5", both))} == {
        "test_accuracy_pct"
    }
    world = toy_scenario()
    office = make_result(
        *("fedavg", 0, [0.5]),
        client_accuracies=(0.1, 0.2, 0.3, 0.4),
        world=world | {"domains": ["amazon", "caltech", "dslr", "webcam"]},
    )
    domains = beside("fedco2/table1", {("office", "FedAvg"): [office]})
    assert one(domains, "FedAvg", domain="DSLR").ours == pytest.approx([30.0])
    assert one(domains, "FedAvg", domain="Avg").ours == pytest.approx([50.0])
    assert one(domains, "COPA", domain="Avg").verdict.why == "not run"
    also = make_result("fedco2", 0, [0.5], world=world | {"domains": ["clipart", "a", "b", "c", "real", "sketch"]})
    also = with_row(also, "accuracy/online", 0.45)
    also = with_row(also, "accuracy/online", 0.6, client=4)  # the fifth domain
    online = beside("fedco2/table10", {("domainnet", "Fed-CO2 (no intra and inter knowledge transfer)"): [also]})
    assert one(online, "Online Model", domain="Avg").ours == pytest.approx([45.0])
    assert one(online, "Online Model", domain="Real").ours == pytest.approx([60.0])
    assert one(online, "Online Model", domain="Sketch").verdict.why == "no run gives test_accuracy_pct of Sketch"
    assert one(online, "Online Model", domain="Painting").seeds == []  # a source without this domain


def test_few_test_samples_prove_less(make_result: MakeResult) -> None:
    """One of 32 images more on each of three seeds is no certainty, and a domain has its own client's test samples."""
    office = [
        replace(
            make_result(
                *(method, seed, [0.9]),
                client_accuracies=(0.5, 0.5, dslr, 0.5),
                protocol="global/local",
                world=toy_scenario() | {"domains": ["amazon", "caltech", "dslr", "webcam"]},
            ),
            client_details={"global/local": {"2": {"confusion": [0, 0, 30, 0, 1, 2]}}},
        )
        for method, dslr in (("fedavg", 30 / 32), ("fedbn", 31 / 32))
        for seed in range(3)
    ]
    recipe = find_recipe("fedco2/table1")
    measurements = measure(recipe, {("office", "FedAvg"): office[:3], ("office", "FedBN"): office[3:]})
    assert {(m.domain, m.test_samples) for m in measurements} == {
        *(("Avg", 10_000), ("DSLR", 32), ("Amazon", None), ("Caltech", None), ("WebCam", None))
    }
    values = compare_values(recipe, measurements)
    assert one(values, "FedBN", domain="DSLR").step == pytest.approx(100 / 32)
    (gain,) = [gain for gain in gains(recipe, values) if gain.row == "FedBN" and gain.domain == "DSLR"]
    half = 4.302653 * 100 / 32 / 12**0.5 / 3**0.5  # t of two degrees, and the spread that equal values count as
    assert (gain.ours.mean, gain.ours.low) == pytest.approx((3.125, 3.125 - half), rel=1e-5)
    assert one(values, "FedBN", domain="Avg").step == 0.01
    earlier = [replace(measurement, test_samples=None) for measurement in measurements]
    assert {value.step for value in compare_values(recipe, earlier)} == {0.01}


def test_orders_of_rounds_have_the_step_of_one_round(make_result: MakeResult) -> None:
    """One round less on each of three seeds does not decide a pair: with steps of 0.01 rounds it did."""
    curves = {"FedAvg": (0.1, 0.45), "FedSC": (0.1, 0.1, 0.45), "MOON": (0.1, 0.1, 0.1, 0.45)}
    done = {
        ("cifar10", row): [make_result(row.lower(), seed, curve) for seed in range(3)] for row, curve in curves.items()
    }
    recipe = find_recipe("fedsc/table3")
    values = compare_values(recipe, measure(recipe, done))
    assert one(values, "FedSC", column="cifar10", metric="rounds_to_40").step == 1.0
    (order,) = [
        order for order in compare_orders(recipe, values) if (order.column, order.metric) == ("cifar10", "rounds_to_40")
    ]
    assert order.verdict.why.startswith("3 pairs: 0 agree, 1 contradict, 2 undecided")


def test_files_of_earlier_versions_lack_the_test_samples(make_result: MakeResult, tmp_path: Path) -> None:
    done = {("mnist-practical", "FedAvg"): [make_result("fedavg", 0, [0.99])]}
    values = measure(find_recipe("feddw/table1"), done)
    assert [value.test_samples for value in values] == [10_000]
    lines = measurements_csv(values).splitlines()
    (tmp_path / "t.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    assert read_measurements(tmp_path / "t.csv") == [replace(values[0], test_samples=None)]


def test_pooled_accuracy_is_of_the_rounds_that_the_run_selects(make_result: MakeResult) -> None:
    config = {"evaluation": {"last_k": 2}}
    run = make_result("fedco2", 0, (0.1, 0.2, 0.3), select="mean_last_k", config=config)
    for round_, value in ((1, 0.5), (2, 0.6), (3, 0.7)):
        with_row(run, "accuracy_pooled", value, round_=round_)
    found = beside("fedco2/table3", {("cifar10-pathological", "Fed-CO2"): [run]})
    assert one(found, "Fed-CO2", column="cifar10-pathological").ours == pytest.approx([65.0])


def test_a_target_that_was_not_reached_counts_against_a_method(make_result: MakeResult) -> None:
    quick, slow, never = (0.1, 0.3, 0.5), (0.1, 0.1, 0.1, 0.45), (0.1, 0.1, 0.1, 0.1)
    curves = {"FedSC": (quick, never, never), "FedAvg": (slow, slow, slow), "MOON": (never, never, never)}
    done = {
        ("cifar10", row): [make_result(row.lower(), seed, curve) for seed, curve in enumerate(of)]
        for row, of in curves.items()
    }
    found = beside("fedsc/table3", done)
    fedsc = one(found, "FedSC", column="cifar10", metric="rounds_to_40")
    assert (fedsc.seeds, fedsc.ours, fedsc.missed_seeds) == ([0, 1, 2], [3], 2)
    assert (fedsc.verdict.word, fedsc.verdict.why) == ("undecided", "2 of 3 seeds did not get there")
    assert fedsc.rank_value > one(found, "FedAvg", column="cifar10", metric="rounds_to_40").rank_value == 4
    assert not any("One seed" in text or "different seeds" in text for text in limitations(found))
    *_, last = (line for line in found if line.was_run and line.row == "FedSC")
    fewer = [replace(line, seeds=[0, 1]) if line is last else line for line in found]  # other measures have them all
    assert last is not fedsc
    assert not any("different seeds" in text for text in limitations(fewer))
    page = as_markdown(find_recipe("fedsc/table3"), measure(find_recipe("fedsc/table3"), done), "")
    assert "3.00, 1 of 3 seeds" in page
    assert "–, 0 of 3 seeds" in page


def with_row(result: Result, name: str, value: float, client: int | None = None, round_: int = 1) -> Result:
    protocol = main_protocol(result.rows)
    result.rows.append(Row(round=round_, client=client, split="test", protocol=protocol, name=name, value=value))
    return result
