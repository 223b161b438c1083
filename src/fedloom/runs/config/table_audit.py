"""`fedloom.audit`: the audit of a table in memory, in a file, or of a config."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.errors import ConfigError, DataError, short_repr, suggest_name
from fedloom.core.files import expand_home
from fedloom.data.findings import DataFindings
from fedloom.data.sources.class_folders import find_class_folders, folder_findings
from fedloom.data.sources.files import open_files
from fedloom.data.sources.image_folders import ImageFolder
from fedloom.data.sources.source import SOURCES
from fedloom.data.sources.tables.audit import audit_table
from fedloom.data.sources.tables.audited_table import AuditedTable, read_table
from fedloom.data.sources.tables.formats import Parquet
from fedloom.data.sources.tables.source import TableSource
from fedloom.data.sources.tables.table_files import TableFile
from fedloom.runs.config.keys import built
from fedloom.runs.config.reference import find_config
from fedloom.runs.config.run_config import load
from fedloom.runs.config.table_keys import Keys, read_written, written_keys


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
        folders = find_class_folders(open_files(source.path).names(), None, str(source.path))
        return DataFindings(folder_findings([*folders.train, *(folders.test or ())], folders.classes))
    assert isinstance(source, TableSource)
    file = source.tables()[0]
    return audit_table(read_table(source, file, source.label, source.owner, source.unused(file)))


def _audited(table: AuditedTable) -> DataFindings:
    for role, name in (("label", table.label), ("owner", table.owner)):
        if name is not None and (name not in table.file.columns or name in table.file.index):
            names = [name for name in table.file.columns if name not in table.file.index]
            raise ConfigError(f"{table.file.path}: {role} = '{name}' is no column: {suggest_name(name, names)[:300]}")
    return audit_table(table)


def _in_memory(table: Any) -> TableFile:
    """Return the columns of a DataFrame or a mapping of arrays."""
    if not hasattr(table, "keys"):
        raise ConfigError(f"fedloom.audit takes a DataFrame, a mapping of arrays or a path, not {type(table).__name__}")
    columns = {str(key): _arrow(table[key], str(key)) for key in table.keys()}  # noqa: SIM118 - a DataFrame has no items
    sizes = {name: len(values) for name, values in columns.items()}
    if len(columns) < len(table.keys()) or len({*sizes.values()}) > 1:
        raise DataError(f"table: columns of one length with a name each are needed, not {str(sizes)[1:-1][:200]}")
    if not any(sizes.values()):
        raise DataError("table: holds no rows")
    return TableFile(Path("table"), columns, max(sizes.values()))


def _arrow(values: Any, name: str) -> Any:
    import pyarrow as pa

    if np.ndim(values) != 1:
        raise DataError(f"table: column '{name}' has the shape {np.shape(values)}; need one value per row and name")
    try:
        array = pa.array(values if hasattr(values, "dtype") else np.asarray(values), from_pandas=True)
    except (pa.ArrowException, TypeError):  # cells of several kinds
        array = pa.array([None if cell is None or cell != cell else str(cell) for cell in values])
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
