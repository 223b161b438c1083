"""The contents of a finished run folder as plain data. Nothing here needs torch.
clients.json has, by protocol and client, the confusion matrix as the pairs of classes that occur, one after another:
true class, predicted class, samples. So it grows with the test samples, not with the squared number of classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedloom.core.errors import ConfigError, RunFolderError, suggest_name
from fedloom.core.text import ACCURACY, MARGIN, Criterion, higher_is_better
from fedloom.runs.storage import log
from fedloom.runs.storage.run_folder import EVALUATIONS, RunFolder

R = TypeVar("R", bound="RunData")
# By protocol, client and name.
ClientDetails = Mapping[str, Mapping[str, Mapping[str, list[int]]]]
Confusion = list[tuple[int, int, int]]  # true class, predicted class, samples

CLIENTS_FILE = "clients.json"
_CONFUSION = "confusion"
_Numbers = list[Annotated[int, Field(ge=0, le=2**53)]]
_FILE = TypeAdapter(dict[str, dict[str, dict[str, _Numbers]]], config=ConfigDict(strict=True))


SECONDS = ("train", "evaluate", "aggregate", "move", "checkpoint", "total")


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The outcome of a row in a protocol when a study looked at it, over its first `seeds`; word: or "diverged"."""

    setting: str
    row: str
    protocol: str
    seeds: list[int]
    alpha: float
    word: str
    adjusted: float | None = None
    equivalent_p: float | None = None
    tested: int = 0
    planned: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a row's comparisons, fixed before its study ran.
    study: hash of the plan; empty without one. family: "primary", "exploratory", "added later", or empty. margin: of
    equivalence, in points. seeds: the planned ones. sequential: whether seeds are added until the row is decided;
    looks: then, by protocol, the last recorded look at it."""

    study: str = ""
    family: str = ""
    margin: float = MARGIN
    seeds: Sequence[int] = ()
    sequential: bool = False
    looks: Mapping[str, LookedAt] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class RunData:
    """A finished run as plain data. numbers, rows, config, scenario: the contents of summary.json, metrics.jsonl,
    config.yaml and scenario.json. folder: the run folder, None if the run was not kept on disk. cell: the names of the
    setting and the row in the study that the run belongs to. plan: what it fixed about the row's comparisons.
    client_details, drift_rounds: the contents of clients.json and drift.jsonl; None reads them when they are needed.
    memory: config, scenario and weights (`Memory` of a run) that the folder does not hold."""

    numbers: dict[str, Any]
    rows: list[log.Row]
    config: dict[str, Any]
    scenario: dict[str, Any]
    folder: Path | None = None
    cell: tuple[str, str] | None = field(default=None, compare=False)
    plan: Plan = field(default=Plan(), compare=False)
    client_details: ClientDetails | None = field(default=None, compare=False)
    drift_rounds: Sequence[log.DriftRound] | None = field(default=None, compare=False)
    memory: Any = field(default=None, repr=False, compare=False)

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols in which the run was tested, the main one first."""
        main = self.numbers["protocol"]
        return (main, *(name for name in self.numbers.get("protocols", {}) if name != main))

    def in_protocol(self, protocol: str) -> Self:
        """The same run as its tests in one protocol show it, as if it had been tested in that alone.
        Raises `ConfigError` for a protocol in which it was not tested."""
        if protocol not in self.protocols:
            why = self.numbers.get("not_offered", {}).get(protocol)
            reason = f"{why}; it was tested in" if why else "not tested; this run has"
            raise ConfigError(f"protocol = {protocol!r}: {reason} {', '.join(self.protocols)}")
        if "protocols" not in self.numbers:
            return self
        numbers = {key: value for key, value in self.numbers.items() if key not in ("protocols", "not_offered")}
        numbers |= self.numbers["protocols"][protocol] | {"protocol": protocol}
        own, is_main = f"{protocol}: ", protocol == self.numbers["protocol"]
        others = tuple(f"{name}: " for name in self.protocols if name != protocol)
        numbers["degenerate"] = [
            note
            for note in numbers["degenerate"]
            if note.startswith(own) or says_diverged(note) or (is_main and not note.startswith(others))
        ]
        if not is_main:
            numbers["main_protocol"] = self.numbers["protocol"]
        return replace(self, numbers=numbers, rows=log.of_protocol(self.rows, protocol))

    def confusions(self) -> dict[int, Confusion]:
        """Each client's test samples after the last round, by client: true class, predicted class and samples of the
        pairs that occur. Empty where the run tested no clients, has more than 256 classes, or is of an earlier version.
        Raises `RunFolderError` if the file is damaged."""
        details, confusions = self.client_details, dict[int, Confusion]()
        classes = len(self.scenario.get("classes") or ())
        try:
            if details is None:
                content = None if self.folder is None else RunFolder(self.folder).read_json(CLIENTS_FILE)
                details = _FILE.validate_python(content or {})
        except ValidationError:
            remedy = "delete this file, or the run folder and run again"
            raise RunFolderError(f"{self.folder}/{CLIENTS_FILE}: damaged; {remedy}") from None
        for client, of in details.get(self.numbers["protocol"], {}).items():
            numbers = of.get(_CONFUSION, [])
            # Not strict: a length that is no multiple of 3 is reported below, as damage.
            pairs = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=False))
            if len(numbers) % 3 or any(max(true, predicted) >= classes for true, predicted, _ in pairs):
                raise RunFolderError(f"{CLIENTS_FILE}: the confusion of client {client} is damaged; delete the file")
            if _CONFUSION in of:
                confusions[int(client)] = pairs
        return confusions

    def confusion(self, client: int | None = None) -> list[list[int]]:
        """Return the confusion matrix after the last round: test samples by true class and predicted class [C][C].
        Raises `ConfigError` where it was not recorded, and `RunFolderError` if a file is damaged."""
        if client is None:
            pooled = self.numbers.get("details", {}).get("balanced_accuracy", {}).get("confusion")
            if pooled is None:
                raise ConfigError("confusion: the run has none; up to 256 classes are recorded")
            return [list(row) for row in pooled]
        recorded, protocol = self.confusions(), self.numbers["protocol"]
        if not recorded:
            detail = "it is recorded where clients are tested, for up to 256 classes"
            raise ConfigError(f"client = {client}: no confusion by client in {protocol}; {detail}")
        if client not in recorded:
            raise ConfigError(
                f"client = {client}: no confusion of this client in {protocol}; {len(recorded)} of "
                f"{self.numbers['clients']} clients have one, from {min(recorded)} to {max(recorded)}"
            )
        classes = len(self.scenario["classes"])
        counts = [[0] * classes for _ in range(classes)]
        for true, predicted, samples in recorded[client]:
            counts[true][predicted] = samples
        return counts

    def drift(self) -> list[dict[str, Any]]:
        """Return what drifted in the rounds, one figure a row: round, name, client, other, class, entry, value.
        `pandas.DataFrame(result.drift())` makes a frame of it. The page Drift says what each figure is. Raises
        `ConfigError` where the run did not measure drift, and `RunFolderError` if the file is damaged."""
        rounds = self.measured_drift()
        if not rounds:
            raise ConfigError("drift: this run measured none; run again with drift=true, or {decompose_every: 5}")
        return [row for drift in rounds for row in drift.rows()]

    def measured_drift(self) -> Sequence[log.DriftRound]:
        """Return the drift of each round; empty if the run did not measure it. Raises `RunFolderError`."""
        if self.drift_rounds is None:
            return [] if self.folder is None else log.DriftLog(self.folder).rounds()
        return self.drift_rounds

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The result in a run folder; None if the run there has not finished.
        Raises `RunFolderError` if a file of it is damaged, or was changed after the run."""
        folder = RunFolder(path)
        numbers, config = folder.read_summary(), folder.read_config()
        if numbers is None or config is None:
            return None
        rows = folder.log.rows()
        select_by = config.get("evaluation", {}).get("select_by", ACCURACY.name)
        if not _summary_fits_rows(numbers, rows, select_by):
            problem = f"its numbers are not those of {folder.log.path.name}; delete the run folder and run again"
            raise RunFolderError(f"{path / 'summary.json'}: {problem}")
        return cls(numbers, rows, config, folder.read_scenario(), path)

    def as_evaluated(self, content: Mapping[str, Any]) -> Self:
        """The same run as an evaluation shows it, with the tests of that, and the costs of the training."""
        newcomers = {log.NEWCOMERS} if content["evaluation"].get("replaces") else set()
        rows = [row for row in self.rows if row["split"] not in newcomers.union(log.TESTED_SPLITS)]
        dropped = newcomers | {"protocols", "not_offered"}
        numbers = {**{key: value for key, value in self.numbers.items() if key not in dropped}, **content}
        rows, details = rows + log.with_nan(numbers.pop("rows")), numbers.pop("client_details")
        plan = replace(self.plan, looks={})  # whose numbers are those of the training
        return replace(self, numbers=numbers, rows=rows, client_details=details, plan=plan)

    def selected_rounds(self) -> list[int]:
        """The rounds whose tests count by `evaluation.select`: one, or the last ones, whose mean is reported."""
        evaluation = self.config.get("evaluation", {})
        last_k, name = int(evaluation.get("last_k", 10)), evaluation.get("select_by", ACCURACY.name)
        criterion = shown_criterion(self.rows, self.numbers, name, last_k)
        return log.selected_rounds(self.rows, self.numbers["select"], last_k, criterion)

    def higher_is_better(self, measure: str) -> bool | None:
        """Whether the highest value of a measure is the best; None for another metric than fedloom's own in a folder of
        an earlier version, which does not say so."""
        return known_direction(self.numbers, measure)

    def curve(self, name: str = "accuracy", split: str = "test") -> tuple[list[int], list[float]]:
        """Rounds and values of one measure of the whole run, in its main protocol. Raises `ConfigError` if the run did
        not record it in this split ("test", "val", "train", "system", ...)."""
        rounds, values = log.curve(self.rows, name, split)
        if not rounds:
            recorded = {(row["split"], row["name"]) for row in self.rows if row["client"] is None}
            names = {measure for part, measure in recorded if part == split}
            if splits := sorted({part for part, measure in recorded if measure == name or not names}):
                raise ConfigError(f"split = {split!r}: {name} is not recorded there; take {' or '.join(splits)}")
            part, _, measure = name.partition("_")
            if (part, measure) in recorded:
                raise ConfigError(f"name = {name!r}: the split is an argument; write ({measure!r}, split={part!r})")
            raise ConfigError(f"name = {name!r}: the run did not record it; {suggest_name(name, names, 'metric')}")
        return rounds, values


def evaluated(runs: Sequence[R], name: str) -> tuple[list[R], list[tuple[Path, str]]]:
    """Return runs as the evaluation that begins with `name` shows them, and the folders without it, with a reason.
    Raises `ConfigError` if no run has it, and for a beginning of several names."""
    stems = sorted({path.stem for run in runs if run.folder for path in (run.folder / EVALUATIONS).glob("*.json")})
    names = [stem for stem in stems if stem.startswith(name)]
    if len(names) != 1:
        problem = f"{len(names)} of these begin so: {', '.join(stems)}" if stems else "the runs have none"
        raise ConfigError(f"--evaluation {name}: {problem}; `fedloom evaluate RUN` makes one and prints its name")
    contents = [(run, run.folder and RunFolder(run.folder).read_evaluation(names[0], run.numbers)) for run in runs]
    why = f"no evaluation {names[0]}; `fedloom evaluate` makes it"
    missing = [(run.folder or Path(), why) for run, content in contents if not content]
    return [run.as_evaluated(content) for run, content in contents if content], missing


def known_direction(numbers: Mapping[str, Any], measure: str) -> bool | None:
    """Return whether the highest value of a measure is the best, as `RunData.higher_is_better` does."""
    built_in = higher_is_better(measure)
    recorded: bool | None = numbers.get("higher_is_better", {}).get(measure.partition("/")[0])
    return recorded if built_in is None else built_in


def shown_criterion(rows: Sequence[log.Row], numbers: Mapping[str, Any], name: str, last_k: int) -> Criterion:
    """Return the criterion, by the metric `name`, with which a finished run selected its rounds: where a folder of an
    earlier version does not say it, the accuracy in the summary (`numbers`) shows which value is best."""
    sign = -1 if known_direction(numbers, name) is False else 1
    usual, opposite = Criterion(name, sign), Criterion(name, -sign)

    def is_shown(criterion: Criterion) -> bool:
        rounds = log.selected_rounds(rows, numbers["select"], last_k, criterion)
        return bool(log.mean_over(rows, "accuracy", rounds) == numbers["accuracy"])

    return opposite if name != ACCURACY.name and not is_shown(usual) and is_shown(opposite) else usual


def says_diverged(note: str) -> bool:
    """Whether a note of a run says that a loss in training was not finite, which concerns every protocol."""
    return note.startswith("diverged") or note.endswith(".diverged")


def has_diverged(numbers: Mapping[str, Any]) -> bool:
    """Whether the last test loss of a run is not finite, or a loss in training was not (the diagnostic "diverged")."""
    return any(map(says_diverged, numbers["degenerate"])) or numbers.get("test_loss", 0.0) is None


def _summary_fits_rows(numbers: Mapping[str, Any], rows: Sequence[log.Row], select_by: str) -> bool:
    """Whether a summary's accuracies and bytes follow from the rows, with the best round selected by `select_by`."""
    _, test = log.curve(rows, "accuracy", "test")
    # Up to 1 apart, because rows hold floats, and the summary the whole number below their sum.
    sent = all(abs(log.total_over_rounds(rows, name) - numbers[name]) < 1 for name in ("bytes_up", "bytes_down"))
    if not test or not sent or numbers["last_accuracy"] != test[-1]:
        return False
    best = numbers["best_test_accuracy"]
    return bool(best == max(test) if select_by == ACCURACY.name else best in test)
