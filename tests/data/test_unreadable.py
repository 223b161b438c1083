"""Unreadable samples are an error, or left out, counted and named: up to `max_bad_samples`."""

import io

import numpy as np
import pytest
from PIL import Image

from fedloom.core.errors import DataError
from fedloom.data import SOURCES

RNG = np.random.default_rng(0)


def picture(kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(stream, kind)
    return stream.getvalue()


DAMAGED = {
    "empty.png": b"",
    "text.png": b"no picture",
    "short.jpg": picture("JPEG")[:500],
    "short.png": picture()[:900],
}


@pytest.fixture
def photos(tmp_path):
    """24 pictures of two classes; the third, fourth, ... of class b are damaged."""
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(12):
            (tmp_path / name / f"{number}.png").write_bytes(picture())
    for name, raw in DAMAGED.items():
        (tmp_path / "b" / name).write_bytes(raw)
    return tmp_path


def test_damaged_pictures_are_left_out_and_named(photos):
    splits = SOURCES.get("image-folder")(path=photos, size=8, max_bad_samples=4).load()
    assert (len(splits.train) + len(splits.test), splits.unreadable) == (24, 4)
    (note,) = [note for note in splits.notes if "left out (max_bad_samples: 4)" in note]
    assert all(str(photos / "b" / name) in note for name in DAMAGED)
    again = SOURCES.get("image-folder")(path=photos, size=8, max_bad_samples=4).load()  # from the cache
    assert (again.unreadable, again.notes) == (4, splits.notes)


def test_one_damaged_picture_too_many_is_an_error(photos):
    for most, says in ((0, "4 of 28 pictures cannot be decoded, "), (3, r".*\(max_bad_samples: 3\): copy them again")):
        with pytest.raises(DataError, match=says):
            SOURCES.get("image-folder")(path=photos, size=8, max_bad_samples=most).load()


def test_groups_and_labels_follow_their_pictures(photos):
    """Every picture of class b is white, and a group of its own."""
    for number in range(12):
        stream = io.BytesIO()
        Image.new("RGB", (8, 8), "white").save(stream, "PNG")
        (photos / "b" / f"{number}.png").write_bytes(stream.getvalue())
    keys = {"path": photos, "size": 8, "max_bad_samples": 4, "group": {"pattern": r"(\w+)\."}}
    splits = SOURCES.get("image-folder")(**keys).load()
    for part in (splits.train, splits.test):
        assert ((part.x == 255).flatten(1).all(1) == (part.y == 1)).all()
        assert len(part.group) == len(part.y)


def test_pictures_that_a_table_lists(photos):
    names = [f"{name}/{file.name}" for name in "ab" for file in sorted((photos / name).iterdir())]
    rows = [f"{name},{name[0]},{'val' if n % 3 else 'train'},{n % 2}" for n, name in enumerate(names)]
    rows = [row.replace(",val,", ",test,") if n % 2 else row for n, row in enumerate(rows)]
    (photos / "list.csv").write_text("\n".join(["file,label,part,centre", *rows]))
    keys = {"path": photos / "list.csv", "label": "label", "part": "part", "owner": "centre", "size": 8}
    splits = SOURCES.get("file-table")(**keys, max_bad_samples=4).load()
    assert (len(splits.train) + len(splits.test), splits.unreadable) == (24, 4)
    assert splits.validation == sum(",val," in row and row.split(",")[0][2:] not in DAMAGED for row in rows)
    with pytest.raises(DataError, match="4 of 28 pictures cannot be decoded"):
        SOURCES.get("file-table")(**keys).load()


@pytest.mark.parametrize("keys", [{}, {"incomplete": "impute"}, {"incomplete": "drop"}])
def test_rows_with_a_word_among_numbers_are_left_out(tmp_path, keys):
    cells = [f"{20 + row},{row},{'yes' if row % 2 else 'no'}" for row in range(40)]
    cells[4], cells[9] = "old,4,no", "29,9 or 10,yes"
    (tmp_path / "rows.csv").write_text("\n".join(["age,score,ill", *cells]))
    keys = {"path": tmp_path / "rows.csv", "label": "ill", **keys}
    splits = SOURCES.get("csv")(**keys, max_bad_samples=2).load()
    assert (len(splits.train) + len(splits.test), splits.unreadable) == (38, 2)
    ages = np.sort(np.concatenate([part.x[:, 0].numpy() for part in (splits.train, splits.test)]))
    assert ages.tolist() == [20 + row for row in range(40) if row not in (4, 9)]
    assert any(note.endswith("were left out (max_bad_samples: 2): 5, 10") for note in splits.notes)
    with pytest.raises(DataError, match=r"2 rows hold a word among numbers \(max_bad_samples: 1\)"):
        SOURCES.get("csv")(**keys, max_bad_samples=1).load()
    with pytest.raises(
        DataError, match="column 'age' holds numbers except in 1 of 40 cells, the first in row 5: 'old'"
    ):
        SOURCES.get("csv")(**keys).load()
