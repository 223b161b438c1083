"""The forecast of `fedloom advise`, fitted to committed studies, and how good its advice is on settings left out.

    python -m benchmarks advice                      # write src/fedloom/diagnosis/forecast.json, and judge it
    python -m benchmarks advice --profile long-tail  # first profile the data of these studies ($FEDLOOM_DATA)
    python -m benchmarks advice --trial              # run the trials of the scenarios of studies/advice.yaml again

`benchmarks/forecast.py` has the model. Every setting is left out once: the model is fitted to the others, and names
methods for the one that it has not seen. Regret is the gain of the best method there less that of the named one.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import comb
from pathlib import Path
from statistics import fmean, variance
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cells import Cells, read_cells, studies_by_name
from benchmarks.data import RESULTS, read_results, read_rows, write_results, write_rows
from benchmarks.forecast import Feature, Forecast, Gain, fit
from benchmarks.tables.words import has_diverged, markdown
from fedloom.core.files import write_atomic
from fedloom.methods import METHODS
from fedloom.methods.catalogue import Entry, entries
from fedloom.runs.studies.plan import read_study

STUDIES = Path(__file__).parent / "studies"
FORECAST = Path(__file__).parents[1] / "src" / "fedloom" / "diagnosis" / "forecast.json"
PROFILES, JUDGED = RESULTS / "profiles.csv.gz", RESULTS / "forecast.csv.gz"
DEALINGS = 6  # seeds of dealings over which a profile is averaged
LOGARITHMIC = ("clients", "samples", "tail")  # features that count by their ratios
FLOOR = -15.0  # points; a larger loss, or a run that diverged, counts as this one
LISTED = 5  # methods of the advice's list
TUNED = ("fedavg+finetune", "fedavg+lpft")  # FedAvg's traits, and a model for each client as well
TRAFFIC = "all-methods", "alpha-0.05"  # the study and setting in which bytes are compared with FedAvg's
# By forecast: the protocols that serve it, the first one measured, and the method that a gain has to exceed.
FORECASTS = {
    "global": (("global/global", "global/local"), "fedavg"),
    "personal": (("personal/local", "global/local"), "fedavg+finetune"),
    "different": (("personal/local", "global/local"), "local"),
}
WAYS = {
    "forecast": "the forecast",
    "slopes": "the forecast with features",
    "average": "best on average",
    "everywhere": "best on average of those measured everywhere",
    "reference": "the reference",
    "random": "a method at random",
}


class Setting(NamedTuple):
    """A setting of a committed study, its words, its page, and the forecasts that it serves.

    `rest` names a second study of the same setting, whose methods have fewer seeds.
    """

    study: str
    setting: str
    title: str
    page: str
    serves: tuple[str, ...] = ("global", "personal")
    rest: str | None = None

    @property
    def name(self) -> str:
        return f"{self.study}/{self.setting}".rstrip("/")


_ADVICE = "how-to/advise.md#how-good-is-the-advice"
SETTINGS = (
    Setting("all-methods", "alpha-0.05", "Fashion-MNIST, Dirichlet 0.05, 20 clients", "results.md#dirichlet-005"),
    Setting("all-methods", "alpha-0.2", "Fashion-MNIST, Dirichlet 0.2, 20 clients", "results.md#dirichlet-02"),
    Setting("long-tail", "", "Fashion-MNIST, long tail", "results.md#long-tail-fashion-mnist-rho-50-dirichlet-02",
        ("global",)),
    Setting("digit-domains", "", "five digit domains", "results.md#feature-skew-five-digit-domains-one-client-each"),
    Setting("honest-scale", "authorities", "grades in 131 education authorities", "honest-scale.md#authorities",
        rest="honest-scale-rest"),
    Setting("honest-scale", "hundred-clients", "Fashion-MNIST, Dirichlet 0.1, 100 clients",
        "honest-scale.md#a-hundred-clients", rest="honest-scale-rest"),
    Setting("two-classes", "", "different nets, two classes a client",
        "results.md#different-nets-fashion-mnist-two-classes-a-client", ("different",)),
    Setting("heterogeneous-models", "", "different nets, CIFAR-10, Dirichlet 0.1",
        "results.md#heterogeneous-models-cifar-10-dirichlet-01", ("different",)),
    Setting("advice", "digits-extreme", "digits, Dirichlet 0.1, 10 clients", _ADVICE, ("global",)),
    Setting("advice", "fashion-mild", "1,000 clothes, Dirichlet 1, 10 clients", _ADVICE, ("global",)),
    Setting("advice", "fashion-tail", "3,000 clothes, rho 20, 10 clients", _ADVICE, ("global",)),
    Setting("advice", "diamonds-quantity", "a table of diamonds, unequal amounts", _ADVICE, ("global",)),
    Setting("advice", "fashion-rotations", "1,000 clothes in four rotations", _ADVICE, ("personal",)),
    Setting("advice", "fashion-three", "1,000 clothes, three classes a client", _ADVICE, ("personal",)),
    Setting("advice", "digits-few", "digits, 40 clients of 36 samples", _ADVICE, ("personal",)),
    Setting("advice", "pupils-schools", "pupils of 80 schools, a table", _ADVICE, ("personal",)),
)  # fmt: skip


def measure_profiles(studies: Sequence[str]) -> None:
    """Profile the data of these studies' settings for each dealing seed; the others keep their rows."""
    from fedloom.diagnosis.diagnosis import diagnose_config

    rows = [row for row in read_rows(PROFILES) if row["setting"].partition("/")[0] not in studies]
    for setting in [setting for setting in SETTINGS if setting.study in studies]:
        cells = read_study(STUDIES / f"{setting.study}.yaml").cells
        config = next(cell.config for cell in cells if cell.setting == setting.setting)
        for seed in range(DEALINGS):
            diagnosis = diagnose_config(config.model_copy(update={"seed": seed}))
            shape = config.scenario.build(seed).train_set.input_shape
            labels, features = diagnosis.labels, diagnosis.untrained
            assert features is not None
            row = {
                "label_skew": labels.distances["hellinger"].value,
                "feature_skew": features.class_distance.value,
                "clients": len(labels.clients) + labels.left_out,
                "samples": float(labels.sizes.mean()),
                "tail": labels.tail_ratio,
                "image": int(len(shape) == 3),
            }
            rows.append({"setting": setting.name, "seed": seed} | {key: round(row[key], 3) for key in row})
        print(setting.name, rows[-1], flush=True)
    order = [setting.name for setting in SETTINGS]
    write_rows(PROFILES, sorted(rows, key=lambda row: (order.index(row["setting"]), row["seed"])))


def features(settings: Sequence[Setting]) -> dict[str, Feature]:
    """Return the features of settings by name, in standard deviations over these settings."""
    dealings: dict[str, list[list[float]]] = {setting.name: [] for setting in settings}
    for row in read_rows(PROFILES):
        name = row.pop("setting")
        del row["seed"]
        if name in dealings:
            dealings[name].append([np.log(value) if key in LOGARITHMIC else value for key, value in row.items()])
    if missing := [name for name, rows in dealings.items() if len(rows) < 2]:
        raise SystemExit(f"no profile of {', '.join(missing)}: python -m benchmarks advice --profile STUDY")
    means = {name: np.mean(rows, 0) for name, rows in dealings.items()}
    centre, spread = np.mean(list(means.values()), 0), np.std(list(means.values()), 0)
    spread[spread == 0] = 1
    return {
        name: Feature((means[name] - centre) / spread, np.var(rows, 0, ddof=1) / len(rows) / spread**2)
        for name, rows in dealings.items()
    }


def settings_of(goal: str) -> list[Setting]:
    """Return the settings that serve a forecast."""
    return [setting for setting in SETTINGS if goal in setting.serves]


@cache
def gains(goal: str) -> tuple[Gain, ...]:
    """Return the gains of all methods, at their default presets, over the baseline of a forecast, on common seeds."""
    return tuple(gain for setting in settings_of(goal) for gain in _gains(setting, goal))


def _gains(setting: Setting, goal: str) -> Iterator[Gain]:
    protocols, baseline = FORECASTS[goal]
    rows: dict[str, tuple[str, dict[int, float], bool]] = {}
    for study in filter(None, (setting.study, setting.rest)):
        for name, cell in cached_cells(study).items():
            in_setting, _, label = name.partition("/")
            if (in_setting, label, cell.get("preset")) != (setting.setting, cell.get("method"), "sound"):
                continue
            tested = {protocol: values["accuracy"] for protocol, values in cell.get("tested", {}).items()}
            tested = tested or {cell["protocol"]: cell["accuracies"]}
            protocol = next((protocol for protocol in protocols if protocol in tested), None)
            if protocol is not None and label != "central":
                rows[label] = protocol, dict(zip(cell["seeds"], tested[protocol], strict=True)), has_diverged(cell)
    if goal == "global" and any(protocol == "global/global" for protocol, *_ in rows.values()):
        rows = {label: row for label, row in rows.items() if row[0] == "global/global"}
    _, reference, _ = rows.pop(baseline)
    points = {
        label: [100 * (value - reference[seed]) for seed, value in by_seed.items() if seed in reference]
        for label, (_, by_seed, _) in rows.items()
    }
    means = {label: FLOOR if rows[label][2] else max(FLOOR, fmean(values)) for label, values in points.items()}
    # Three seeds say little of a method's own spread, so the methods of a setting share it.
    spread = fmean(variance(points[label]) for label in points if means[label] > FLOOR)
    return (Gain(setting.name, label, means[label], spread / len(points[label])) for label in points)


def derived() -> dict[str, Any]:
    """Return the forecasts of all goals, and the traits of methods."""
    return {"forecasts": {goal: _forecast(goal) for goal in FORECASTS}, "traits": traits()}


def _forecast(goal: str) -> dict[str, Any]:
    model, by_method = fit(gains(goal)), dict[str, list[float]]()
    for gain in gains(goal):
        by_method.setdefault(gain.method, []).append(gain.points)
    rows = []
    for method, points in by_method.items():
        forecast = model.forecast(method, "new")
        row = {"method": method, "gain": round(forecast.gain, 2), "sd": round(forecast.sd, 2)}
        rows.append(row | {"settings": len(points), "lowest": round(min(points), 1), "highest": round(max(points), 1)})
    rows.sort(key=lambda row: (-row["gain"], row["method"]))
    settings = [{"title": setting.title, "page": setting.page} for setting in settings_of(goal)]
    return {"baseline": FORECASTS[goal][1], "settings": settings, "methods": rows}


def judge() -> Iterator[dict[str, Any]]:
    """Yield for each setting, left out, and each way: the method named first, and the regret of it and of the list."""
    for goal in FORECASTS:
        for setting in settings_of(goal):
            for way in WAYS:
                yield {"goal": goal, "setting": setting.name, "way": way} | judged_setting(goal, setting.name, way)


def judged_setting(goal: str, setting: str, way: str) -> dict[str, Any]:
    """Return what a way of choosing names for a setting that it has not seen, and the regret. A forecast also has its
    Brier score, and the shares of gains within its 80 % and 95 % intervals."""
    known = [gain for gain in gains(goal) if gain.setting != setting]
    measured = {gain.method: gain for gain in gains(goal) if gain.setting == setting}
    values = {method: gain.points for method, gain in measured.items()}
    best = max(0.0, *values.values())
    if way == "random":
        ordered, size = sorted(values.values(), reverse=True), min(LISTED, len(values))
        chances = [comb(len(ordered) - rank - 1, size - 1) / comb(len(ordered), size) for rank in range(len(ordered))]
        expected = sum(chance * value for chance, value in zip(chances, ordered, strict=True))
        return {"first": "", "regret": round(best - fmean(ordered), 2), "list": round(best - expected, 2)}
    candidates = [method for method in values if any(gain.method == method for gain in known)]
    score, calibration = dict[str, float](), dict[str, float]()
    if way in ("forecast", "slopes"):
        model = fit(known, features(settings_of(goal)) if way == "slopes" else None)
        forecasts = {method: model.forecast(method, setting) for method in candidates}
        score = {method: forecast.gain for method, forecast in forecasts.items()}
        calibration = _calibration(forecasts, measured)
    elif way != "reference":
        by_method = {method: [gain.points for gain in known if gain.method == method] for method in candidates}
        every = max(map(len, by_method.values())) if way == "everywhere" else 1
        score = {method: fmean(points) for method, points in by_method.items() if len(points) >= every}
    ranked = sorted(score, key=lambda method: -score[method])[:LISTED]
    listed = [values[method] for method in ranked] or [0.0]
    first = ranked[0] if ranked else FORECASTS[goal][1]
    return {"first": first, "regret": round(best - listed[0], 2), "list": round(best - max(listed), 2)} | calibration


def _calibration(forecasts: Mapping[str, Forecast], measured: Mapping[str, Gain]) -> dict[str, float]:
    brier = fmean((forecast.better - (measured[name].points > 0)) ** 2 for name, forecast in forecasts.items())
    errors = [
        abs(measured[name].points - forecast.gain) / (forecast.sd**2 + measured[name].variance) ** 0.5
        for name, forecast in forecasts.items()
    ]
    inside = {f"inside_{share}": fmean(error < z for error in errors) for share, z in ((80, 1.2816), (95, 1.96))}
    return {name: round(value, 3) for name, value in {"brier": brier, **inside}.items()}


def write_forecast() -> None:
    """Write the forecast's file and its judgement again."""
    write_atomic(FORECAST, forecast_text().encode())
    write_rows(JUDGED, list(judge()))


def forecast_text() -> str:
    """Return the text of the forecast's file, with one line per method to make changes visible."""
    content = derived()
    blocks = []
    for goal, one in content["forecasts"].items():
        rows = ",\n    ".join(json.dumps(row) for row in one["methods"])
        head = json.dumps({"baseline": one["baseline"], "settings": one["settings"]}, ensure_ascii=False)[:-1]
        blocks.append(f'  "{goal}": {head}, "methods": [\n    {rows}\n  ]}}')
    by_method = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in content["traits"].items())
    forecasts = ",\n".join(blocks)
    return f'{{\n "forecasts": {{\n{forecasts}\n }},\n "traits": {{\n  {by_method}\n }}\n}}\n'


def traits() -> dict[str, dict[str, Any]]:
    """Return the traits of every method in a committed study, and of tuned FedAvg, by name."""
    measured = {cell.get("method") for cells in studies_by_name().values() for cell in cells.values()}
    own = [entry for entry in entries() if entry.name in measured]
    by_name = {entry.name: traits_of(entry) for entry in own if is_federated(entry)}
    for name in TUNED:
        tuned = {"yields": ["global", "personal"], "compute": compute_share(name)}
        by_name[name] = by_name["fedavg"] | tuned
    return dict(sorted(by_name.items()))


def is_federated(method: Entry) -> bool:
    """Whether clients keep their data; a model for all that needs no uploads is trained on pooled data."""
    return bool(method.citation and method.citation.up) or method.yields == "personal"


def traits_of(method: Entry) -> dict[str, Any]:
    """Return the traits of one method. traffic and compute: over FedAvg's; traffic below 0.01 counts as 0.01.
    class_tables: whether it uploads counts or means by class, in any round."""
    assert method.citation is not None
    traffic = traffic_share(method.name)
    plain = METHODS.get(method.name).configured("sound", {})
    stages = [stage for stage in (plain, plain.opening(), plain.closing()) if stage is not None]
    return {
        "yields": method.yields.split(", "),
        "any_nets": method.abilities.any_architecture,
        "state": bool(method.citation.state),
        "newcomers": not method.abilities.untrained,
        "secure_sums": method.abilities.secure_sum,
        "class_tables": any(sent.labels for stage in stages for sent in stage.spec.sends.values()),
        "dp": method.wrappers["dp"] is None,
        "traffic": max(round(traffic, 2), 0.01) if traffic else traffic,
        "compute": compute_share(method.name),
    }


def traffic_share(name: str) -> float | None:
    """Return the bytes that a method sends up and down over FedAvg's; None where no study has measured them."""
    return _share(*TRAFFIC, name, lambda cell: cell["bytes_up"] + cell["bytes_down"])


def compute_share(name: str) -> float | None:
    """Return the operations of a method's clients over FedAvg's, with their tuning before tests, in the first of two
    settings that measured both."""
    settings = (TRAFFIC, ("honest-scale", "hundred-clients"))
    shares = (_share(*setting, name, lambda cell: cell.get("flops") or 0.0) for setting in settings)
    return next((round(share, 1) for share in shares if share is not None), None)


def _share(study: str, setting: str, name: str, quantity: Callable[[Mapping[str, Any]], float]) -> float | None:
    cell, plain = (cached_cells(study).get(f"{setting}/{label}") for label in (name, "fedavg"))
    return None if cell is None or plain is None else quantity(cell) / quantity(plain)


@cache
def cached_cells(study: str) -> Cells:
    """Read the cells of a study once."""
    return read_cells(study)


def tables() -> dict[str, str]:
    """Return the tables of the page on advice by name."""
    return {
        "advice-forecast": forecast_table(),
        "advice-regret": regret_table(),
        "advice-verdict": verdict(),
        "advice-calibration": _calibrated(),
        "advice-first": first_sentence(),
    }


def forecast_table() -> str:
    """Return the highest expected gains of each forecast."""
    titles, rows = {"global": "one model", "personal": "a model each", "different": "different networks"}, []
    for goal, one in json.loads(FORECAST.read_text(encoding="utf-8"))["forecasts"].items():
        for row in one["methods"][:LISTED]:
            forecast = Forecast(row["gain"], row["sd"])
            low, high = (row["gain"] + sign * 1.2816 * row["sd"] for sign in (-1, 1))
            expected = f"{row['gain']:+.1f} ({low:+.1f} to {high:+.1f})"
            measured = f"{row['settings']} of {len(one['settings'])}: {row['lowest']:+.1f} to {row['highest']:+.1f}"
            rows.append([titles[goal], f"`{row['method']}`", expected, f"{100 * forecast.better:.0f} %", measured])
    return markdown(("goal", "method", "expected gain (80 %)", "better than the reference", "measured in"), rows)


@cache
def judged() -> tuple[dict[str, Any], ...]:
    """Return the committed judgement."""
    return tuple(read_rows(JUDGED))


def regret_table() -> str:
    """Return one line per setting that was left out, then means and worst values for the first method and the list."""
    rows, by_name = [], {setting.name: setting for setting in SETTINGS}
    for goal in FORECASTS:
        for setting in settings_of(goal):
            ways = {row["way"]: row for row in judged() if (row["goal"], row["setting"]) == (goal, setting.name)}
            cells = [f"{ways[way].get('first', '')} {ways[way]['regret']:.1f}".strip() for way in WAYS]
            rows.append([f"[{by_name[setting.name].title}](../{setting.page})", FORECASTS[goal][1], *cells])
    for key, words in (("regret", "first method"), ("list", f"best of {LISTED}")):
        for name, fold in (("mean", fmean), ("worst", max)):
            values = (fold(row[key] for row in judged() if row["way"] == way) for way in WAYS)
            rows.append([f"**{words}, {name}**", "", *(f"**{value:.2f}**" for value in values)])
    return markdown(("left out", "the reference", *WAYS.values()), rows)


def regret(way: str, key: str = "regret", fold: Callable[[Iterator[float]], float] = fmean) -> float:
    """Return the mean regret of a way over all settings left out, or with `max` the worst one."""
    return fold(row[key] for row in judged() if row["way"] == way)


def verdict() -> str:
    """Return in words how the forecast compares with plain advice, with features, and with taking the reference."""
    parts = [
        f"{WAYS[way]} {regret(way):.1f} and {regret(way, fold=max):.1f} "
        f"(list of {LISTED}: {regret(way, 'list'):.1f} and {regret(way, 'list', max):.1f})"
        for way in ("forecast", "average", "slopes")
    ]
    cases: dict[tuple[str, str], dict[str, float]] = {}
    for row in judged():
        cases.setdefault((row["goal"], row["setting"]), {})[row["way"]] = row["regret"]
    titles = {setting.name: setting.title for setting in SETTINGS}
    differ = [titles[name] for (_, name), by_way in cases.items() if by_way["forecast"] != by_way["average"]]
    return (
        f"Mean and worst regret of the first method: {'; '.join(parts)}. "
        f"The forecast and the best on average differ in {len(differ)} of {len(cases)} cases: {'; '.join(differ)}."
    )


def first_sentence() -> str:
    """Return the methods that the forecast names first, as the methods page says it."""
    told = []
    forecasts = json.loads(FORECAST.read_text(encoding="utf-8"))["forecasts"]
    for goal, words in (("global", "one model for all"), ("personal", "a model for each client")):
        rows = [
            f"`{row['method']}` ({row['gain']:+.1f} points, {100 * Forecast(row['gain'], row['sd']).better:.0f} % sure)"
            for row in forecasts[goal]["methods"][:3]
        ]
        told.append(f"for {words}, over `{forecasts[goal]['baseline']}`: {', '.join(rows)}")
    return f"Expected in a setting that was not measured, {'; '.join(told)}."


def _calibrated() -> str:
    """Return how well the probabilities and intervals of both forecasts hold on settings left out."""
    rows = []
    for way in ("forecast", "slopes"):
        for goal, words in (("global", "one model"), ("personal", "a model each")):
            scored = [row for row in judged() if (row["way"], row["goal"]) == (way, goal)]
            brier, *inside = (fmean(row[key] for row in scored) for key in ("brier", "inside_80", "inside_95"))
            rows.append([WAYS[way], words, f"{brier:.3f}", *(f"{100 * share:.0f} %" for share in inside)])
    return markdown(("", "goal", "Brier score", "inside the 80 % interval", "inside the 95 % interval"), rows)


def run_trials() -> None:
    """Run a trial on each scenario of studies/advice.yaml; the tests of its candidates play no part."""
    import fedloom as fl

    cells = read_study(STUDIES / "advice.yaml").cells
    answers = read_results("advice")
    for setting in dict.fromkeys(cell.setting for cell in cells):
        config = next(cell.config for cell in cells if cell.setting == setting)
        advice = fl.advise(config, trial=True, progress=False)
        assert advice.trial is not None
        answers[setting] = {
            "goal": advice.needs.goal,
            "reference": advice.reference,
            "methods": advice.methods,
            "trial": advice.trial.facts(),
        }
        write_results("advice", answers)
        print(setting, advice.methods, advice.trial.sentence(), flush=True)


def trial_regrets() -> dict[str, tuple[str, float]]:
    """Return by scenario the method that its trial recommends, and its regret in points of test accuracy."""
    table = {}
    for name, answer in read_results("advice").items():
        values = {gain.method: gain.points for gain in gains(answer["goal"]) if gain.setting == f"advice/{name}"}
        values[answer["reference"]] = 0.0
        recommended = answer["trial"]["recommended"]["method"]
        table[name] = recommended, max(values.values()) - values[recommended]
    return table


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks advice")
    parser.add_argument("--profile", nargs="*", default=[], metavar="STUDY", help="profile the data of these studies")
    parser.add_argument("--trial", action="store_true", help="run the trials of studies/advice.yaml")
    options = parser.parse_args(arguments)
    if options.profile:
        measure_profiles(options.profile)
    write_forecast()
    if options.trial:
        run_trials()
