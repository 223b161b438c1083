"""`fedloom flower check server` and `check node`: lines for people, JSON for programs, exit code 1 for an error."""

import json

import pytest
import yaml

from command_line import call
from fedloom.flower import message
from fedloom.flower.apps import export
from fedloom.flower.processes import free_ports
from flower_world import config_of


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.setattr(message, "version", lambda name: "1.42.0")
    monkeypatch.chdir(tmp_path)
    export(config_of(), tmp_path / "app")
    return "app"


def ports(count):
    return [str(port) for port in free_ports(count)]


def test_a_good_server_in_lines_and_in_json(app, capsys):
    (port,) = ports(1)
    words = ["flower", "check", "server", app, "--insecure", "--port", port]
    code, out, err = call(capsys, *words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", "config:"], ["ok", "versions:"], ["ok", "port:"], ["ok", "disk:"],
    ]  # fmt: skip
    code, out, _ = call(capsys, *words, "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (0, True)
    assert report["requires"]["fingerprint"] == config_of().fingerprint()
    assert [finding["subject"] for finding in report["findings"]] == ["config", "versions", "port", "disk"]


def test_without_an_app_neither_disk_nor_config_is_checked(app, capsys):
    (port,) = ports(1)
    code, out, _ = call(capsys, "flower", "check", "server", "--insecure", "--port", port)
    assert (code, [line.split()[1] for line in out.splitlines()]) == (0, ["versions:", "port:"])


def test_an_app_that_was_exported_before_the_config_changed_is_an_error(app, capsys, tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_of("fedsc").resolved()))
    (port,) = ports(1)
    words = ["server", app, "--insecure", "--port", port, "--config", "config.yaml"]
    code, out, _ = call(capsys, "flower", "check", *words)
    assert code == 1
    assert "error   config: app has the config" in out
    assert "and config.yaml is" in out


def test_a_node_without_a_server_fails_with_exit_code_1(app, capsys):
    nobody, port = ports(2)
    words = ["flower", "check", "node", f"127.0.0.1:{nobody}", "--insecure", "--port", port, "--app", app]
    code, out, err = call(capsys, *words)
    assert (code, err) == (1, "")
    assert out.splitlines()[-1].startswith(f"error   address: 127.0.0.1:{nobody} [127.0.0.1] cannot be reached")
    code, out, _ = call(capsys, *words, "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["findings"][-1]["level"]) == (1, False, "error")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["server", "app"], "name the server with --host"),
        (["server", "--insecure", "--config", "x"], "--config x: name the app that should contain this config"),
        (["node", "127.0.0.1:1"], "name the node's private key with --key"),
        (["node", "127.0.0.1:1", "--insecure", "--data", "x"], "--data x: this check needs the config; name it"),
        (["node", "127.0.0.1:1", "--insecure", "--state", "x"], "--state x: this check needs the config; name it"),
    ],
)
def test_options_that_are_missing_are_named(app, capsys, words, says):
    code, _, err = call(capsys, "flower", "check", *words)
    assert code == 2
    assert says in err


@pytest.mark.parametrize("name", ["none", "app/fedloom_app"])
def test_an_app_that_is_none_is_one_line(app, capsys, name):
    code, out, err = call(capsys, "flower", "check", "server", name, "--insecure")
    assert (code, err, len(out.splitlines())) == (1, "", 1)
    assert out.startswith(f"error   config: {name}")
