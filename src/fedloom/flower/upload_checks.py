"""Checks of every upload before it is aggregated: size, names, shapes, dtypes, values, counts, and distance.

The expected upload comes from a rehearsal: the server runs the method's client work on a few samples.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import ClientError, FedloomError, short_repr
from fedloom.core.files import parse_json
from fedloom.core.records import Record, RecordError, Value, from_bytes, json_header, map_tensors, wire_size
from fedloom.core.tables import ClassTable
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import Job, JobResult, Stage
from fedloom.engine.round_report import CE
from fedloom.flower.checks import check_trained
from fedloom.methods import Method, ServerContext
from fedloom.methods.contract.spec import Sent

_PER_CLASS = 2  # samples of each class in a rehearsal
_MARGIN = 1 << 16  # bytes above twice the expected ones, for names and masks
_LARGEST_COUNT = 1 << 40  # of samples; sums over a million clients fit 64 bits
_RESERVED, _HEADER = "__metadata__", "fedloom"


class UploadError(FedloomError):
    """An upload that must not be aggregated."""


@dataclass(slots=True)
class Rehearsal:
    """A client's round on the server, on a few samples.

    upload: without its values, except entries whose `Sent.form` is "own". unpacked: the same as the server aggregates
    it; empty without such entries. terms: names of all loss terms and gradient norms so far. passes: processed samples
    over training samples. round: the last rehearsed one.
    """

    upload: Record
    unpacked: Record
    terms: set[str]
    passes: float
    round: int


class UploadReader:
    """Reads and checks uploads.

    worker: the server's, for rehearsals. max_norm: largest distance (L2) from the payload; None for any. note: called
    with a sentence where a method has no first round to rehearse.
    """

    def __init__(
        self,
        federation: Federation,
        worker: Worker,
        max_norm: float | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._federation, self._worker, self._max_norm, self._note = federation, worker, max_norm, note
        self._rehearsals: dict[tuple[int, Stage], Rehearsal] = {}

    def read(self, body: bytes, job: Job, samples: int) -> Record:
        """Read the upload of a client with `samples` training samples after `job`. Raises `UploadError`."""
        expected, limit = self._rehearsal_of(job).upload, self.limit(job)
        if len(body) > limit:
            raise UploadError(f"{len(body):,} bytes; {limit:,} at most")
        with _refuse_on_error("it cannot be read"):
            return self._read(body, job, samples, expected)

    def _read(self, body: bytes, job: Job, samples: int, expected: Record) -> Record:
        sends = self.method_of(job).spec.sends
        variable_entries = _variable_entries(sends)
        _check_header(body, expected, variable_entries)
        try:
            record = from_bytes(body)
        except (RecordError, MemoryError) as error:
            raise UploadError(str(error)[:300]) from None
        _check_keys("", record, expected)
        for name, value in record.items():
            _check_value(name, value, expected[name], name in variable_entries)
        _check_counts(record, samples, None if self._federation.scenario.remote else job.ctx.class_counts)
        unpacked = self.unpacked(record, job)
        if variable_entries:
            self._try_to_aggregate(unpacked, job, self._rehearsal_of(job).unpacked)
        if self._max_norm is not None:
            _check_distance(unpacked, job.payload, sends, self._max_norm)
        return record

    def unpacked(self, upload: Record, job: Job) -> Record:
        """Return an upload as the method's aggregation will read it. Raises `UploadError` if it cannot be unpacked."""
        with _refuse_on_error("the server cannot unpack it"):
            uploads = {job.ctx.client: upload}
            return self.method_of(job).unpack(self._federation.server, uploads, self._contexts(job))[job.ctx.client]

    def _contexts(self, job: Job) -> Callable[[int], ServerContext]:
        return lambda client: self._federation.context(job.ctx.round, client)

    def limit(self, job: Job) -> int:
        """Return the number of bytes that an upload after `job` may have."""
        return 2 * wire_size(self._rehearsal_of(job).upload) + _MARGIN

    def check(self, trained: JobResult, job: Job, samples: int) -> None:
        """Check the facts beside the upload of a client. Raises `MessageError`.

        A method may have other loss terms in a later round, so a round with new terms is rehearsed again. job: the job
        that it was sent. samples: number of its training samples.
        """
        rehearsal = self._rehearsal_of(job)
        reported = {*trained.terms, *trained.norms} - {CE}
        if not reported <= rehearsal.terms and job.ctx.round > rehearsal.round:
            rehearsal.terms |= self._rehearse(job).terms
            rehearsal.round = job.ctx.round
        check_trained(trained, job.measured, samples, rehearsal.terms, rehearsal.passes)

    def method_of(self, job: Job) -> Method:
        """Return the method of a job: the run's, or that of its opening or closing round."""
        return self._federation.methods[job.stage]

    def _rehearsal_of(self, job: Job) -> Rehearsal:
        """Return the rehearsal for clients of the job's architecture."""
        key = job.ctx.task.group, job.stage
        if key not in self._rehearsals:
            self._rehearsals[key] = self._rehearse(job)
        return self._rehearsals[key]

    def _rehearse(self, job: Job) -> Rehearsal:
        indices = self._rehearsal_indices
        counts = torch.bincount(self._worker.data.y[indices], minlength=job.ctx.task.num_classes)
        ctx = replace(job.ctx, samples=len(indices), class_counts=counts)
        rehearsal_job = replace(job, ctx=ctx, indices=indices)
        terms, state = set[str](), Record()
        try:
            first_result = self._federation.run_first_round(self._worker, rehearsal_job)
            terms, state = {*first_result.terms}, first_result.state if job.stage != "opening" else {}
        except ClientError as error:  # of a state that the method may never meet, which must not end the run
            self._note(f"uploads are checked by a rehearsal of this round alone, as that of the first fails: {error}")
        state = state or self._federation.method.client_init(ctx)
        result = self._worker.run(replace(rehearsal_job, state=state))
        names = {*terms, *result.terms, *result.norms}
        passes = max(result.samples, result.steps * self._worker.local_training.batch_size) / max(1, len(indices))
        kept = {name: result.upload[name] for name in _variable_entries(self.method_of(job).spec.sends)}
        upload = map_tensors(result.upload, _without_values) | kept
        unpacked = map_tensors(self.unpacked(result.upload, job), _without_values) | kept if kept else {}
        return Rehearsal(upload, unpacked, names, max(1.0, passes), job.ctx.round)

    @functools.cached_property
    def _rehearsal_indices(self) -> Tensor:
        """Indices of a few samples of each class."""
        labels = self._worker.data.y.cpu()
        return torch.cat(
            [(labels == label).nonzero()[:_PER_CLASS, 0] for label in range(self._worker.data.num_classes)]
        )

    def _try_to_aggregate(self, upload: Record, job: Job, expected: Record) -> None:
        """Aggregate an upload whose shapes may vary with an honest one, to see whether the server can use it."""
        others = [client for client in range(self._federation.scenario.clients) if client != job.ctx.client]
        uploads = {job.ctx.client: upload} | dict.fromkeys(others[:1], expected)
        with _refuse_on_error("the server cannot use it"):
            self.method_of(job).aggregate(self._federation.server, uploads, self._contexts(job)(-1))


@contextlib.contextmanager
def _refuse_on_error(what: str) -> Iterator[None]:
    """Refuse an upload for whatever exception it causes: it ends no run."""
    try:
        yield
    except UploadError:
        raise
    except Exception as error:
        raise UploadError(f"{what} ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from None


def _variable_entries(sends: Mapping[str, Sent]) -> set[str]:
    """Names of the entries whose shapes may vary."""
    return {name for name, sent in sends.items() if sent.form == "own"}


def _without_values(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and dtype that takes no memory; masks keep their values."""
    return tensor if tensor.dtype == torch.bool else tensor.new_zeros(()).expand(tensor.shape)


def _check_header(body: bytes, expected: Record, variable_entries: set[str]) -> None:
    """Check an upload's header before any tensor is created, including the shapes of class tables."""
    header = _header_of(body)
    for name, value in expected.items():
        if isinstance(value, ClassTable):
            shape = header.get(f"{name}/rows", {}).get("shape")
            if not isinstance(shape, list) or len(shape) != 2 or shape[1] != value.values.shape[-1]:
                raise UploadError(f"{name}: rows {short_repr(shape)}; need [held classes, {value.values.shape[-1]}]")
            mask, classes = header.get(f"{name}/held", {}).get("shape"), [*value.held.shape]
            several = len(classes) > 1 and isinstance(mask, list) and len(mask) == len(classes)
            if mask != classes and not (several and mask[1:] == classes[1:]):  # as many rows a class as it has
                raise UploadError(f"{name}: the mask needs shape {[*value.held.shape]}")
    sent, required = _entries(header), _entries({_RESERVED: {_HEADER: json_header(expected)}})
    _check_keys("", sent, required)
    for name, (kind, names) in required.items():
        sent_kind, sent_names = sent[name]
        if sent_kind != kind:
            raise UploadError(f"{name}: a {short_repr(sent_kind)}; need a {kind}")
        if name not in variable_entries and sent_names != names:
            _check_keys(name, dict.fromkeys(sent_names), dict.fromkeys(names))
            raise UploadError(f"{name}: its tensors come in another order, or twice")


def _header_of(body: bytes) -> dict[str, Any]:
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise UploadError("its header is longer than the upload")
    try:
        header = parse_json(body[8 : 8 + length])
    except ValueError as error:
        raise UploadError(f"its header is no JSON ({str(error)[:100]})") from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise UploadError("its header is no table of tensors")
    return header


def _entries(header: Mapping[str, Any]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the kind of every entry of a record, and the names of trees in order."""
    try:
        described = parse_json(header[_RESERVED][_HEADER])["entries"]
        entries = {name: (str(entry["kind"]), tuple(entry.get("names", ()))) for name, entry in described.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UploadError("it is no record of fedloom") from None
    if not all(isinstance(name, str) for _, names in entries.values() for name in names):
        raise UploadError("it is no record of fedloom: a name that is no text")
    return entries


def _check_keys(path: str, sent: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    if sent.keys() != required.keys():
        extra, missing = sorted(sent.keys() - required.keys()), sorted(required.keys() - sent.keys())
        fault = f"lacks {short_repr(missing[0])}" if missing else f"has {short_repr(extra[0])}, which nobody asked for"
        raise UploadError(f"{path}{': ' if path else 'it '}{fault}")


def _check_value(name: str, value: Value, expected: Value, has_free_shape: bool) -> None:
    if type(value) is not type(expected):
        raise UploadError(f"{name}: a {type(value).__name__}; need a {type(expected).__name__}")
    if isinstance(value, dict) and isinstance(expected, dict):
        if not has_free_shape:
            _check_keys(name, value, expected)
        for key, tensor in value.items():
            if has_free_shape:
                like = [expected[key]] if key in expected else expected.values()
                _check_tensor(f"{name}/{key}", tensor, None, {entry.dtype for entry in like})
            else:
                _check_tensor(f"{name}/{key}", tensor, expected[key])
    elif isinstance(value, ClassTable) and isinstance(expected, ClassTable):
        held, rows = expected.held, expected.values
        if held.dim() > 1 and value.held.dim() == held.dim():  # several rows a class: as many as the client has
            held, rows = (part[:1].expand(len(value.held), *part.shape[1:]) for part in (held, rows))
        _check_tensor(f"{name}/held", value.held, held)
        _check_tensor(f"{name}/rows", value.values, rows)
    elif isinstance(value, Tensor) and isinstance(expected, Tensor):
        _check_tensor(name, value, None if has_free_shape else expected, {expected.dtype})
    elif isinstance(value, float) and not math.isfinite(value):
        raise UploadError(f"{name} = {value}: need a finite number")
    elif isinstance(value, int) and abs(value) > _LARGEST_COUNT:
        raise UploadError(f"{name}: a number of {value.bit_length()} bits; 2**40 at most")


def _check_tensor(path: str, tensor: Tensor, expected: Tensor | None, dtypes: Collection[torch.dtype] = ()) -> None:
    """Check one tensor. expected: None if its shape is free; its dtype is then one of `dtypes`."""
    if expected is None and tensor.dtype not in dtypes:
        allowed = " or ".join(sorted(map(str, dtypes))) or "no tensor"
        raise UploadError(f"{path}: {tensor.dtype}; need {allowed}".replace("torch.", ""))
    if expected is not None and (tensor.dtype != expected.dtype or tensor.shape != expected.shape):
        raise UploadError(
            f"{path}: {tensor.dtype} {tuple(tensor.shape)}; need {expected.dtype} {tuple(expected.shape)}".replace(
                "torch.", ""
            )
        )
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise UploadError(f"{path}: not all numbers are finite")
    if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise UploadError(f"{path}: a mask of other bytes than 0 and 1")


def _check_counts(record: Record, samples: int, class_counts: Tensor | None) -> None:
    """Check that counts are not negative, and that they agree with `samples`, with which the client joined.

    class_counts: the client's samples of each class [C], if the server knows them.
    """
    reported = record.get("samples", samples)
    if reported != samples:
        raise UploadError(f"samples = {reported}: the client joined with {samples}")
    for name, value in record.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 0:
            raise UploadError(f"{name} = {value}: need 0 or more")
        if isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool:
            if int(value.min() if value.numel() else 0) < 0:
                raise UploadError(f"{name}: it has counts below 0")
            if int(value.max() if value.numel() else 0) > _LARGEST_COUNT:  # whose sum could leave 64 bits
                raise UploadError(f"{name}: it has counts above 2**40")
            if name != "class_counts":
                continue
            if int(value.sum()) != samples:
                raise UploadError(f"{name}: they sum to {int(value.sum())}; the client joined with {samples} samples")
            if class_counts is not None and not torch.equal(value.to(class_counts.dtype), class_counts):
                raise UploadError(f"{name} = {value.tolist()}: by the config the client has {class_counts.tolist()}")


def _check_distance(upload: Record, payload: Record, sends: Mapping[str, Sent], max_norm: float) -> None:
    """Check the length of the changes of all weights together: of trees less what was sent, and of updates."""
    squares = 0.0
    for name, sent in sends.items():
        value, received = upload.get(name), payload.get(name)
        if not isinstance(value, dict) or sent.form == "own":
            continue
        for key, tensor in value.items():
            if not tensor.is_floating_point():
                continue
            if sent.form == "change":
                squares += float(tensor.double().square().sum())
            elif isinstance(received, dict) and key in received and tensor.shape == received[key].shape:
                squares += float((tensor.double() - received[key].double()).square().sum())
    if math.sqrt(squares) > max_norm:
        raise UploadError(f"it is {math.sqrt(squares):.4g} away from what was sent; flower.max_norm = {max_norm:g}")
