"""Every upload is checked before it touches the model: size, names, shapes, dtypes, values, counts, and its distance.

What is expected is what this very server would send: one rehearsal of the method's client work on a few samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import FedloomError, short_repr
from fedloom.core.files import parse_json
from fedloom.core.records import Record, RecordError, Value, from_bytes, json_header, map_tensors, wire_size
from fedloom.core.tables import ClassTable
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import Job
from fedloom.engine.term_balance import CE
from fedloom.flower.checks import check_trained
from fedloom.flower.wire import TrainReply
from fedloom.methods import Method

_EACH = 2  # samples of each class in a rehearsal
_SPARE = 1 << 16  # bytes above twice the expected ones, for names and masks
_RESERVED, _HEADER = "__metadata__", "fedloom"


class UploadError(FedloomError):
    """An upload that must not touch the model."""


@dataclass(slots=True)
class Rehearsal:
    """A client's round at the server, on a few samples: how an upload must look.

    payload: the upload, without its values. terms: names of all loss terms and gradient norms so far. passes: samples
    that it processed, over its training samples. round: the last round that was rehearsed.
    """

    payload: Record
    terms: set[str]
    passes: float
    round: int


class UploadReader:
    """Reads what clients send, or refuses it.

    worker: the server's, for rehearsals. max_norm: longest distance from what a client was sent; None for any.
    """

    def __init__(self, federation: Federation, worker: Worker, max_norm: float | None = None) -> None:
        self._federation, self._worker, self._max_norm = federation, worker, max_norm
        self._rehearsals: dict[tuple[int, bool], Rehearsal] = {}

    def read(self, body: bytes, job: Job, samples: int) -> Record:
        """The record that a client with `samples` training samples sends after `job`. Raises `UploadError`."""
        expected, most = self._rehearsed(job).payload, self.limit(job)
        if len(body) > most:
            raise UploadError(f"{len(body):,} bytes; {most:,} at most")
        sends = self.method_of(job).spec.sends
        varying = {name for name, sent in sends.items() if sent.form == "own"}
        _check_header(body, expected, varying)
        try:
            record = from_bytes(body)
        except (RecordError, MemoryError) as error:
            raise UploadError(str(error)[:300]) from None
        _same_keys("", record, expected)
        for name, value in record.items():
            _check_value(name, value, expected[name], name in varying)
        _check_counts(record, samples, None if self._federation.scenario.remote else job.ctx.class_counts)
        if varying:
            self._try(record, job)
        if self._max_norm is not None:
            weights = [name for name, sent in sends.items() if sent.form == "whole"]
            _check_distance(record, job.payload, weights, self._max_norm)
        return record

    def limit(self, job: Job) -> int:
        """Bytes that an upload after `job` may have."""
        return 2 * wire_size(self._rehearsed(job).payload) + _SPARE

    def check(self, trained: TrainReply, job: Job, samples: int) -> None:
        """Check the facts beside the upload of a client with `samples` training samples. Raises `MessageError`.

        A method may have other loss terms in a later round, so a round whose terms are new is rehearsed once more.
        """
        rehearsal = self._rehearsed(job)
        reported = {*trained.terms, *trained.norms} - {CE}
        if not reported <= rehearsal.terms and job.ctx.round > rehearsal.round:
            rehearsal.terms |= self._rehearse(job).terms
            rehearsal.round = job.ctx.round
        check_trained(trained, job.measured, samples, rehearsal.terms, rehearsal.passes)

    def method_of(self, job: Job) -> Method:
        """The method of a job: the run's, or that of its closing round."""
        return (self._federation.method.closing() if job.closing else None) or self._federation.method

    def _rehearsed(self, job: Job) -> Rehearsal:
        """The rehearsal for clients of the job's architecture."""
        key = job.ctx.task.group, job.closing
        if key not in self._rehearsals:
            self._rehearsals[key] = self._rehearse(job)
        return self._rehearsals[key]

    def _rehearse(self, job: Job) -> Rehearsal:
        indices = self._few
        counts = torch.bincount(self._worker.data.y[indices], minlength=job.ctx.task.num_classes)
        ctx = replace(job.ctx, samples=len(indices), class_counts=counts)
        few = replace(job, ctx=ctx, indices=indices)
        first = self._federation.run_first_round(self._worker, few)
        state = first.state or self._federation.method.client_init(ctx)
        result = self._worker.run(replace(few, state=state))
        names = {*first.terms, *result.terms, *result.norms}
        passes = max(result.samples, result.steps * self._worker.local_training.batch_size) / max(1, len(indices))
        return Rehearsal(map_tensors(result.payload, _shape_alone), names, max(1.0, passes), job.ctx.round)

    @functools.cached_property
    def _few(self) -> Tensor:
        """A few samples of each class."""
        labels = self._worker.data.y.cpu()
        return torch.cat([(labels == label).nonzero()[:_EACH, 0] for label in range(self._worker.data.num_classes)])

    def _try(self, record: Record, job: Job) -> None:
        """Where shapes vary, the server's own step says whether it can use them."""
        server, method = self._federation.server, self.method_of(job)
        ctx = replace(self._federation.server_context(), round=job.ctx.round)
        try:
            method.aggregate(server, method.unpack(server, {job.ctx.client: record}, lambda _: ctx), ctx)
        except Exception as error:
            raise UploadError(f"the server cannot use it ({type(error).__name__}: {str(error)[:200]})") from None


def _shape_alone(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and dtype that takes no room; masks stay, for their rows are counted."""
    return tensor if tensor.dtype == torch.bool else tensor.new_zeros(()).expand(tensor.shape)


def _check_header(body: bytes, expected: Record, varying: set[str]) -> None:
    """Before any tensor is made: rows of class tables, which are spread over all classes, have the expected width."""
    header = _header_of(body)
    for name, value in expected.items():
        if isinstance(value, ClassTable):
            shape = header.get(f"{name}/rows", {}).get("shape")
            if not isinstance(shape, list) or len(shape) != 2 or shape[1] != value.values.shape[1]:
                raise UploadError(f"{name}: rows {short_repr(shape)}; need [held classes, {value.values.shape[1]}]")
            if header.get(f"{name}/held", {}).get("shape") != [*value.held.shape]:
                raise UploadError(f"{name}: the mask needs shape {[*value.held.shape]}")
    there, wanted = _entries(header), _entries({_RESERVED: {_HEADER: json_header(expected)}})
    _same_keys("", there, wanted)
    for name, (kind, names) in wanted.items():
        if there[name][0] != kind:
            raise UploadError(f"{name}: a {short_repr(there[name][0])}; need a {kind}")
        if name not in varying and there[name][1] != names:
            _same_keys(name, dict.fromkeys(there[name][1]), dict.fromkeys(names))
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
    """Kind, and of trees the names, of every entry of a record; names in order."""
    try:
        entries = parse_json(header[_RESERVED][_HEADER])["entries"]
        return {name: (str(entry["kind"]), tuple(entry.get("names", ()))) for name, entry in entries.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UploadError("it is no record of fedloom") from None


def _same_keys(place: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if there.keys() != wanted.keys():
        more, less = sorted(there.keys() - wanted.keys()), sorted(wanted.keys() - there.keys())
        what = f"lacks {short_repr(less[0])}" if less else f"has {short_repr(more[0])}, which nobody asked for"
        raise UploadError(f"{place}{': ' if place else 'it '}{what}")


def _check_value(name: str, value: Value, wanted: Value, varies: bool) -> None:
    if type(value) is not type(wanted):
        raise UploadError(f"{name}: a {type(value).__name__}; need a {type(wanted).__name__}")
    if isinstance(value, dict) and isinstance(wanted, dict):
        if not varies:
            _same_keys(name, value, wanted)
        for key, tensor in value.items():
            _check_tensor(f"{name}/{key}", tensor, None if varies else wanted[key])
    elif isinstance(value, ClassTable) and isinstance(wanted, ClassTable):
        _check_tensor(f"{name}/held", value.held, wanted.held)
        _check_tensor(f"{name}/rows", value.values, wanted.values)
    elif isinstance(value, Tensor) and isinstance(wanted, Tensor):
        _check_tensor(name, value, None if varies else wanted)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UploadError(f"{name} = {value}: need a finite number")


def _check_tensor(path: str, tensor: Tensor, wanted: Tensor | None) -> None:
    """wanted: None for one whose shape is free."""
    if wanted is not None and (tensor.dtype != wanted.dtype or tensor.shape != wanted.shape):
        raise UploadError(
            f"{path}: {tensor.dtype} {tuple(tensor.shape)}; need {wanted.dtype} {tuple(wanted.shape)}".replace(
                "torch.", ""
            )
        )
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise UploadError(f"{path}: not all numbers are finite")
    if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise UploadError(f"{path}: a mask of other bytes than 0 and 1")


def _check_counts(record: Record, samples: int, class_counts: Tensor | None) -> None:
    """Check that counts are not negative, and that they agree with the samples that the client joined with.

    class_counts: the client's samples of each class [C], where the server knows them.
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
            if name != "class_counts":
                continue
            if int(value.sum()) != samples:
                raise UploadError(f"{name}: they sum to {int(value.sum())}; the client joined with {samples} samples")
            if class_counts is not None and not torch.equal(value.to(class_counts.dtype), class_counts):
                raise UploadError(f"{name} = {value.tolist()}: by the config the client has {class_counts.tolist()}")


def _check_distance(record: Record, sent: Record, weights: Collection[str], most: float) -> None:
    """Check how far the trees called `weights` are from those that were sent, over all their entries together."""
    squares = 0.0
    for name in weights:
        value, before = record.get(name), sent.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            for key in value.keys() & before.keys():
                if value[key].is_floating_point() and value[key].shape == before[key].shape:
                    squares += float((value[key].double() - before[key].double()).square().sum())
    if math.sqrt(squares) > most:
        raise UploadError(f"it is {math.sqrt(squares):.4g} away from what was sent; flower.max_norm = {most:g}")
