"""The keys that read a table: separator, spelling of numbers, label, owner, and the columns that teach nothing; and
`fedloom.audit`, the audit of a table in memory, in a file, or of a config."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml

from fedloom.core.errors import ConfigError, DataError, short_repr, suggest_name
from fedloom.core.files import expand_home
from fedloom.data.findings import DataFinding, DataFindings
from fedloom.data.labels import missing_marks
from fedloom.data.sources.class_folders import find_class_folders, folder_findings
from fedloom.data.sources.files import open_files
from fedloom.data.sources.image_folders import ImageFolder
from fedloom.data.sources.pixels import picture_names
from fedloom.data.sources.source import SOURCES, configure_source
from fedloom.data.sources.tables import table_files
from fedloom.data.sources.tables.audit import audit_table
from fedloom.data.sources.tables.audited_table import REFUSED, AuditedTable, read_table
from fedloom.data.sources.tables.columns import CellFormat, Column, incomplete_rows
from fedloom.data.sources.tables.encoding import separator_keys
from fedloom.data.sources.tables.formats import FileTable, Parquet
from fedloom.data.sources.tables.source import TableSource
from fedloom.data.sources.tables.words import SPELLINGS, number_part, odd_words
from fedloom.runs.config.keys import built
from fedloom.runs.config.reference import find_config
from fedloom.runs.config.run_config import load

_LABELS = re.compile(
    r"(y|label|labels|class|target|outcome|diagnosis|category|species|result|response|ill|disease|readmitted|churn"
    r"|default|status|sentiment|survived|quality)",
    re.IGNORECASE,
)
_OWNERS = re.compile(
    r"(owner|client|hospital|clinic|site|cent(er|re)|institution|ward|user|device|writer|subject|station|region|branch"
    r"|bank|school|store|shop|plant|city|country|state|operator|doctor|patient|machine)s?([ _-]?(id|no|nr|name|code))?",
    re.IGNORECASE,
)
_MAX_CLASSES = 100
_MIN_ROWS_OF_OWNER = 10
_CLIENTS = 10
_SPARSE = 0.4  # of the cells of a column
_FEW_LOST = 0.05  # of the labelled rows
_WORDS = 1000  # of a column, in which numbers are sought
Ask = Callable[[str, Sequence[str], str], str]
"""Ask a person: question, choices and default -> answer."""
Keys: TypeAlias = dict[str, tuple[Any, str]]
"""Keys of a section of a config: value, and the reason for it, which may be empty."""


def table_keys(path: Path, source: str, label: str | None, owner: str | None, ask: Ask | None) -> Keys:
    """Return the keys of the source, "csv" or "parquet", for the file `path`, before its audit.
    The label (or several with commas) and the owner are columns; None chooses, by `ask` if there is one; "none" is no
    owner. Raises `ConfigError` or `DataError` for a file that cannot be read, or without a column of classes."""
    keys = written_keys(path, source)
    table = read_written(keys)
    names = [name for name in table.file.columns if name not in table.file.index]
    if len(names) < 2:
        first = f" ('{names[0]}')" if names else ""
        raise DataError(f"{path}: has {len(names)} column{first}; need a label and at least one column to learn from")
    texts = table.reader.texts(table.file, names) if len(names) == 2 else {}
    is_row = any(name.isdecimal() and name in column.counts() for name, column in texts.items())
    if source == "csv" and (table_files.looks_like_a_row(names) or is_row):
        raise DataError(f"{path}: {table_files.NO_HEADER}; the source tsv reads label<TAB>text without a header")
    columns = _columns(table)
    keys |= _labels(path, columns, names, label, ask)
    labels: str | list[str] = keys["label"][0]
    chosen, taken = ([labels], [labels]) if isinstance(labels, str) else ([], labels)
    if (of_rows := _owner(path, columns, names, taken, owner, ask)) is not None:
        chosen.append(of_rows[0])
        if np.median(np.unique(columns[of_rows[0]].values, return_counts=True)[1]) >= _MIN_ROWS_OF_OWNER:
            keys["owner"] = of_rows
        else:
            count = len(np.unique(columns[of_rows[0]].present_values))
            why = f"its {count:,} owners have too few rows for clients: rows of one stay on one side of a split"
            clients = min(_CLIENTS, max(2, count // 2)), "whole groups are dealt at random"
            keys |= {"group": (of_rows[0], why), "partition": ("iid", ""), "clients": clients}
    marks = {name: missing_marks(columns[name].counts()) for name in chosen if name in columns}
    if any(marks.values()):
        where = " and ".join(name for name in marks if marks[name])
        stated, why = keys.get("missing", ([], ""))
        found = sorted({*stated, *(mark for of_column in marks.values() for mark in of_column)})
        keys["missing"] = found, f"{why}{'; ' if why else ''}cells of {where} that stand for a missing value"
    return keys


def mend(keys: Keys) -> list[DataFinding]:
    """Add the keys that mend what the audit of a table finds, and what `incomplete` needs; return the findings."""
    findings: list[DataFinding] = audit_table(read_written(keys))
    if marks := [finding for finding in findings if _proposal(finding)[0] == "missing"]:
        before, why = keys.get("missing", ([], ""))
        values = {*before, *(mark for finding in marks for mark in _proposal(finding)[1])}
        where = " and ".join(dict.fromkeys(finding.column for finding in marks))
        keys["missing"] = sorted(values), f"{why}{'; ' if why else ''}cells of {where} that stand for a missing value"
        findings = marks + audit_table(read_written(keys))
    reasons: dict[str, dict[str, str]] = {"drop": {}, "categorical": {}}
    for finding in findings:
        key, value = _proposal(finding)
        if key == "group" and "group" not in keys:
            keys["group"] = value, "rows of one of these stay on one side of a split; it is no feature"
        elif key in reasons and value[0] != keys.get("group", ("",))[0]:
            # Without the cells of the data, which belong in no config.
            text = re.split(";|: |, the first", finding.rule.removeprefix(REFUSED), maxsplit=1)[0][:120]
            advice = " (mend them, or name it in `categorical`)" if text.startswith("holds numbers") else ""
            reasons[key].setdefault(value[0], text + advice)
    for key, of_columns in reasons.items():
        if of_columns:
            keys[key] = [*of_columns], "; ".join(f"{name}: {why}" for name, why in of_columns.items())
    table, dropped = read_written(keys), reasons["drop"]
    is_needed = not table.features.keys() - {*dropped}
    if keys["source"][0] == "csv" and (content := _content(table, dropped, is_needed)) is not None:
        for key in ("drop", "categorical", "decimal", "thousands", "bounds"):
            keys.pop(key, None)
        keys |= content
        return [finding for finding in findings if finding.check in ("group-like", "look-alikes")]
    label = keys["label"][0]
    apart = [keys[role][0] for role in ("label", "owner", "group") if role in keys and keys[role][0] != label]
    unrecorded, apart = ([], [label, *apart]) if isinstance(label, str) else (label, apart)
    used = {name: column for name, column in _columns(table).items() if name not in {*dropped, *unrecorded}}
    keys |= _incomplete(used, apart, table.file.rows)
    if "label_separator" in keys and used[label].is_missing.any():
        why = f"; if an empty cell of {label} means none of the labels, write a word there and name it as no_label"
        keys["incomplete"] = keys["incomplete"][0], keys["incomplete"][1] + why
    return findings


def _incomplete(columns: Mapping[str, Column], apart: Sequence[str], rows: int) -> Keys:
    """Return the keys for missing cells, with counts: sparse columns are left out, and rows dropped if they are few.
    apart: the columns, such as the label, whose cells are never imputed."""
    counts = {name: int(column.is_missing.sum()) for name, column in columns.items() if column.is_missing.any()}
    sparse = [name for name, count in counts.items() if count > _SPARSE * rows and name not in apart]
    keys, sparse = Keys(), sparse if len(sparse) < len(columns) - len(apart) else []
    if sparse:
        keys["drop_columns"] = {"above": _SPARSE}, "leaves out " + ", ".join(f"{n} ({counts[n]:,})" for n in sparse)
    unlabelled = incomplete_rows((columns[name] for name in apart if name in columns), rows)
    lacking = incomplete_rows((columns[name] for name in columns if name not in {*apart, *sparse}), rows) & ~unlabelled
    if not (unlabelled | lacking).any():
        return keys
    cells = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))
    share = lacking.sum() / max(1, (~unlabelled).sum())
    why = f"missing cells of {rows:,} rows: {cells}; {int(lacking.sum()):,} labelled rows ({share:.1%}) lack a feature"
    if share <= _FEW_LOST:
        return keys | {"incomplete": ("drop", f"{why}, which are few")}
    values = {"numbers": "mean", "words": "most_frequent", "indicator": True}
    means = "values of the training rows; a feature missing(COLUMN) is 1 where one was filled in"
    return keys | {"incomplete": ("impute", f"{why}, too many to drop"), "impute": (values, means)}


def _proposal(finding: DataFinding) -> tuple[str, Any]:
    """Return the key of a source that mends a finding, and its value; ("", None) for a question to a person."""
    match = re.fullmatch(r"scenario\.(\w+): (.*)", finding.key)
    if finding.check == "refused":
        return "drop", [finding.column]
    if match is None or finding.is_note or finding.check.startswith("tells"):
        return "", None
    return match[1], yaml.safe_load(match[2])


def written_keys(path: Path, source: str) -> Keys:
    """Return the keys that the separator and the numbers of a file of the source "csv" or "parquet" need."""
    keys: Keys = {"source": (source, ""), "path": (str(path), "")}
    if source == "csv":
        keys |= _separator(path)
    return keys | _spelling(keys)


def read_written(keys: Keys) -> AuditedTable:
    """Read a file with some keys. Raises `DataError` for a file that cannot be read."""
    kind = SOURCES.get(keys["source"][0])
    fields = {name: value for name, (value, _) in keys.items() if name in kind.model_fields}
    reader = configure_source(kind, **{"label": "\0", **fields})  # no column has this name
    assert isinstance(reader, FileTable)
    label = reader.one_label if "label" in keys else None
    return read_table(reader, reader.opened(reader.path), label, reader.owner, {*reader.apart} - {label, reader.owner})


def _columns(table: AuditedTable) -> dict[str, Column]:
    """Return the columns that can be read; possible labels and owners are read as names, which keeps 01 and 1 apart."""
    whole = {name: column for name, column in table.columns.items() if column.is_numeric() and column.is_whole()}
    few = {name: of for name, of in whole.items() if 2 * len(np.unique(of.values)) <= table.file.rows}
    return table.columns | dict(table.reader.names([table.file], [few])[0])


def _content(table: AuditedTable, dropped: Mapping[str, str], is_needed: bool) -> Keys | None:
    """Return the keys of a source that reads pictures which a dropped column names, or, if it is needed, texts."""
    folder = table.file.path.parent
    cells = {name: [*map(str, table.file.texts([name])[name].slice(0, 20).to_pylist())] for name in dropped}
    for name, names in cells.items():
        if all((folder / cell).is_file() for cell in names) and [*names] == picture_names(open_files(folder), names):
            return {"source": ("file-table", ""), "file": (name, "the column of the files' names")}
    text = max(cells, key=lambda name: sum(map(len, cells[name])), default=None)
    if not is_needed or text is None or sum(cell.count(" ") for cell in cells[text]) < len(cells[text]):
        return None
    return {"source": ("text-table", ""), "text": (text, "the column of the texts")}


# -- how the file is written -------------------------------------------------------------------------------------------
def _separator(path: Path) -> Keys:
    """Return the keys `separator` and `encoding`, where the file needs them."""
    raw = table_files.start_of_text(path, 2**20)
    keys: Keys = {}
    text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1", "replace")
    separator = table_files.usual_separator(text)
    if separator not in (None, ",") and not raw.startswith((b"\x1f\x8b", b"BZh")):
        keys["separator"] = separator, "the character between cells"
    if not raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"BZh")) and not _is_utf8(raw):
        why = "the file is not UTF-8; look at its accents, they may need cp1252 or another encoding"
        keys["encoding"] = "latin-1", why
    return keys


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(raw) - 4  # a character that the end of the sample has cut
    return True


def _spelling(keys: Keys) -> Keys:
    """Return the keys `decimal`, `thousands` and `missing` with which the fewest columns have to be left out."""
    table = read_written(keys)
    counts_of = {name: column.counts() for name, column in table.columns.items()}
    words = [number_part(word) for counts in counts_of.values() for word in [*counts][:_WORDS]]
    marks = sorted(mark for counts in counts_of.values() for mark in odd_words(counts))
    usual = table.reader.cell_format
    spellings: list[dict[str, Any]] = []
    # in a file with commas between its cells, a comma is rarely a decimal sign, so these spellings come last
    has_commas = keys["source"][0] == "csv" and "separator" not in keys
    for cell_format in sorted(SPELLINGS, key=lambda candidate: has_commas and candidate.decimal == ","):
        reads_more = any(cell_format.number(word) is not None and usual.number(word) is None for word in words)
        if reads_more or cell_format == CellFormat():
            changed = {key: getattr(cell_format, key) for key in ("decimal", "thousands")}
            changed = {key: value for key, value in changed.items() if value != getattr(table.reader, key)}
            spellings += [changed, *([changed | {"missing": marks}] if marks else [])]
    spellings += [spelling | {"bounds": "value"} for spelling in spellings]

    def unread_columns(spelling: dict[str, Any]) -> int:
        return len(read_written(keys | {key: (value, "") for key, value in spelling.items()}).refused)

    best = min(spellings, key=unread_columns)
    meanings = {
        "decimal": "numbers are written as 1,5",
        "thousands": f"numbers are written as 1{best.get('thousands')}000",
        "missing": "these cells are no numbers, and count as missing",
        "bounds": "cells such as <40 or ~51 are read as that number",
    }
    return {key: (value, meanings[key]) for key, value in best.items()}


# -- label and owner ---------------------------------------------------------------------------------------------------
def _labels(
    path: Path, columns: Mapping[str, Column], names: Sequence[str], label: str | None, ask: Ask | None
) -> Keys:
    """Return the keys of the column of the class, or of several labels, and why these."""
    candidates = [name for name, column in columns.items() if _is_label(column) or separator_keys(column)]
    named = [name for name in candidates if _LABELS.fullmatch(name)]
    guess = next(iter(named), names[-1] if names[-1] in candidates else None)
    why, problem = "", f"--label {label}: {path} has no such column"
    if label is None and not candidates:
        remedy = "name it with --label, or bin the values that are to be predicted"
        raise DataError(f"{path}: no column looks like a class (2 to {_MAX_CLASSES} words or whole numbers); {remedy}")
    if label is None and ask is not None:
        label = ask("Which column is the class?", candidates, guess or candidates[0])
        problem = f"{label}: {path} has no such column"
    if label is None and guess is None:
        raise DataError(f"{path}: name the column of the class with --label: {', '.join(candidates)[:300]}")
    if label is None:
        label, why = str(guess), "the last column; name another with --label, or several with commas between them"
        why = "the column of the class, by its name" if named else why
    if label not in names and "," in label:
        several = [_known(part.strip(), problem, names) for part in label.split(",")]
        return {"labels": ("multi", "a column for each label"), "label": (several, "1, 0, and empty if not recorded")}
    keys: Keys = {"label": (_known(label, problem, names), why)}
    if label in columns and (marks := separator_keys(columns[label])):
        keys |= {"labels": ("multi", "cells name several labels")} | {key: (mark, "") for key, mark in marks.items()}
    return keys


def _known(name: str, why: str, names: Sequence[str], taken: Sequence[str] = ()) -> str:
    if name not in names or name in taken:
        raise ConfigError(f"{why}: {suggest_name(name, names)[:300]}")
    return name


def _is_label(column: Column) -> bool:
    if column.words is None and not column.is_whole() and column.values.dtype.kind != "b":
        return False
    values = column.present_values
    return 2 <= len(np.unique(values)) <= min(_MAX_CLASSES, max(2, len(values) // 5))


def _owner(
    path: Path,
    columns: Mapping[str, Column],
    names: Sequence[str],
    labels: list[str],
    owner: str | None,
    ask: Ask | None,
) -> tuple[str, str] | None:
    """Return the column of the owners, and why this one; None if rows have none. labels: columns that are none."""
    candidates = []
    for name, column in columns.items():
        rows = np.unique(column.present_values, return_counts=True)[1]
        owns = len(rows) >= 2 and np.median(rows) >= _MIN_ROWS_OF_OWNER
        if name not in labels and (column.words is not None or column.is_whole()) and owns:
            candidates.append(name)
    named = [name for name in candidates if _OWNERS.fullmatch(name)]
    why = f"--owner {owner}: {path} has no such column apart from the label"
    if owner is None and ask is not None and candidates:
        owner = ask("Which column is the owner of a row?", ["none", *candidates], named[0] if named else "none")
        why = f"{owner}: {path} has no such column"
    if owner is not None:
        return None if owner == "none" else (_known(owner, why, names, labels), "")
    why = "the owner of a row, by the column's name; it is no feature (--owner none changes that)"
    return (named[0], why) if named else None


def audit(
    table: Any, label: str | None = None, owner: str | None = None, overrides: Sequence[str] = ()
) -> DataFindings:
    """Look for cells and columns of a table, or folders of pictures, that mislead a model in silence.

    Args:
        table: a pandas DataFrame, a mapping of names to arrays [n], the path of a CSV or Parquet file, or a config (its
            file, or the name of a ready one) with such a source, whose training rows are read, or with pictures.
        label: the column of the class; None leaves out the checks that need it. A config names its own.
        owner: the column of the owners, if rows have one.
        overrides: words `key=value` on top of a config.

    Returns the findings, alarms first; they print as a table. Raises `DataError` for a table without rows, and
    `ConfigError` for an unknown column and for a config whose source is no table.
    """
    if not isinstance(table, str | Path):
        reader = Parquet.model_construct(path=Path("table"), label="")
        return _audited(read_table(reader, _in_memory(table), label, owner))
    path = expand_home(table)
    kind = Path(path.name.removesuffix(".gz").removesuffix(".bz2")).suffix.lower()
    if kind not in (".csv", ".tsv", ".txt", ".parquet"):
        return _audited_config(load(find_config(path), overrides), path, label, owner)
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if overrides:
        raise ConfigError(f"{short_repr(overrides[0])}: {path} is a table, which has no keys; name a config")
    roles: Keys = {role: (name, "") for role, name in (("label", label), ("owner", owner)) if name is not None}
    return _audited(read_written(written_keys(path, "parquet" if kind == ".parquet" else "csv") | roles))


def _audited_config(values: Mapping[str, Any], path: Path, label: str | None, owner: str | None) -> DataFindings:
    section = of if isinstance(of := values.get("scenario"), dict) else {"source": of}
    # The config is not parsed as a whole, because that may read the data and refuse what the audit is to show.
    kind = SOURCES.get(str(section.get("source")))
    if not issubclass(kind, TableSource | ImageFolder):
        kinds = ", ".join(name for name, source in SOURCES if issubclass(source, TableSource | ImageFolder))
        raise ConfigError(f"{path}: the audit reads {kinds}; source {section.get('source')} is none of these")
    if label is not None or owner is not None:
        raise ConfigError(f"{path}: a config names its label and owner; leave --label and --owner out")
    source = built(kind, {key: value for key, value in section.items() if key in kind.model_fields}, "scenario")
    if isinstance(source, ImageFolder):
        folders = find_class_folders(open_files(source.path), None)
        return DataFindings(folder_findings([*folders.train, *(folders.test or ())], folders.classes))
    assert isinstance(source, TableSource)
    file = source.tables()[0]
    return audit_table(read_table(source, file, source.one_label, source.owner, source.unused(file)))


def _audited(table: AuditedTable) -> DataFindings:
    for role, name in (("label", table.label), ("owner", table.owner)):
        if name is not None and (name not in table.file.columns or name in table.file.index):
            names = [name for name in table.file.columns if name not in table.file.index]
            raise ConfigError(f"{table.file.path}: {role} = '{name}' is no column: {suggest_name(name, names)[:300]}")
    return audit_table(table)


def _in_memory(table: Any) -> table_files.TableFile:
    if not hasattr(table, "keys"):
        raise ConfigError(f"fedloom.audit takes a DataFrame, a mapping of arrays or a path, not {type(table).__name__}")
    columns = {str(key): _arrow(table[key], str(key)) for key in table.keys()}  # noqa: SIM118 - a DataFrame has no items
    sizes = {name: len(values) for name, values in columns.items()}
    if len(columns) < len(table.keys()) or len({*sizes.values()}) > 1:
        raise DataError(f"table: columns of one length with a name each are needed, not {str(sizes)[1:-1][:200]}")
    if not any(sizes.values()):
        raise DataError("table: holds no rows")
    return table_files.TableFile(Path("table"), columns, max(sizes.values()))


def _arrow(values: Any, name: str) -> Any:
    import pyarrow as pa

    if np.ndim(values) != 1:
        raise DataError(f"table: column '{name}' has the shape {np.shape(values)}; need one value per row and name")
    try:
        array = pa.array(values if hasattr(values, "dtype") else np.asarray(values), from_pandas=True)
    except (pa.ArrowException, TypeError):  # cells of several kinds
        array = pa.array([None if cell is None or cell != cell else str(cell) for cell in values])
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
