"""Text sources: words, vocabularies of training data only, and the layouts of IMDB and .tsv files."""

import numpy as np
import pytest
import torch

from fedloom.core.errors import DataError
from fedloom.data import SOURCES
from fedloom.data.sources.text import characters, encode, infer_tokens, vocabulary, words
from source_files import prefixed, write_tar, write_tree


def load(name, **keys):
    return SOURCES.get(name)(**keys).load()


# --- words -----------------------------------------------------------------------------------------------------------


def test_words_are_lower_case_without_marks_and_line_breaks():
    assert words("It's GREAT!<br /><br />Really-great, 10/10 <BR>né_e") == [
        "it's",
        "great",
        "really",
        "great",
        "10",
        "10",
        "né",
        "e",
    ]


def test_the_vocabulary_ranks_by_frequency_then_alphabet():
    texts = ["b a c", "b c", "b d"]
    assert vocabulary(texts, 100) == {"b": 2, "c": 3, "a": 4, "d": 5}
    assert vocabulary(texts, 4) == {"b": 2, "c": 3}  # two ids are taken by padding and unknown words


def test_texts_are_cut_and_padded_behind():
    ids = encode(["b a b", "z", ""], {"a": 2, "b": 3}, 2)
    assert ids.tolist() == [[3, 2], [1, 0], [0, 0]]
    assert ids.dtype == np.int64


# --- .tsv ------------------------------------------------------------------------------------------------------------

TRAIN = "1\tgood good film\n0\tbad film\n"
TEST = "0\tbad unseen\n"


@pytest.fixture
def tsv(tmp_path):
    def source(train=TRAIN, test=TEST, **keys):
        raw = {"train.tsv": train, "test.tsv": test}
        write_tree(tmp_path, {n: t if isinstance(t, bytes) else t.encode() for n, t in raw.items()})
        return load("tsv", path=tmp_path, **keys)

    return source


def test_tokens_stay_integers_and_test_words_stay_unknown(tsv):
    splits = tsv(length=4)
    # bad 1, film 2, good 2: film and good come first, in alphabetical order
    assert splits.train.x.tolist() == [[3, 3, 2, 0], [4, 2, 0, 0]]
    assert splits.test.x.tolist() == [[4, 1, 0, 0]]
    assert splits.train.y.tolist() == [1, 0]
    batch = splits.train.gather(torch.tensor([1]))
    assert batch.dtype == torch.int64
    assert batch.tolist() == [[4, 2, 0, 0]]
    assert splits.train.mean is None


def test_no_id_reaches_the_size_of_the_vocabulary(tsv):
    splits = tsv(vocabulary=4, length=3)
    assert splits.train.x.tolist() == [[3, 3, 2], [1, 2, 0]]


def test_a_file_column_is_left_out_and_later_tabs_are_text(tsv):
    splits = tsv("1\tf1\tgood\tfilm\n0\tf2\tbad\n", "1\tf3\tfilm\n", length=2)
    assert splits.train.x.tolist() == [[4, 3], [2, 0]]
    assert splits.test.x.tolist() == [[3, 0]]


def test_other_separators_and_names(tmp_path):
    write_tree(tmp_path, {"a.all": b"LOC where is it\nNUM how many\n", "b.all": b"NUM how far\n"})
    splits = load("tsv", path=tmp_path, train_file="a.all", test_file="b.all", separator=" ", length=3)
    assert splits.train.classes == ("LOC", "NUM")
    assert splits.train.y.tolist() == [0, 1]


def test_integer_labels_are_sorted_as_numbers(tsv):
    assert tsv("10\ta\n9\tb\n", "9\ta\n").train.classes == ("9", "10")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("", TEST, r"train\.tsv: need lines of label<TAB>text"),
        ("no tabs here\n", TEST, r"train\.tsv: need lines of label<TAB>text"),
        ("1\tgood\n0 bad\n", TEST, r"train\.tsv: line 2 has 1 columns, the first has 2"),
        (TRAIN, "2\tnew\n", r"test\.tsv: label '2' is none of 0, 1"),
        (TRAIN, b"0\tcaf\xe9 noir\n", r"test\.tsv: byte 5 \(0xe9\) is not UTF-8; convert the file"),
    ],
)
def test_damaged_files_are_named(tsv, train, test, message):
    with pytest.raises(DataError, match=message):
        tsv(train, test)


def test_a_missing_file_is_named(tmp_path):
    write_tree(tmp_path, {"train.tsv": TRAIN.encode()})
    with pytest.raises(DataError, match=r"holds no test\.tsv; need train\.tsv and test\.tsv"):
        load("tsv", path=tmp_path)


# --- IMDB ------------------------------------------------------------------------------------------------------------


def imdb_files():
    files = {
        f"{p}/{c}/{i}_{i}.txt": f"{c} {p} {i}".encode()
        for p in ("train", "test")
        for c in ("neg", "pos")
        for i in (0, 1, 2)
    }
    return {**files, "train/unsup/0_0.txt": b"unsup \xff", "imdb.vocab": b"the"}


@pytest.mark.parametrize("layout", ["folder", "below", "archive", "archive itself"])
def test_imdb_layouts(tmp_path, layout):
    files, path = prefixed("aclImdb", imdb_files()), tmp_path
    if layout.startswith("archive"):
        archive = write_tar(tmp_path / "aclImdb_v1.tar.gz", files)
        path = archive if layout == "archive itself" else tmp_path
    else:
        write_tree(tmp_path, files)
        path = tmp_path / "aclImdb" if layout == "folder" else tmp_path
    splits = load("imdb", path=path, verify=False, length=3)
    assert splits.train.classes == ("neg", "pos")
    assert splits.test.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert sorted(splits.train.y.tolist()) == [0, 0, 0, 1, 1, 1]
    assert splits.train.y.tolist() != sorted(splits.train.y.tolist())  # shuffled: the files are sorted by class
    assert len({tuple(row) for row in splits.train.x.tolist()}) == 6
    first = splits.train.x[splits.train.y == 1][:, 0]
    assert (first == first[0]).all()  # "pos" begins every positive review: text and label stay together
    assert splits.train.x.max() < 10_000


def test_reviews_in_folders_are_grouped_by_a_pattern(tmp_path):
    names = [
        f"{part}/{name}/{part}{person}_{name}.txt"
        for part in ("train", "test")
        for name in ("neg", "pos")
        for person in "012"
    ]
    write_tree(tmp_path, dict.fromkeys(names, b"a word"))
    splits = load("imdb", path=tmp_path, group={"pattern": r"(t\D+\d)_"})
    assert sorted(splits.train.group.tolist()) == [3, 3, 4, 4, 5, 5]
    assert splits.test.group.tolist() == [0, 1, 2] * 2


def test_imdb_from_tsv(tmp_path):
    rows = "0\t0_3.txt\tbad film\n1\t1_9.txt\tgood film\n"
    write_tree(tmp_path, {"imdb_train.tsv": rows.encode(), "imdb_test.tsv": rows.encode()})
    splits = load("imdb", path=tmp_path, length=4)
    assert splits.test.y.tolist() == [0, 1]
    assert splits.train.classes == ("neg", "pos")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test/pos/1_1.txt": b"caf\xc3"}, r"test/pos/1_1\.txt: byte 3 \(0xc3\) is not UTF-8"),
        ({f"test/pos/{i}_{i}.txt": None for i in range(3)}, r"no test/pos/\*\.txt; need both classes"),
    ],
)
def test_damaged_imdb_files_are_named(tmp_path, change, message):
    files = {n: r for n, r in (imdb_files() | change).items() if r is not None}
    with pytest.raises(DataError, match=message):
        load("imdb", path=write_tree(tmp_path, files))


def test_an_imdb_archive_with_another_checksum_is_refused(tmp_path):
    write_tar(tmp_path / "aclImdb_v1.tar.gz", prefixed("aclImdb", imdb_files()))
    with pytest.raises(DataError, match="its publisher gives 7c2ac02c"):
        load("imdb", path=tmp_path)


# --- texts without spaces --------------------------------------------------------------------------------------------


def test_characters_are_lower_case_without_spaces_and_line_breaks():
    assert characters("\u5929\u5730<br/> Ab\u3002") == ["\u5929", "\u5730", "a", "b", "\u3002"]
    assert vocabulary(["aab", "b c"], 4, "characters") == {"a": 2, "b": 3}
    assert encode(["ab!", ""], {"a": 2, "b": 3}, 4, "characters").tolist() == [[2, 3, 1, 0], [0, 0, 0, 0]]


def test_how_texts_were_split_shows_in_their_vocabulary():
    assert infer_tokens(["a", "b"]) == "characters"
    assert infer_tokens(["a", "film"]) == infer_tokens([]) == "words"


def test_tokens_at_their_default_are_no_part_of_the_fingerprint():
    assert SOURCES.get("tsv")(path="a").model_dump().keys() == {
        "vocabulary",
        "length",
        "path",
        "train_file",
        "test_file",
        "separator",
    }
    assert "tokens" not in SOURCES.get("hf")(dataset="a", text="b").model_dump()
    assert SOURCES.get("tsv")(path="a", tokens="characters").model_dump()["tokens"] == "characters"
