"""The keys that read a data set of the Hugging Face hub, from what the hub says of its columns."""

from __future__ import annotations

from typing import Any

from fedloom.core.errors import ConfigError, DataError, suggest_name

_LABELS = ("label", "labels", "class", "target", "coarse_label", "fine_label")
_TEXTS = ("text", "sentence", "content", "review", "document")


def hub_keys(dataset: str, label: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of the source `hf` for a data set, and the reasons for them by key.

    Args:
        dataset: owner/name on the hub.
        label: the column of the class; None chooses one.

    Raises `DataError` if the package is missing, the set is unknown, or has no column of classes beside pictures or
    texts.
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
