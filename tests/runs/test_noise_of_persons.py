"""60 persons of five rows each, whose labels are random: by group 0.5 lies in the interval; without, a loud line."""

import csv
import logging

import numpy as np
import pytest
from PIL import Image

import fedloom as fl
from fedloom.data.sources.hf import from_huggingface
from fedloom.flower.in_process import run_in_process
from fedloom.runs.config.run_config import parse
from hub_sets import FakeSet

PERSON = np.repeat(np.arange(60), 5)
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(60, 16))[PERSON] + 0.05 * RNG.normal(size=(300, 16)), RNG.integers(0, 2, 60)[PERSON]
SENTENCE = "test samples nearly equal a training sample"
KEYS = {"method": "fedavg", "rounds": 12, "model": "mlp", "engine": "serial"}


def nodes_with(folder, key):
    """Three nodes of 20 persons each, which name the persons by `key`."""
    columns = [f"f{k}" for k in range(16)]
    for node in range(3):
        with (folder / f"own-{node}.csv").open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["person", *columns, "ill"])
            rows.writerows([f"P{PERSON[r]}", *X[r], "ny"[Y[r]]] for r in np.flatnonzero(node == PERSON % 3))
        text = f"source: csv\npath: own-{node}.csv\nlabel: ill\n{key}\n"
        (folder / f"node-{node:06d}.yaml").write_text(text)
    source = {"source": "nodes", "clients": 3, "classes": ["n", "y"], "features": columns, "val": 0.0}
    evaluation = {"every": 12, "protocol": "global/local", "intervals": {}}
    return run_in_process(parse({**KEYS, "scenario": source, "evaluation": evaluation}), data=folder)


def pictures_with(keys):
    """A Hugging Face set with a picture for each row."""
    pictures = [Image.fromarray(np.clip(128 + 40 * np.resize(x, (16, 16)), 0, 255).astype(np.uint8)) for x in X]
    persons = [f"patient{person:03d}" for person in PERSON]
    columns = {"label": ["ny"[y] for y in Y], "image": pictures, "person": persons}
    data = from_huggingface(FakeSet(**columns), size=16, channels=1, **keys)
    scenario = fl.scenario(data, clients=3, partition="iid")
    return fl.run(**KEYS, scenario=scenario, evaluation={"intervals": {"draws": 200}})


def is_chance(numbers, name):
    value = numbers["intervals"]["values"][name]
    return value["low"] < 0.5 < value["high"]


@pytest.mark.parametrize(("key", "unit"), [("group: person", "group"), ("drop: [person]", "row")])
def test_over_nodes(key, unit, tmp_path, caplog):
    caplog.set_level(logging.WARNING, "fedloom.flower")
    numbers = nodes_with(tmp_path, key).numbers
    assert numbers["intervals"]["by"] == unit
    assert (SENTENCE in caplog.text) == (unit == "row")  # in the log of each node
    assert any("at clients 0, 1, 2;" in text for text in numbers["degenerate"]) == (unit == "row")
    assert (numbers["accuracy"] > 0.8) == (unit == "row")
    assert unit == "row" or is_chance(numbers, "accuracy_pooled")


@pytest.mark.parametrize(("keys", "unit"), [({"group": "person"}, "group"), ({}, "row")])
def test_in_a_hugging_face_set(keys, unit):
    numbers = pictures_with(keys).numbers
    assert numbers["intervals"]["by"] == unit
    assert any(SENTENCE in text for text in numbers["degenerate"]) == (unit == "row")
    assert (numbers["accuracy"] > 0.8) == (unit == "row")
    assert unit == "row" or is_chance(numbers, "accuracy")
