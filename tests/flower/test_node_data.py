"""Nodes that read data of their own: the bits of the simulation of the same parts, and data that cannot be used."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from command_line import call
from fedloom.core.errors import ConfigError, DataError, FedloomError
from fedloom.core.records import from_bytes, to_bytes
from fedloom.flower.in_process import run_in_process
from fedloom.flower.node import Node
from fedloom.flower.node_data import node_file, node_scenario, server_file
from fedloom.flower.node_registry import FederationError
from fedloom.flower.server import serve
from fedloom.flower.wire import JoinReply, Message, Request, read
from fedloom.runs.config.run_config import parse
from fedloom.runs.config.sections import EvaluationConfig
from fedloom.runs.run import run
from flower_world import DEALT, Faulty, Notes, config_of, forged
from own_world import agreed_on_digits, digits_of_nodes, joined, of_nodes, patients_of_nodes, write_digits
from support import same_bits

LOCAL = {"every": 3, "protocol": "global/local"}


def same(here, there):
    """Whether two results have the same numbers."""
    counts = ("accuracy", "bytes_up", "bytes_down", "samples", "flops", "degenerate")
    return [here.numbers[key] for key in counts] == [there.numbers[key] for key in counts]


def nodes_in(own, folder):
    """The nodes of a config whose data lie in a folder."""
    clients = range(own.scenario.clients)
    return {client: Node(own, client, folder / "states", data=node_file(folder, client)) for client in clients}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of four nodes' files, and the config of their run; not to be changed."""
    folder = tmp_path_factory.mktemp("written")
    return folder, digits_of_nodes("fedavg", folder)[1]


@pytest.mark.parametrize("method", ["fedsc", "fedssa", "scaffold", "ccvr"])
def test_nodes_that_read_only_their_own_file_have_the_bits_of_the_simulation(method, tmp_path):
    """FedSC and CCVR are tested on the server's samples, FedSSA's personal models on the nodes'."""
    config, own = digits_of_nodes(method, tmp_path / "data")
    here, there = run(config), run_in_process(own, data=tmp_path / "data", states=tmp_path / "states")
    assert same_bits(here.memory.weights[3].server, there.memory.weights[3].server)
    assert same(here, there)
    assert there.numbers["seconds"]["aggregate"] >= 0
    private = here.memory.weights[3].states
    for client, state in private.items():
        (last,) = sorted((tmp_path / "states").glob(f"*/client-{client:06d}/round-*"))[-1:]
        assert same_bits(state, from_bytes(last.read_bytes()))


def test_the_servers_model_is_tested_on_the_nodes_and_weighted_as_the_protocol_says(tmp_path):
    config, own = digits_of_nodes("fedavg", tmp_path, evaluation=LOCAL)
    here, there = run(config), run_in_process(own, data=tmp_path)
    assert same(here, there)
    wanted = ("accuracy", "accuracy_pooled", "clients", "loss")
    tests = [
        {(row["client"], row["name"]): row["value"] for row in rows if row["split"] == "test" and row["name"] in wanted}
        for rows in (here.rows, there.rows)
    ]
    assert tests[0] == tests[1]


def test_cells_imputed_by_what_nodes_tell_have_the_bits_of_the_simulation(tmp_path):
    """One hospital never asks for the sex, and a predictor made of the federation fills new rows alike."""
    config, own = patients_of_nodes(tmp_path, holes=True)
    here, there = run(config), run_in_process(own, data=tmp_path)
    assert same_bits(here.memory.weights[3].server, there.memory.weights[3].server)
    assert same(here, there)
    assert here.scenario["input"]["imputed"] == there.scenario["input"]["imputed"]


def test_medians_over_nodes_are_those_of_the_simulation_within_the_bound(tmp_path):
    config, own = patients_of_nodes(tmp_path, holes={"numbers": "median"})
    notes = Notes()
    here, there = run(config), serve(own, Faulty(nodes_in(own, tmp_path)), callbacks=[notes])
    columns = zip(
        *(of.scenario["input"]["imputed"] for of in (here, there)), here.scenario["input"]["std"][:3], strict=True
    )
    for expected, found, std in columns:
        assert {**expected, "value": 0} == {**found, "value": 0}
        if expected["strategy"] == "median":
            assert found["value"] == pytest.approx(expected["value"], abs=std / 2048)
    assert "'age' (104, median 50.9" in " ".join(notes.texts)


def test_a_node_that_counts_other_cells_than_it_was_asked_for_is_left_out(tmp_path):
    def lie(request, answer):
        reply = read(answer, JoinReply)
        bins = {name: tuple(tuple(10**6 for _ in row) for row in rows) for name, rows in reply.moments.bins.items()}
        return reply.model_copy(update={"moments": reply.moments.model_copy(update={"bins": bins})}).to_message()

    _, own = patients_of_nodes(tmp_path, holes={"numbers": "median"}, flower={"join_timeout": 1.0, "min_clients": 3})
    with pytest.raises(
        FederationError, match=r"2 of 3 clients are online .* counts of other cells than it was asked for"
    ):
        serve(own, Faulty(nodes_in(own, tmp_path), forged("join", 1, lie)))


def test_a_node_that_lacks_cells_needs_a_federation_that_imputes(tmp_path):
    _, own = patients_of_nodes(tmp_path, holes=True)
    agreed = {**own.scenario.model_extra, "impute": None, "features": own.scenario.model_extra["features"][:4]}
    with pytest.raises(DataError, match="rows lack a value, and the federation imputes none"):
        node_scenario(of_nodes(own, **agreed), node_file(tmp_path, 0), 0)


def test_a_table_standardised_by_what_nodes_tell_has_the_bits_of_the_simulation(tmp_path):
    """Columns in another order, a word that one node lacks, and a scale that none of them knows alone."""
    config, own = patients_of_nodes(tmp_path)
    here, there = run(config), run_in_process(own, data=tmp_path)
    assert same_bits(here.memory.weights[3].server, there.memory.weights[3].server)
    assert same(here, there)
    local_keys = {key: here.scenario["input"][key] for key in ("features", "ranges")}
    assert here.scenario["input"] == {**there.scenario["input"], **local_keys}
    assert there.scenario["input"]["ranges"] == []  # the server knows no value of a node
    assert len(local_keys["ranges"]) == 4


@pytest.mark.parametrize("protocol", ["global/global", "global/local", "personal/local"])
def test_validation_samples_are_held_out_and_tested_on_the_nodes(protocol, tmp_path):
    """Compared with a simulation in which one machine reads all files."""
    method = "fedper" if protocol.startswith("personal") else "fedavg"
    config = config_of(method, evaluation={"every": 1, "protocol": protocol, "select": "best_val"})
    there = write_digits(config, tmp_path)
    own = of_nodes(config, **{**agreed_on_digits(there.train_set), "val": 0.2})
    apart = run_in_process(own, data=tmp_path)
    whole = joined(own, tmp_path)
    if protocol == "global/global":
        whole = replace(whole, test_set=there.test_set)
    here = run(own, scenario=whole)
    assert same_bits(here.memory.weights[3].server, apart.memory.weights[3].server)
    assert here.numbers["best_val_accuracy"] == apart.numbers["best_val_accuracy"]
    assert here.numbers["accuracy"] == apart.numbers["accuracy"]


def test_a_nodes_file_says_how_its_samples_are_split(tmp_path):
    config, own = digits_of_nodes("fedavg", tmp_path)
    file = node_file(tmp_path, 2)
    file.write_text(file.read_text() + "split: {train: 0.5, val: 0.25, test: 0.25, pool: all}\n")
    there, before = node_scenario(own, file, 2)[0], config.scenario.build(0)
    held = [len(views[2]) for views in (there.train, there.val, there.test)]
    total = len(before.train[2]) + len(before.test[2])
    assert held == [total - 2 * (total // 4), total // 4, total // 4]
    assert not any(len(there.train[client]) for client in (0, 1, 3))


# -- what the server knows ---------------------------------------------------------------------------------------------
def test_the_run_folder_holds_no_counts_and_the_model_can_be_taken(tmp_path):
    _, own = patients_of_nodes(tmp_path / "data")
    result = run_in_process(own, data=tmp_path / "data", out=tmp_path / "run")
    told = json.loads((tmp_path / "run" / "scenario.json").read_text())
    assert told.keys() == {"name", "clients", "classes", "input", "checksums"}
    assert told["input"]["features"] == ["age", "pressure", "sex=f", "sex=m"]
    assert result.model()(torch.zeros(2, 4)).shape == (2, 2)


def test_a_server_that_starts_again_keeps_the_scale(tmp_path):
    config, own = patients_of_nodes(tmp_path)

    def stops(round_):
        if round_ == 2:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        serve(own, Faulty(nodes_in(own, tmp_path)), out=out, callbacks=[Notes(stops)])
    transport = Faulty(nodes_in(own, tmp_path))
    result = serve(own, transport, out=out)
    assert all(request.scale is not None for request in transport.requests)
    assert result.numbers["accuracy"] == run(config).numbers["accuracy"]


def test_a_client_that_joins_late_counts_with_its_own_samples(tmp_path):
    _, own = digits_of_nodes("fedavg", tmp_path, participation=1.0, flower={"join_timeout": 0.1})
    nodes = nodes_in(own, tmp_path)
    transport = Faulty(nodes)
    transport.gone = {1}
    result = serve(
        own, transport, tests=server_file(tmp_path), callbacks=[Notes(lambda round_: transport.gone.clear())]
    )
    sizes = [len(node.scenario.train[k]) for k, node in nodes.items()]
    held = [
        sum(row["value"] for row in result.rows if row["name"].startswith("samples_held/") and row["round"] == r)
        for r in (1, 3)
    ]
    assert held == [sum(sizes) - sizes[1], sum(sizes)]


def test_nodes_test_in_several_protocols(tmp_path):
    protocols = {"every": 3, "protocols": ["global/global", "global/local", "personal/local"]}
    config, own = digits_of_nodes("ditto", tmp_path, evaluation=protocols)
    here, there = run(config), run_in_process(own, data=tmp_path)
    assert same(here, there)
    assert there.protocols == tuple(protocols["protocols"])
    for protocol in there.protocols:
        assert there.in_protocol(protocol).curve() == here.in_protocol(protocol).curve()


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("global/global", "the server has no test data"),
        ("personal/others", "use personal/local or global/local"),
        ("personal/global", "use personal/local or global/local"),
    ],
)
def test_what_cannot_be_tested_is_refused_before_anything_is_asked(protocol, said, written):
    own = written[1].model_copy(update={"evaluation": EvaluationConfig(protocol=protocol)})
    with pytest.raises(ConfigError, match=said):
        serve(own, Faulty({}))


def test_a_config_that_describes_its_data_takes_no_files(tmp_path):
    with pytest.raises(ConfigError, match="unless it has `source: nodes`"):
        serve(config_of(), Faulty({}), tests=tmp_path / "server.yaml")
    with pytest.raises(ConfigError, match=r"describes the data itself \(source: digits\)"):
        _ = Node(config_of(), 0, tmp_path, data=tmp_path / "node.yaml").scenario


# -- data that cannot be used ------------------------------------------------------------------------------------------
def rewritten(**changes):
    """Change arrays of client 1."""

    def change(folder):
        arrays = dict(np.load(folder / "node-000001.npz"))
        np.savez(folder / "node-000001.npz", **{**arrays, **{key: make(arrays) for key, make in changes.items()}})

    return change


def told(text):
    return lambda folder: (folder / "node-000001.yaml").write_text(text)


BAD = {
    "no file": (lambda folder: (folder / "node-000001.yaml").unlink(), "node-000001.yaml: no such config file"),
    "no data": (lambda folder: (folder / "node-000001.npz").unlink(), "node-000001.npz: no such file"),
    "damaged": (lambda folder: (folder / "node-000001.npz").write_bytes(b"PK"), "cannot be read as .npz"),
    "other shape": (
        rewritten(x_train=lambda a: a["x_train"][..., 1:], x_test=lambda a: a["x_test"][..., 1:]),
        r"samples have shape \[1, 8, 7\], those of the federation \[1, 8, 8\]",
    ),
    "other class": (
        rewritten(classes=lambda a: np.array([*a["classes"][:-1], "ten"]), y_train=lambda a: a["y_train"] * 0 + 9),
        "class 'ten' is none of the federation's: 0, 1",
    ),
    "other values": (
        rewritten(x_train=lambda a: a["x_train"] / 16, x_test=lambda a: a["x_test"] / 16),
        "samples are numbers, those of the federation bytes",
    ),
    "nothing": (rewritten(x_train=lambda a: a["x_train"][:0], y_train=lambda a: a["y_train"][:0]), "holds no samples"),
    "no source": (told("path: node-000001.npz"), "need a source with its keys"),
    "wrong key": (told("source: npz\npth: x"), "unknown key 'scenario.pth'"),
    "not its own": (told("source: npz\npath: x.npz\nclients: 3"), "clients is no key of a node"),
    "no yaml": (told("{"), "not readable as YAML"),
}


@pytest.mark.parametrize("bad", BAD)
def test_data_that_cannot_be_used_are_one_line(bad, written, tmp_path):
    spoil, said = BAD[bad]
    folder, own = written
    for file in folder.glob("node-000001.*"):
        shutil.copy(file, tmp_path)
    spoil(tmp_path)
    with pytest.raises(FedloomError, match=said) as caught:
        node_scenario(own, tmp_path / "node-000001.yaml", 1)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_node_keeps_its_groups_whole_and_says_what_it_can_see_without_them(tmp_path, caplog):
    rng, ids = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    x = rng.normal(size=(40, 4))[ids] + 0.01 * rng.normal(size=(200, 4))
    lines = [f"p{person},{person % 2},{','.join(map(str, row))}" for person, row in zip(ids, x, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["person,ill,a,b,c,d", *lines]))
    own = parse({"method": "fedavg", "model": "mlp", "scenario": {"source": "nodes", "clients": 2, **AGREED}})
    keys = "source: csv\npath: rows.csv\nlabel: ill\nsplit: {train: 0.6, val: 0.2, test: 0.2}\n"
    (tmp_path / "node.yaml").write_text(keys)
    node_scenario(own, tmp_path / "node.yaml", 1)
    assert "test samples nearly equal a training sample" in caplog.text
    caplog.clear()
    (tmp_path / "node.yaml").write_text(f"{keys}group: person\n")
    scenario, _ = node_scenario(own, tmp_path / "node.yaml", 1)
    assert "nearly equal" not in caplog.text
    groups = scenario.train_set.group.numpy()
    parts = [groups[scenario.train.order], groups[scenario.val.order], scenario.test_set.group.numpy()]
    assert all(len(part) for part in parts)
    assert sum(len(np.unique(part)) for part in parts) == len(np.unique(np.concatenate(parts)))
    (tmp_path / "node.yaml").write_text(f"{keys}group: pid\n")
    with pytest.raises(DataError, match=r"rows\.csv: group = 'pid' is no column"):
        node_scenario(own, tmp_path / "node.yaml", 1)
    with pytest.raises(ConfigError, match=r"scenario\.group: with source nodes"):
        parse({"scenario": {"source": "nodes", "clients": 2, **AGREED, "group": "person"}})


AGREED = {"classes": ["0", "1"], "features": ["a", "b", "c", "d"]}


def served(own, folder, callbacks=()):
    """As over a network: a node that cannot join does not end the run. Every message meets a new process."""

    class Fresh(Faulty):
        def receive(self, names):
            self._nodes = nodes_in(own, folder)
            return super().receive(names)

    transport = Fresh(dict.fromkeys(range(own.scenario.clients)))
    return serve(own, transport, tests=server_file(folder), callbacks=callbacks)


def test_a_node_whose_data_cannot_be_used_is_named_on_the_server_and_the_others_go_on(tmp_path):
    wait = {"join_timeout": 0.1, "min_clients": 2}
    _, own = digits_of_nodes("fedavg", tmp_path, rounds=1, participation=1.0, flower=wait)
    (tmp_path / "node-000001.npz").unlink()
    notes = Notes()
    result = served(own, tmp_path, [notes])
    (line,) = [text for text in notes.texts if text.startswith("node ")]
    assert line.startswith(f"node 1 is left out: client 1: {tmp_path / 'node-000001.npz'}: no such file")
    assert "continues without clients 1: not online after 0.1 s" in notes.texts
    assert result.numbers["rounds"] == 1
    (told,) = result.numbers["degenerate"]
    assert "client 1 never took part: node 1 is left out: client 1: " in told
    assert "no such file" in told


def test_in_one_process_data_that_cannot_be_used_end_the_run_at_once(capsys, tmp_path, monkeypatch):
    """Nobody can mend them while this process waits for its join_timeout of five minutes."""
    monkeypatch.chdir(tmp_path)
    _, own = patients_of_nodes(tmp_path / "data", rounds=1)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own.resolved()))
    (tmp_path / "data" / "own-1.csv").unlink()
    words = ("flower", "up", "own.yaml", "--in-process", "--data", "data", "--out", "run", "--json")
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: client 1: ")
    assert "own-1.csv: no such file" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("claimed", [10**5, 10**9, 10**12])
def test_a_count_that_nobody_can_check_is_bounded(tmp_path, claimed):
    """Three of four nodes go on as if the fourth were not there; its claim takes no memory and no share of the mean."""
    _, own = digits_of_nodes("fedavg", tmp_path, participation=1.0)
    nodes = nodes_in(own, tmp_path)

    update = {"update": {"samples": claimed}}
    claims = forged("join", 2, lambda _, answer: read(answer, JoinReply).model_copy(**update).to_message())
    notes = Notes()
    result = serve(own, Faulty(nodes, claims), tests=server_file(tmp_path), callbacks=[notes])
    assert any("client 2 is refused: it claims" in text and "flower.max_share" in text for text in notes.texts)
    assert [row["value"] for row in result.rows if row["name"] == "participants"] == [3, 3, 3]


class JoinsLate(Faulty):
    """A link on which node 5 is there once the others train, and lies about its samples."""

    def __init__(self, nodes, claimed) -> None:
        super().__init__(nodes, self._lie)
        self._claimed, self._training = claimed, False

    def nodes(self):
        return super().nodes() if self._training else super().nodes() - {5}

    def send(self, node, message, seconds):
        self._training |= read(message, Request).do == "train"
        return super().send(node, message, seconds)

    def _lie(self, request, answer):
        if request.do == "join" and read(answer, JoinReply).client == 5:
            return read(answer, JoinReply).model_copy(update={"samples": self._claimed}).to_message()
        if (request.do, request.client) == ("train", 5):
            return Message(answer.facts, to_bytes({**from_bytes(answer.body), "samples": self._claimed}))
        return answer


def test_a_count_of_a_client_that_joins_during_a_round_is_bounded(tmp_path):
    more = {"scenario": {**DEALT, "clients": 6}, "flower": {"join_timeout": 0.5, "max_share": 0.4}}
    _, own = digits_of_nodes("fedavg", tmp_path, participation=1.0, rounds=1, **more)
    notes = Notes()
    result = serve(own, JoinsLate(nodes_in(own, tmp_path), 10**9), tests=server_file(tmp_path), callbacks=[notes])
    assert any("the upload of client 5 is refused: it claims 1,000,000,000" in text for text in notes.texts)
    assert [row["value"] for row in result.rows if row["name"] == "participants"] == [5]


def test_a_node_joins_once_its_data_are_mended(tmp_path, monkeypatch):
    """It is asked again, and what is wrong is told once."""
    monkeypatch.setattr("fedloom.flower.node_registry._FIRST_PAUSE", 0.0)
    _, own = digits_of_nodes("fedavg", tmp_path, participation=1.0, flower={"join_timeout": 0.3})
    file = node_file(tmp_path, 1)
    moved = file.rename(file.with_suffix(".moved"))
    notes, mends = Notes(), Notes(lambda round_: moved.exists() and moved.rename(file))
    result = served(own, tmp_path, [notes, mends])
    trained = [row["value"] for row in result.rows if row["name"] == "participants"]
    assert trained == [3, 4, 4]
    assert len([text for text in notes.texts if "left out" in text]) == 1
    assert result.numbers["degenerate"] == []


def test_a_node_counts_its_test_samples_that_are_training_samples_in_its_log(written, tmp_path, caplog):
    folder, own = written
    shutil.copy(folder / "node-000001.yaml", tmp_path)
    arrays = dict(np.load(folder / "node-000001.npz"))
    copied = {"x_test": arrays["x_train"][:3], "y_test": arrays["y_train"][:3]}
    np.savez(tmp_path / "node-000001.npz", **arrays | copied)
    node_scenario(own, tmp_path / "node-000001.yaml", 1)
    assert [text for text in caplog.messages if "3 of 3 test samples equal a training sample" in text]


def test_fewer_nodes_with_data_than_min_clients_end_the_run(tmp_path):
    _, own = digits_of_nodes("fedavg", tmp_path, flower={"join_timeout": 0.1, "min_clients": 4})
    node_file(tmp_path, 3).unlink()
    with pytest.raises(
        FederationError, match=r"3 of 4 clients are online .* clients 3 are missing; node 3 is left out: client 3"
    ):
        served(own, tmp_path)


def test_data_that_vanish_in_mid_run_are_named_and_the_round_goes_on(tmp_path):
    _, own = digits_of_nodes("fedavg", tmp_path, participation=1.0)
    notes = Notes()

    vanish = Notes(lambda round_: (tmp_path / "node-000002.npz").unlink(missing_ok=True))
    served(own, tmp_path, [notes, vanish])
    refused = [text for text in notes.texts if "refused" in text]
    assert [text.split(":")[0] for text in refused] == ["round 2", "round 3"]
    assert "the upload of client 2 is refused" in refused[0]
    assert "node-000002.npz: no such file" in refused[0]


def test_a_table_without_an_agreed_column_is_named(tmp_path):
    _, own = patients_of_nodes(tmp_path, flower={"join_timeout": 0.1})
    file = tmp_path / "own-2.csv"
    file.write_text(file.read_text().replace("pressure", "presure", 1))
    notes = Notes()
    served(own, tmp_path, [notes])
    assert any("client 2" in text and "presure" in text for text in notes.texts)


def test_data_that_only_nodes_read_are_said_to_be(written, tmp_path):
    with pytest.raises(ConfigError, match="start this one with --node-config"):
        _ = Node(written[1], 0, tmp_path).scenario
    with pytest.raises(DataError, match="run the config over nodes"):
        run(written[1])


def test_the_command_takes_a_folder_of_files(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, own = patients_of_nodes(tmp_path / "data", rounds=1)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own.resolved()))
    words = ("flower", "up", "own.yaml", "--in-process", "--data", "data", "--out", "run", "--json")
    code, out, _ = call(capsys, *words)
    assert code == 0
    assert json.loads(out)["accuracy"] == run(config).numbers["accuracy"]


# -- categories that a node writes otherwise ---------------------------------------------------------------------------
def respelled(folder, **words):
    """Change words of the column `sex` in all rows of node 0."""
    for name in ("own-0.csv", "own-0-tests.csv"):
        rows = [line.split(",") for line in (folder / name).read_text().splitlines()]
        changed = [[row[0], words.get(row[1], row[1]), *row[2:]] for row in rows]
        (folder / name).write_text("".join(",".join(row) + "\n" for row in changed))


def test_a_node_that_writes_its_categories_otherwise_does_not_train_on_zeros(tmp_path):
    _, own = patients_of_nodes(tmp_path)
    respelled(tmp_path, f="F")
    with pytest.raises(DataError, match=r"0.yaml \(train\): column 'sex' holds 'F' in \d+ rows, known as 'f'"):
        node_scenario(own, node_file(tmp_path, 0), 0)


def test_categories_that_are_not_agreed_on_are_counted_and_logged(tmp_path, monkeypatch):
    _, own = patients_of_nodes(tmp_path)
    respelled(tmp_path, f="x")
    logged = []
    monkeypatch.setattr("fedloom.flower.node_data.log", lambda event, facts, text, level: logged.append(text))
    notes = [note for note in node_scenario(own, node_file(tmp_path, 0), 0)[0].notes if "has not agreed on" in note]
    assert notes == logged
    assert len(notes) == 2
    assert "node-000000.yaml (train): words" in notes[0]
    assert "node-000000.yaml (test): words" in notes[1]
    assert all("'sex' (" in note for note in notes)
