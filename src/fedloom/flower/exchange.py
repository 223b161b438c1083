"""The exchange of a round: requests to the clients' nodes, and their replies as they arrive, within a time limit."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from fedloom.core.errors import printable
from fedloom.core.records import Record, to_bytes
from fedloom.engine.jobs import Job, NewcomerJob, kept_since
from fedloom.flower.absences import Pauses, client_list
from fedloom.flower.logs import LogRecord
from fedloom.flower.node_registry import NodeRegistry
from fedloom.flower.status import StatusWriter
from fedloom.flower.transport import SMALL_REPLY_BYTES, Transport
from fedloom.flower.wire import AnyJob, Message, request_for
from fedloom.runs.config.sections import FlowerConfig

_REPORT_SECONDS = 10.0  # between two reports on the clients that a round waits for
_GRACE_SECONDS = 30.0  # that a request outlives its round


class Exchange:
    """Sends the jobs of a round and collects the replies.

    note: called with reports on lost, late and missing clients. on_poll: called after every look at the nodes.
    """

    def __init__(
        self,
        transport: Transport,
        registry: NodeRegistry,
        config: FlowerConfig,
        status: StatusWriter,
        note: Callable[[str], None],
        on_poll: Callable[[], None],
    ) -> None:
        self._transport, self._registry, self._config = transport, registry, config
        self._status, self._note, self._on_poll, self._pauses = status, note, on_poll, Pauses()
        # The last payload and its bytes: one that several clients of a round get is serialised once.
        self._last_body = Record(), to_bytes({})

    def replies(self, jobs: Mapping[int, AnyJob], upload_limit: int) -> Iterator[tuple[int, Message | str]]:
        """Yield the replies to `jobs`, by client, as they arrive, until all are there or the time is over.

        Text instead of a message says why a reply is lost; its request was sent twice. Clients that did not answer in
        time lately are skipped, unless too few would remain. upload_limit: bytes that a reply may have in addition to
        small facts.
        """
        if not jobs:
            return
        seconds, job = self._config.round_timeout, next(iter(jobs.values()))
        # The run is already trained when newcomers are tested, so it does not wait for those that are offline.
        minimum = 0 if isinstance(job, NewcomerJob) else min(self._config.min_clients, len(jobs))
        round_, purpose = job.ctx.round, _purpose(job)
        self._transport.reply_limit = SMALL_REPLY_BYTES + upload_limit
        unsent, pending, resent = dict(jobs), dict[str, int](), set[int]()  # pending: clients by message id
        paused = self._pauses.skipped_clients(jobs, round_, spare=len(jobs) - minimum)
        for client in paused:
            del unsent[client]
        if paused:
            text = f"{purpose}: clients {client_list(paused)} are not asked, because they did not answer in time before"
            self._report(text, "paused", round_)
        began, reply_count = time.monotonic(), 0
        last_report = began
        while True:
            self._registry.poll()
            self._on_poll()
            if paused and reply_count + len(pending) + len(self._online(unsent)) < minimum:
                unsent |= {client: jobs[client] for client in paused}  # without them the run would end
                paused = []
            for client in self._online(unsent):
                remaining = max(seconds - (time.monotonic() - began), 0.0)
                pending[self._send(client, unsent.pop(client), remaining)] = client
            self._status.set_wait(purpose, [*unsent, *pending.values()], seconds - (time.monotonic() - began))
            for message_id, reply in self._transport.receive(pending):
                if message_id not in pending:
                    continue  # a reply that comes twice counts once
                client = pending.pop(message_id)
                if isinstance(reply, str) and client not in resent:
                    resent.add(client)
                    unsent[client] = jobs[client]
                    text = f"the request to client {client} is lost, and is sent once more: {printable(reply)}"
                    self._report(text, "lost", round_, client)
                else:
                    if isinstance(reply, Message):
                        self._pauses.end_pause(client)
                    reply_count += 1
                    yield client, reply
                del reply  # large: release it before the next wait
            now = time.monotonic()
            sent_count = len(jobs) - len(paused) - len(unsent)
            is_complete = not pending and not self._online(unsent) and (not unsent or sent_count >= minimum)
            if is_complete or now - began >= seconds:
                break
            if now - last_report >= _REPORT_SECONDS:
                last_report = now
                waiting = client_list(sorted([*unsent, *pending.values()]))
                self._report(f"waiting for clients {waiting}, {seconds - (now - began):.0f} s more", "waiting", round_)
            time.sleep(self._transport.poll_seconds)
        self._last_body = {}, to_bytes({})  # large
        self._status.clear_wait()
        self._report_missing({*unsent}, [*pending.values()], seconds, round_)

    def _report_missing(self, unsent: set[int], pending: list[int], seconds: float, round_: int) -> None:
        """Report clients that are late, have not joined, or are offline."""
        late = sorted([*pending, *self._online(unsent)])
        if late:
            self._report(self._pauses.late_sentence(late, seconds, round_), "late", round_)
        never_joined = self._registry.absence_reasons().keys()
        for reason, clients in (
            ("they have not joined", sorted(unsent & never_joined)),
            ("their nodes are offline", sorted(unsent - never_joined - {*late})),
        ):
            if clients:
                self._report(f"continues without clients {client_list(clients)}: {reason}", "lost", round_)

    def _report(self, text: str, event: str, round_: int, client: int | None = None) -> None:
        self._note(LogRecord(text, event, round=round_, client=client))

    def _online(self, clients: Iterable[int]) -> list[int]:
        return [client for client in clients if self._registry.node_of(client) is not None]

    def _send(self, client: int, job: AnyJob, seconds: float) -> str:
        """Send a job that has `seconds` left; return the message id."""
        state_round = None if isinstance(job, NewcomerJob) else kept_since(job.state)
        facts = {"client": client, "round": job.ctx.round, "state_round": state_round}
        request = request_for(job, **self._registry.run.facts(), **facts)
        payload, (last, body) = job.payload if isinstance(job, Job) else job.server, self._last_body
        if payload.keys() != last.keys() or any(payload[name] is not last[name] for name in last):
            body = to_bytes(payload)
            self._last_body = payload, body
        node = self._registry.node_of(client)
        assert node is not None, "jobs are sent to clients that are online"
        # A request that expired just before the round ends would look lost, and be sent again.
        return self._transport.send(node, request.to_message(body), seconds + _GRACE_SECONDS)


def _purpose(job: AnyJob) -> str:
    """Name the replies that the server waits for."""
    if isinstance(job, NewcomerJob):
        return f"tests on clients that never train, after round {job.ctx.round}"
    return f"{'uploads' if isinstance(job, Job) else 'tests'} of round {job.ctx.round}"
