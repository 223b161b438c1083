"""Uploads to the Hugging Face hub, by its own client, to a stand-in of its API on this machine."""

import base64
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import yaml

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.results.export_model import ExportedFiles
from fedloom.results.hub import check_hub, upload

hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")


class StandIn:
    """A hub that takes small files. refuse: a status with which it answers the creation of a repository."""

    def __init__(self) -> None:
        self.repositories: dict[str, bool] = {}  # private
        self.files: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.refuse: int | None = None
        self.address = ""

    def answer(self, path: str, body: bytes) -> tuple[int, dict]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if self.refuse is not None:
                return self.refuse, {"error": "the stand-in refuses"}
            if name in self.repositories:
                return 409, {"error": "exists", "url": f"{self.address}/{name}"}
            self.repositories[name] = asked.get("private") or asked.get("visibility") == "private"
            return 200, {"url": f"{self.address}/{name}", "name": name}
        if path.endswith("/preupload/main"):
            asked = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked]
            return 200, {"files": modes}
        if path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return 200, {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.address}/commit/0"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        return 404, {"error": path}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    state = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.tokens.add(self.headers["Authorization"])
            status, content = state.answer(
                self.path.partition("?")[0], self.rfile.read(int(self.headers["Content-Length"]))
            )
            raw = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    # The client reads its endpoint from the environment once, when it is imported.
    state.address, api = f"http://127.0.0.1:{server.server_port}", hub.HfApi
    monkeypatch.setattr(hub, "HfApi", lambda: api(endpoint=state.address))
    monkeypatch.setattr(hub, "get_token", lambda: "hf_of_the_test")
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    yield state
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedFiles:
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3)
    result = fl.run("fedavg", scenario=scenario, rounds=1, engine="serial", out=tmp_path_factory.mktemp("runs") / "run")
    return result.export(tmp_path_factory.mktemp("export") / "model.safetensors")


def test_model_metadata_and_card_arrive(stand_in: StandIn, exported: ExportedFiles) -> None:
    address = upload(exported, "somebody/digits")
    assert address.endswith("somebody/digits")
    assert stand_in.repositories == {"somebody/digits": True}  # private
    assert stand_in.tokens == {"Bearer hf_of_the_test"}
    assert stand_in.files.keys() == {"README.md", "model.safetensors", "model.json"}
    assert stand_in.files["model.safetensors"] == exported.model.read_bytes()
    assert stand_in.files["model.json"] == exported.metadata.read_bytes()
    _, facts, card = stand_in.files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(facts)["library_name"] == "fedloom"
    assert card == exported.card.read_text()


def test_a_repository_that_exists_gets_another_commit(stand_in: StandIn, exported: ExportedFiles) -> None:
    upload(exported, "somebody/digits", public=True)
    upload(exported, "somebody/digits")
    assert stand_in.repositories == {"somebody/digits": False}


@pytest.mark.parametrize("status", [401, 403, 503])
def test_a_refusal_is_one_line_and_names_the_files(stand_in: StandIn, exported: ExportedFiles, status: int) -> None:
    stand_in.refuse = status
    with pytest.raises(ConfigError, match=r"^--hub somebody/digits: .*; the files are here: ") as caught:
        upload(exported, "somebody/digits")
    assert "\n" not in str(caught.value)


def test_a_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch, exported: ExportedFiles) -> None:
    api = hub.HfApi
    monkeypatch.setattr(hub, "HfApi", lambda: api(endpoint="http://127.0.0.1:9"))
    monkeypatch.setattr(hub, "get_token", lambda: "hf_of_the_test")
    with pytest.raises(ConfigError, match=r"^--hub somebody/digits: .*; the files are here: ") as caught:
        upload(exported, "somebody/digits")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("repository", "reason"),
    [
        ("digits", "name the owner"),
        ("a/b/c", "a/b/c"),
        ("some body/digits", "some body"),
        ("", "--hub"),
        ("..", "--hub"),
    ],
)
def test_a_wrong_name_is_refused_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch, repository: str, reason: str
) -> None:
    monkeypatch.setattr(hub, "get_token", lambda: "hf_of_the_test")
    with pytest.raises(ConfigError, match=reason) as caught:
        check_hub(repository)
    assert "\n" not in str(caught.value)


def test_without_a_token_or_the_package_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "get_token", lambda: None)
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        check_hub("somebody/digits")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"fedloom\[hub\]"):
        check_hub("somebody/digits")
