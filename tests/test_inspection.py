"""`fl.inspect`: who holds what, as a table, and as a picture where a notebook shows it."""

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom as fl

X, Y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
SCENARIO = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=4)


@pytest.mark.parametrize(
    "scenario",
    [SCENARIO, SCENARIO.build(0), "digits", (X, Y), fl.scenario([(X, Y)] * 3)],
    ids=["described", "dealt", "name", "arrays", "owners"],
)
def test_it_prints_a_table_of_what_a_run_takes(scenario: Any) -> None:
    inspection = fl.inspect(scenario)
    text = str(inspection)
    assert "who holds what" in text
    assert f"{inspection.facts['clients']} clients hold" in text
    assert max(map(len, text.splitlines())) <= 90


def test_a_notebook_shows_the_table_and_the_picture() -> None:
    markup = fl.inspect(SCENARIO)._repr_html_()
    assert markup.startswith("<pre")
    picture = re.search(r'src="data:image/png;base64,([^"]+)"', markup)
    assert picture is not None
    assert base64.b64decode(picture[1]).startswith(b"\x89PNG")
    assert len(markup) < 100_000


def test_the_seed_deals_and_the_picture_is_saved(tmp_path: Path) -> None:
    assert fl.inspect(SCENARIO, seed=1).facts != fl.inspect(SCENARIO).facts
    assert fl.inspect(SCENARIO).save(tmp_path / "who.svg").read_text().startswith("<?xml")
    with pytest.raises(fl.FedloomError, match="pictures end in one of"):
        fl.inspect(SCENARIO).save(str(tmp_path / "who.txt"))


@pytest.mark.parametrize("seed", [-1, "0", None, True, 0.5])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(fl.FedloomError, match=r"seed = .*: need a whole number, 0 or more"):
        fl.inspect(SCENARIO, seed=seed)


def test_data_that_only_nodes_can_read_are_one_line() -> None:
    with pytest.raises(fl.FedloomError, match="each node reads its own data"):
        fl.inspect(fl.scenario("nodes", clients=2, classes=["a", "b"], features=["x"]))


@pytest.mark.parametrize("scenario", [3, None, "digitz", [], np.zeros(3)], ids=["int", "None", "name", "list", "array"])
def test_what_is_no_scenario_is_one_line(scenario: Any) -> None:
    with pytest.raises(fl.FedloomError) as caught:
        fl.inspect(scenario)
    assert "\n" not in str(caught.value)
