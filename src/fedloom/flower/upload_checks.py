"""Checks of every upload before it is aggregated: size, names, shapes, dtypes, values, counts, and distance.
The expected upload comes from a rehearsal: the server runs the method's client work on a few samples."""

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ClientError, FedloomError, short_repr
from fedloom.core.files import parse_json
from fedloom.core.records import Record, RecordError, Value, from_bytes, json_header, map_tensors, wire_size
from fedloom.core.tables import ClassTable
from fedloom.data.views import label_counts, positives
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import Job, JobResult, Stage, hooked
from fedloom.engine.round_report import CE
from fedloom.flower.checks import LastNorm, changes, check_trained, median_norms, upload_norms
from fedloom.flower.node_data import FEWEST
from fedloom.flower.wire import MessageError
from fedloom.methods import Method, ServerContext
from fedloom.methods.contract.means import RECORDED
from fedloom.methods.contract.spec import Sent

_PER_CLASS = 2  # samples of each class in a rehearsal
_MOST_REHEARSED = 512  # samples in all, if rounds are small
_MARGIN = 1 << 16  # bytes above twice the expected ones, for names and masks
_LARGEST_COUNT = 1 << 40  # of samples; sums over a million clients fit 64 bits
_UNREHEARSED_PASSES, _UNREHEARSED_BYTES = 100.0, 1 << 26  # bounds that suit most methods
_RESERVED, _HEADER = "__metadata__", "fedloom"


@dataclass(slots=True)
class Rehearsal:
    """A client's round on the server. upload: without its values, except "own" entries; None if a hook raised.
    unpacked: as the server aggregates it; empty without "own" entries, and if the method cannot aggregate it alone.
    terms: of all losses and gradient norms so far. passes: processed samples over training samples. norms: of the
    upload, by key, if rounds are too small for their clients to judge each other."""

    round: int
    upload: Record | None = None
    unpacked: Record = field(default_factory=dict)
    terms: set[str] = field(default_factory=set)
    passes: float = _UNREHEARSED_PASSES
    norms: Mapping[str, LastNorm] = field(default_factory=dict)


@contextlib.contextmanager
def _refuse_on_error(fault: str) -> Iterator[None]:
    """Refuse an upload for whatever exception it causes, which must not end the run."""
    try:
        yield
    except MessageError:
        raise
    except Exception as error:
        raise MessageError(f"{fault} ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from None


class UploadReader:
    """Reads and checks uploads. note: called with a sentence about a rehearsal that fails."""

    def __init__(
        self,
        federation: Federation,
        worker: Worker,
        max_norm: float | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._federation, self._worker, self._max_norm, self._note = federation, worker, max_norm, note
        self._rehearsals: dict[tuple[int, Stage], Rehearsal] = {}  # by group of architectures

    @_refuse_on_error("it cannot be read")
    def read(self, body: bytes, job: Job, samples: int) -> Record:
        """Read the upload of a client with `samples` training samples after `job`. Raises `MessageError`."""
        limit, sends, rehearsal = self.limit(job), self.method_of(job).spec.sends, self.rehearsal_of(job)
        if len(body) > limit:
            raise MessageError(f"{len(body):,} bytes; {limit:,} at most")
        variable_entries = _variable_entries(sends)
        if rehearsal.upload is None:
            _check_declared(_header_of(body), sends, limit)
        else:
            _check_header(body, rehearsal.upload, variable_entries)
        try:
            record = from_bytes(body)
        except (RecordError, MemoryError) as error:
            raise MessageError(str(error)[:300]) from None
        expected = record if rehearsal.upload is None else rehearsal.upload  # then only values are checked
        _check_keys("", record, expected)
        for name, value in record.items():
            _check_value(name, value, expected[name], name in variable_entries)
        counts = None if self._federation.scenario.remote else job.ctx.class_counts
        _check_counts(record, samples, counts, several=self._worker.data.multi)
        unpacked = self.unpacked(record, job)
        if rehearsal.unpacked:
            with _refuse_on_error("the server cannot use it"):
                self._try_to_aggregate(unpacked, job, rehearsal.unpacked)
        if self._max_norm is not None:
            _check_distance(unpacked, job.payload, sends, self._max_norm)
        return record

    def unlike_most(self, results: Mapping[int, JobResult], jobs: Mapping[int, Job]) -> dict[int, str]:
        """Return the clients whose uploads have other entries or shapes than most, if there was no rehearsal."""
        forms: dict[Any, dict[Any, list[int]]] = {}
        for client, result in results.items():
            job = jobs[client]
            if self.rehearsal_of(job).upload is None:
                form = _form_of(result.upload, _variable_entries(self.method_of(job).spec.sends))
                forms.setdefault((job.ctx.task.group, job.stage), {}).setdefault(form, []).append(client)
        # The most common form is taken to be right.
        rare = [clients for groups in forms.values() for clients in sorted(groups.values(), key=len)[:-1]]
        reason = "its entries or their shapes differ from those of most clients"
        return {client: reason for clients in rare for client in clients}

    @_refuse_on_error("the server cannot unpack it")
    def unpacked(self, upload: Record, job: Job) -> Record:
        """Return an upload as the method's aggregation will read it."""
        uploads = {job.ctx.client: upload}
        return self.method_of(job).unpack(self._federation.server, uploads, self._contexts(job))[job.ctx.client]

    def _contexts(self, job: Job) -> Callable[[int], ServerContext]:
        return lambda client: self._federation.context(job.ctx.round, client)

    def limit(self, job: Job) -> int:
        """Return the number of bytes that an upload after `job` may have."""
        expected = self.rehearsal_of(job).upload
        return 2 * (_UNREHEARSED_BYTES + wire_size(job.payload) if expected is None else wire_size(expected)) + _MARGIN

    def check(self, trained: JobResult, job: Job, samples: int) -> None:
        """Check the facts in `trained` against the `job` of a client with `samples` training samples."""
        rehearsal = self.rehearsal_of(job)
        reported = {*trained.terms, *trained.norms} - {CE}
        # A method may have other loss terms in a later round, so a round with new terms is rehearsed again.
        if not reported <= rehearsal.terms and job.ctx.round > rehearsal.round:
            again = self._rehearsal(job)
            rehearsal.terms |= reported if again.upload is None else again.terms
            rehearsal.round = job.ctx.round
        terms = reported if rehearsal.upload is None else rehearsal.terms
        check_trained(trained, job.measured, samples, terms, rehearsal.passes)

    def method_of(self, job: Job) -> Method:
        """Return the method of a job: the run's, or that of its opening or closing round."""
        return self._federation.methods[job.stage]

    def rehearsal_of(self, job: Job) -> Rehearsal:
        """Return the rehearsal for the job's architecture; one that failed is tried again in later rounds."""
        key = job.ctx.task.group, job.stage
        known = self._rehearsals.get(key)
        if known is None or (known.upload is None and job.ctx.round > known.round):
            known = self._rehearsals[key] = self._rehearsal(job, is_first=known is None)
        return known

    def _rehearsal(self, job: Job, is_first: bool = True) -> Rehearsal:
        """Rehearse a job. A hook that raises, on samples that it never meets, is a note."""
        try:
            return self._rehearse(job)
        except FedloomError as error:
            if is_first:
                self._note(f"no rehearsal, so uploads are compared with one another only: {error}")
            return Rehearsal(job.ctx.round)

    def _rehearse(self, job: Job) -> Rehearsal:
        indices, method, round_ = self._rehearsal_indices, self.method_of(job), job.ctx.round
        counts = label_counts(self._worker.data.y[indices], job.ctx.task.num_classes)
        ctx = replace(job.ctx, samples=len(indices), class_counts=counts)
        rehearsal_job = replace(job, ctx=ctx, indices=indices)
        terms, state = set[str](), Record()
        try:
            first_result = self._federation.run_first_round(self._worker, rehearsal_job)
            terms, state = {*first_result.terms}, first_result.state if job.stage != "opening" else {}
        except ClientError as error:  # of a state that the method may never meet, which must not end the run
            self._note(f"uploads are checked by a rehearsal of this round alone, as that of the first fails: {error}")
        state = state or self._federation.state_of(ctx)
        result = self._worker.run(replace(rehearsal_job, state=state))
        passes = max(result.samples, result.steps * self._worker.local_training.batch_size) / max(1, len(indices))
        kept = {name: result.upload[name] for name in _variable_entries(method.spec.sends)}
        upload, unpacked, norms = map_tensors(result.upload, _without_values) | kept, Record(), dict[str, LastNorm]()
        if self._is_small or kept:
            with hooked(method, "unpack", round_, ctx.client):
                honest = self.unpacked(result.upload, job)
        if self._is_small:
            measured = upload_norms(honest, job.payload, method.spec.sends, job.ctx.task.roles)
            norms = {key: (norm, len(indices)) for key, norm in median_norms(measured).items()}
        if kept:
            unpacked = map_tensors(honest, _without_values) | kept
            try:
                with hooked(method, "aggregate", round_, ctx.client):
                    self._try_to_aggregate(honest, job, unpacked)
            except FedloomError as error:  # e.g. it needs all clients: then a trial tells nothing of an upload
                self._note(f"uploads are not tried out before they are aggregated: {error}")
                unpacked = Record()
        return Rehearsal(round_, upload, unpacked, {*terms, *result.terms, *result.norms}, max(1.0, passes), norms)

    @property
    def _is_small(self) -> bool:
        """Whether lengths are rehearsed. Noise in place of data has other gradients, so it says nothing of them."""
        return self._federation.clients_per_round < FEWEST and not self._federation.scenario.remote

    @functools.cached_property
    def _rehearsal_indices(self) -> Tensor:
        rows, held = positives(self._worker.data.y.cpu().numpy())
        classes, per_class = np.unique(held), _PER_CLASS
        if self._is_small and len(classes):  # then lengths count too, and they grow with the samples
            largest = min(_MOST_REHEARSED, int(self._federation.train.sizes.max(initial=0)))
            per_class = max(per_class, math.ceil(largest / len(classes)))
        firsts = (rows[held == label][:per_class] for label in classes)
        return torch.from_numpy(np.concatenate([rows[:0], *firsts]))

    def _try_to_aggregate(self, upload: Record, job: Job, honest: Record) -> None:
        """Aggregate an upload whose shapes may vary with an honest one, to see whether the server can use it."""
        others = [client for client in range(self._federation.scenario.clients) if client != job.ctx.client]
        uploads = {job.ctx.client: upload} | dict.fromkeys(others[:1], honest)
        self.method_of(job).aggregate(self._federation.server, uploads, self._contexts(job)(-1))


def _variable_entries(sends: Mapping[str, Sent]) -> set[str]:
    """Return the names of the entries whose shapes may vary."""
    return {name for name, sent in sends.items() if sent.form == "own"}


def _without_values(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and dtype that takes no memory; masks keep their values."""
    return tensor if tensor.dtype == torch.bool else tensor.new_zeros(()).expand(tensor.shape)


def _form_of(upload: Record, variable_entries: set[str]) -> tuple[Any, ...]:
    """Return names, types, shapes and dtypes of an upload, without shapes that may vary."""
    form: list[Any] = []
    for name, value in sorted(upload.items()):
        tensors = value.items() if isinstance(value, dict) and name not in variable_entries else ()
        if isinstance(value, ClassTable):  # held tells how many rows a class has, which may vary
            tensors = {"rows": value.values[..., :1, :], "held": value.held[:1]}.items()
        elif isinstance(value, Tensor) and name not in variable_entries:
            tensors = {"": value}.items()
        form.append((name, type(value), *((key, tensor.dtype, *tensor.shape) for key, tensor in tensors)))
    return tuple(form)


def _check_declared(header: Mapping[str, Any], sends: Mapping[str, Sent], limit: int) -> None:
    """Check the entries of an upload that was not rehearsed, before class tables are expanded to all classes."""
    entries = _entries(header)
    if unknown := sorted(entries.keys() - {*sends, "samples", RECORDED}):
        raise MessageError(f"it has {short_repr(unknown[0])}, which the method does not declare")
    for name, (kind, _) in entries.items():
        shapes = [header.get(f"{name}/{part}", {}).get("shape", [0, 0]) for part in ("held", "rows")]
        if kind == "table" and math.prod([*shapes[0], shapes[1][-1]]) * 8 > limit:
            raise MessageError(f"{name}: a table of {shapes[0]} rows of {shapes[1][-1]} values is too large")


def _check_header(body: bytes, expected: Record, variable_entries: set[str]) -> None:
    """Check an upload's header before any tensor is created, including the shapes of class tables."""
    header = _header_of(body)
    for name, value in expected.items():
        if isinstance(value, ClassTable):
            shape = header.get(f"{name}/rows", {}).get("shape")
            if not isinstance(shape, list) or len(shape) != 2 or shape[1] != value.values.shape[-1]:
                raise MessageError(f"{name}: rows {short_repr(shape)}; need [held classes, {value.values.shape[-1]}]")
            mask, classes = header.get(f"{name}/held", {}).get("shape"), [*value.held.shape]
            several = len(classes) > 1 and isinstance(mask, list) and len(mask) == len(classes)
            if mask != classes and not (several and mask[1:] == classes[1:]):  # as many rows a class as it has
                raise MessageError(f"{name}: the mask needs shape {[*value.held.shape]}")
    sent, required = _entries(header), _entries({_RESERVED: {_HEADER: json_header(expected)}})
    _check_keys("", sent, required)
    for name, (kind, names) in required.items():
        sent_kind, sent_names = sent[name]
        if sent_kind != kind:
            raise MessageError(f"{name}: a {short_repr(sent_kind)}; need a {kind}")
        if name not in variable_entries and sent_names != names:
            _check_keys(name, dict.fromkeys(sent_names), dict.fromkeys(names))
            raise MessageError(f"{name}: its tensors come in another order, or twice")


def _header_of(body: bytes) -> dict[str, Any]:
    length = int.from_bytes(body[:8], "little")
    if len(body) < 8 or length > len(body) - 8:
        raise MessageError("its header is longer than the upload")
    try:
        header = parse_json(body[8 : 8 + length])
    except ValueError as error:
        raise MessageError(f"its header is no JSON ({str(error)[:100]})") from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise MessageError("its header is no table of tensors")
    return header


def _entries(header: Mapping[str, Any]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return the kind of every entry of a record, and the names of trees in order."""
    try:
        described = parse_json(header[_RESERVED][_HEADER])["entries"]
        entries = {name: (str(entry["kind"]), tuple(entry.get("names", ()))) for name, entry in described.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise MessageError("it is no record of fedloom") from None
    if not all(isinstance(name, str) for _, names in entries.values() for name in names):
        raise MessageError("it is no record of fedloom: a name is no text")
    return entries


def _check_keys(path: str, sent: Mapping[str, Any], required: Mapping[str, Any]) -> None:
    if sent.keys() != required.keys():
        extra, missing = sorted(sent.keys() - required.keys()), sorted(required.keys() - sent.keys())
        fault = f"lacks {short_repr(missing[0])}" if missing else f"has {short_repr(extra[0])}, which was not requested"
        raise MessageError(f"{path}{': ' if path else 'it '}{fault}")


def _check_value(name: str, value: Value, expected: Value, has_free_shape: bool) -> None:
    if type(value) is not type(expected):
        raise MessageError(f"{name}: a {type(value).__name__}; need a {type(expected).__name__}")
    if isinstance(value, dict) and isinstance(expected, dict):
        if not has_free_shape:
            _check_keys(name, value, expected)
        for key, tensor in value.items():
            like = [expected[key]] if key in expected else expected.values()
            dtypes = {entry.dtype for entry in like}
            _check_tensor(f"{name}/{key}", tensor, None if has_free_shape else expected[key], dtypes)
    elif isinstance(value, ClassTable) and isinstance(expected, ClassTable):
        held, rows = expected.held, expected.values
        if held.dim() > 1 and value.held.dim() == held.dim():  # several rows a class: as many as the client has
            held, rows = (part[:1].expand(len(value.held), *part.shape[1:]) for part in (held, rows))
        _check_tensor(f"{name}/held", value.held, held)
        _check_tensor(f"{name}/rows", value.values, rows)
    elif isinstance(value, Tensor) and isinstance(expected, Tensor):
        _check_tensor(name, value, None if has_free_shape else expected, {expected.dtype})
    elif isinstance(value, float) and not math.isfinite(value):
        raise MessageError(f"{name} = {value}: need a finite number")
    elif isinstance(value, int) and abs(value) > _LARGEST_COUNT:
        raise MessageError(f"{name}: a number of {value.bit_length()} bits; 2**40 at most")


def _check_tensor(path: str, tensor: Tensor, expected: Tensor | None, dtypes: Collection[torch.dtype] = ()) -> None:
    """Check one tensor; its shape is free if `expected` is None, and its dtype is then one of `dtypes`."""
    if expected is None and tensor.dtype not in dtypes:
        allowed = " or ".join(sorted(map(str, dtypes))) or "no tensor"
        raise MessageError(f"{path}: {tensor.dtype}; need {allowed}".replace("torch.", ""))
    if expected is not None and (tensor.dtype != expected.dtype or tensor.shape != expected.shape):
        sent, needed = (f"{part.dtype} {tuple(part.shape)}" for part in (tensor, expected))
        raise MessageError(f"{path}: {sent}; need {needed}".replace("torch.", ""))
    if tensor.is_floating_point() and not torch.isfinite(tensor).all():
        raise MessageError(f"{path}: not all numbers are finite")
    if tensor.dtype == torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
        raise MessageError(f"{path}: a mask has bytes that are neither 0 nor 1")


def _check_counts(record: Record, samples: int, class_counts: Tensor | None, *, several: bool) -> None:
    """Check counts against the client's `samples`, of one label or `several`, and its `class_counts` [C], if known."""
    reported = record.get("samples", samples)
    if reported != samples:
        raise MessageError(f"samples = {reported}: the client joined with {samples}")
    for name, value in record.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 0:
            raise MessageError(f"{name} = {value}: need 0 or more")
        if isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool:
            if int(value.min() if value.numel() else 0) < 0:
                raise MessageError(f"{name}: it has counts below 0")
            if int(value.max() if value.numel() else 0) > _LARGEST_COUNT:  # whose sum could leave 64 bits
                raise MessageError(f"{name}: it has counts above 2**40")
            if name not in ("class_counts", RECORDED):
                continue
            if int(value.max()) > samples if several else int(value.sum()) != samples:
                raise MessageError(f"{name}: they sum to {int(value.sum())}; the client joined with {samples} samples")
            if name == RECORDED or class_counts is None:
                continue
            if not torch.equal(value[: len(class_counts)].to(class_counts.dtype), class_counts):  # then negatives
                raise MessageError(f"{name} = {value.tolist()}: by the config the client has {class_counts.tolist()}")


def _check_distance(upload: Record, payload: Record, sends: Mapping[str, Sent], max_norm: float) -> None:
    """Check the length of the changes of all weights together: of trees minus the payload, and of updates."""
    squares = 0.0
    for name, sent in sends.items():
        value = upload.get(name)
        tree, is_update = value if isinstance(value, dict) and sent.form != "own" else {}, sent.form == "change"
        for _, is_change, change in changes(tree, None if is_update else payload.get(name)):
            squares += float(change.square().sum()) if is_change or is_update else 0.0
    if math.sqrt(squares) > max_norm:
        raise MessageError(f"it is {math.sqrt(squares):.4g} away from the payload; flower.max_norm = {max_norm:g}")
