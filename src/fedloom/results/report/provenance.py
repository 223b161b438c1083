"""Where the numbers come from: configs, machines and versions, run folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml
from markupsafe import Markup

from fedloom.core.text import percent, seeds_text
from fedloom.results.formats import as_csv
from fedloom.results.group import Group
from fedloom.results.page_sections import Cell
from fedloom.results.report.markup import code_cell, details, facts, name_cell, table
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder


def configs(groups: Sequence[Group]) -> list[Markup]:
    """The resolved config of each group, as YAML."""
    blocks = []
    for group in groups:
        text = yaml.safe_dump(group.results[0].config, sort_keys=False, allow_unicode=True)
        others = group.row["seeds"][1:]
        also = f", alike for {seeds_text(others)}" if others else ""
        blocks.append(details(f"{group.row['label']}: resolved config of seed {group.row['seeds'][0]}{also}", text))
    return blocks


def environments(groups: Sequence[Group]) -> list[Markup]:
    """Hardware and versions of the runs that were kept on disk; runs of one machine are told once."""
    environments_by_text: dict[str, list[str]] = {}
    for group in groups:
        for result in group.results:
            environment = None if result.folder is None else RunFolder(result.folder).read_json("env.json")
            if environment is not None:
                key = json.dumps(environment, sort_keys=True)
                environments_by_text.setdefault(key, []).append(f"{group.row['label']} seed {result.numbers['seed']}")
    return [
        facts(([("Runs", ", ".join(runs))] if len(environments_by_text) > 1 else []) + _environment(json.loads(key)))
        for key, runs in environments_by_text.items()
    ]


def run_list(groups: Sequence[Group]) -> Markup:
    """Every run with its seed, its accuracy, its folder and the hash of its last checkpoint."""
    runs = [(group.row["label"], result) for group in groups for result in group.results]
    body = [[name_cell(label), *_run(result)] for label, result in runs]
    plain = [{"run": label, **_plain(result)} for label, result in runs]
    numeric = {"Seed", "Accuracy %", "Memory MiB"}
    columns = ("Run", "Seed", "Accuracy %", "Memory MiB", "Engine", "Folder", "Checkpoint sha256")
    caption = "Every run: peak memory, engine, folder, and the hash of its last checkpoint."
    return table("runs-note", caption, columns, numeric, body, {"csv": as_csv(plain)})


def _plain(result: RunData) -> dict[str, Any]:
    """Return the plain numbers of one run for the CSV."""
    keys = ("seed", "accuracy", "peak_memory_mb", "engine", "checkpoint_sha256")
    folder = str(result.folder) if result.folder is not None else result.numbers["run_dir"]
    if folder is not None:  # a name may hold bytes that are no text
        folder = folder.encode(errors="backslashreplace").decode()
    return {key: result.numbers[key] for key in keys} | {"folder": folder}


def _run(result: RunData) -> list[Cell]:
    plain = _plain(result)
    return [
        (str(plain["seed"]), plain["seed"]),
        (percent(plain["accuracy"]), plain["accuracy"]),
        (f"{plain['peak_memory_mb']:,.0f}", plain["peak_memory_mb"]),
        str(plain["engine"]),
        code_cell(plain["folder"]) if plain["folder"] else "not kept",
        code_cell(plain["checkpoint_sha256"]) if plain["checkpoint_sha256"] else "–",
    ]


def _environment(environment: dict[str, Any]) -> list[tuple[str, str]]:
    plain = [(key.capitalize(), str(value)) for key, value in environment.items() if not isinstance(value, dict)]
    nested = [
        (name, str(value)) for inner in environment.values() if isinstance(inner, dict) for name, value in inner.items()
    ]
    return plain + nested
