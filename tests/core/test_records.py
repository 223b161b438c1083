"""Records: what goes in comes out, in few and predictable bytes, and nothing foreign gets in."""

import json
import math
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fedloom.core.records import RecordError, from_bytes, is_finite, to_bytes, to_plain, wire_size
from fedloom.core.tables import ClassTable

PROPERTY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip


# --- any record ------------------------------------------------------------------------------------------------------


@st.composite
def tensors(draw, dtypes=DTYPES, shape=None):
    dtype = draw(st.sampled_from(dtypes))
    if shape is None:
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    tensor = torch.randint(0, 120, tuple(shape), generator=generator).to(dtype)
    return tensor.transpose(0, -1) if len(shape) > 1 and draw(st.booleans()) else tensor


@st.composite
def tables(draw):
    lead = draw(st.sampled_from([(), (2,), (3, 2)]))
    classes, width = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    size = math.prod(lead) * classes
    mask = draw(st.one_of(st.just([False] * size), st.lists(st.booleans(), min_size=size, max_size=size)))
    held = torch.tensor(mask, dtype=torch.bool).view(*lead, classes)
    floats = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    values = torch.randint(1, 120, (*lead, classes, width), generator=generator).to(draw(st.sampled_from(floats)))
    return ClassTable(values * held.unsqueeze(-1), held)


characters = st.characters(exclude_categories=["Cs"])
words = st.one_of(
    st.text(characters, max_size=6), st.sampled_from(["é", "名前", '"', "\\", "\n", "\x7f", "\u2028", "😀"])
)
names = words.map(lambda word: word.replace("/", "|"))  # of a record; inside a tree any name will do
scalars = st.one_of(
    st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False), st.text(characters)
)
trees = st.dictionaries(st.one_of(words, st.sampled_from(["a/b", "rows", "held"])), tensors(), max_size=4)
records = st.dictionaries(names, st.one_of(tensors(), tables(), scalars, trees), max_size=5)


def assert_same(got, sent):
    assert type(got) is type(sent)
    if isinstance(sent, torch.Tensor):
        assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
        assert torch.equal(got, sent)
    elif isinstance(sent, ClassTable):
        assert_same(got.values, sent.values)
        assert_same(got.held, sent.held)
    elif isinstance(sent, dict):
        assert list(got) == list(sent)  # the order of names is part of a tree
        for name in sent:
            assert_same(got[name], sent[name])
    else:
        assert got == sent


@PROPERTY
@given(records)
def test_a_record_comes_back_as_it_was(record):
    assert_same(from_bytes(to_bytes(record)), record)


@PROPERTY
@given(records)
@example({})
@example({"tree": {}})
@example({"none held": ClassTable(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))})
def test_the_wire_size_is_the_number_of_bytes(record):
    assert wire_size(record) == len(to_bytes(record))


# --- single rules ----------------------------------------------------------------------------------------------------


def test_bytes_do_not_depend_on_memory_layout():
    straight = torch.arange(6.0).view(2, 3)
    crooked = torch.arange(6.0).view(2, 3).T.contiguous().T
    assert crooked.stride() != straight.stride()
    assert to_bytes({"x": straight}) == to_bytes({"x": crooked})


def test_special_floats_keep_their_bits():
    sent = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    got = from_bytes(to_bytes({"x": sent}))["x"]
    assert torch.equal(got.view(torch.int32), sent.view(torch.int32))


def test_scalars_that_compare_equal_are_told_apart_whatever_was_sent_before():
    for sent in (0.0, -0.0, 0, False, 1, True, 1.0):
        got = from_bytes(to_bytes({"x": sent}))["x"]
        assert (type(got), repr(got)) == (type(sent), repr(sent))
        assert wire_size({"x": sent}) == len(to_bytes({"x": sent}))


def test_a_tensor_with_a_gradient_can_be_sent_and_arrives_without():
    got = from_bytes(to_bytes({"w": torch.nn.Parameter(torch.ones(2))}))["w"]
    assert type(got) is torch.Tensor
    assert not got.requires_grad


def test_one_tensor_may_stand_under_several_names():
    weight = torch.arange(4.0)
    record = {"now": {"w": weight}, "before": {"w": weight}, "tail": weight[2:]}
    got = from_bytes(to_bytes(record))
    assert_same(got, record)
    assert wire_size(record) == len(to_bytes(record))
    got["now"]["w"].zero_()
    assert got["before"]["w"].tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("first", DTYPES, ids=str)
def test_the_wire_size_knows_in_which_order_dtypes_are_laid_out(first):
    """A small and a large tensor: their offsets have other numbers of digits if the order is wrong."""
    for second in DTYPES:
        record = {"a": torch.zeros(8, dtype=first), "b": torch.zeros(12_000, dtype=second)}
        assert wire_size(record) == len(to_bytes(record)), second


def test_only_held_rows_of_a_table_travel():
    def size(held_rows):
        held = torch.arange(100) < held_rows
        return len(to_bytes({"t": ClassTable(torch.ones(100, 64) * held.unsqueeze(-1), held)}))

    # Two more rows of 64 float32 are 512 bytes more. The text header may change in length by its own digits.
    assert size(52) - size(50) == 2 * 64 * 4
    assert size(0) < 100 + 500  # the mask and a short header, no rows


def test_rows_that_are_not_held_come_back_as_zeros_whatever_stood_there():
    table = ClassTable(torch.tensor([[float("nan")], [7.0]]), torch.tensor([False, True]))
    got = from_bytes(to_bytes({"t": table}))["t"]
    assert got.values.tolist() == [[0.0], [7.0]]


@pytest.mark.parametrize(
    "record",
    [
        {"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1)},
        {"t": ClassTable(torch.zeros(1, 1), torch.zeros(1, dtype=torch.bool)), "t/rows": torch.ones(1)},
        {"__metadata__": torch.ones(1)},
    ],
    ids=["tree", "table", "reserved"],
)
def test_names_that_would_overwrite_each_other_are_refused(record):
    with pytest.raises(ValueError, match="path"):
        to_bytes(record)


# --- damage and foreign bytes ----------------------------------------------------------------------------------------


def small_record():
    held = torch.tensor([True, False, True])
    table = ClassTable(torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]), held)
    return {"tree": {"w": torch.ones(3)}, "t": table, "round": 4, "x": torch.tensor([1, 2])}


def test_every_truncation_is_refused():
    data = to_bytes(small_record())
    for length in range(len(data)):
        with pytest.raises(RecordError):
            from_bytes(data[:length])


def test_a_flipped_bit_of_a_mask_is_refused():
    data = bytearray(to_bytes({"t": small_record()["t"]}))
    data[-2] ^= 1  # the mask's three bytes stand last: now it says that all three rows travelled
    with pytest.raises(RecordError):
        from_bytes(bytes(data))


def test_no_flipped_bit_anywhere_gives_another_exception():
    data = to_bytes(small_record())
    refused = 0
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        try:
            from_bytes(bytes(damaged))  # a flip inside a value cannot be seen: there is no checksum
        except RecordError:
            refused += 1
    assert refused > 100


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    with pytest.raises(RecordError):
        from_bytes(data)


@pytest.mark.parametrize(
    "metadata", [None, {"other": "1"}, {"fedloom": "no json"}, {"fedloom": "[]"}, {"fedloom": "7"}], ids=str
)
def test_safetensors_files_of_others_are_refused(metadata):
    with pytest.raises(RecordError):
        from_bytes(save({"w": torch.ones(2)}, metadata=metadata))


def forged(entries, version=1, **stored):
    return save(stored, metadata={"fedloom": json.dumps({"format": version, "entries": entries})})


def test_another_format_is_refused_and_both_numbers_are_said():
    with pytest.raises(RecordError, match=r"format 3.*formats 1 and 2"):
        from_bytes(forged({}, version=3))


def test_scalars_of_format_1_are_read():
    entries = {"k": {"kind": "scalar", "value": 7}, "x": {"kind": "scalar", "value": 0.5}}
    assert from_bytes(forged(entries)) == {"k": 7, "x": 0.5}


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, -(1 << 63), (1 << 63) - 1, 10**30])
def test_integers_of_any_length_come_back(value):
    assert from_bytes(to_bytes({"x": value})) == {"x": value}


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "int", "value": "7"},
        {"type": "int", "value": "0x"},
        {"type": "int", "value": " 0000000000000007"},
        {"type": "float", "value": "0x10"},
        {"type": "bytes", "value": "0000000000000007"},
        {"type": "int", "value": 7},
        {"type": 3, "value": "0000000000000007"},
        {"type": "int"},
    ],
)
def test_scalars_that_are_no_words_are_refused(entry):
    with pytest.raises(RecordError):
        from_bytes(forged({"x": {"kind": "scalar", **entry}}, version=2))


@pytest.mark.parametrize(
    ("entries", "stored"),
    [
        ([], {}),
        ({"w": 5}, {}),
        ({"w": {}}, {}),
        ({"w": {"kind": "tensor"}}, {}),
        ({"w": {"kind": "unheard of"}}, {}),
        ({"w": {"kind": "tree", "names": 3}}, {}),
        ({"w": {"kind": "tree", "names": ["a"]}}, {}),
        ({"w": {"kind": "table"}}, {"w/rows": torch.zeros(()), "w/held": torch.ones(1, dtype=torch.bool)}),
        ({"w": {"kind": "table"}}, {"w/rows": torch.zeros(3, 2), "w/held": torch.ones(2, dtype=torch.bool)}),
        ({"w": {"kind": "table"}}, {"w/rows": torch.zeros(2, 2), "w/held": torch.ones(2)}),
        ({"w": {"kind": "table"}}, {"w/rows": torch.zeros(2, 2), "w/held": torch.ones(2, dtype=torch.int64)}),
    ],
)
def test_headers_that_contradict_the_tensors_are_refused(entries, stored):
    with pytest.raises(RecordError):
        from_bytes(forged(entries, **stored))


def test_deeply_nested_headers_are_refused():
    with pytest.raises(RecordError):
        from_bytes(save({"w": torch.ones(1)}, metadata={"fedloom": "[" * 200_000}))


def test_a_record_is_finite_by_its_floats_and_the_rows_that_are_held():
    table = ClassTable(torch.tensor([[1.0], [math.nan]]), torch.tensor([True, False]))
    record = {"tree": {"w": torch.ones(2), "count": torch.tensor(3)}, "table": table, "loss": 0.5, "name": "a", "n": 3}
    assert is_finite(record)
    wrong = [("loss", math.inf), ("tree", {"w": torch.tensor([1.0, math.nan])}), ("row", torch.tensor(-math.inf))]
    held = ClassTable(table.values, torch.tensor([True, True]))
    for name, value in [*wrong, ("table", held)]:
        assert not is_finite({**record, name: value})


@dataclass(frozen=True)
class Point:
    name: str
    at: tuple[int, int]
    weights: torch.Tensor = field(default_factory=lambda: torch.tensor([[1, 2]]))


def test_everything_inside_a_dataclass_becomes_plain():
    plain = to_plain({"points": [Point("a", (1, 2))], "share": 0.5, "none": None})
    assert plain == {"points": [{"name": "a", "at": [1, 2], "weights": [[1, 2]]}], "share": 0.5, "none": None}
    assert json.loads(json.dumps(plain)) == plain
