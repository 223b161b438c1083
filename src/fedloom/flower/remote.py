"""The engine whose clients are nodes: it hands out jobs as letters and takes in what they leave, as others do.

Private states stay with the nodes; in their place the server keeps the round that left them (`engine/jobs.py`, `away`).
An answer counts once it is read and checked. Every wait is bounded, and says for whom it waits.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from fedloom.core.errors import ClientError
from fedloom.core.records import Record, to_bytes
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import Done, Job, Test, TestDone, away, away_since
from fedloom.engine.serial import Jobs
from fedloom.evaluation.metrics import Tested
from fedloom.flower.letters import Failed, Letter, LetterError, Scored, Trained, read_answer
from fedloom.flower.links import Link
from fedloom.flower.logs import Said
from fedloom.flower.own_data import stand_in_views
from fedloom.flower.roster import FederationError, Roster, RunName, listed
from fedloom.flower.status import Board
from fedloom.flower.uploads import Refused, Uploads
from fedloom.methods.facts import Finding
from fedloom.study.sections import FlowerConfig

_EVERY = 10.0  # seconds between two words on whom a round waits for


A = TypeVar("A", Trained, Scored)


class Lost(LetterError):
    """An answer that does not come."""


class RemoteError(Exception):
    """What happened on a node; its traceback is in the notes."""


class Remote:
    """Runs clients on the nodes of a link.

    worker: the server's own, which rehearses what clients send. board: keeps the status. note: is told who is missing,
    refused or late. roster: of clients that were waited for before. Raises `FederationError` if too few clients join.
    """

    name = "flower"
    reason = None
    loses = True

    def __init__(
        self,
        link: Link,
        run: RunName,
        federation: Federation,
        worker: Worker,
        config: FlowerConfig,
        board: Board,
        note: Callable[[str], None],
        roster: Roster | None = None,
    ) -> None:
        self._link, self._run, self._config, self._board, self._note = link, run, config, board, note
        self._uploads = Uploads(federation, worker, config.max_norm)
        scenario = federation.scenario
        self._roster = roster or Roster(link, run, scenario.clients, scenario.class_names, board, note)
        self._sent: tuple[Record, bytes] = ({}, b"")
        everyone = [client for client in range(scenario.clients) if len(scenario.train[client])]
        self._federation = federation
        if roster is None:
            self._roster.wait(everyone, config.min_clients, config.join_timeout, "join_timeout")
        self._learn_sizes()

    def run(self, jobs: Jobs) -> Iterator[Done]:
        """Yields one `Done` for each client that answers in time.

        Raises `ClientError` if more than `max_failures` clients fail, `FederationError` if fewer than `min_clients`
        answer.
        """
        each = {job.ctx.client: job for job in jobs}
        failures: list[ClientError] = []
        done = 0
        for client, answer in self._answers(each):
            job, now = each[client], each[client].ctx.round
            try:
                left = self._left(job, answer)
            except (LetterError, Refused) as error:
                self._unused(f"round {now}: the upload", job, error)
                continue
            except ClientError as error:
                self._note(Said(f"round {now}: {error}", "failed", round=now, client=client))
                failures.append(error)
                if len(failures) > self._config.max_failures:
                    raise
                continue
            del answer
            done += 1
            self._board.counts(client, now)
            yield left
        self._enough(each, done)

    def test(self, tests: Iterable[Test]) -> Iterator[TestDone]:
        """Yields one `TestDone` for each client that answers in time. Raises as `run` does."""
        each = {test.ctx.client: test for test in tests}
        done = 0
        for client, answer in self._answers(each):
            try:
                told = self._read(answer, each[client], Scored)
            except LetterError as error:
                self._unused("the test", each[client], error)
                continue
            done += 1
            results = {name: Tested(one.correct, one.loss_sum, one.total) for name, one in told.results.items()}
            yield TestDone(client, results, told.samples)
        self._enough(each, done)

    def keep(self, record: Record) -> Record:
        return record

    def notes(self) -> list[Finding]:
        return []

    def close(self) -> None:
        pass

    # -- letters out and in --------------------------------------------------------------------------------------
    def _answers(self, each: Mapping[int, Job | Test]) -> Iterator[tuple[int, Letter | str]]:
        """Answers by client as they come, until all are there that can be, or the time is over."""
        if not each:
            return
        seconds, least = self._config.round_timeout, min(self._config.min_clients, len(each))
        first = next(iter(each.values()))
        what = f"{'uploads' if isinstance(first, Job) else 'tests'} of round {first.ctx.round}"
        about = functools.partial(Said, round=first.ctx.round)
        began = told = time.monotonic()
        unasked, out, again = dict(each), dict[str, int](), set[int]()
        while True:
            self._roster.look()
            self._learn_sizes()
            for client in self._there(unasked):
                out[self._send(client, unasked.pop(client))] = client
            self._board.waits(what, [*unasked, *out.values()], seconds - (time.monotonic() - began))
            for name, answer in self._link.take(out):
                client = out.pop(name)
                if isinstance(answer, str) and client not in again:
                    again.add(client)
                    unasked[client] = each[client]
                    said = f"what client {client} was asked is lost, and it is asked once more: {answer}"
                    self._note(about(said, "lost", client=client))
                else:
                    yield client, answer
                del answer  # large: let go before others are waited for
            now = time.monotonic()
            complete = not out and not self._there(unasked) and (not unasked or len(each) - len(unasked) >= least)
            if complete or now - began >= seconds:
                break
            if now - told >= _EVERY:
                told = now
                waiting = sorted([*unasked, *out.values()])
                left = seconds - (now - began)
                self._note(about(f"waiting for clients {listed(waiting)}, {left:.0f} s more", "waiting"))
            time.sleep(self._link.pause)
        self._sent = {}, b""
        self._board.waited()
        if out:
            late = listed(sorted(out.values()))
            self._note(about(f"goes on without clients {late}: no answer within {seconds:g} s", "late"))
        if unasked:
            lost = listed(sorted(unasked))
            self._note(about(f"goes on without clients {lost}: their nodes are not there", "lost"))

    def _there(self, clients: Iterable[int]) -> list[int]:
        """Those of some clients whose nodes are there."""
        return [client for client in clients if self._roster.node_of(client) is not None]

    def _learn_sizes(self) -> None:
        """Of clients with data of their own, only they know how many."""
        scenario = self._federation.scenario
        sizes = scenario.train.sizes
        known = np.array([self._roster.sizes().get(client, sizes[client]) for client in range(len(sizes))])
        if scenario.remote and (known != sizes).any():
            views = stand_in_views(known, scenario.train_set)
            self._federation.scenario = dataclasses.replace(scenario, train=views)

    def _send(self, client: int, asked: Job | Test) -> str:
        """Send what a client is asked for; the name under which its answer will come."""
        facts = {"client": client, "round": asked.ctx.round, "kept": away_since(asked.state)}
        if isinstance(asked, Job):
            order = self._run.order("train", measured=asked.measured, closing=asked.closing, **facts)
        else:
            order = self._run.order("test", split=asked.split, **facts)
        body = self._bytes(asked.payload if isinstance(asked, Job) else asked.server)
        node = self._roster.node_of(client)
        assert node is not None, "only clients that are there are asked"
        return self._link.send(node, order.letter_with(body), self._config.round_timeout)

    def _bytes(self, payload: Record) -> bytes:
        """A payload's bytes; what several clients get is written once."""
        known, body = self._sent
        if payload.keys() != known.keys() or any(payload[name] is not known[name] for name in known):
            body = to_bytes(payload)
            self._sent = payload, body
        return body if payload else to_bytes({})

    def _read(self, answer: Letter | str, asked: Job | Test, kind: type[A]) -> A:
        """An answer that belongs to what was asked. Raises `LetterError`, and `ClientError` for an exception there."""
        if isinstance(answer, str):
            raise Lost(answer)
        told = read_answer(answer, kind)
        client, now = asked.ctx.client, asked.ctx.round
        if isinstance(told, Failed):
            if not told.raised:
                raise LetterError(told.error)
            cause = RemoteError(told.error)
            cause.add_note(told.raised)
            raise ClientError(client, now, "on its node", cause)
        if (told.run, told.client, told.round) != (self._run.name, client, now):
            raise LetterError(
                f"it is of round {told.round} of client {told.client} in run {told.run[:80]}; this is round {now} of "
                f"client {client} in run {self._run.name}"
            )
        return told

    def _left(self, job: Job, answer: Letter | str) -> Done:
        """What a client leaves, checked."""
        told = self._read(answer, job, Trained)
        assert isinstance(answer, Letter), "a word is no answer"
        payload = self._uploads.read(answer.body, job, self._roster.samples(job.ctx.client))
        state = away(job.ctx.round) if told.kept else {}
        notes = [Finding(note.code, note.message, note.figure) for note in told.notes]
        counts = told.terms, told.steps, told.samples, told.seconds, told.norms, notes
        return Done(job.ctx.client, payload, state, *counts)

    def _unused(self, what: str, asked: Job | Test, error: Exception) -> None:
        """Name an answer that does not count."""
        client, event = asked.ctx.client, "lost" if isinstance(error, Lost) else "refused"
        said = f"{what} of client {client} is {event}: {error}"
        self._note(Said(said, event, round=asked.ctx.round, client=client))

    def _enough(self, each: Mapping[int, Job | Test], done: int) -> None:
        least = min(self._config.min_clients, len(each))
        if done < least:
            (first, *_) = each.values()
            raise FederationError(
                f"round {first.ctx.round}: {done} of {len(each)} clients left something that counts within "
                f"flower.round_timeout = {self._config.round_timeout:g} s, and flower.min_clients = {least}; start "
                "their nodes and go on with the same command"
            )
