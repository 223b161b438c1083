"""Letters as Flower's messages, and a federation over a `Grid` of this process. Needs the extra `flower`."""

import importlib.util
import json

import pytest

from fedloom.evaluation import PROTOCOLS
from fedloom.flower.apps import PACKAGE, export
from fedloom.flower.node_data import node_file, server_file
from fedloom.flower.server import serve
from fedloom.flower.wire import Message, MessageError
from fedloom.methods import METHODS
from fedloom.runs.run import run
from flower_world import DEALT, Notes, config_of, settings_of
from own_world import digits_of_nodes
from support import IN_ROUNDS, same_bits

flwr = pytest.importorskip("flwr", reason="needs the extra flower")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def app_of(tmp_path, monkeypatch):
    """The client's app of an exported config."""
    monkeypatch.setenv("FEDLOOM_STATE", str(tmp_path / "states"))

    def made(config):
        export(config, tmp_path / "app")
        file = tmp_path / "app" / PACKAGE / "client.py"
        spec = importlib.util.spec_from_file_location("exported_client", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.app

    return made


@pytest.mark.parametrize("method", IN_ROUNDS)
def test_every_method_has_the_bits_of_the_simulation_over_a_grid(method, app_of):
    from fedloom.flower.transport import GridTransport
    from local_grid import local_grid

    config = config_of(method, **settings_of(method))
    here = run(config)
    there = serve(config, GridTransport(local_grid(app_of(config), range(4)), poll_seconds=0.0))
    assert same_bits(here.memory.weights[3].server, there.memory.weights[3].server)
    assert here.numbers["accuracy"] == there.numbers["accuracy"]


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_protocols_over_a_grid_have_the_numbers_of_one_process(method, app_of):
    from fedloom.flower.transport import GridTransport
    from local_grid import local_grid

    evaluation = {"every": 2, "protocols": [*PROTOCOLS], "metrics": ["nll"]}
    config = config_of(method, scenario={**DEALT, "val": 0.1}, rounds=2, evaluation=evaluation)
    here = run(config)
    there = serve(config, GridTransport(local_grid(app_of(config), range(4)), poll_seconds=0.0))
    assert there.numbers["protocols"] == here.numbers["protocols"]
    assert there.numbers["not_offered"] == here.numbers["not_offered"]
    assert there.client_details == here.client_details


def test_a_node_reads_the_file_that_its_own_config_names(app_of, tmp_path, capfd):
    """One that cannot says so itself, and the server's line names it."""
    from flwr.app import Context, RecordDict

    from fedloom.flower.resident import _inbox
    from fedloom.flower.transport import GridTransport
    from local_grid import local_grid

    wait = {"join_timeout": 0.1}
    config, own = digits_of_nodes("fedavg", tmp_path / "data", participation=1.0, flower=wait)
    app = app_of(own)

    def answer(message, context):
        client = context.node_config["partition-id"]
        told = {"partition-id": client, "data": str(node_file(tmp_path / "data", client))}
        return app(message, Context(1, client + 1, told, RecordDict(), {}))

    def served(notes):
        transport = GridTransport(local_grid(answer, range(4)), poll_seconds=0.0)
        return serve(own, transport, tests=server_file(tmp_path / "data"), callbacks=[notes])

    assert same_bits(run(config).memory.weights[3].server, served(Notes()).memory.weights[3].server)
    file = node_file(tmp_path / "data", 3)
    file.rename(file.with_suffix(".moved"))
    _inbox.cache_clear()  # a new process
    notes = Notes()
    served(notes)
    assert f"node 4 is left out: client 3: {file}: no such config file" in notes.texts
    assert f"{file}: no such config file" in capfd.readouterr().err


def test_a_message_survives_the_way_over_flower():
    from fedloom.flower.message import from_content, to_content

    for message in (Message("{}"), Message("facts", bytes(range(256)) * 100)):
        assert from_content(to_content(message)) == message


def test_other_records_are_no_message():
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    from fedloom.flower.message import from_content, to_content

    whole = to_content(Message("{}", b"1"))
    numpy = Array(dtype="uint8", shape=(1,), stype="numpy.ndarray", data=b"1")
    for bad in (
        RecordDict(),
        RecordDict({"facts": whole["facts"]}),
        RecordDict({**whole, "more": MetricRecord({"a": 1})}),
        RecordDict({**whole, "facts": ConfigRecord({"facts": b"{}"})}),
        RecordDict({**whole, "facts": ConfigRecord({"facts": "{}", "more": 1})}),
        RecordDict({**whole, "record": ArrayRecord({"record": numpy})}),
        RecordDict({"facts": whole["record"], "record": whole["facts"]}),
    ):
        with pytest.raises(MessageError):
            from_content(bad)


def test_a_node_without_a_client_id_says_so(app_of):
    from flwr.app import Context, RecordDict

    from fedloom.flower.transport import GridTransport
    from local_grid import local_grid

    app = app_of(config_of())
    bare = Context(1, 1, {}, RecordDict(), {})
    transport = GridTransport(local_grid(lambda message, context: app(message, bare), [0]), poll_seconds=0.0)
    name = transport.send(1, request_message(), 1.0)
    ((_, answer),) = transport.receive([name])
    assert "this node has no partition-id" in answer.facts


def test_the_server_app_leaves_a_report_or_what_ended_it(app_of, tmp_path, monkeypatch):
    from flwr.app import Context, RecordDict

    from fedloom.core.errors import ClientError
    from fedloom.flower.apps import server_app
    from fedloom.flower.status import Failure, read_status
    from local_grid import local_grid

    config = config_of(rounds=1, evaluation={"every": 1})
    answer, out = app_of(config), tmp_path / "run"
    server = server_app(tmp_path / "app" / PACKAGE / "config.yaml")

    def context(folder):
        return Context(1, 1, {}, RecordDict(), {"out": str(folder)})

    server(local_grid(answer, range(4)), context(out))
    assert read_status(out).state == "finished"
    assert "fedloom report" in (out / "report.html").read_text()
    monkeypatch.setattr(METHODS.get("fedavg"), "end", None)
    answer = app_of(config)  # nodes that have not trained yet
    with pytest.raises(ClientError):
        server(local_grid(answer, range(4)), context(tmp_path / "other"))
    told = json.loads((tmp_path / "other" / Failure.FILE).read_text())
    assert told["exit_code"] == 1
    assert "NoneType" in told["traceback"]


def request_message():
    from fedloom.flower.wire import Request

    return Request(do="join", run="ab", fingerprint="f", version="v").to_message()
