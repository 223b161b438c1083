"""A client's seat belongs to one key and one disk; a change needs the administrator's word."""

import json
import re
import shutil
import stat

import pytest

from command_line import call
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.flower.bindings import FILE, NodeBindings, admit, fingerprint_of, public_keys, read_bindings
from fedloom.flower.certificates import make_node_key
from fedloom.flower.server import serve
from fedloom.flower.status import read_status
from fedloom.flower.wire import JoinReply, MessageError, read
from fedloom.runs.run import run
from flower_world import Faulty, Notes, config_of, forged

KEYS = ["SHA256:" + message * 43 for message in "abcd"]
TOKENS = [digit * 16 for digit in "0123"]


class Keyed(Faulty):
    """Nodes with keys. keys: fingerprints by node."""

    def __init__(self, nodes, keys=KEYS):
        super().__init__(nodes)
        self._keys = keys

    def key_of(self, node):
        return self._keys[node]


def begun(out):
    bindings = NodeBindings(out)
    bindings.begin()
    return bindings


def test_a_seat_is_bound_at_the_first_join_and_kept(tmp_path):
    bindings = begun(tmp_path)
    bindings.claim(1, KEYS[1], TOKENS[1])
    bindings.flush()
    bindings.claim(1, KEYS[1], TOKENS[1])
    for other in (bindings, begun(tmp_path)):  # also after a restart
        with pytest.raises(MessageError, match=f"with the key {KEYS[2]}, and client 1 is bound to {KEYS[1]}") as caught:
            other.claim(1, KEYS[2], TOKENS[1])
        assert f"`fedloom flower admit {tmp_path} --client 1 --key {KEYS[2]}`" in str(caught.value)
        with pytest.raises(MessageError, match="from another disk"):
            other.claim(1, KEYS[1], TOKENS[2])
        with pytest.raises(MessageError, match=f"its key {KEYS[1]} is that of client 1, and it joins as client 2"):
            other.claim(2, KEYS[1], TOKENS[2])
    assert TOKENS[1] not in (tmp_path / FILE).read_text()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "token", ["", "0" * 15, "0" * 17, "g" * 16, "A" * 16, "\x1b[2J" * 4, "0" * 15 + "\n", "../" * 5 + "a"]
)
def test_a_token_that_is_none_is_refused(tmp_path, token):
    with pytest.raises(MessageError, match="a token is 16 hexadecimal digits") as caught:
        begun(tmp_path).claim(1, KEYS[1], token)
    assert str(caught.value).isprintable()
    assert read_bindings(tmp_path) == {}


def test_without_keys_the_disk_alone_is_bound(tmp_path):
    bindings = begun(tmp_path)
    bindings.claim(1, "", TOKENS[1])
    bindings.claim(2, "", TOKENS[2])
    with pytest.raises(MessageError, match=rf"run `fedloom flower admit {tmp_path} --client 1`"):
        bindings.claim(1, "", TOKENS[2])
    bindings.claim(1, KEYS[1], TOKENS[1])  # a federation that got keys
    with pytest.raises(MessageError, match="is bound to"):
        bindings.claim(1, KEYS[2], TOKENS[1])


def test_the_administrator_admits_another_key_or_disk_while_the_server_runs(tmp_path):
    bindings = begun(tmp_path)
    bindings.claim(1, KEYS[1], TOKENS[1])
    bindings.flush()
    assert not bindings.refresh()
    admit(tmp_path, 1, KEYS[2])
    assert bindings.refresh()
    with pytest.raises(MessageError, match="is bound to"):
        bindings.claim(1, KEYS[1], TOKENS[1])
    bindings.claim(1, KEYS[2], TOKENS[2])
    bindings.flush()
    with pytest.raises(MessageError, match="from another disk"):
        bindings.claim(1, KEYS[2], TOKENS[3])
    admit(tmp_path, 1)
    assert bindings.refresh()
    bindings.claim(1, KEYS[3], TOKENS[3])


def test_the_administrators_word_wins_over_a_join_at_the_same_time(tmp_path):
    bindings = begun(tmp_path)
    bindings.claim(1, KEYS[1], TOKENS[1])
    admit(tmp_path, 1, KEYS[2])
    bindings.flush()
    assert read_bindings(tmp_path)[1].key == KEYS[2]


def test_nothing_is_written_before_the_run_is_this_servers(tmp_path):
    bindings = NodeBindings(tmp_path)
    bindings.claim(1, KEYS[1], TOKENS[1])
    bindings.flush()
    assert not (tmp_path / FILE).exists()
    bindings.begin()
    assert read_bindings(tmp_path)[1].key == KEYS[1]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2}', '{"clients": {"x": {"key": "", "token": ""}}}'])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(RunFolderError, match=f"{FILE}: damaged; put it back"):
        NodeBindings(tmp_path)


# -- keys that the server knows from the start -------------------------------------------------------------------------
def test_clients_are_bound_to_the_keys_in_a_folder(tmp_path):
    for client in (0, 1, 2):
        make_node_key(tmp_path / f"node-{client:06d}")
    keys = public_keys(tmp_path)
    assert len(set(keys.values())) == 3
    bindings = NodeBindings(None, tmp_path)
    with pytest.raises(MessageError, match=re.escape(f"its key {keys[2]} is that of client 2")):
        bindings.claim(1, keys[2], TOKENS[2])  # though client 1 never joined
    with pytest.raises(MessageError, match="is bound to"):
        bindings.claim(0, KEYS[0], TOKENS[0])
    bindings.claim(1, keys[1], TOKENS[1])
    bindings.claim(7, KEYS[0], TOKENS[0])


def test_a_new_key_in_the_folder_admits_its_owner(tmp_path):
    keys, out = tmp_path / "keys", tmp_path / "run"
    keys.mkdir()
    make_node_key(keys / "node-000001")
    before = public_keys(keys)[1]
    bindings = NodeBindings(out, keys)
    bindings.begin()
    bindings.claim(1, before, TOKENS[1])
    bindings.flush()
    NodeBindings(out, keys).claim(1, before, TOKENS[1])
    make_node_key(keys / "node-000001")
    bindings = NodeBindings(out, keys)
    with pytest.raises(MessageError, match="is bound to"):
        bindings.claim(1, before, TOKENS[1])
    bindings.claim(1, public_keys(keys)[1], TOKENS[2])


def test_a_folder_without_keys_and_a_file_that_is_none_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"it has no node-000000\.pub"):
        public_keys(tmp_path)
    (tmp_path / "node-000000.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(ConfigError, match=r"node-000000.pub: no public key"):
        public_keys(tmp_path)


def test_a_fingerprint_is_that_of_ssh(tmp_path):
    """A key and its fingerprint as OpenSSH 9.2 printed them, and the same key as PEM, as Flower has it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    line = (
        b"ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5"
        b"YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg= github.com"
    )
    assert fingerprint_of(line) == "SHA256:p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM"
    key = load_ssh_public_key(line)
    assert fingerprint_of(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)) == fingerprint_of(line)
    for bad in (b"", b"\x00" * 32, b"ssh-ed25519 AAAA", b"-----BEGIN PUBLIC KEY-----\n"):
        assert fingerprint_of(bad) == ""


# -- a run -------------------------------------------------------------------------------------------------------------
def test_a_seat_whose_node_is_away_cannot_be_taken(nodes_of, tmp_path):
    """Node 2's key is started with partition-id=1 while node 1 is away: the fault of the issue."""
    config = config_of(rounds=3)
    thief = nodes_of(config, tmp_path / "thief")[1]
    transport = Keyed({**nodes_of(config), 9: thief}, {**dict(enumerate(KEYS)), 9: KEYS[2]})
    transport.gone = {9}
    notes = Notes(lambda round_: transport.gone.update({1, 2} - {9}) or transport.gone.discard(9))
    result = serve(config, transport, out=tmp_path / "run", callbacks=[notes])
    (line,) = [text for text in notes.texts if text.startswith("node 9")]
    assert f"its key {KEYS[2]} is that of client 2, and it joins as client 1" in line
    assert {request.client for request in transport.requests if request.do == "train" and request.round > 1} == {0, 3}
    assert result.numbers["rounds"] == 3
    status = read_status(tmp_path / "run")
    assert [(absence.node, absence.client) for absence in status.absent] == [("9", 2)]


def test_a_wiped_disk_comes_back_once_it_is_admitted(nodes_of, tmp_path, capsys):
    """Another token with the same key: the state is lost, and the administrator knows."""
    config, out = config_of("scaffold", rounds=4, evaluation={"every": 4}), tmp_path / "run"
    transport, states = Keyed(nodes_of(config)), tmp_path / "states"

    def after(round_):
        if round_ == 1:
            transport.gone = {1}
            shutil.rmtree(next(states.glob("*/client-000001")))
        if round_ == 2:
            transport.gone = set()
        if round_ == 3:
            code, _, err = call(capsys, "flower", "admit", str(out), "--client", "1", "--key", KEYS[1])
            assert (code, err) == (0, f"client 1 of {out}: bound to the node with the key {KEYS[1]}, from any disk\n")

    notes = Notes(after)
    result = serve(config, transport, out=out, callbacks=[notes])
    (line,) = [text for text in notes.texts if "left out" in text]
    assert line.startswith("node 1 is left out: it joins as client 1 from another disk")
    assert line.endswith(f"run `fedloom flower admit {out} --client 1 --key {KEYS[1]}`")
    assert [request.round for request in transport.requests if (request.do, request.client) == ("train", 1)] == [1, 4]
    assert any("private state of client 1 after round 1 is not on its disk" in t for t in result.numbers["degenerate"])


def test_a_server_that_starts_again_knows_its_clients(nodes_of, tmp_path):
    config, out = config_of(), tmp_path / "run"

    def dies(round_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(config, Keyed(nodes_of(config)), out=out, callbacks=[Notes(dies)])
    notes = Notes()
    config_ = config.model_copy(update={"flower": config.flower.model_copy(update={"join_timeout": 0.2})})
    serve(config_, Keyed(nodes_of(config), [KEYS[0], KEYS[2], KEYS[1], KEYS[3]]), out=out, callbacks=[notes])
    told = [text.split(":")[0] for text in notes.texts if text.startswith("node ")]
    assert told == ["node 1 is left out", "node 2 is left out"]


def test_an_honest_run_with_keys_is_that_of_the_simulation(nodes_of, tmp_path):
    config = config_of()
    result = serve(config, Keyed(nodes_of(config)), out=tmp_path / "run")
    run(config, out=tmp_path / "simulated")
    last = "checkpoint/round-000003/server.safetensors"
    assert (tmp_path / "run" / last).read_bytes() == (tmp_path / "simulated" / last).read_bytes()
    assert result.numbers["rounds"] == 3
    bindings = read_bindings(tmp_path / "run")
    assert [binding.key for _, binding in sorted(bindings.items())] == KEYS


def test_a_token_of_another_client_takes_no_seat(nodes_of, tmp_path):
    """A node that answers with a token of the right form that is not its client's."""
    config, notes = config_of(flower={"join_timeout": 0.3}), Notes()
    claims = {"client": 0, "samples": len(config.scenario.build(config.seed).train[0])}
    fault = forged("join", 1, lambda _, answer: read(answer, JoinReply).model_copy(update=claims).to_message())
    serve(config, Faulty(nodes_of(config), fault), out=tmp_path / "run", callbacks=[notes])
    (line,) = [text for text in notes.texts if text.startswith("node 1 ")]
    assert "it joins as client 0 from another disk" in line


# -- the command -------------------------------------------------------------------------------------------------------
def test_admit_names_what_is_wrong(tmp_path, capsys):
    words = ("flower", "admit", str(tmp_path), "--client", "1")
    says = f"error: {tmp_path}: it has no {FILE}; name the folder of a run over Flower, on its server\n"
    assert call(capsys, *words) == (2, "", says)
    begun(tmp_path)
    (tmp_path / "bad.pub").write_text("ssh-rsa nonsense")
    for key in ("secret", "", str(tmp_path), str(tmp_path / "bad.pub")):
        code, _, err = call(capsys, *words, "--key", key)
        assert code == 2
        assert "need SHA256:... as `ssh-keygen -lf` prints it, or a public key's file" in err
    admit(tmp_path, 2, KEYS[2])
    with pytest.raises(ConfigError, match="is that of client 2; each client needs a different key"):
        admit(tmp_path, 1, KEYS[2])


def test_admit_takes_the_file_of_a_public_key(tmp_path):
    begun(tmp_path)
    make_node_key(tmp_path / "key")
    admit(tmp_path, 1, str(tmp_path / "key.pub"))
    key = fingerprint_of((tmp_path / "key.pub").read_bytes())
    assert json.loads((tmp_path / FILE).read_text())["clients"] == {"1": {"key": key, "token": ""}}
