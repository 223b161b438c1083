"""Uploads: what is refused and why, and mutated ones by the thousand."""

import json
import math
import os
import random
import tracemalloc
from dataclasses import replace

import pytest
import torch

from fedloom.core.records import from_bytes, to_bytes
from fedloom.core.tables import ClassTable
from fedloom.engine.jobs import JobResult
from fedloom.flower.in_process import run_in_process
from fedloom.flower.upload_checks import UploadReader
from fedloom.flower.wire import ErrorReply, Message, MessageError, TrainReply, read_reply
from fedloom.methods import METHODS
from fedloom.runs.run import _Run, run
from fedloom.runs.storage.run_data import RunData
from flower_mutations import mutated
from flower_world import Notes, config_of, settings_of
from support import same_bits


class Desk:
    """A server before round 1, and the upload of client 0."""

    def __init__(self, method="fedsc", max_norm=None, **keys):
        federation = (running := _Run(config_of(method, **keys), None, None, (), None, RunData)).federation
        self.job = federation.job(0, 1)
        self.samples = self.job.ctx.samples
        self.done: JobResult = running.worker.run(self.job)
        self.uploads = UploadReader(federation, running.worker, max_norm)

    def read(self, record):
        return self.uploads.read(to_bytes(record), self.job, self.samples)

    def message(self):
        done = self.done
        told = TrainReply(
            run="ab", client=0, round=1, steps=done.steps, samples=done.samples, seconds=0.5, terms=dict(done.terms),
            norms=dict(done.norms), notes=[], has_state=False,
        )  # fmt: skip
        return told.to_message(to_bytes(done.upload))


@pytest.fixture(scope="module")
def desk():
    return Desk()


def test_what_a_client_sends_is_read_as_it_is(desk):
    assert to_bytes(desk.read(desk.done.upload)) == to_bytes(desk.done.upload)


def test_reading_an_upload_copies_it_once():
    """A rehearsal is remembered by its shapes, and no check writes the expected upload out."""
    desk = Desk("fedavg", model={"name": "mlp", "hidden": [600, 600]})
    body = to_bytes(desk.done.upload)
    desk.uploads.read(body, desk.job, desk.samples)
    tracemalloc.start()
    try:
        desk.uploads.read(body, desk.job, desk.samples)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) > 1_000_000
    assert peak < 1.3 * len(body)
    (rehearsal,) = desk.uploads._rehearsals.values()
    assert all(value.untyped_storage().nbytes() <= 8 for value in rehearsal.upload["model"].values())


def other(record, name, **entries):
    return {**record, name: {**record[name], **entries}}


def table(record, change):
    values, held = record["prototypes"].values.clone(), record["prototypes"].held.clone()
    return {**record, "prototypes": change(values, held)}


CASES = {
    "an entry is missing": ("it lacks 'samples'", lambda r: {k: v for k, v in r.items() if k != "samples"}),
    "an entry too many": ("which was not requested", lambda r: {**r, "extra": 1}),
    "a tensor is missing": (
        "lacks 'head.bias'",
        lambda r: {**r, "model": {k: v for k, v in r["model"].items() if k != "head.bias"}},
    ),
    "other shape": (
        r"model/head.bias: float32 \(9,\); need float32 \(10,\)",
        lambda r: other(r, "model", **{"head.bias": torch.zeros(9)}),
    ),
    "other dtype": ("float64", lambda r: other(r, "model", **{"head.bias": torch.zeros(10).double()})),
    "infinite": (
        "model/head.bias: not all numbers are finite",
        lambda r: other(r, "model", **{"head.bias": torch.full((10,), math.inf)}),
    ),
    "other kind": ("model", lambda r: {**r, "model": torch.zeros(3)}),
    "samples invented": ("samples = 10000: the client joined with", lambda r: {**r, "samples": 10_000}),
    "samples below 0": ("samples = -1", lambda r: {**r, "samples": -1}),
    "samples of another type": ("samples", lambda r: {**r, "samples": float(r["samples"])}),
    "counts below 0": ("class_counts: it has counts below 0", lambda r: {**r, "class_counts": r["class_counts"] - 1}),
    "counts invented": ("class_counts: they sum to", lambda r: {**r, "class_counts": r["class_counts"] + 1}),
    "table of other width": ("prototypes: rows", lambda r: table(r, lambda v, h: ClassTable(v[:, :-1], h))),
    "table of other classes": ("prototypes: the mask", lambda r: table(r, lambda v, h: ClassTable(v[:-1], h[:-1]))),
    "table not finite": (
        "prototypes/rows: not all",
        lambda r: table(r, lambda v, h: ClassTable(torch.where(h[:, None], v * math.nan, v), h)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_with_an_upload_is_said(desk, case):
    pattern, change = CASES[case]
    with pytest.raises(MessageError, match=pattern) as caught:
        desk.read(change(desk.done.upload))
    assert "\n" not in str(caught.value)


def test_a_small_upload_cannot_claim_a_huge_table(desk):
    """Rows of no class take no bytes, and would be spread over all classes."""
    empty = ClassTable(torch.zeros(10, 1), torch.zeros(10, dtype=torch.bool))
    body = to_bytes({**desk.done.upload, "prototypes": empty}).replace(b'"shape":[0,1]', b'"shape":[0,9999999999]')
    length = int.from_bytes(body[:8], "little") + len("9999999999") - 1
    with pytest.raises(MessageError):
        desk.uploads.read(length.to_bytes(8, "little") + body[8:], desk.job, desk.samples)


def test_a_mask_of_other_bytes_than_0_and_1_is_refused(desk):
    body = to_bytes(desk.done.upload)
    place = body.rindex(to_bytes({"m": desk.done.upload["prototypes"].held})[-10:])
    bad = body[:place] + bytes([3]) + body[place + 1 :]
    with pytest.raises(MessageError):
        desk.uploads.read(bad, desk.job, desk.samples)


def test_what_varies_is_refused_where_the_server_cannot_use_it():
    desk = Desk("fedkd")
    tree = desk.done.upload["model"]
    name = next(name for name in tree if name.endswith(":u"))
    with pytest.raises(MessageError, match="the server cannot use it"):
        desk.read(other(desk.done.upload, "model", **{name: tree[name][:, :-1]}))


def with_header(body, change):
    """A body whose description of entries is changed."""
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    described = json.loads(header["__metadata__"]["fedloom"])
    change(described["entries"])
    header["__metadata__"]["fedloom"] = json.dumps(described)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


@pytest.mark.parametrize("names", [[{}], [[1]], [1, "a"], [None], {"head.bias": 1}, 3])
def test_names_that_are_no_texts_are_refused(desk, names):
    body = with_header(to_bytes(desk.done.upload), lambda entries: entries["model"].update(names=names))
    with pytest.raises(MessageError, match=r"no record of fedloom|lacks|another order"):
        desk.uploads.read(body, desk.job, desk.samples)


@pytest.mark.parametrize("digits", [16, 40, 5000])
def test_numbers_of_many_digits_are_refused(desk, digits):
    value = "0x" + "f" * digits
    body = with_header(to_bytes(desk.done.upload), lambda entries: entries["samples"].update(value=value))
    with pytest.raises(MessageError, match=f"samples: a number of {4 * digits} bits"):
        desk.uploads.read(body, desk.job, desk.samples)


def test_counts_whose_sum_leaves_64_bits_are_refused(desk):
    counts = torch.tensor([2**62] * 4 + [desk.samples] + [0] * 5)
    assert int(counts.sum()) == desk.samples
    with pytest.raises(MessageError, match=r"class_counts: it has counts above 2\*\*40"):
        desk.read({**desk.done.upload, "class_counts": counts})


@pytest.mark.parametrize("indices", [2**31 - 1, -(2**31), -5, 0])
def test_compressed_changes_with_impossible_indices_are_refused(indices):
    desk = Desk("fedavg+topk")
    assert desk.read(desk.done.upload)
    entry = next(name for name in desk.done.upload if name != "samples")
    packed = desk.done.upload[entry]
    with pytest.raises(MessageError, match=r"the server cannot unpack it \(ValueError: indices that do not rise"):
        desk.read({**desk.done.upload, entry: {**packed, "indices": torch.full_like(packed["indices"], indices)}})


@pytest.mark.parametrize("method", ["fedavg", "fedavg+int8", "fedavg+topk", "fedavg+sign", "qfedavg", "scaffold"])
def test_the_largest_distance_is_that_of_unpacked_changes(method):
    desk = Desk(method, max_norm=1e-6)
    with pytest.raises(MessageError, match=r"away from the payload; flower\.max_norm"):
        desk.read(desk.done.upload)
    desk = Desk(method, max_norm=1e6)
    assert desk.read(desk.done.upload)


FREE_SHAPES = {
    "no tensors": ("fedkd", "model", lambda tree: {}),
    "8-bit floats": ("fedkd", "model", lambda tree: {key: v.to(torch.float8_e4m3fn) for key, v in tree.items()}),
    "whole numbers": ("fedkd", "model", lambda tree: {key: (v * 1e6).long() for key, v in tree.items()}),
    "complex numbers": ("fedkd", "model", lambda tree: {key: v.to(torch.complex64) for key, v in tree.items()}),
    "a tensor of 8-bit floats": ("floco", "ends", lambda ends: ends.to(torch.float8_e4m3fn)),
    "a tensor of whole numbers": ("floco", "ends", lambda ends: ends.long()),
    "a tensor of unsigned numbers": ("floco", "ends", lambda ends: ends.to(torch.uint32)),
}


@pytest.mark.parametrize("case", FREE_SHAPES)
def test_entries_of_free_shape_have_the_dtypes_of_honest_ones(case):
    method, name, change = FREE_SHAPES[case]
    desk = Desk(method, **{**settings_of(method), "participation": 1.0, "rounds": 4})
    assert desk.read(desk.done.upload)
    with pytest.raises(MessageError, match=r"need float32|the server cannot use it"):
        desk.read({**desk.done.upload, name: change(desk.done.upload[name])})


@pytest.mark.parametrize("word", ["topk", "int8", "sign"])
def test_compressed_uploads_beside_entries_of_free_shape_are_read(word):
    desk = Desk(f"floco+{word}")
    assert desk.read(desk.done.upload)


def outcome(desk, message):
    """Whether a message is accepted; anything but a refusal in one line is raised."""
    try:
        if isinstance(read_reply(message, TrainReply), ErrorReply):
            return False
        record = desk.uploads.read(message.body, desk.job, desk.samples)
    except MessageError:
        return False
    # what is accepted is what an honest client could have sent: the same names, dtypes and shapes, finite
    honest = desk.done.upload
    assert record.keys() == honest.keys()
    for key, tensor in record["model"].items():
        assert (tensor.dtype, tensor.shape) == (honest["model"][key].dtype, honest["model"][key].shape)
        assert torch.isfinite(tensor).all()
    assert record["samples"] == desk.samples
    assert int(record["class_counts"].sum()) == desk.samples
    return True


def test_mutated_uploads_end_in_a_refusal_or_in_an_honest_record(desk):
    """FEDLOOM_FUZZ says how many; 100,000 take two minutes."""
    message, count = desk.message(), int(os.environ.get("FEDLOOM_FUZZ", "900"))
    accepted = sum(outcome(desk, mutated(message, random.Random(seed))) for seed in range(count))
    assert accepted < 0.6 * count  # flipped bits of a weight are weights


@pytest.mark.parametrize(
    "facts",
    [
        "",
        "{}",
        "null",
        "[" * 100_000,
        '{"wire_version": 1}',
        "x" * (2 << 20),
        '{"wire_version":3,"run":"a","kind":"trained"}',
    ],
)
def test_facts_that_are_no_message_are_refused_in_one_line(facts):
    with pytest.raises(MessageError) as caught:
        read_reply(Message(facts), TrainReply)
    assert len(str(caught.value)) < 300


def test_records_that_nest_too_deep_are_damaged_ones():
    from fedloom.core.records import RecordError

    deep = b'{"__metadata__":{"fedloom":"' + b"[" * 100_000 + b'"}}'
    with pytest.raises(RecordError):
        from_bytes(len(deep).to_bytes(8, "little") + deep)


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("down", "as that of the first fails: fedavg: the server, for client 0, failed in round 1 (down)"),
        (
            "client_init",
            "no rehearsal, so uploads are compared with one another only: fedavg: the server, for client 0",
        ),
        ("begin", "no rehearsal, so uploads are compared with one another only: fedavg: client 0 failed in round 1"),
    ],
)
def test_a_hook_that_raises_in_a_rehearsal_is_a_note(monkeypatch, hook, told):
    desk, notes = Desk("fedavg"), []
    uploads = UploadReader(desk.uploads._federation, desk.uploads._worker, note=notes.append)

    def raises(*arguments):
        raise ValueError("no partner")

    monkeypatch.setattr(desk.uploads._federation.method, hook, raises)
    body, done = to_bytes(desk.done.upload), desk.done
    assert to_bytes(uploads.read(body, desk.job, desk.samples)) == body
    uploads.check(done, desk.job, desk.samples)
    assert told in notes[-1]
    assert "ValueError: no partner" in notes[-1]
    if hook == "down":
        return
    for change, says in (
        ({"model": {**done.upload["model"], "head.bias": torch.full((10,), math.nan)}}, "not all numbers are finite"),
        ({"more": 1}, "has 'more', which the method does not declare"),
        ({"samples": 10_000}, "the client joined with"),
    ):
        with pytest.raises(MessageError, match=says):
            uploads.read(to_bytes({**done.upload, **change}), desk.job, desk.samples)
    with pytest.raises(MessageError, match="at most"):
        uploads.read(to_bytes({**done.upload, "model": {"w": torch.zeros(60_000_000)}}), desk.job, desk.samples)
    odd = replace(done, upload={**done.upload, "model": {"w": torch.zeros(3)}})
    jobs = dict.fromkeys(range(3), desk.job)
    assert list(uploads.unlike_most({0: done, 1: odd, 2: done}, jobs)) == [1]


def test_a_rehearsal_that_fails_ends_no_deployment(monkeypatch):
    """The method's hook refuses rounds of so few samples, which only the server's rehearsal has."""
    method = METHODS.get("fedavg")
    begin = method.begin

    def picky(self, payload, state, ctx):
        if ctx.samples == 20:
            raise ValueError("too few samples")
        return begin(self, payload, state, ctx)

    monkeypatch.setattr(method, "begin", picky)
    config, notes = config_of(), Notes()
    there, here = run_in_process(config, callbacks=[notes], progress=False), run(config)
    assert same_bits(here.memory.weights[3].server, there.memory.weights[3].server)
    assert any("failed in round 1 (begin): ValueError: too few samples" in t for t in notes.texts)
