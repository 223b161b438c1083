"""Nodes whose data are unlike the others' are asked about before the first round."""

import csv

import numpy as np
import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.flower.in_process import run_in_process
from fedloom.runs.config.run_config import parse
from flower_world import Notes
from own_world import digits_of_nodes


def hospitals(folder, clients=4, wrong=None, **flower):
    """Nodes with ages and pressures; `wrong` writes months and kPa."""
    rng = np.random.default_rng(1)
    for client in range(clients):
        age = rng.normal(50 + 3 * client, 12, 120)
        pressure, ill = rng.normal(125, 15, 120), np.where(age + rng.normal(0, 9, 120) > 55, "ill", "well")
        factors = (12, 1 / 7.5006) if client == wrong else (1, 1)
        with (folder / f"rows-{client}.csv").open("w", newline="") as stream:
            rows = zip(age * factors[0], pressure * factors[1], ill, strict=True)
            csv.writer(stream).writerows([["age", "pressure", "state"], *rows])
        keys = {"source": "csv", "path": f"rows-{client}.csv", "label": "state"}
        (folder / f"node-{client:06d}.yaml").write_text(yaml.safe_dump(keys))
    scenario = {"source": "nodes", "clients": clients, "classes": ["ill", "well"], "features": ["age", "pressure"]}
    evaluation = {"every": 2, "protocol": "global/local"}
    return parse({"method": "fedavg", "rounds": 2, "scenario": scenario, "evaluation": evaluation, "flower": flower})


@pytest.mark.parametrize("clients", [2, 3, 4])
def test_other_units_at_one_node_stop_the_run_and_are_named(tmp_path, clients):
    with pytest.raises(ConfigError) as caught:
        run_in_process(hospitals(tmp_path, clients, wrong=1), data=tmp_path)
    text = str(caught.value)
    assert "client 1, 'age': mean 6" in text
    assert "months and years" in text
    assert "client 1, 'pressure': mean 16" in text
    assert ("of two nodes nobody can tell which one is wrong" in text) == ("client 0" in text) == (clients == 2)


def test_what_is_accepted_runs_and_is_noted(tmp_path):
    notes = Notes()
    config = hospitals(tmp_path, wrong=1, accept_unlike=["1/*", "3/weight"])
    run_in_process(config, data=tmp_path, callbacks=[notes])
    assert any("client 1, 'age'" in note for note in notes.texts)
    assert "flower.accept_unlike: no column that is unlike the others matches '3/weight'" in notes.texts


def test_honest_nodes_run_without_a_word(tmp_path):
    notes = Notes()
    run_in_process(hospitals(tmp_path), data=tmp_path, callbacks=[notes])
    assert not [note for note in notes.texts if "client" in note and "'age'" in note]


def test_labels_and_levels_are_only_reported_where_the_config_says_so(tmp_path):
    notes = Notes()
    config = digits_of_nodes("fedavg", tmp_path)[1]
    run_in_process(config, data=tmp_path, callbacks=[notes])
    assert not [note for note in notes.texts if "class" in note]
    compared = parse({**config.resolved(), "flower": {"compare": ["moments", "labels"]}})
    assert compared.fingerprint() == config.fingerprint()
    run_in_process(compared, data=tmp_path, callbacks=[notes])
    assert [note for note in notes.texts if "'class " in note and "hardly a sample, at the median node" in note]
