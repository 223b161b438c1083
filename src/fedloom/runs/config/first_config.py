"""Make a first config for a user's data: read them, choose settings, try them, and write them with comments."""

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import yaml

from fedloom.core.errors import ConfigError, DataError, printable, suggest_name
from fedloom.core.files import expand_home
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.text import render_template
from fedloom.data import Scenario
from fedloom.data.dataset import multi_label_rows
from fedloom.data.findings import DataFinding
from fedloom.data.sources.files import Files, open_files
from fedloom.data.sources.hf import splits_by_part
from fedloom.data.sources.medical import is_bare_dicom, is_nifti
from fedloom.data.sources.npz import named_arrays
from fedloom.data.sources.pixels import PictureNotes, is_image, picture_names, read_pixels
from fedloom.data.sources.source import SOURCES, Splits, configure_source
from fedloom.data.views import positives
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.config.table_keys import Ask, Keys, mend, table_keys
from fedloom.runs.setup import Setup

_ROWS_OF_CLIENT = 50
_MAX_CLIENTS = 10
_ALL_TAKE_PART = 20  # with more clients, some of them take part in a round
_WIDTH = 100  # of comments
_PACKAGE = "fedloom.runs.config"


@dataclass(frozen=True, slots=True)
class FirstConfig:
    """A config for a user's data, its scenario, a name for its file, its keys by section, and what the audit found."""

    name: str
    sections: Mapping[str, Keys]
    config: RunConfig
    scenario: Scenario
    findings: Sequence[DataFinding]

    def text(self, file: str) -> str:
        values = {"name": printable(shlex.quote(file)), "data": self.scenario.train_set, "sections": self.sections}
        return render_template(_PACKAGE, "first_config.txt", comment=_comment, yaml=_yaml, **values)


def first_config(data: str, label: str | None = None, owner: str | None = None, ask: Ask | None = None) -> FirstConfig:
    """Return a config that was tried up to the first step of training. data: a path, the name of a built-in set, or
    owner/name of a set of the hub. label, owner: columns of a table; None chooses, the owner "none" takes none. ask:
    asks for columns that are not named. Raises `ConfigError` or `DataError` for unusable data."""
    name, source = _source(data, label, owner, ask)
    findings = mend(source) if source["source"][0] in ("csv", "parquet") else []
    if source["source"][0] == "file-table":
        source |= _picture_keys(open_files(Path(source["path"][0]).parent))
    kind = SOURCES.get(source["source"][0])
    fields = {key: value for key, (value, _) in source.items() if key in kind.model_fields}
    splits = configure_source(kind, **fields).load()
    _refuse_single_class(splits, data)
    dealt, scenario = _dealt(source, splits)
    smallest = min(size for size in scenario.train.sizes.tolist() if size)
    sections = {"scenario": source | dealt} | _settings(splits, scenario.clients, smallest)
    if splits.train.group is not None:
        sections["evaluation"]["intervals"] = {"by": "group"}, "whole groups are drawn again, as rows of one are alike"
    config = parse(_values(sections))
    with reproducible_settings():
        setup = Setup.from_config(config, scenario.train_set.input_shape, scenario.num_classes, scenario.clients)
        setup.worker(config, scenario.train_set)
        setup.diagnostics(config, scenario.train_set)
    return FirstConfig(name, sections, config, scenario, findings)


def _values(sections: Mapping[str, Keys]) -> dict[str, Any]:
    plain = {section: {key: value for key, (value, _) in keys.items()} for section, keys in sections.items()}
    return plain.pop("", {}) | plain


def _comment(text: str, indent: str = "") -> str:
    whole = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\xa0"), printable(text))
    lines = textwrap.wrap(whole, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return textwrap.indent("\n".join(lines).replace("\xa0", " "), f"{indent}# ")


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**20)
    return text.removesuffix("\n").removesuffix("\n...")


# -- settings ----------------------------------------------------------------------------------------------------------
def _refuse_single_class(splits: Splits, name: str) -> None:
    classes = splits.train.classes
    if splits.train.multi:
        return
    held = [class_name for class_name, count in zip(classes, _class_counts(splits), strict=True) if count]
    if len(held) < 2:
        others = ", ".join(class_name for class_name in classes if class_name not in held)[:100]
        more = f", and more samples of {others}: all that there are are kept for tests" if others else ""
        need = f"need two classes or more{more}"
        raise DataError(f"{name}: all training samples are of one class ({', '.join(held)}); {need}")


def _class_counts(splits: Splits) -> list[int]:
    held = positives(splits.train.y.numpy())[1]
    counts: list[int] = np.bincount(held, minlength=splits.train.num_classes).tolist()
    return counts


def _dealt(source: Keys, splits: Splits) -> tuple[Keys, Scenario]:
    """Return the keys of the first partition that can deal the data, and the dealt scenario."""
    *first, last = [Keys()] if "partition" in source else _partitions(splits)
    for keys in first:
        try:
            return keys, _scenario(source | keys, splits)
        except ConfigError:
            continue  # too few samples for this partition; the last one raises its own error
    return last, _scenario(source | last, splits)


def _scenario(keys: Keys, splits: Splits) -> Scenario:
    config = parse({"method": "fedavg", **_values({"scenario": keys})})
    return config.scenario.build(config.seed, splits)


def _partitions(splits: Splits) -> list[Keys]:
    """Return the keys of partitions, the best first; a later one is for data that an earlier one cannot deal."""
    data, count = splits.train, max(2, min(_MAX_CLIENTS, len(splits.train) // _ROWS_OF_CLIENT))
    values: dict[str, Any] = {"owners": splits.owner_count, "samples": len(data), "count": count, "multi": data.multi}
    domains = 0 if splits.domains_are_owners else len(data.domains)
    return [
        _keys(keys)
        for keys in yaml.safe_load(render_template(_PACKAGE, "first_partitions.yaml", domains=domains, **values))
    ]


def _keys(keys: Mapping[str, Sequence[Any]]) -> Keys:
    return {key: (value, why) for key, (value, why) in keys.items()}


def _settings(splits: Splits, clients: int, smallest_client: int) -> dict[str, Keys]:
    """Return the keys of model, training and evaluation for so many clients; smallest_client: its training samples."""
    data, counts, side = splits.train, _class_counts(splits), min(splits.train.input_shape[1:], default=0)
    values: dict[str, Any] = {"clients": clients, "smallest_client": smallest_client, "samples": len(data)}
    values |= {"share": 1.0 if clients <= _ALL_TAKE_PART else max(0.01, round(_MAX_CLIENTS / clients, 2))}
    values |= {"batch": 32 if smallest_client >= 32 else 16 if smallest_client >= 16 else 8}
    values |= {"is_text": data.x.dtype == torch.int64, "shape": data.input_shape, "side": side, "multi": data.multi}
    values |= {"owned": splits.owner_count >= 2, "classes": data.num_classes}
    values |= {"fewest": min(counts), "rarest": data.classes[counts.index(min(counts))]}
    sections = yaml.safe_load(render_template(_PACKAGE, "first_settings.yaml", **values))
    return {name: _keys(keys) for name, keys in sections.items()}


# -- the source of a user's data ---------------------------------------------------------------------------------------
_TEXT_FILES = ("train.tsv", "test.tsv")
_IDX_FILE = re.compile(r"(train|t10k)-(images|labels)[-.]idx\d-ubyte(\.gz)?")
_NO_DATA_SETS = ("given", "nodes", "domains")
_PICTURES = 60  # opened to learn their size
_SMALL, _LARGE = 32, 64  # pixels
_HINTS = {
    **dict.fromkeys((".xlsx", ".xls"), "save the sheet as CSV"),
    ".npy": "save samples and labels in one .npz, as x and y",
    **dict.fromkeys((".json", ".jsonl"), "save the rows as CSV or Parquet"),
    ".pt": "pass the tensors to fedloom.scenario in Python",
    ".pkl": "pass the object to fedloom.scenario in Python",
}


def _source(data: str, label: str | None, owner: str | None, ask: Ask | None) -> tuple[str, Keys]:
    path = expand_home(data)
    kinds = (".csv", ".tsv", ".txt", ".parquet", ".npz")
    kind = next((suffix.lower() for suffix in path.suffixes if suffix.lower() in kinds), "")
    is_source = data in SOURCES and not (path.suffix and path.exists())
    if path.is_file() and not is_source and kind not in ("", ".npz"):
        source = "parquet" if kind == ".parquet" else "csv"
        return path.name.partition(".")[0], table_keys(path, source, label, owner, ask)
    if not is_source and not path.exists():
        if re.fullmatch(r"[\w.-]+/[\w.-]+", data) and not path.suffix:
            return data.rpartition("/")[2], hub_keys(data, label)
        problem = f"{suggest_name(data, _data_sets())[:200]}; a set of the hub is named as owner/name"
        raise DataError(f"{data}: no such file or folder, and no built-in set: {problem}")
    if label is not None or owner is not None:
        raise ConfigError(f"--from {data}: --label and --owner name columns of a table, which this is not")
    if is_source:
        if data not in _data_sets():
            raise ConfigError(f"--from {data}: this source reads your own data; name the file or the folder itself")
        return data, {"source": (data, "")}
    if path.is_dir():
        return _folder(path)
    if kind == ".npz":
        arrays = named_arrays(path)
        rows = max((multi_label_rows(arrays[key]) for key in arrays.keys() & {"y_train", "y"}), default=0)
        several = {"labels": ("multi", f"{rows:,} rows of labels hold no 1 or several")} if rows else {}
        return path.stem, {"source": ("npz", ""), "path": (str(path), "")} | several
    if is_image(path.name) or is_bare_dicom(open_files(path.parent), path.name):
        place = next(iter(sorted(path.parent.glob("*.csv"))), path.absolute().parent.parent)
        need = "name the folder that holds a folder of pictures for each class, or a CSV file of file names and labels"
        raise DataError(f"{path}: is one picture; {need}, as in --from {place}")
    if path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz"):
        return _pictures(path)
    hint = _HINTS.get(path.suffix.lower(), "need .csv, .parquet, .npz, or a folder or archive of pictures")
    raise DataError(f"{path}: files of this kind cannot be read; {hint}")


def _data_sets() -> list[str]:
    """Return the names of the built-in sets, which need no keys."""
    return [
        name
        for name in SOURCES.names()
        if name not in _NO_DATA_SETS and not any(key.is_required() for key in SOURCES.get(name).model_fields.values())
    ]


def _folder(folder: Path) -> tuple[str, Keys]:
    names = sorted(path.name for path in folder.iterdir())
    path = str(folder), ""
    if {*_TEXT_FILES} <= {*names}:
        reason = f"{_TEXT_FILES[0]} and {_TEXT_FILES[1]}: a label, a tab and a text in each line"
        return folder.name, {"source": ("tsv", reason), "path": path}
    if any(_IDX_FILE.fullmatch(name) for name in names):
        return folder.name, {"source": ("idx", ""), "path": path}
    tables = [name for name in names if Path(name).suffix.lower() in (".csv", ".parquet", ".npz")]
    if tables and not any(inner.is_dir() for inner in folder.iterdir()):
        raise DataError(f"{folder}: holds {', '.join(tables)[:200]}; name the file, as in --from {folder / tables[0]}")
    return _pictures(folder)


def _pictures(path: Path) -> tuple[str, Keys]:
    keys: Keys = {"source": ("image-folder", ""), "path": (str(path), "")}
    return path.name.partition(".")[0] or "pictures", keys | _picture_keys(open_files(path))


def _picture_keys(files: Files) -> Keys:
    """Return the size and the channels of pictures, some of which are opened. Raises `DataError` if there are none."""
    names = picture_names(files, files.names())
    if not names:
        need = "need a folder or archive with a folder of pictures for each class"
        raise DataError(f"{files.path}: holds no pictures; {need}")
    sides, grays, is_volume = list[int](), list[bool](), False
    for name, raw in files.read_each(names[:: max(1, len(names) // _PICTURES)][:_PICTURES]):
        try:
            shape = read_pixels(raw, printable(name), None, PictureNotes()).shape
        except DataError:
            continue  # the source names this picture when it reads all
        is_volume = is_nifti(name) and len(shape) == 3
        sides.append(min(shape if is_volume else shape[:2]))
        grays.append(is_volume or len(shape) == 2)
    side = median(sides) if sides else _SMALL
    size = int(side) if side <= _SMALL else _SMALL if side < 48 or is_volume else _LARGE
    why_size = f"pixels; the pictures' shorter side is {side:g} (median of {len(sides)}), larger ones train slower"
    channels = (1, "the pictures are gray") if grays and all(grays) else (3, "colour")
    return {"size": (max(8, size), why_size), "channels": channels}


_LABELS = ("label", "labels", "class", "target", "coarse_label", "fine_label")
_TEXTS = ("text", "sentence", "content", "review", "document")


def hub_keys(dataset: str, label: str | None) -> Keys:
    """Return the keys of the source `hf` for a data set, owner/name, with the column `label`. Raises `DataError` if the
    package is missing, the set is unknown, or has no class column for its pictures or texts."""
    try:
        import datasets
    except ImportError:
        problem = "no such file or folder; a set of the hub needs the package datasets: pip install 'fedloom[hub]'"
        raise DataError(f"{dataset}: {problem}") from None
    try:
        info = datasets.load_dataset_builder(dataset).info
        features, splits = dict(info.features or {}), list(info.splits or {})
    except Exception as error:  # the library raises many kinds for a name or a network that is not there
        why = " ".join(str(error).split())[:200]
        raise DataError(f"{dataset}: no file or folder, and the hub cannot be asked for it ({why})") from None
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    inner = {name: of[0] if isinstance(of, list) else getattr(of, "feature", None) for name, of in features.items()}
    lists = [name for name, of in inner.items() if type(of).__name__ == "ClassLabel"]
    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"] + [n for n in _LABELS if n in kinds]
    classes += lists
    several = [] if label is None or label in kinds else [part.strip() for part in label.split(",")]
    if (unknown := next((name for name in several if name not in kinds), None)) is not None:
        raise ConfigError(f"--label {unknown}: {dataset} has no such column: {suggest_name(unknown, kinds)[:300]}")
    if label is None and not classes:
        raise DataError(f"{dataset}: no column of classes; name it with --label: {', '.join(kinds)[:300]}")
    keys: Keys = {"source": ("hf", ""), "dataset": (dataset, ""), "label": (several or label or classes[0], "")}
    if several or keys["label"][0] in lists:
        keys["labels"] = "multi", "a sample has several labels"
    images = [name for name, kind in kinds.items() if kind == "Image"]
    texts = [name for name in _TEXTS if name in kinds]
    texts += [name for name, feature in features.items() if getattr(feature, "dtype", "") == "string"]
    texts = [name for name in texts if name not in [*several, keys["label"][0]]]
    if images:
        keys["image"] = images[0], ""
    elif texts:
        keys["text"] = texts[0], "the column of the texts"
    else:
        raise DataError(f"{dataset}: has no pictures and no texts, but {', '.join(kinds)[:300]}; save it as Parquet")
    if splits:
        parts = splits_by_part(splits)
        keys["train_split"] = parts.get("train", splits[0]), ""
        test = parts.get("test", parts.get("val"))
        why = "" if test else "the set has no test split: a fifth of each class is held out"
        keys["test_split"] = test, why
    return keys
