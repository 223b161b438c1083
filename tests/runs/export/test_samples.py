"""New samples: read as the run's source would store them, and refused in one line where they are of another kind."""

import io
import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import csv, parquet

import fedloom as fl
from fedloom.core.errors import DataError
from fedloom.data import SOURCES, describe_input, from_arrays
from fedloom.runs.export.modules import Input
from fedloom.runs.export.samples import SampleNote, read_samples
from fedloom.runs.export.trained import read

GREY = Input(shape=(1, 4, 4), dtype="uint8", mean=(1.0,), std=(2.0,), white=16.0, ids=None, words=())
ROWS = Input(shape=(3,), dtype="float32", mean=None, std=None, white=None, ids=None, words=())
AGES = ROWS.model_copy(update={"features": ("age",)})
TEXT = Input(shape=(4,), dtype="int64", mean=None, std=None, white=None, ids=4, words=("good", "film"))


def but(expected: Input, **changes: Any) -> Input:
    return expected.model_copy(update=changes)


def picture(path: Path, pixels: Any) -> Path:
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)
    return path


def arrays(path: Path, **named: Any) -> Path:
    np.savez(path, **named)
    return path


def test_pictures_are_scaled_to_the_stored_range_and_size(tmp_path: Path) -> None:
    white, dark = picture(tmp_path / "a.png", np.full((4, 4), 255)), picture(tmp_path / "b.png", np.full((9, 7, 3), 51))
    names, x = read_samples([white, dark], GREY)
    assert names == ["a.png", "b.png"]
    assert x.shape == (2, 1, 4, 4)
    assert x[0].unique().tolist() == [16.0]
    assert x[1].unique().tolist() == pytest.approx([51 / 255 * 16])


def test_unusual_pictures_are_named(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4), level, np.uint8)) for level in (0, 90)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    notes: list[SampleNote] = []
    read_samples([tmp_path / "a.gif"], GREY, notes.append)
    (note,) = notes
    assert (note.kind, note.count) == ("frames", 1)
    assert "only the first is read: 1 of 1" in note.text


def test_resized_pictures_are_counted(tmp_path: Path) -> None:
    paths = [picture(tmp_path / f"{side}.png", np.zeros((side, 5))) for side in (4, 5, 6)]
    paths.append(picture(tmp_path / "fits.png", np.zeros((4, 4))))
    notes: list[SampleNote] = []
    read_samples(paths, GREY, notes.append)
    (note,) = notes
    assert (note.kind, note.count) == ("resized", 3)
    assert note.text.startswith("pictures of another size than the model's, which were resized: 3 of 4, first ")
    assert "4.png (5 x 4)" in note.text


def test_arrays_are_taken_as_they_are(tmp_path: Path) -> None:
    pixels = np.arange(32, dtype=np.uint8).reshape(2, 4, 4)
    named = arrays(tmp_path / "a.npz", x=pixels, y=np.zeros(2))
    names, x = read_samples([named, arrays(tmp_path / "b.npz", only=pixels[:1, None])], GREY)
    assert names == ["a.npz:0", "a.npz:1", "b.npz:0"]
    assert torch.equal(x[:2, 0], torch.from_numpy(pixels).float())
    colour = but(GREY, shape=(3, 4, 4))
    last = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    _, x = read_samples([arrays(tmp_path / "c.npz", x_test=last)], colour)
    assert torch.equal(x, torch.from_numpy(last).permute(0, 3, 1, 2).float())
    many = np.arange(64, dtype=np.uint8).reshape(1, 2, 4, 8)  # channels last, where 8 of them are no rule
    _, x = read_samples([arrays(tmp_path / "e.npz", x=many)], but(GREY, shape=(8, 2, 4)))
    assert torch.equal(x, torch.from_numpy(many).permute(0, 3, 1, 2).float())
    _, x = read_samples([arrays(tmp_path / "d.npz", x=[[1, 2, 3]])], ROWS)
    assert (x.dtype, x.tolist()) == (torch.float32, [[1, 2, 3]])


def test_texts_become_ids_of_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Good, good FILM! unseen words")
    _, x = read_samples([tmp_path / "a.txt", arrays(tmp_path / "b.npz", x=np.array([[3, 2, 0, 0]]))], TEXT)
    assert (x.dtype, x.tolist()) == (torch.int64, [[2, 2, 3, 1], [3, 2, 0, 0]])


PEOPLE = "age,sex,ward,ill\n" + "".join(f"{20 + n},{'fm'[n % 2]},{n % 3},{n // 5 % 2}\n" for n in range(20))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rows_of_a_table_are_encoded_as_the_runs_were(tmp_path: Path, kind: str) -> None:
    (tmp_path / "people.csv").write_text(PEOPLE)
    made = SOURCES.get("csv")(path=tmp_path / "people.csv", label="ill", categorical=("ward",), test_share=0.2)
    learned = made.load().train
    expected = Input(**describe_input(learned))
    assert expected.features == ("age", "sex=f", "sex=m", "ward=0", "ward=1", "ward=2")
    new = tmp_path / f"new.{kind}"
    columns = {"sex": ["m", "x"], "note": ["-", "-"], "ward": [2, 0], "age": [31, 40.5]}  # other order, no label
    if kind == "parquet":
        parquet.write_table(pa.table(columns), new)
    else:
        csv.write_csv(pa.table(columns), new)
    names, x = read_samples([new], expected)
    assert names == [f"new.{kind}:1", f"new.{kind}:2"]
    assert (x.dtype, x.tolist()) == (torch.float32, [[31, 0, 1, 0, 0, 1], [40.5, 0, 0, 1, 0, 0]])
    _, again = read_samples([tmp_path / "people.csv"], expected)
    assert {tuple(row) for row in learned.x.tolist()} <= {tuple(row) for row in again.tolist()}


def test_rows_beyond_those_of_the_training_are_counted(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(PEOPLE)
    learned = SOURCES.get("csv")(path=tmp_path / "people.csv", label="ill", categorical=("ward",)).load().train
    expected = Input(**describe_input(learned))
    assert expected.ranges[0] == (20.0, 38.0)  # the row with 39 is a test row
    notes: list[SampleNote] = []
    new = table(tmp_path / "new.csv", "age,sex,ward\n300,f,0\n-1,q,1\n30,m,7\n20,f,0\n38,m,1\n")
    read_samples([new, new], expected, notes.append)
    assert [(note.kind, note.count) for note in notes] == [
        ("unknown_words", 2),
        ("unknown_words", 2),
        ("outside_training", 4),
    ]
    says = "values beyond those of the training rows in 4 of 10 rows: 'age' (4, trained on 20 to 38)"
    assert notes[-1].text == says
    notes.clear()
    read_samples([new], but(expected, ranges=()), notes.append)  # of an earlier version, or of nodes
    assert [note.kind for note in notes] == ["unknown_words"]


def test_ranges_do_not_state_the_value_of_one_person() -> None:
    x = np.array([[17.3, 0.00123, -5.0, 1.0]] * 30 + [[93.8, 0.00987, 1204.0, 1.0]] * 30, np.float32)
    data = replace(from_arrays(x, np.arange(60) % 2).train, features=("age", "dose", "change", "same"))
    ranges = describe_input(data)["ranges"]
    assert ranges[0] == (17.0, 94.0)
    assert ranges[1] == pytest.approx((0.0012, 0.0099))
    assert ranges[2] == (-100.0, 1300.0)
    assert ranges[3] == (1.0, 1.0)
    assert describe_input(data, np.flatnonzero(data.x[:, 0].numpy() < 50))["ranges"][0][1] < 50
    assert describe_input(from_arrays(x, np.arange(60) % 2).train)["ranges"] == []


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def bomb(path: Path) -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (3, 4)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    return path


@pytest.mark.parametrize(
    ("made", "expected", "says"),
    [
        (lambda p: p / "none.png", GREY, "no such file"),
        (lambda p: p / "none.npz", GREY, "no such file"),
        (lambda p: p, GREY, "no such file"),
        (lambda p: picture(p / "a.png", np.zeros((4, 4))), ROWS, r"samples are float32 of shape \(3,\); give an .npz"),
        (lambda p: picture(p / "a.txt.png", np.zeros((4, 4))).rename(p / "a.md"), GREY, "give a picture or an .npz"),
        (lambda p: (p / "a.png", (p / "a.png").write_bytes(b"no"))[0], GREY, "cannot be decoded"),
        (lambda p: (p / "a.png", (p / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n"))[0], GREY, "unknown format"),
        (lambda p: (p / "a.png", os.mkfifo(p / "a.png"))[0], GREY, "is a pipe or a device"),
        (lambda p: (p / "a.npz", os.mkfifo(p / "a.npz"))[0], GREY, "is a pipe or a device"),
        (lambda p: picture(p / "a.png", np.zeros((4, 4))), but(GREY, white=None), "give an .npz"),
        (lambda p: picture(p / "a.png", np.zeros((4, 4))), but(GREY, shape=(1, 4, 5)), "give an .npz"),
        (lambda p: arrays(p / "a.npz", a=[1], b=[2]), GREY, "holds a, b; name the samples x"),
        (lambda p: arrays(p / "a.npz", x=np.zeros((2, 5, 4), np.uint8)), GREY, r"\(1, 5, 4\); the model takes"),
        (lambda p: arrays(p / "a.npz", x=np.zeros((2, 4, 4))), GREY, "dtype float64; the run's samples are uint8"),
        (lambda p: arrays(p / "a.npz", x=[[np.nan, 1, 2]]), ROWS, "NaN"),
        (lambda p: arrays(p / "a.npz", x=np.zeros((0, 3))), ROWS, "no samples"),
        (lambda p: arrays(p / "a.npz", x=1.0), ROWS, "a.npz"),
        (lambda p: arrays(p / "a.npz", x=np.array([{}])), ROWS, "cannot be read"),
        (lambda p: (p / "a.npz", (p / "a.npz").write_bytes(b"PK"))[0], ROWS, "cannot be read"),
        (lambda p: bomb(p / "a.npz"), ROWS, "cannot be read"),
        (lambda p: table(p / "a.csv", "x\n1\n"), ROWS, "give an .npz"),
        (lambda p: table(p / "a.csv", "x\n1\n"), AGES, "no column for 'age', from which the model learned: x"),
        (lambda p: table(p / "a.csv", "age\nold\n"), but(AGES, shape=(1,)), "words in one"),
        (lambda p: table(p / "a.csv", "age\n1\n\"\"\n"), but(AGES, shape=(1,)), "lacks 1 values, the first in row 2"),
        (lambda p: table(p / "a.md", "age\n1\n"), AGES, "give a .csv, .parquet or .npz"),
        (lambda p: arrays(p / "a.npz", x=[[1, 2, 3, 4]]), TEXT, "token id 4; the run has ids 0 to 3"),
        (lambda p: (p / "a.txt", (p / "a.txt").write_bytes(b"\xff"))[0], TEXT, "not UTF-8"),
        (lambda p: (p / "a.txt", (p / "a.txt").write_text("a"))[0], but(TEXT, words=()), "npz of ids"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, made: Any, expected: Input, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read_samples([made(tmp_path)], expected)
    assert "\n" not in str(caught.value)


def test_what_a_run_says_of_its_input(tmp_path: Path) -> None:
    digits = describe_input(SOURCES.get("digits")().load().train)
    assert (digits["shape"], digits["dtype"], digits["white"], digits["ids"]) == ([1, 8, 8], "uint8", 16, None)
    (tmp_path / "train.tsv").write_text("1\tgood good film\n0\tbad film\n")
    (tmp_path / "test.tsv").write_text("0\tbad unseen\n")
    for _ in range(2):  # parsed, and out of the cache
        text = describe_input(SOURCES.get("tsv")(path=tmp_path, length=4).load().train)
        assert (text["dtype"], text["ids"], text["words"]) == ("int64", 5, ["film", "good", "bad"])
    labels = np.arange(10) % 2
    real = describe_input(from_arrays(np.tile([0.0, 0.5], (10, 4, 2)), labels).train)
    assert (real["dtype"], real["white"]) == ("float32", 0.5)
    assert describe_input(from_arrays(np.linspace(-1, 1, 160).reshape(10, 4, 4), labels).train)["white"] is None
    bright = np.full((10, 4, 4), 200, np.uint8)
    assert describe_input(from_arrays(bright, labels).train)["white"] == 255
    ids = describe_input(from_arrays(np.full((10, 3), 7), labels, tokens=True).train)
    assert (ids["ids"], ids["words"]) == (8, [])


def test_words_that_the_run_did_not_know_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("unseen words")
    (tmp_path / "b.txt").write_text("...")
    (tmp_path / "c.txt").write_text("good film")
    notes: list[SampleNote] = []
    read_samples([tmp_path / name for name in ("a.txt", "b.txt", "c.txt")], TEXT, notes.append)
    assert [note.text.removeprefix(str(tmp_path)) for note in notes] == [
        "/a.txt: 100 % of 2 tokens are not in the training texts' vocabulary; all tokens of 1 of 1 texts are unknown",
        "/b.txt: 1 of 1 texts hold no token",
    ]


def test_texts_of_a_run_by_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ba b")
    _, x = read_samples([tmp_path / "a.txt"], but(TEXT, words=("a", "b")))
    assert x.tolist() == [[3, 2, 3, 0]]


def test_a_table_is_read_as_the_runs_own_was(tmp_path: Path) -> None:
    rows = "".join(f"{row % 7},5;{'fm'[row // 2 % 2]};{row % 2}\n" for row in range(20))
    (tmp_path / "set.csv").write_text(f"age;sex;ill\n{rows}")
    scenario = fl.scenario("csv", path=str(tmp_path / "set.csv"), label="ill", separator=";", decimal=",", clients=2)
    result = fl.run(scenario=scenario, rounds=1, out=tmp_path / "run")
    expected = read(tmp_path / "run").metadata.input
    assert expected.reading == {"separator": ";", "decimal": ","}
    (tmp_path / "new.csv").write_text("sex;age\nf;1,5\n")
    _, x = read_samples([tmp_path / "new.csv"], expected)
    assert x.tolist() == [[1.5, 1.0, 0.0]]
    assert result.model()(x).shape == (1, 2)


def test_rows_that_lack_a_value_are_left_out_as_in_the_run(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(PEOPLE)
    made = SOURCES.get("csv")(path=tmp_path / "people.csv", label="ill", incomplete="drop")
    expected = Input(**describe_input(made.load().train), reading=made.reading_keys())
    new = table(tmp_path / "new.csv", "age,sex,ward\n30,f,0\n,m,1\n31,m,2\n")
    notes: list[SampleNote] = []
    names, x = read_samples([new], expected, notes.append)
    assert (names, len(x)) == (["new.csv:1", "new.csv:3"], 2)
    (note,) = notes
    says = f"{new}: 1 of 3 rows lack a value and were left out, as in the run (incomplete: drop)"
    assert (note.kind, note.count, note.text) == ("incomplete", 1, says)
    with pytest.raises(DataError, match="lacks 1 values, the first in row 2; fill them in, or take these rows out"):
        read_samples([new], but(expected, reading={}))
