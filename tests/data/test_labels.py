"""Labels as people write them: which are ids, which are names, and which are no classes."""

import numpy as np
import pytest

from fedloom.core.errors import DataError
from fedloom.data.labels import class_ids, named_ids, sorted_words


@pytest.mark.parametrize(
    ("train", "test", "ids", "classes"),
    [
        ([0, 2, 1], [1], [[0, 2, 1], [1]], "012"),
        ([0, 1, 2, 0], [0, 4], [[0, 1, 2, 0], [0, 4]], "01234"),  # a hole stays, a class of the test set counts
        ([1, 2, 3], [3], [[0, 1, 2], [2]], "123"),  # counted from 1
        ([-1, 1, 1], [1], [[0, 1, 1], [1]], ["-1", "1"]),  # two classes in the convention of support vector machines
        ([0, 1, 255], [0], [[0, 1, 2], [0]], ["0", "1", "255"]),  # not 256 classes
        ([3, 8, 3], [8], [[0, 1, 0], [1]], "38"),
        ([[1], [2]], [[2]], [[0, 1], [1]], "12"),  # the trailing axis of Keras
        (["b", "a"], ["b"], [[1, 0], [1]], "ab"),
        (["10", "9"], ["9"], [[1, 0], [0]], ["9", "10"]),  # by value
    ],
    ids=str,
)
def test_labels_become_ids_and_names(train, test, ids, classes):
    found, names = class_ids([np.array(train), np.array(test)], "toy")
    assert [part.tolist() for part in found] == ids
    assert names == tuple(classes)


def test_names_belong_to_the_labels_in_order():
    assert class_ids([np.array([3, 1, 2])], "toy", "abc")[0][0].tolist() == [2, 0, 1]
    assert class_ids([np.array([-1, 0, 1])], "toy", "abc")[0][0].tolist() == [0, 1, 2]
    assert class_ids([np.array(["c", "a"])], "toy", "abc")[0][0].tolist() == [2, 0]
    assert class_ids([np.array([1, 2])], "toy", "abc")[0][0].tolist() == [1, 2]  # ids of three named classes


KINDS = [object] + ([np.dtypes.StringDType()] if hasattr(np.dtypes, "StringDType") else [])  # numpy 2 has it


@pytest.mark.parametrize("dtype", KINDS, ids=lambda dtype: str(dtype).partition("(")[0])
def test_words_of_other_kinds(dtype):
    found, names = class_ids([np.array(["b", "a"], dtype), np.array(["a"], dtype)], "toy")
    assert [part.tolist() for part in found] == [[1, 0], [0]]
    assert names == ("a", "b")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([np.array([0, 1, 2**62])], r"toy: label 4611686018427387904 is no class: need whole numbers 0 \.\. C-1"),
        ([np.array([0, 1, 2**32 - 1], np.uint32)], "label 4294967295 is no class"),
        ([np.array([0, 1]), np.array([2**64 - 1], np.uint64)], "label 18446744073709551615 is no class"),
        ([np.arange(50) * 7], "labels take 50 different values in 50 samples: ids or measurements"),
        ([np.arange(3000)], "labels take 3000 different values"),
        ([np.array([f"patient {n}" for n in range(50)])], "labels take 50 different values"),
        ([np.array(["a", ""])], r"toy \(train\): label 1 is missing"),
        ([np.array(["a", "b"]), np.array(["a", "zebra"])], r"toy \(test\): label 'zebra' is none of a, b"),
        ([np.array(["a", None], object)], "labels are NoneType, str; need whole numbers, or words, and no gaps"),
        ([np.array(["a", 1], object)], "labels are int, str"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_class_is_refused_at_once(parts, message):
    with pytest.raises(DataError, match=message) as caught:
        class_ids(parts, "toy")
    assert "\n" not in str(caught.value)


def test_two_classes_of_one_name_are_refused():
    with pytest.raises(DataError, match="class name 'a' occurs twice"):
        class_ids([np.array([0, 1])], "toy", ["a", "a"])


def test_many_classes_with_many_samples_are_classes():
    ids, names = class_ids([np.repeat(np.arange(1500) + 1, 10)], "toy")
    assert (len(names), ids[0].max()) == (1500, 1499)
    assert len(named_ids([[f"c{n}" for n in range(20)]], ["toy"])[1]) == 20  # few, though once each


def test_words_that_are_numbers_are_ordered_by_value():
    assert sorted_words(["10", "-2", "9"]) == ["-2", "9", "10"]
    assert sorted_words(["10", "9", "x"]) == ["10", "9", "x"]
    assert sorted_words(["²", "1"]) == ["1", "²"]  # a digit that is no number
