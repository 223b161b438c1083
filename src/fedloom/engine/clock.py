"""The config section `devices`, and virtual time: how long clients take on such devices, and whose uploads arrive when.

Nobody waits: a job takes latency + bytes down / bandwidth + samples / speed + latency + bytes up / bandwidth, and the
clock moves on by that. Times depend on counts alone, so they are the same on every engine."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, field_validator, model_validator

from fedloom.core.errors import ConfigError
from fedloom.core.files import read_file
from fedloom.core.key_models import Keys
from fedloom.core.records import Record, get_number
from fedloom.core.streams import Streams
from fedloom.engine.jobs import JobResult
from fedloom.methods.contract.contexts import Diagnostic, Task
from fedloom.methods.contract.method import METHODS, Method
from fedloom.methods.contract.spec import Spec

_SCALARS = 1024  # bytes that an upload may have beyond those of the payload, for numbers that a method adds to weights


class Device(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """One client's device and line."""

    samples_per_second: float = Field(500.0, gt=0)
    down_mbit: float = Field(20.0, gt=0, description="Bandwidth of downloads, in megabits per second.")
    up_mbit: float = Field(5.0, gt=0, description="Bandwidth of uploads, in megabits per second.")
    latency: float = Field(0.05, ge=0, description="Seconds before a download or an upload begins to flow.")
    available: float = Field(1.0, gt=0, le=1, description="Probability that a client can be reached in a round.")


class Devices(Device):
    """Devices and lines of all clients, for virtual time."""

    profiles: tuple[Device, ...] | str = Field((), examples=[[{"samples_per_second": 500}, {"samples_per_second": 50}]])
    spread: float = Field(0.0, ge=0, le=5)
    slow_share: float = Field(0.0, ge=0, le=1)
    slow_factor: float = Field(10.0, ge=1, description="How many times slower their devices and lines are.")
    deadline: float | None = Field(None, gt=0)
    late: Literal["drop", "next_round", "fewer_steps"] = "drop"

    @model_validator(mode="before")
    @classmethod
    def _with_common_keys(cls, section: Any) -> Any:
        """Read a file of profiles, and put the section's own device below each."""
        profiles = section.get("profiles") if isinstance(section, Mapping) else None
        if not profiles:
            return section
        entries = _read_csv(Path(profiles)) if isinstance(profiles, str | Path) else profiles
        common = {key: value for key, value in section.items() if key in Device.model_fields}
        listed = isinstance(entries, list | tuple) and all(isinstance(entry, Mapping) for entry in entries)
        return {**section, "profiles": [{**common, **entry} for entry in entries] if listed else entries}

    @field_validator("late")
    @classmethod
    def _has_deadline(cls, late: str, info: Any) -> str:
        if late != "drop" and info.data.get("deadline") is None:
            raise ConfigError(f"devices.late = '{late}': nothing is late without a deadline; set devices.deadline")
        return late

    def of_clients(self, clients: int, streams: Streams) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Return each key of `Device` as an array [clients], with what is drawn from `streams`."""
        assert not isinstance(self.profiles, str)  # the file was read before
        entries, rng = self.profiles or (self,), streams.numpy("devices")
        keys = {key: np.array([getattr(entry, key) for entry in entries], dtype=float) for key in Device.model_fields}
        arrays = {key: np.resize(values, clients) for key, values in keys.items()}
        slow = rng.permutation(clients)[: round(self.slow_share * clients)]  # a larger share has all of a smaller one
        factors = np.exp(self.spread * rng.standard_normal((2, clients)))
        factors[:, slow] /= self.slow_factor
        arrays["samples_per_second"] *= factors[0]
        return arrays | {key: arrays[key] * factors[1] for key in ("down_mbit", "up_mbit")}

    def check(self, method: Method) -> None:
        """Raise `ConfigError` for a treatment of slow clients that the method does not allow."""
        name, spec = method.name(), method.spec
        if spec.arrivals is not None and self.deadline is not None:
            raise ConfigError(f"devices.deadline = {self.deadline:g}: {name} has no rounds that wait; leave it out")
        traits = {"next_round": "late", "fewer_steps": "fewer_steps"}
        if self.late in traits and not getattr(spec, traits[self.late]):
            able = [key for key in METHODS.names() if getattr(METHODS.get(key).spec, traits[self.late])]
            raise ConfigError(f"devices.late = '{self.late}': {name} {_NOT_ABLE[self.late]}; {', '.join(able)} do")


_NOT_ABLE = {
    "next_round": "does not say that its server may use what a client trained from an earlier round's state "
    "(Spec.late)",
    "fewer_steps": "does not correct for unequal numbers of steps, so slow clients would pull the model less",
}


def _read_csv(path: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(read_file(path).decode("utf-8-sig").splitlines(), restkey="more cells than columns"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"devices.profiles = {path}: cannot be read ({error}); need a CSV file") from None
    if not rows:
        raise ConfigError(f"devices.profiles = {path}: no rows; need one for each device below the names of columns")
    return rows


# Trains clients from the server's present state, some with a largest number of steps. Returns their results, with
# uploads unpacked, and the bytes of their payloads and uploads.
Train: TypeAlias = Callable[[Sequence[int], Mapping[int, int]], list[tuple[JobResult, int, int]]]


@dataclass(frozen=True, slots=True)
class Flight:
    """An upload on its way: when it `arrives` in virtual seconds, the `round` whose payload the client got, and the
    time at which its `group` was to arrive."""

    result: JobResult
    arrives: float
    round: int
    group: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The end of a round at the server: results by client id, how often the server has updated since each client got
    its payload, numbers for the rows of the round, and notes."""

    results: dict[int, JobResult]
    staleness: dict[int, int]
    figures: dict[str, float]
    diagnostics: list[Diagnostic]


def _steps_in(seconds: float, step: float, least: int, most: int) -> int:
    """Return the number of whole steps of `step` seconds; 0 if they are fewer than `least` or more than `most`."""
    steps = math.floor(seconds / step + 1e-9)
    return steps if least <= steps <= most else 0


class Clock:
    """Virtual time of a federation with a `task`, whose client k has samples[k] training samples. `now` (in seconds)
    and the uploads in `flights`, by client, go into checkpoints."""

    def __init__(self, devices: Devices, method: Method, task: Task, samples: Sequence[int]) -> None:
        devices.check(method)
        self.devices, self._task, self._samples = devices, task, np.asarray(samples)
        # whether uploads that were trained from different states of the server meet in one update
        self.mixes_rounds = devices.late == "next_round" or method.spec.arrivals is not None
        arrays = devices.of_clients(len(samples), task.streams)
        self._of: dict[str, list[float]] = {
            key: values.tolist() for key, values in arrays.items()
        }  # faster than arrays
        self._steps = [task.local_epochs * -(-count // task.batch_size) for count in samples]  # of the usual work
        self.now, self.flights = 0.0, dict[int, Flight]()

    def seconds(self, client: int, bytes_down: float, samples: float, bytes_up: float) -> float:
        """Return the virtual seconds of a job: `bytes_down` to the `client`, its `samples`, and `bytes_up` back."""
        of = self._of
        transfer = bytes_down / of["down_mbit"][client] + bytes_up / of["up_mbit"][client]
        return 2 * of["latency"][client] + transfer * 8e-6 + samples / of["samples_per_second"][client]

    def _start(self, clients: Sequence[int], round_: int, train: Train, limits: Mapping[int, int]) -> list[float]:
        """Let clients start now, and return when each will arrive."""
        for result, bytes_down, bytes_up in train(clients, limits) if clients else []:
            took = self.seconds(result.client, bytes_down, result.samples, bytes_up)
            self.flights[result.client] = Flight(result, self.now + took, round_)
        return [self.flights[client].arrives for client in clients]

    def _arrived(
        self, clients: Sequence[int], round_: int, started: float, notes: Sequence[Diagnostic] = (), **counts: float
    ) -> Arrivals:
        """Take uploads out of the air, in the order of client ids."""
        flights = {client: self.flights.pop(client) for client in sorted(clients)}
        staleness = {client: round_ - flight.round for client, flight in flights.items()}
        if self.mixes_rounds:
            counts["staleness"] = sum(staleness.values()) / max(1, len(staleness))
        figures = {"virtual_seconds": self.now - started} | counts
        return Arrivals({client: flight.result for client, flight in flights.items()}, staleness, figures, [*notes])

    def run_all(self, round_: int, clients: Sequence[int], train: Train) -> Arrivals:
        """Run the opening or closing `round_` by `train` and wait for all `clients`; uploads on their way are lost."""
        started, lost = self.now, len(self.flights)
        self.flights.clear()
        self.now = max(self._start(clients, round_, train, {}), default=self.now)
        return self._arrived(clients, round_, started, late=lost)

    def run_round(self, round_: int, drawn: Sequence[int], payload: Callable[[int], int], train: Train) -> Arrivals:
        """Run a `round_` by `train` of the clients `drawn`, up to the deadline. payload: the bytes for a client."""
        started, deadline, available = self.now, self.devices.deadline, self._available(round_)
        reached = [client for client in drawn if client not in self.flights and available[client]]
        limits = self._fitting_steps(reached, payload) if self.devices.late == "fewer_steps" else {}
        clients = [client for client in reached if limits.get(client, 1) > 0]
        arrive = self._start(clients, round_, train, limits)
        slowest = max(arrive, default=started + (deadline or 0.0))
        self.now = min(started + (deadline or math.inf), slowest)
        on_time = [client for client, flight in self.flights.items() if flight.arrives <= self.now]
        notes = []
        if reached and not on_time:
            fastest = min(arrive, default=started) - started
            needed = f"the fastest client takes {fastest:.3g} s" if arrive else "no client has time for a single step"
            message = f"devices.deadline = {deadline:g}: no upload of round {round_} arrives in time; {needed}"
            notes.append(Diagnostic("devices.none_in_time", message, fastest))
        counts = {"late": len(reached) - len({*on_time} & {*clients}), "unavailable": len(drawn) - len(reached)}
        arrivals = self._arrived(on_time, round_, started, notes, **counts)
        if self.devices.late != "next_round":
            self.flights.clear()
        return arrivals

    def run_arrivals(
        self, round_: int, count: int, spec: Spec, payload: Callable[[int], int], train: Train
    ) -> Arrivals:
        """Keep `count` clients at work by `train` until the server updates in `round_`: with `spec.arrivals` uploads
        or, with `spec.least_work`, those of a group; others start after it. payload: bytes for a client."""
        started, waiting = self.now, list[int]()
        while len(waiting) < (spec.arrivals or 0):
            idle = self._available(round_) & (self._samples > 0)
            idle[[*self.flights]] = False
            clients, free = np.flatnonzero(idle).tolist(), count + len(waiting) - len(self.flights)
            if len(clients) > free:
                rng = self._task.streams.numpy("arrivals", round_, len(waiting))
                clients = sorted(rng.choice(clients, free, replace=False).tolist())
            groups = self._in_groups(clients, spec.least_work, payload) if spec.least_work else {}
            self._start(clients, round_, train, {client: steps for client, (_, steps) in groups.items()})
            for client, (group, _) in groups.items():
                self.flights[client] = replace(self.flights[client], group=group)
            flying = {client: flight for client, flight in self.flights.items() if client not in waiting}
            if not flying:
                break
            ends: dict[float, float] = {}  # of each group, or of each client
            members = {client: flight.group if spec.least_work else client for client, flight in flying.items()}
            for client, group in members.items():
                ends[group] = max(flying[client].arrives, ends.get(group, 0.0))
            first = min(ends, key=lambda group: (ends[group], group))
            self.now = max(self.now, ends[first])
            waiting += [client for client, group in members.items() if group == first]
        return self._arrived(waiting, round_, started)

    def _in_groups(
        self, clients: Sequence[int], least: float, payload: Callable[[int], int]
    ) -> dict[int, tuple[float, int]]:
        """Give clients that start now a group, by the time at which it is to arrive, and steps that take them there: at
        most those of their usual work, and at least a share `least` of them."""
        size = payload(clients[0]) if clients else 0  # the same weights go to all of them and come back
        transfer = {client: self.seconds(client, size, 0, size) for client in (*clients, *self.flights)}
        step = {client: self._task.batch_size / self._of["samples_per_second"][client] for client in transfer}
        usual = {client: transfer[client] + self._steps[client] * step[client] for client in transfer}
        shortest: dict[float, float] = {}  # by group, the usual work of its fastest client
        for client, flight in self.flights.items():
            shortest[flight.group] = min(usual[client], shortest.get(flight.group, math.inf))
        groups: dict[int, tuple[float, int]] = {}
        for client in sorted(clients, key=lambda client: (usual[client], client)):
            most, begins = self._steps[client], self.now + transfer[client]
            bounds = step[client], math.ceil(least * most), most
            steps, group = max(((_steps_in(end - begins, *bounds), end) for end in shortest), default=(0, 0.0))
            if not steps:  # a new group, which ends together with the next work of another one's fastest client
                nexts = (end + fastest for end, fastest in shortest.items())
                steps = max((_steps_in(end - begins, *bounds) for end in nexts), default=0) or most
                group = begins + steps * step[client]
            groups[client] = group, steps
            shortest[group] = min(usual[client], shortest.get(group, math.inf))
        return groups

    def _available(self, round_: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        drawn = self._task.streams.numpy("available", round_).random(len(self._samples))
        return np.asarray(drawn < self._of["available"])

    def _fitting_steps(self, clients: Sequence[int], payload: Callable[[int], int]) -> dict[int, int]:
        """How many steps the clients can take before the deadline, if their uploads are as long as their payloads."""
        deadline, batch, steps = self.devices.deadline or math.inf, self._task.batch_size, {}
        for client in clients:
            size = payload(client)
            transfer = self.seconds(client, size, 0, size + _SCALARS)
            most = (deadline - transfer) * self._of["samples_per_second"][client] / batch
            steps[client] = max(0, min(self._steps[client], math.floor(most)))
        return steps

    def record(self) -> Record:
        """Return the clock's state for a checkpoint, with all uploads that are on their way."""
        record: Record = {"now": self.now}
        for client, flight in sorted(self.flights.items()):
            result = flight.result
            numbers = {"arrives": flight.arrives, "round": flight.round, "group": flight.group}
            parts = {"": numbers | {"steps": result.steps, "samples": result.samples}}
            parts |= {kind: getattr(result, kind) for kind in ("upload", "state", "terms", "norms")}
            record |= {f"{client}/{kind}/{name}": value for kind, part in parts.items() for name, value in part.items()}
        return record

    def restore(self, record: Record) -> None:
        """Take over what `record` returned. Raises `RecordError` or `ValueError` for anything else."""
        self.now, self.flights, parts = get_number(record, "now"), {}, dict[int, dict[str, dict[str, Any]]]()
        for path, value in record.items():
            if "/" in path:
                client, kind, name = path.split("/", 2)
                parts.setdefault(int(client), {}).setdefault(kind, {})[name] = value
        for number, of in parts.items():
            arrives, round_, group, steps, samples = (
                get_number(of[""], key) for key in ("arrives", "round", "group", "steps", "samples")
            )
            upload, state, terms, norms = (of.get(kind, {}) for kind in ("upload", "state", "terms", "norms"))
            result = JobResult(number, upload, state, terms, int(steps), int(samples), 0.0, norms)
            self.flights[number] = Flight(result, arrives, int(round_), group)
