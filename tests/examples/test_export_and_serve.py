"""The example that exports and serves: what it answers is what the model says."""

import importlib.util
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom as fl

PATH = Path(__file__).parents[2] / "examples" / "export_and_serve.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("export_and_serve", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def asked(port: int, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", body, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_answers_are_those_of_the_exported_model(example: Any, tmp_path: Path, capsys: Any) -> None:
    weights = tmp_path / "m.safetensors"
    example.train_and_export(weights, rounds=1)
    data = fl.scenario("digits", partition="iid", clients=1).build(0).test_set
    with torch.no_grad():
        expected = fl.load(weights)(data.gather(torch.arange(3))).softmax(1)
    with example.server(weights) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            status, found = asked(running.server_port, json.dumps(data.x[:3, 0].tolist()).encode())
            wrong = [asked(running.server_port, body) for body in (b"{", b"[[1, 2]]", b'"a"', b"null")]
        finally:
            running.shutdown()
            thread.join()
    assert status == 200
    for row, probabilities in zip(found, expected.tolist(), strict=True):
        assert list(row.values()) == pytest.approx(probabilities, abs=1e-6)
    assert [code for code, _ in wrong] == [400] * 4
    assert all(said["error"] for _, said in wrong)
