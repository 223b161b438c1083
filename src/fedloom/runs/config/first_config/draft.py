"""The keys of a source for the data that a user names: a file, a folder, a built-in set or one of the hub."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fedloom.core.errors import ConfigError, DataError, suggest_name
from fedloom.core.files import expand_home
from fedloom.data.sources.files import open_files
from fedloom.data.sources.pixels import is_image
from fedloom.data.sources.source import SOURCES
from fedloom.runs.config.first_config.tables import Ask, table_keys

_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz")
_TEXT_FILES = ("train.tsv", "test.tsv")
_IDX_FILE = re.compile(r"(train|t10k)-(images|labels)[-.]idx\d-ubyte(\.gz)?")
_NO_DATA_SETS = ("given", "nodes", "domains")
_PICTURES = 60  # opened to learn their size
_SMALL, _LARGE = 32, 64  # pixels


@dataclass(frozen=True, slots=True)
class SourceDraft:
    """Keys of the section `scenario` that read a user's data, with `source`; the reasons for them by key; a name for
    the config's file."""

    keys: Mapping[str, Any]
    name: str
    reasons: Mapping[str, str] = field(default_factory=dict)


def draft_source(data: str, label: str | None, owner: str | None, ask: Ask | None) -> SourceDraft:
    """Return the keys that read `data`: a path, the name of a built-in set, or owner/name of a set of the hub.

    `label` and `owner` are columns of a table; None chooses them, by `ask` if there is one; the owner "none" takes
    none. Raises `ConfigError` or `DataError`, one line, for data that cannot be read.
    """
    path = expand_home(data)
    if data in SOURCES and not (path.suffix and path.exists()):
        _refuse_columns(data, label, owner)
        if data not in _data_sets():
            raise ConfigError(f"--from {data}: this source reads your own data; name the file or the folder itself")
        return SourceDraft({"source": data}, data)
    if path.is_dir():
        _refuse_columns(data, label, owner)
        return _folder(path)
    if path.is_file():
        return _file(path, label, owner, ask)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", data) and not path.suffix:
        keys, reasons = hub_keys(data, label)
        return SourceDraft(keys, data.rpartition("/")[2], reasons)
    raise DataError(
        f"{data}: no such file or folder, and no built-in set: {suggest_name(data, _data_sets())[:200]}; a set of "
        "the hub is named as owner/name"
    )


def _data_sets() -> list[str]:
    """Return the names of the built-in sets, which need no keys."""
    return [
        name
        for name in SOURCES.names()
        if name not in _NO_DATA_SETS and not any(key.is_required() for key in SOURCES.get(name).model_fields.values())
    ]


def _refuse_columns(data: str, label: str | None, owner: str | None) -> None:
    """Raise `ConfigError` for columns of data that have none."""
    if label is not None or owner is not None:
        raise ConfigError(f"--from {data}: --label and --owner name columns of a table, which this is not")


# -- files -------------------------------------------------------------------------------------------------------------
def _file(path: Path, label: str | None, owner: str | None, ask: Ask | None) -> SourceDraft:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = next((suffix for suffix in suffixes if suffix in (".csv", ".tsv", ".txt", ".parquet", ".npz")), "")
    if kind in (".csv", ".tsv", ".txt", ".parquet"):
        keys, reasons = table_keys(path, "parquet" if kind == ".parquet" else "csv", label, owner, ask)
        return SourceDraft(keys, path.name.partition(".")[0], reasons)
    _refuse_columns(str(path), label, owner)
    if kind == ".npz":
        return SourceDraft({"source": "npz", "path": str(path)}, path.stem)
    if suffixes and suffixes[-1] in _ARCHIVES:
        return _pictures(path)
    hints = {
        ".xlsx": "save the sheet as CSV",
        ".xls": "save the sheet as CSV",
        ".npy": "save samples and labels in one .npz, as x_train, y_train, x_test and y_test",
        ".json": "save the rows as CSV or Parquet",
        ".jsonl": "save the rows as CSV or Parquet",
        ".pt": "pass the tensors to fedloom.scenario in Python",
        ".pkl": "pass the object to fedloom.scenario in Python",
    }
    hint = hints.get(path.suffix.lower(), "need .csv, .parquet, .npz, or a folder or archive of pictures")
    raise DataError(f"{path}: files of this kind cannot be read; {hint}")


def _folder(folder: Path) -> SourceDraft:
    names = sorted(path.name for path in folder.iterdir())
    if {*_TEXT_FILES} <= {*names}:
        reasons = {"source": f"{_TEXT_FILES[0]} and {_TEXT_FILES[1]}: a label, a tab and a text in each line"}
        return SourceDraft({"source": "tsv", "path": str(folder)}, folder.name, reasons)
    if any(_IDX_FILE.fullmatch(name) for name in names):
        return SourceDraft({"source": "idx", "path": str(folder)}, folder.name)
    tables = [name for name in names if Path(name).suffix.lower() in (".csv", ".parquet", ".npz")]
    if tables and not any(path.is_dir() for path in folder.iterdir()):
        raise DataError(f"{folder}: holds {', '.join(tables)[:200]}; name the file, as in --from {folder / tables[0]}")
    return _pictures(folder)


# -- pictures ----------------------------------------------------------------------------------------------------------
def _pictures(path: Path) -> SourceDraft:
    """Return the keys for pictures in class folders, which are looked at for their size and colours."""
    files = open_files(path)
    names = [name for name in files.names() if is_image(name)]
    if not names:
        raise DataError(f"{path}: holds no pictures; need a folder or archive with a folder of pictures for each class")
    sides, modes = _looks(files.read_each(names[:: max(1, len(names) // _PICTURES)][:_PICTURES]))
    side = median(sides) if sides else _SMALL
    size = int(side) if side <= _SMALL else _SMALL if side < 48 else _LARGE
    gray = bool(modes) and not modes.keys() - {"L", "1", "I", "I;16", "F", "LA"}
    reasons = {
        "size": f"pixels; the pictures' shorter side is {side:g} (median of {len(sides)}), larger ones train slower",
        "channels": "the pictures are gray" if gray else "colour",
    }
    keys = {"source": "image-folder", "path": str(path), "size": max(8, size), "channels": 1 if gray else 3}
    return SourceDraft(keys, path.name.partition(".")[0] or "pictures", reasons)


def _looks(pictures: Any) -> tuple[list[int], Counter[str]]:
    """Return the shorter sides and the modes of pictures that can be opened."""
    import io

    from PIL import Image, UnidentifiedImageError

    sides, modes = [], Counter[str]()
    for _, raw in pictures:
        try:
            with Image.open(io.BytesIO(raw)) as picture:
                sides.append(min(picture.size))
                modes[picture.mode] += 1
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
            continue  # the source names this picture when it reads all
    return sides, modes


_LABELS = ("label", "labels", "class", "target", "coarse_label", "fine_label")
_TEXTS = ("text", "sentence", "content", "review", "document")


def hub_keys(dataset: str, label: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of the source `hf` for a data set, owner/name, with the column `label`, and the reasons for them
    by key.

    Raises `DataError` if the package is missing, the set is unknown, or has no class column for its pictures or texts.
    """
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"{dataset}: no such file or folder; a set of the hub needs the package datasets: "
            "pip install 'fedloom[hub]'"
        ) from None
    try:
        info = datasets.load_dataset_builder(dataset).info
        features, splits = dict(info.features or {}), list(info.splits or {})
    except Exception as error:  # the library raises many kinds for a name or a network that is not there
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{dataset}: no file or folder, and the hub cannot be asked for it ({why})") from None
    keys: dict[str, Any] = {"source": "hf", "dataset": dataset}
    reasons: dict[str, str] = {}
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    classes += [name for name in _LABELS if name in kinds and name not in classes]
    if label is not None and label not in kinds:
        raise ConfigError(f"--label {label}: {dataset} has no such column: {suggest_name(label, kinds)[:300]}")
    if label is None and not classes:
        raise DataError(f"{dataset}: no column of classes; name it with --label: {', '.join(kinds)[:300]}")
    keys["label"] = label or classes[0]
    images = [name for name, kind in kinds.items() if kind == "Image"]
    texts = [name for name in _TEXTS if name in kinds]
    texts += [name for name, feature in features.items() if getattr(feature, "dtype", "") == "string"]
    texts = [name for name in dict.fromkeys(texts) if name != keys["label"]]
    if images:
        keys["image"] = images[0]
    elif texts:
        keys["text"] = texts[0]
        reasons["text"] = "the column of the texts"
    else:
        raise DataError(f"{dataset}: has no pictures and no texts, but {', '.join(kinds)[:300]}; save it as Parquet")
    if splits:
        keys["train_split"] = "train" if "train" in splits else splits[0]
        names = [name for name in ("test", "validation", "valid", "val") if name in splits]
        keys["test_split"] = names[0] if names else None
        if not names:
            reasons["test_split"] = "the set has no test split: a fifth of each class is held out"
    return keys, reasons
