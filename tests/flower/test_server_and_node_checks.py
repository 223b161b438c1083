"""All checks of a server and of a node: versions, ports, disks, config, data."""

import collections
import json
import re
import shutil
import socket

import pytest

from fedloom.core.errors import ConfigError
from fedloom.flower import message
from fedloom.flower import up as module
from fedloom.flower.apps import export
from fedloom.flower.findings import kept_checkpoints, require_space
from fedloom.flower.in_process import run_in_process
from fedloom.flower.preflight import check_node, check_server, requirements, sizes_of, version_findings
from fedloom.flower.up import LocalFederation
from fedloom.runs.storage.checkpoint import is_kept_for_rewind
from flower_world import config_of

Usage = collections.namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def flower(monkeypatch):
    monkeypatch.setattr(message, "version", lambda name: "1.42.0")
    monkeypatch.setattr(module, "executable", lambda name: f"/nowhere/{name}")


@pytest.fixture
def full_disk(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 1000, 1000))


def errors(findings):
    found = [finding for finding in findings if finding.level == "error"]
    assert not any("\n" in finding.text for finding in found)
    return {finding.subject: finding.text for finding in found}


def server(config, tmp_path, **more):
    return check_server(config, **{"keys": None, "hosts": [], "port": None, "out": tmp_path / "run", **more})


def node(**files):
    return check_node("127.0.0.1:1", **files)


def test_a_good_server_has_no_errors(tmp_path):
    findings = server(config_of(), tmp_path)
    assert [(finding.subject, finding.level) for finding in findings] == [("versions", "ok"), ("disk", "ok")]
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_an_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = errors(server(config_of(), tmp_path, port=port, listen="127.0.0.1"))
    assert found == {"port": f"port {port} cannot be used (Address already in use); name another with --port"}


def test_a_full_disk_is_an_error_on_both_sides(tmp_path, full_disk):
    assert "has 1.00 kB free, and checkpoints need about" in errors(server(config_of(), tmp_path))["disk"]
    config = config_of("fedper", evaluation={"protocol": "personal/local"})
    export(config, tmp_path / "app")
    found = node(app=tmp_path / "app", state=tmp_path / "states")
    assert "has 1.00 kB free, and private states need about" in errors(found)["disk"]


def test_a_full_disk_ends_a_federation_before_its_first_round(tmp_path, full_disk):
    with pytest.raises(ConfigError, match=r"1\.00 kB free, and checkpoints need about .*; free space, or name"):
        run_in_process(config_of(), out=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_full_disk_of_a_node_is_told_to_the_server(tmp_path, full_disk):
    config = config_of("fedper", evaluation={"protocol": "personal/local"})
    with pytest.raises(Exception, match=r"client 0: .* 1\.00 kB free, and private states need about"):
        run_in_process(config)


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedadam", "scaffold"])
def test_the_foreseen_space_holds_what_a_run_leaves(method, tmp_path):
    protocol = "personal/local" if method == "fedper" else "global/global"
    config = config_of(method, rounds=9, evaluation={"every": 9, "protocol": protocol})
    on_server, on_node = sizes_of(config)
    run_in_process(config, out=tmp_path / "run", states=tmp_path / "states")
    stored = sum(file.stat().st_size for file in (tmp_path / "run" / "checkpoint").rglob("*.safetensors"))
    states = sum(file.stat().st_size for file in (tmp_path / "states").glob("*/client-000000/*.safetensors"))
    assert 0.6 * on_server <= stored <= on_server
    assert states <= on_node <= 2 * states


def test_a_folder_that_is_a_file_or_closed_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    run = tmp_path / "file" / "run"
    says = f"{run}: {tmp_path / 'file'} is a file, need a folder; name another one"
    with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
        require_space(run, 1, "checkpoints")


@pytest.mark.parametrize("keep", [3, 5])
def test_no_more_checkpoints_are_kept_than_foreseen(keep):
    most = 0
    for newest in range(1, 300):
        rounds = range(1, newest + 1)
        most = max(most, sum(newest - round_ < keep or is_kept_for_rewind(round_, newest) for round_ in rounds))
        assert most < kept_checkpoints(newest, keep) <= most + 4  # one more while it is written


def test_another_version_of_fedloom_is_an_error_and_of_torch_a_warning(monkeypatch):
    here = requirements(config_of())
    same = version_findings(here)
    assert [finding.level for finding in same] == ["ok"]
    other = version_findings({**here, "fedloom": "0.0.1", "torch": "1.0", "python": "3.9.1"})
    assert [finding.level for finding in other] == ["error", "warning", "warning", "ok"]
    assert other[0].text.endswith("install the same version everywhere: pip install 'fedloom==0.0.1'")
    python = here["python"].rpartition(".")[0] + ".99"
    assert [finding.level for finding in version_findings({**here, "python": python})] == ["ok"]
    monkeypatch.setattr(message, "version", lambda name: "1.99.0")
    assert "fedloom is tested with 1.41 to 1.42" in errors(version_findings())["versions"]


def test_what_the_server_requires_is_compared(tmp_path):
    config = config_of()
    report = {"requires": {**requirements(config), "fingerprint": "0123456789abcdef"}}
    (tmp_path / "server.json").write_text(json.dumps(report))
    export(config, tmp_path / "app")
    found = errors(node(app=tmp_path / "app", server_report=tmp_path / "server.json"))
    assert found.keys() == {"config", "address"}
    assert f"has the config {config.fingerprint()}, and the server's is 0123456789abcdef; export" in found["config"]


@pytest.mark.parametrize("content", ["", "hello", "[]", '{"requires": 3}', '{"findings": []}', "[" * 10**5])
def test_what_is_no_report_of_a_server_is_named(content, tmp_path):
    (tmp_path / "server.json").write_text(content)
    found = errors(node(server_report=tmp_path / "server.json"))
    assert found["versions"] == (f"{tmp_path / 'server.json'}: need the output of `fedloom flower check server --json`")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.unlink(), "patients.yaml"),
        (lambda file: (file.unlink(), file.mkdir()), "patients.yaml"),
        (lambda file: file.write_text("source: csv\npath: none.csv\nlabel: state\n"), "none.csv"),
        (lambda file: file.write_text("hello"), "need a source with its keys"),
    ],
)
def test_data_that_cannot_be_read_is_an_error(tmp_path, spoil, says):
    data = tmp_path / "patients.yaml"
    data.write_text(f"source: csv\npath: {tmp_path / 'rows.csv'}\nlabel: state\nval: 0\n")
    (tmp_path / "rows.csv").write_text("state,age,pressure,sex\nill,1,2,f\nwell,2,3,m\nill,3,2,f\nwell,5,3,m\n")
    (tmp_path / "config.yaml").write_text(NODES)
    files = {"app": tmp_path / "config.yaml", "data": data}
    good = [finding for finding in node(**files) if finding.subject == "data"]
    assert [finding.text for finding in good] == [f"{data}: 3 training samples"]
    spoil(data)
    assert says in errors(node(**files))["data"]


NODES = """
method: fedavg
model: mlp
rounds: 2
scenario: {source: nodes, clients: 2, classes: [ill, well], features: [age, pressure, sex=f, sex=m], val: 0}
evaluation: {protocol: global/local}
"""


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda file: file.unlink(), "config.yaml"),
        (lambda file: (file.unlink(), file.mkdir()), "is a folder|a directory|config.yaml"),
        (lambda file: file.write_text("rounds: -3"), "config.yaml: scenario is missing"),
        (lambda file: file.write_bytes(b"\xff\xfe\x00"), "config.yaml"),
    ],
)
def test_a_config_that_cannot_be_read_is_an_error(tmp_path, spoil, says):
    file = tmp_path / "config.yaml"
    file.write_text(NODES)
    spoil(file)
    assert re.search(says, errors(node(app=file))["config"])


def test_keys_of_too_few_clients_are_an_error(tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra flower")
    from fedloom.flower import certificates

    certificates.create(tmp_path / "keys", ["server.example.org"], 2)
    options = {"keys": tmp_path / "keys", "hosts": ["server.example.org"]}
    found = errors(server(config_of(), tmp_path, **options))
    advice = "`fedloom flower keys` with --clients 4 makes it"
    assert found == {"key": f"{tmp_path / 'keys'} has no node-000002.pub for client 2; {advice}"}
    for client in (2, 3):
        shutil.copy(tmp_path / "keys" / "node-000000.pub", tmp_path / "keys" / f"node-{client:06d}.pub")
    found = errors(server(config_of(), tmp_path, **options))
    assert found == {"key": f"{tmp_path / 'keys'} has one public key for two clients; each needs a different one"}


# -- `fedloom flower up` makes the same checks -------------------------------------------------------------------------
def federation(folder, say=pytest.fail):
    return LocalFederation(config_of(), folder, insecure=False, port=None, say=say)


def test_a_certificate_that_ends_tomorrow_is_said_and_the_federation_is_ready(tmp_path, monkeypatch):
    certificates = pytest.importorskip("fedloom.flower.certificates", reason="needs the extra flower")
    monkeypatch.setattr(certificates, "_DAYS", 2)
    lines = []
    federation(tmp_path, lines.append)
    assert [line.split("/")[-1].split(" on")[0] for line in lines] == ["ca.crt ends", "server.crt ends"]
    assert (tmp_path / "home" / "config.toml").is_file()


def test_two_errors_are_one_line_that_counts_the_other(tmp_path, full_disk):
    certificates = pytest.importorskip("fedloom.flower.certificates", reason="needs the extra flower")
    certificates.create(tmp_path / "keys", ["localhost"], 4)
    (tmp_path / "keys" / "server.crt").unlink()
    (tmp_path / "keys" / "server.crt").mkdir()
    with pytest.raises(ConfigError, match=r"server\.crt is a folder, need .* \(and 1 more: fedloom flower check\)$"):
        federation(tmp_path)
