"""Schemas of summary.json, scenario.json and config.yaml.
Run folders are shared, and a checksum does not show that a value was changed on purpose, so values are checked too."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, InstanceOf, ValidationError

from fedloom.core.errors import short_repr

_LARGEST = 2**63 - 1

_KEYS_OF_LATER_SCENARIOS = ("notes", "client_test_smallest", "client_test_median", "client_samples", "labels", "flow")

Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=1e30)]
Word = Annotated[str, Field(max_length=10_000)]


class _Plain(BaseModel, extra="ignore", strict=True, allow_inf_nan=False):
    """Plain values of exactly these types; keys that only another version knows are left alone."""


class _Seconds(_Plain):
    total: Amount
    train: Amount = 0.0
    evaluate: Amount = 0.0
    aggregate: Amount = 0.0
    move: Amount = 0.0
    checkpoint: Amount = 0.0


class _Stopped(_Plain):
    round: Count
    reason: Word


class _Attack(_Plain):
    name: Word
    share: Share
    clients: list[Count]
    success: Share | None
    honest_accuracy: Share | None


class _Decision(_Plain):
    label: Word
    threshold: float
    rule: Word | dict[Word, float]
    positives: Count
    negatives: Count
    round: Count


class _Intervals(_Plain):
    by: Literal["group", "row"]
    groups: Count
    method: Word
    level: Share
    draws: Count
    values: dict[Word, dict[Word, float | None]]


class _Scores(_Plain):
    accuracy: Share
    last_accuracy: Share
    best_val_accuracy: Share | None
    best_test_accuracy: Share
    mean_last_k_accuracy: Share | None = None
    test_loss: float | None = None
    metrics: dict[Word, float | None] = {}
    attack: _Attack | None = None
    intervals: _Intervals | None = None


class _Detail(_Plain):
    """The details of a metric that tables and reports read; it may have more."""

    confusion: list[list[Count]] | None = None
    by_class: list[float | None] | None = None
    bins: list[list[float | None] | None] | None = None


class _Details(_Plain):
    """Details of fedloom's own metrics; those of others may have any form."""

    balanced_accuracy: _Detail = _Detail()
    recall: _Detail = _Detail()
    precision: _Detail = _Detail()
    macro_f1: _Detail = _Detail()
    weighted_f1: _Detail = _Detail()
    auroc: _Detail = _Detail()
    average_precision: _Detail = _Detail()
    ece: _Detail = _Detail()


class _Newcomers(_Plain):
    clients: list[Count] = []
    tests: dict[Word, dict[Word, float | None]] = {}
    zero_shot_note: Word | None = None
    majority_own: Share | None = None
    not_tested: list[Count] = []


class RunSummary(_Scores):
    """summary.json."""

    method: Word
    preset: Word
    source: Word
    seed: Count
    rounds: Count
    clients: Count
    protocol: Word
    select: Word
    degenerate: list[Word]
    bytes_up: Count
    bytes_down: Count
    seconds: _Seconds
    model: Word = ""
    samples: Count = 0
    flops: Amount | None = None
    flops_note: Word = ""
    device: Word = "cpu"
    samples_per_second: Amount = 0.0
    peak_memory_mb: Amount = 0.0
    virtual_seconds: Amount = 0.0
    late: Count = 0
    figures: dict[Word, float | None] = {}
    higher_is_better: dict[Word, bool] = {}
    protocols: dict[Word, _Scores] = {}
    not_offered: dict[Word, Word] = {}
    details: _Details = _Details()
    newcomers: _Newcomers | None = None
    decision: _Decision | None = None
    engine: Word = ""
    engine_reason: Word | None = None
    stopped: _Stopped | None = None
    fingerprint: Word = ""
    checkpoint_sha256: Word | None = None
    run_dir: InstanceOf[str] | None = None  # a name of bytes that are no text stays one


# what every summary has, those of earlier versions included
_ALL_KEYS = (*RunSummary.__annotations__, *_Scores.__annotations__)
SUMMARY_KEYS = tuple(key for key in _ALL_KEYS if RunSummary.model_fields[key].is_required())
# what tables and reports read, and summaries of the first versions lack
_LATER_KEYS = ("model", "engine", "device", "peak_memory_mb", "checkpoint_sha256", "run_dir")
LATER_DEFAULTS: dict[str, Any] = {key: RunSummary.model_fields[key].default for key in _LATER_KEYS}


class _Stage(_Plain):
    rows: Count
    groups: Count | None
    sites: list[Annotated[list[Word | Count | None], Field(min_length=3, max_length=3)]]  # name, rows, groups
    classes: list[Count] = []


class _Scenario(_Plain):
    name: Word = ""
    clients: Annotated[int, Field(ge=1, le=_LARGEST)] = 1
    classes: list[Word] = []
    class_counts: list[list[Count]] = []
    domains: list[Word] = []
    domain_counts: list[list[Count]] = []
    feature_shift: Amount | None = None
    draws: Count = 1
    acceptance: Share = 1.0
    total_variation: Amount = 0.0
    classes_per_client: Amount = 0.0
    imbalance: Amount | None = None
    size_ratio: Amount | None = None
    empty_clients: Count = 0
    empty_classes: list[Count] = []
    train_samples: Count = 0
    val_samples: Count = 0
    test_samples: Count = 0
    client_test_smallest: Count | None = None
    client_test_median: Amount | None = None
    client_samples: list[Count] = []
    labels: dict[Word, list[Count]] = {}
    notes: list[str] = []
    flow: dict[Word, _Stage] = {}


class _Evaluation(_Plain):
    last_k: Annotated[int, Field(ge=1, le=_LARGEST)] = 10


class ResolvedConfig(_Plain):
    """The values of config.yaml that tables and reports read."""

    scenario: dict[str, Any] = {}
    evaluation: _Evaluation = _Evaluation()
    optimizer: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    checkpoint: dict[str, Any] = {}
    rounds: Count = 0
    local_epochs: Count = 1
    batch_size: Count = 1


def error_in_scenario(content: Mapping[str, Any]) -> str | None:
    """The first value of scenario.json that cannot be one, or a table of another shape than its names say."""
    if why := first_error(_Scenario, content):
        return why
    missing = [key for key in _Scenario.model_fields if key not in content and key not in _KEYS_OF_LATER_SCENARIOS]
    if content.get("class_counts") and missing:
        return f"it lacks {', '.join(missing)}"
    tables = (("class_counts", "classes"), ("domain_counts", "domains"))
    clients = {key: len(content.get(key) or ()) for key, _ in tables}
    for key, names in tables:
        width = len(content.get(names) or ())
        if clients[key] and (not width or any(len(row) != width for row in content.get(key) or ())):
            return f"{key}: need a number for each of the {width} {names} in every row"
    if clients["domain_counts"] and clients["domain_counts"] != clients["class_counts"]:
        return "class_counts and domain_counts are of different numbers of clients"
    by_label, width = content.get("labels") or {}, len(content.get("classes") or ())
    if by_label and (
        {len(of) for of in by_label.values()} != {width}
        or len(content.get("client_samples") or ()) != clients["class_counts"]
    ):
        return "labels and client_samples: need a number for each of the classes and clients"
    if any(label >= len(content.get("classes") or ()) for label in content.get("empty_classes") or ()):
        return "empty_classes names a class that is not there"
    return None


def first_error(model: type[BaseModel], content: Mapping[str, Any]) -> str | None:
    """The first value that cannot be one, among those that tables and reports read; None where all can."""
    try:
        model.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        return f"{key} = {short_repr(first['input'])}: {first['msg'][0].lower()}{first['msg'][1:]}"
    return None


# -- which keys of a stored config count ------------------------------------------------------------
EXECUTION = frozenset({"engine", "checkpoint", "flower"})
"""Sections of a config that say how a run is executed or kept: no key of theirs changes a number."""


def changes_numbers(key: str) -> bool:
    """Whether a key of a config can change a result.

    >>> changes_numbers("optimizer.lr"), changes_numbers("engine.workers")
    (True, False)
    """
    return key.partition(".")[0] not in EXECUTION


_UNNAMED = "settings.."  # before the keys of a study that names no setting
_LISTED, _LONGEST = 3, 40


def difference(stored: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the first keys that differ, with both values; empty if a run of `stored` may be resumed with `config`."""
    stored_values, values = dict(leaves(stored)), dict(leaves(config))
    keys = [key for key in sorted({*stored_values, *values}) if stored_values.get(key) != values.get(key)]
    keys = [key for key in keys if changes_numbers(key)]
    differences = [
        f"{key.removeprefix(_UNNAMED)}: {_short(stored_values.get(key))} there, {_short(values.get(key))} here"
        for key in keys[:_LISTED]
    ]
    return "; ".join([*differences, *([f"{len(keys) - _LISTED} more"] if len(keys) > _LISTED else [])])


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections with their dotted keys; an empty section is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
