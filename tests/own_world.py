"""Nodes with files of their own: the parts of a scenario, written to where only their node looks."""

import csv
from pathlib import Path

import numpy as np
import torch

from fedloom.flower.node_data import node_scenario
from fedloom.runs.config.run_config import parse
from flower_world import DEALT, config_of, settings_of


def of_nodes(config, **node_source):
    """The same run, whose nodes have agreed on `node_source` and on nothing else."""
    said = config.scenario
    scenario = {"source": "nodes", "clients": said.clients, "val": said.val, **node_source}
    return parse({**config.resolved(), "scenario": scenario})


def agreed_on_digits(data):
    """What nodes with digits must agree on."""
    return {"classes": data.classes, "shape": data.input_shape, "values": "bytes", **data.normalisation}


def write_arrays(file, train, test):
    """An .npz of two datasets, and beside it the node's file that names it; `file` without ending."""
    arrays = {"x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y}
    names = np.array(train.classes)
    np.savez(file.with_suffix(".npz"), classes=names, **{key: value.numpy() for key, value in arrays.items()})
    file.with_suffix(".yaml").write_text(f"source: npz\npath: {file.stem}.npz\n")


def write_digits(config, folder: Path):
    """Each client's part of a scenario in a file of its node, and the global test set in one of the server."""
    folder.mkdir(exist_ok=True)
    there = config.scenario.build(config.seed)
    for client in range(there.clients):
        parts = there.train_set.take(there.train.tensor(client)), there.test_set.take(there.test.tensor(client))
        write_arrays(folder / f"node-{client:06d}", *parts)
    samples = len(there.test_set)
    write_arrays(folder / "server", there.test_set.head(7), there.test_set.take(torch.arange(7, samples)))
    return there


def digits_of_nodes(method, folder: Path, **keys):
    """A run in simulation, and the same one over nodes whose digits lie in files below `folder`."""
    config = config_of(method, **{**settings_of(method), "scenario": DEALT, **keys})
    there = write_digits(config, folder)
    return config, of_nodes(config, **agreed_on_digits(there.train_set))


def rows_of_patients(count=240, seed=3):
    """Made-up patients of three hospitals that measure differently; the second one has no women."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        hospital, age = int(rng.integers(3)), float(rng.normal(50, 12))
        sex = "m" if hospital == 1 else str(rng.choice(["f", "m"]))
        pressure = float(rng.normal(120 + 10 * hospital + age / 2, 9))
        ill = "ill" if age + pressure + rng.normal(0, 10) > 205 else "well"
        rows.append({"hospital": hospital, "age": age, "sex": sex, "pressure": pressure, "state": ill})
    return rows


def write_table(file, rows, columns):
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


PATIENTS = {"classes": ["ill", "well"], "features": ["age", "pressure", "sex=f", "sex=m"]}


def with_holes(rows):
    """Patients of whom some have no age or sex; the third hospital asks for neither sex nor, mostly, the age."""
    for number, row in enumerate(rows):
        if number % 5 == 0 or (row["hospital"] == 2 and number % 40):
            row["age"] = ""
        if number % 7 == 0 or row["hospital"] == 2:
            row["sex"] = ""
    return rows


def patients_of_nodes(folder: Path, holes=False, **keys):
    """A run in simulation over a table with owners, and the same one over nodes with tables of their own; with holes,
    those of `with_holes`, which are imputed, by the section `holes` if it is one."""
    folder.mkdir(exist_ok=True)
    rows, tests = rows_of_patients(), rows_of_patients(90, seed=4)
    rows, tests = (with_holes(rows), with_holes(tests)) if holes else (rows, tests)
    everything = ["age", "pressure", "sex", "state", "hospital"]
    write_table(folder / "all.csv", rows, everything)
    write_table(folder / "all-tests.csv", tests, everything)
    whole = {"source": "csv", "path": str(folder / "all.csv"), "test_path": str(folder / "all-tests.csv")}
    impute = holes if isinstance(holes, dict) else {}
    whole |= {"incomplete": "impute", "impute": impute} if holes else {}
    whole |= {"label": "state", "owner": "hospital", "partition": "natural", "clients": 3, "val": 0.0}
    config = config_of(**{"scenario": whole, "evaluation": {"every": 3, "protocol": "global/local"}, **keys})
    there = config.scenario.build(config.seed)
    for client in range(3):
        columns = ["note", "sex", "pressure", "age", "state"]  # another order, and one more
        own = [{**rows[row], "note": row % 2} for row in there.train[client]]
        write_table(folder / f"own-{client}.csv", own, columns)
        own = [{**tests[row], "note": 0} for row in there.test[client]]
        write_table(folder / f"own-{client}-tests.csv", own, columns)
        text = f"source: csv\npath: own-{client}.csv\ntest_path: own-{client}-tests.csv\nlabel: state\n"
        text += "incomplete: impute\n" if holes else ""
        (folder / f"node-{client:06d}.yaml").write_text(text)
    indicators = ["missing(age)", "missing(sex)"] if holes else []
    agreed = {**PATIENTS, "features": PATIENTS["features"] + indicators} | ({"impute": impute} if holes else {})
    return config, of_nodes(config, **agreed)


def joined(config, folder: Path):
    """One scenario of what all nodes' files hold, in which nothing is away."""
    from dataclasses import replace

    from fedloom.data import Views

    alone = [node_scenario(config, folder / f"node-{k:06d}.yaml", k)[0] for k in range(config.scenario.clients)]
    sets = {}
    for name in ("train_set", "test_set"):
        parts = [getattr(one, name) for one in alone]
        x, y = (torch.cat([getattr(part, key) for part in parts]) for key in ("x", "y"))
        sets[name] = replace(parts[0], x=x, y=y)
    starts = {name: np.cumsum([0] + [len(getattr(one, name)) for one in alone]) for name in sets}
    lists = {
        view: Views.from_lists(
            [
                getattr(one, view)[k] + starts["test_set" if view == "test" else "train_set"][k]
                for k, one in enumerate(alone)
            ]
        )
        for view in ("train", "val", "test")
    }
    return replace(alone[0], **sets, **lists)
