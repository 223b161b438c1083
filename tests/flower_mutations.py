"""Mutated messages: what a hostile or broken node might send."""

import json
import random

from fedloom.flower.wire import Message

WORDS = [
    b"",
    b"\x00" * 8,
    b"\xff" * 8,
    b'{"a":' * 20_000,
    b"[" * 50_000,
    b'"',
    b"NaN",
    b"1e999",
    b"-1",
    b"model",
    b"../",
]
VALUES = [None, True, -1, 2**63, 2**70, 1.5, float("nan"), "", "x" * 300, [], {}, [[]] * 9, {"a": {"b": {}}}]


def mutated(message: Message, rng: random.Random) -> Message:
    """One to three changes of a message's facts or bytes."""
    facts, body = message.facts, message.body
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(6)
        if kind == 0:
            facts = _other_facts(facts, rng)
        elif kind == 1:
            facts = facts[: rng.randrange(len(facts) + 1)]
        elif kind == 2:
            body = _other_header(body, rng)
        else:
            body = _other_bytes(body, rng)
    return Message(facts, body)


def _other_facts(facts: str, rng: random.Random) -> str:
    try:
        told = json.loads(facts)
    except ValueError:
        return facts
    if not isinstance(told, dict) or not told:
        return facts
    key = rng.choice(sorted(told))
    change = rng.randrange(4)
    if change == 0:
        del told[key]
    elif change == 1:
        told[key] = rng.choice(VALUES)
    elif change == 2:
        told[rng.choice(["more", "run ", "__class__"])] = told[key]
    else:
        return facts.replace(":", rng.choice([":", "::", ": [" * 3000, ":-"]), 1)
    return json.dumps(told)


def _other_header(body: bytes, rng: random.Random) -> bytes:
    """The header of the safetensors with other lengths, names, dtypes, shapes or places."""
    length = int.from_bytes(body[:8], "little")
    try:
        header = json.loads(body[8 : 8 + length])
        names = sorted(header)
    except (ValueError, TypeError):
        return body
    if not isinstance(header, dict) or not names:
        return body
    name, change = rng.choice(names), rng.randrange(7)
    entry = header[name] if isinstance(header[name], dict) else {}
    if change == 0:
        header[name + "x"] = header.pop(name)
    elif change == 1:
        entry["dtype"] = rng.choice(["F64", "I8", "BOOL", "F99", 3])
    elif change == 2:
        entry["shape"] = rng.choice([[], [0], [2**62, 2], [-1], [10**12, 0], [[]], [1] * 70, "x"])
    elif change == 3:
        entry["data_offsets"] = rng.choice([[0, 0], [8, 4], [0, 2**63], [-4, 4], [0], None])
    elif change == 4:
        del header[name]
    elif change == 5 and "fedloom" in entry:
        entry["fedloom"] = _other_facts(entry["fedloom"], rng)
    else:
        header[name] = rng.choice(VALUES)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


def _other_bytes(body: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(body) + 1)
    change = rng.randrange(4)
    if change == 0:
        return body[:place]
    if change == 1:
        return body[:place] + rng.choice(WORDS) + body[place:]
    if change == 2:
        return body + body[:place]
    flipped = bytearray(body)
    for _ in range(rng.choice([1, 1, 8])):
        if flipped:
            flipped[rng.randrange(len(flipped))] = rng.randrange(256)
    return bytes(flipped)
