"""New rows of a table are read as the run's own were, or refused in a line that can be followed."""

import os
import re

import pytest

from fedloom.core.errors import DataError
from fedloom.data.sources.tables import LabelColumn, table_rows


def test_new_rows_are_written_as_the_runs_own(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("age;sex\n1.000,5;f\n-;m\n")
    reading = {"separator": ";", "decimal": ",", "thousands": ".", "missing": ("-",)}
    with pytest.raises(DataError, match="column 'age' lacks 1 values, the first in row 2"):
        table_rows(path, ["age", "sex=f", "sex=m"], reading)
    path.write_text("age;sex\n1.000,5;f\n2;x\n")
    new = table_rows(path, ["age", "sex=f", "sex=m"], reading)
    assert new.unknown_words == 1
    assert new.x.tolist() == [[1000.5, 1, 0], [2, 0, 0]]
    assert [note.partition(": ")[2] for note in new.notes] == [
        "words that no training row holds are 0 in all features of their column; rows of 2 with such words: 'sex' (1)"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,sex\n1,F\n", "column 'sex' holds 'F' in 1 rows, known as 'f'; write it so"),
        ("age,sex\n" + "1,w\n" * 20, "column 'sex' holds unknown words in 20 of 20 rows"),
        ("age,sex\n1,f\n2,f\n?,m\n", r"column 'age' lacks 1 values, the first in row 3 \(1 of 3 cells, such as '\?'"),
        ("age,sex\n1,f\n2,f\n1-2,m\n", r"column 'age' holds numbers except in 1 of 3 cells, the first in row 3: '1-2'"),
        ("age,sex\n1,f\n,f\n", "column 'age' lacks 1 values, the first in row 2"),
        ("age;sex\n1;f\n", "cells look separated by ';'; need ',' between them, as in the run's own files"),
        ("age,sex\n" + "2020-01-01,f\n" * 3, r"'age' holds date32\[day\]; write it as the run's own files are"),
        ("age,sex\n" + '"1,5",f\n' * 3, r"first in row 1: '1,5'; write it as the run's own files are"),
    ],
)
def test_new_rows_that_are_written_otherwise_are_one_line(tmp_path, text, message):
    path = tmp_path / "new.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        table_rows(path, ["age", "sex=f", "sex=m"])
    assert not re.search("say `|drop|categorical", str(caught.value))  # no key can be given for new rows


def test_new_rows_that_lack_a_value(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("age,sex,ill\n1,f,a\n,m,a\n2,,b\n3,m,\n4,m,b\n")
    with pytest.raises(DataError, match="first in row 2; fill them in, or take these rows out of the file"):
        table_rows(path, ["age", "sex=f", "sex=m"])
    new = table_rows(path, ["age", "sex=f", "sex=m"], {"incomplete": "drop"})
    assert (new.x.tolist(), new.rows.tolist(), new.left_out) == ([[1, 1, 0], [3, 0, 1], [4, 0, 1]], [0, 3, 4], 2)
    new = table_rows(path, ["age", "sex=f", "sex=m"], {"incomplete": "drop"}, LabelColumn("ill", ("a", "b")))
    assert (new.rows.tolist(), new.labels.tolist(), new.left_out) == ([0, 4], ["a", "b"], 3)
    path.write_text("age,sex\n,f\n")
    with pytest.raises(DataError, match="every row lacks a value"):
        table_rows(path, ["age", "sex=f", "sex=m"], {"incomplete": "drop"})


def test_a_pipe_of_new_rows_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "new.csv")
    with pytest.raises(DataError, match="is a pipe or a device"):
        table_rows(tmp_path / "new.csv", ["age"])
