"""Replies as Flower's own grid fetches them over HTTP, good and hostile ones. Needs the extra `flower`."""

import json
import os
import tracemalloc

import pytest

from fedloom.flower.wire import MAX_FACTS, ErrorReply, Message, read

flwr = pytest.importorskip("flwr", reason="needs the extra flower")
pytestmark = pytest.mark.filterwarnings("default")
LIMIT = 8 * MAX_FACTS


class Superlink:
    """Answers a grid's requests, in this process. replies: by the name that they answer, the reply's message id and its
    objects; an object is bytes by its id. late: objects of a reply that is fetched in steps; None is not there yet."""

    def __init__(self):
        self.replies, self.confirmed, self.late, self.asked = {}, [], {}, []

    def __call__(self, request):
        import httpx
        from flwr.proto import message_pb2, runtime_pb2

        name = request.url.path.rpartition("/")[2]
        content = request.read()
        if name == "pull-messages":
            (asked,) = runtime_pb2.PullAppMessagesRequest.FromString(content).message_ids
            self.asked.append(asked)
            answer = runtime_pb2.PullAppMessagesResponse()
            if asked in self.replies:
                tree, objects, reason = self.replies[asked]
                proto = answer.messages_list.add()
                proto.metadata.message_id = tree.object_id
                proto.metadata.reply_to_message_id = asked
                proto.error.reason = reason
                answer.message_object_trees.append(tree)
                self.objects = objects
        elif name == "pull-object":
            asked = message_pb2.PullObjectRequest.FromString(content).object_id
            body = self.late.get(asked, self.objects.get(asked))
            there, is_late = body is not None, asked in self.late
            answer = message_pb2.PullObjectResponse(
                object_found=there or is_late, object_available=there, object_content=body or b""
            )
        else:
            asked = message_pb2.ConfirmMessageReceivedRequest.FromString(content)
            self.confirmed.append(asked.message_object_id)
            answer = message_pb2.ConfirmMessageReceivedResponse()
        body = answer.SerializeToString()
        return httpx.Response(200, content=body, headers={"content-length": str(len(body))})

    def add(self, name, content, change=lambda objects: objects, reason=""):
        """A node's reply with a content (a `RecordDict`); `change` what the node uploads."""
        from flwr.app import Message as FlowerMessage
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        message = FlowerMessage(content, 2, "train")
        message.metadata.__dict__["_message_id"] = ""
        tree = get_object_tree(message)
        objects = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
        self.replies[name] = tree, change(objects), reason
        return tree.object_id


@pytest.fixture
def superlink():
    return Superlink()


@pytest.fixture
def transport(superlink):
    import httpx
    from flwr.superlink.grid import HttpGrid

    from fedloom.flower.transport import GridTransport

    grid = HttpGrid("127.0.0.1:1", insecure=True, token="t")
    grid._connect()
    grid._client._client = httpx.Client(transport=httpx.MockTransport(superlink))
    grid._run = type("Run", (), {"run_id": 1})()
    type(grid).run = property(lambda self: self._run)
    return GridTransport(grid)


def content_of(message):
    from fedloom.flower.message import to_content

    return to_content(message)


def taken(transport, *names):
    return dict(transport.receive(names))


def error_of(message):
    return read(message, ErrorReply).error


def test_an_honest_reply_is_read_as_it_is(transport, superlink):
    message = Message('{"a": 1}', os.urandom(7_000_000))
    name = superlink.add("order", content_of(message))
    assert taken(transport, "other", "order") == {"order": message}
    assert superlink.confirmed == [name]


def test_a_reply_that_is_still_uploaded_holds_up_no_other(transport, superlink):
    """A link that stands still in the middle of an upload."""
    message = Message("{}", os.urandom(5_000_000))
    superlink.add("slow", content_of(message))
    superlink.add("good", content_of(Message('{"a": 1}')))
    objects = superlink.replies["slow"][1]
    last = [*objects][-1]
    superlink.late = {**objects, last: None}
    for _ in range(400):  # more often than a reply may have objects
        assert taken(transport, "slow") == {}
    assert taken(transport, "slow", "good") == {"good": Message('{"a": 1}')}
    superlink.late = objects
    assert taken(transport, "slow") == {"slow": message}
    assert superlink.asked.count("slow") == 1  # the SuperLink tells of a reply only once


def test_a_reply_of_many_equal_chunks_is_read_as_it_is(transport, superlink):
    """Weights that are all zero: one chunk on the wire, named often."""
    transport.reply_limit = 40_000_000
    message = Message("{}", bytes(30_000_000))
    superlink.add("order", content_of(message))
    assert taken(transport, "order") == {"order": message}


def test_a_reply_that_is_too_long_is_not_read_and_is_deleted(transport, superlink):
    name = superlink.add("order", content_of(Message("{}", os.urandom(100_000_000))))
    superlink.add("good", content_of(Message("{}")))
    tracemalloc.start()
    answers = taken(transport, "order", "good")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error_of(answers["order"]).endswith(f"more than {LIMIT:,} bytes, or in too many parts; it was not read")
    assert answers["good"] == Message("{}")
    assert name in superlink.confirmed
    assert peak < 60_000_000  # two objects at a time, in this test's SuperLink and in the grid


def test_one_chunk_that_is_named_a_million_times_is_not_joined(transport, superlink):
    """A few kilobytes that would become terabytes."""

    def bomb(objects):
        for key, content in objects.items():
            if content.startswith(b"Array "):
                head, _, body = content.partition(b"\0")
                facts = json.loads(body) | {"arraychunk_ids": [0] * 1_000_000}
                body = json.dumps(facts).encode()
                head = head.rpartition(b" ")[0] + b" %d" % len(body)
                objects[key] = head + b"\0" + body
        return objects

    name = superlink.add("order", content_of(Message("{}", os.urandom(5_000_000))), bomb)
    error = error_of(taken(transport, "order")["order"])
    assert error.endswith(f"its arrays have 5,000,000,000,000 bytes; {LIMIT:,} at most")
    assert name in superlink.confirmed


def test_a_short_body_with_endless_facts_is_not_read(transport, superlink):
    superlink.add("order", content_of(Message("x" * (LIMIT + 1))))
    assert "it was not read" in error_of(taken(transport, "order")["order"])


def test_an_endless_excuse_is_not_read(transport, superlink):
    superlink.add("order", content_of(Message("{}")), reason="x" * (LIMIT + 1))
    superlink.add("good", content_of(Message("{}")))
    answers = taken(transport, "order", "good")
    assert "it was not read" in error_of(answers["order"])
    assert answers["good"] == Message("{}")


BROKEN = {
    "a part is missing": lambda objects: dict([*objects.items()][1:]),
    "no objects": lambda objects: {},
    "nothing in them": lambda objects: dict.fromkeys(objects, b""),
    "no head": lambda objects: dict.fromkeys(objects, b"nonsense"),
    "an unknown class": lambda objects: dict.fromkeys(objects, b"Evil  0\x00"),
    "another class": lambda objects: dict.fromkeys(objects, b"MetricRecord  2\x00{}"),
    "no JSON": lambda objects: {
        key: value.partition(b"\0")[0] + b"\0" + b"\xff" * len(value.partition(b"\0")[2])
        for key, value in objects.items()
    },
    "no numbers": lambda objects: {
        key: value.replace(b'"arraychunk_ids": [0', b'"arraychunk_ids": ["') for key, value in objects.items()
    },
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_reply_spoils_no_other(case, transport, superlink, monkeypatch):
    monkeypatch.setattr("flwr.supercore.inflatable.inflatable_utils.PULL_MAX_TIME", 0.1)
    superlink.add("first", content_of(Message("{}")))
    superlink.add("order", content_of(Message("{}", b"xyz")), BROKEN[case])
    superlink.add("last", content_of(Message("{}")))
    answers = taken(transport, "first", "order", "last")
    assert answers["first"] == answers["last"] == Message("{}")
    answer = answers["order"]
    assert answer.startswith("Flower: ") if isinstance(answer, str) else "unusable" in error_of(answer)
    assert (answer if isinstance(answer, str) else error_of(answer)).isprintable()


def test_a_superlink_that_is_not_there_is_no_fault_of_a_node(transport):
    import httpx

    def gone(request):
        raise httpx.ConnectError("refused")

    transport._grid._client._retry_invoker.max_tries = 1
    transport._grid._client._client = httpx.Client(transport=httpx.MockTransport(gone))
    with pytest.raises(httpx.ConnectError):
        taken(transport, "order")


def test_long_facts_are_read_where_the_metrics_of_a_test_need_them(transport, superlink):
    transport.reply_limit = LIMIT + 20_000_000
    message = Message(json.dumps({"bins": [0.123456789] * 1_000_000}))
    superlink.add("order", content_of(message))
    assert taken(transport, "order") == {"order": message}
