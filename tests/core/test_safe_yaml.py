"""YAML from people: plain values, in bounded time, or one line that says why not."""

import math
import time
from pathlib import Path

import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.core.files import parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: [1, 2.5, true, x]", {"a": [1, 2.5, True, "x"]}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("base: &x {a: 1, b: 2}\nown: {<<: *x, b: 3}", {"base": {"a": 1, "b": 2}, "own": {"a": 1, "b": 3}}),
    ],
)
def test_plain_values(text: str, value: object) -> None:
    assert parse_yaml(text) == value


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("10", 10),
        ("-7", -7),
        ("0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("1.5", 1.5),
        (".5", 0.5),
        ("-.inf", -math.inf),
        *((word, word) for word in ("010", "08", "-010", "0o10", "0b11", "1:30", "1:04", "190:20:30", "1:30.5")),
    ],
)
def test_numbers_are_read_as_they_are_written(word: str, value: object) -> None:
    (read,) = parse_yaml(f"[{word}]")
    assert (read, type(read)) == (value, type(value))
    assert parse_yaml(word) == value


@pytest.mark.parametrize("word", ["010", "08", "0o10", "0x1F", "1_000", "0b11", "1:30", "1:30.5", "1e3", "off", "12"])
def test_words_that_look_like_numbers_survive_the_way_into_a_file(word: str) -> None:
    assert parse_yaml(yaml.safe_dump({"a": word})) == {"a": word}


def test_what_stands_behind_aliases_is_copied() -> None:
    values = parse_yaml("a: &x {b: [1]}\nc: *x")
    values["a"]["b"].append(2)
    assert values["c"] == {"b": [1]}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(10 * [f'*{old}'])}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' comes twice, again in line 3"),
        ("s: {a: 1, 'a': 2}", "the key 'a' comes twice, again in line 1"),
        (3000 * "[" + 3000 * "]", "nested more than 30 deep"),
        ("".join(n * " " + "a:\n" for n in range(300)), "nested more than 30 deep"),
        (BOMB, "aliases unfold to more than 100,000 values"),
        ("a: &a {b: *a}", r"\*a refers to itself"),
        ("x" * 100_000, "more than 65,536 characters"),
        ("a: " + 5000 * "9", "4300 digits"),
        ("a: 2024-99-99", "month must be in 1..12"),
        ("a: !!python/name:os.system x", "could not determine a constructor"),
        ("a: [", "while parsing"),
    ],
    ids=["twice", "quoted", "flow", "block", "bomb", "itself", "long", "digits", "date", "object", "open"],
)
def test_what_is_refused_and_soon(text: str, why: str) -> None:
    began = time.monotonic()
    with pytest.raises(yaml.YAMLError, match=why):
        parse_yaml(text)
    assert time.monotonic() - began < 10


def test_the_file_is_named_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    with pytest.raises(ConfigError, match=r"c\.yaml: no such config file"):
        read_yaml(file)
    with pytest.raises(ConfigError, match="not readable: Is a directory"):
        read_yaml(tmp_path)
    for raw in (b"\xff\xfe", b"a: [", b"a: \x00"):
        file.write_bytes(raw)
        with pytest.raises(ConfigError, match=r"c\.yaml: not readable as YAML: ") as caught:
            read_yaml(file)
        assert "\n" not in str(caught.value)
    file.write_bytes(b"\xef\xbb\xbfa: 1")  # a byte order mark, as some editors write it
    assert read_yaml(file) == {"a": 1}


@pytest.mark.parametrize("word", ["off", "on", "no", "yes", "Off", "NO", "y", "n"])
def test_words_that_are_names_of_options_are_no_truth_values(word: str) -> None:
    assert parse_yaml(f"fedskc: {{gpr: {word}}}") == {"fedskc": {"gpr": word}}


@pytest.mark.parametrize(("word", "value"), [("true", True), ("True", True), ("FALSE", False), ("trueish", "trueish")])
def test_truth_values_are_true_and_false(word: str, value: object) -> None:
    assert parse_yaml(word) == value
