"""Requests whose bodies come in parts, and that are asked again: nothing is done twice, and nothing is believed."""

import threading

import pytest

from fedloom.core.records import from_bytes
from fedloom.flower.inbox import Inbox
from fedloom.flower.node import Node
from fedloom.flower.server import serve
from fedloom.flower.transport import InProcessTransport
from fedloom.flower.wire import (
    MAX_REQUEST,
    AnyReply,
    ErrorReply,
    Message,
    Parts,
    ProgressReply,
    Request,
    TrainReply,
    TrainRequest,
    read,
)
from flower_world import config_of

PART = 5_000


class Counting(Node):
    """Counts what it is asked to do, and works only when it may."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.may, self.begun, self.answered = threading.Event(), threading.Event(), 0
        self.may.set()

    def answer(self, message):
        self.begun.set()
        assert self.may.wait(30)
        self.answered += 1
        return super().answer(message)


@pytest.fixture
def world(tmp_path, nodes_of):
    """A node, and a request to train with its body."""
    config, sent = config_of(rounds=1, evaluation={"every": 1}), []
    transport = InProcessTransport(nodes_of(config))
    send = transport.send
    transport.send = lambda node, message, seconds: (sent.append(message), send(node, message, seconds))[1]
    serve(config, transport)
    message = next(m for m in sent if (r := read(m, Request, MAX_REQUEST)).do == "train" and r.client == 1)
    node = Counting(config, 1, tmp_path / "states", config.scenario.build(config.seed))
    parts = Parts.of(message.body, PART)
    update = {"job": "first", "parts": parts, "part": None, "wait": 0.0}
    return node, read(message, TrainRequest).model_copy(update=update), message.body, tmp_path / "states"


def resident(node, folder):
    inbox = Inbox(node, folder, resident=True)
    threading.Thread(target=inbox.work, daemon=True).start()
    return inbox


def asked(inbox, request, body=b"", **changes):
    return inbox.answer(request.model_copy(update=changes).to_message(body))


def sent(inbox, request, body, order=None):
    """The answer to the last of all parts."""
    for part in order or range(len(request.parts)):
        answer = asked(inbox, request, body[request.parts.span(part)], part=part)
    return answer


def test_a_body_in_parts_and_a_result_in_parts_are_those_of_one_message(world):
    node, request, body, folder = world
    expected = Node.answer(node, request.to_message(body))
    inbox = resident(node, folder)
    order = [*range(1, len(request.parts)), 0]
    for part in order[:-1]:
        progress = read(asked(inbox, request, body[request.parts.span(part)], part=part), ProgressReply)
        assert progress.phase == "downloading"
    assert [*progress.needs] == [0]
    node.may.clear()
    progress = read(asked(inbox, request, body[request.parts.span(0)], part=0), ProgressReply)
    assert (progress.phase, [*progress.needs]) == ("training", [])
    node.may.set()
    first = asked(inbox, request, wait=60.0)
    announced = read(first, AnyReply).parts
    assert announced == Parts.of(expected.body, PART)
    pieces = [asked(inbox, request, wait=60.0, fetch=index).body for index in range(len(announced))]
    assert announced.checked(b"".join(pieces)) == expected.body
    assert pieces[0] == first.body
    ours, theirs = (read(message, TrainReply) for message in (first, expected))
    assert ours.model_copy(update={"parts": None, "part": None, "seconds": theirs.seconds}) == theirs
    assert node.answered == 1  # however often it was asked


def test_only_missing_parts_are_asked_for_after_the_process_has_ended(world):
    node, request, body, folder = world
    for part in (0, 2):
        asked(resident(node, folder), request, body[request.parts.span(part)], part=part)
    needs = read(asked(resident(node, folder), request), ProgressReply).needs
    assert [*needs] == [part for part in range(len(request.parts)) if part not in (0, 2)]


def test_without_a_process_that_stays_the_last_part_is_answered_with_the_whole_result(world):
    node, request, body, folder = world
    answer = sent(Inbox(node, folder), request, body)
    assert {*from_bytes(answer.body)} >= {"model"}


def test_a_changed_part_is_refused_and_the_body_asked_for_again(world):
    node, request, body, folder = world
    inbox = resident(node, folder)
    changed = bytes([body[0] ^ 1]) + body[1:]
    assert "is not the one of" in read(sent(inbox, request, changed), ErrorReply).error
    assert len(read(asked(inbox, request), ProgressReply).needs) == len(request.parts)
    assert node.answered == 0


def test_parts_that_do_not_fit_links_and_a_full_disk_are_one_line(world, monkeypatch, tmp_path):
    node, request, body, folder = world
    inbox = resident(node, folder)
    for part, data in ((0, b"short"), (len(request.parts), b"x")):
        assert "does not belong" in read(asked(inbox, request, data, part=part), ErrorReply).error

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedloom.flower.inbox.write_atomic", full)
        error = read(asked(inbox, request, body[:PART], part=0), ErrorReply)
    assert "(No space left on device); free space" in error.error
    assert not error.raised
    (tmp_path / "elsewhere").mkdir()
    (folder).mkdir(exist_ok=True)
    (folder / "parts").symlink_to(tmp_path / "elsewhere")
    assert "it is a link" in read(asked(inbox, request, body[:PART], part=0), ErrorReply).error
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_a_newer_job_takes_the_place_of_one_that_has_not_begun(world):
    node, request, body, folder = world
    inbox = resident(node, folder)
    node.may.clear()
    sent(inbox, request, body)
    assert node.begun.wait(30)
    for job in ("second", "third"):
        progress = read(sent(inbox, request.model_copy(update={"job": job}), body), ProgressReply)
        assert (progress.phase, progress.detail) == ("waiting", "for the work of an earlier request")
    node.may.set()
    read(asked(inbox, request, job="third", wait=60.0), AnyReply)
    assert node.answered == 2
    assert not inbox.is_idle(60.0)
    assert inbox.is_idle(0.0)


def test_a_message_that_is_none_is_one_line(world):
    node, _, _, folder = world
    assert "no message of version" in read(Inbox(node, folder).answer(Message("{}")), ErrorReply).error
