"""`fl.read` recognises what a folder is; anything else is one line."""

from pathlib import Path
from typing import Any

import pytest

import fedloom as fl

SCENARIO = fl.scenario("digits", clients=2)
QUICK: dict[str, Any] = {"scenario": SCENARIO, "rounds": 1, "local_epochs": 1, "engine": "serial", "progress": False}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    fl.run("fedavg", out=root / "run", **QUICK)
    fl.compare(["fedavg", "fedprox"], seeds=2, out=root / "compared", **QUICK)
    keys = {key: value for key, value in QUICK.items() if key != "progress"}
    fl.Study({"plain": {"method": "fedavg"}, "near": {"method": "fedprox"}}, seeds=1, out=root / "study", **keys).run(
        progress=False
    )
    return root


def test_the_folder_of_a_run_is_its_result(folders: Path) -> None:
    result = fl.read(str(folders / "run"))
    assert isinstance(result, fl.Result)
    assert result.numbers["method"] == "fedavg"
    assert result.model() is not None


def test_the_folder_of_a_comparison_is_a_comparison_by_both_names(folders: Path) -> None:
    for compared in (fl.read(folders / "compared"), fl.Comparison.read(folders / "compared")):
        assert isinstance(compared, fl.Comparison)
        assert [(row["method"], row["n"]) for row in compared.rows()] == [("fedavg", 2), ("fedprox", 2)]
        assert compared.plot() is not None


def test_the_folder_of_a_study_has_the_rows_of_the_study(folders: Path) -> None:
    studied = fl.read(folders / "study")
    assert isinstance(studied, fl.Comparison)
    assert [row["label"] for row in studied.rows()] == ["plain", "near"]
    with pytest.raises(fl.FedloomError, match=r"the runs of a study; fl.read\('.*study'\) reads them"):
        fl.Comparison.read(folders / "study")


def test_a_folder_above_them_is_read_as_one_comparison(folders: Path) -> None:
    every = fl.read(folders)
    assert isinstance(every, fl.Comparison)
    assert len(every) == 1 + 4 + 2


@pytest.mark.parametrize("read", [fl.read, fl.Comparison.read], ids=["read", "Comparison.read"])
def test_any_other_path_is_one_line(tmp_path: Path, read: Any) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    (tmp_path / "model.safetensors").touch()
    for name in ("empty", "photos", "model.safetensors", "nowhere"):
        with pytest.raises(fl.FedloomError) as caught:
            read(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [fl.read, fl.Comparison.read, fl.Study.read, fl.load])
@pytest.mark.parametrize("path", [None, 3, ["a"], b"a"], ids=repr)
def test_what_is_no_path_is_one_line(path: Any, read: Any) -> None:
    with pytest.raises(fl.FedloomError, match="need a path, as a text or a Path"):
        read(path)


def test_an_unfinished_run_says_how_far_it_is(folders: Path, tmp_path: Path) -> None:
    class Break(fl.Callback):
        def on_round(self, config: Any, round_: int, rows: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fl.run(out=tmp_path / "run", callbacks=[Break()], **(QUICK | {"rounds": 3}))
    with pytest.raises(fl.FedloomError, match=r"unfinished, \d of 3 rounds"):
        fl.read(tmp_path / "run")


def test_runs_that_are_left_out_are_warnings(folders: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fl.compare(["fedavg", "fedprox"], seeds=1, out=tmp_path, **QUICK)
    next(tmp_path.glob("fedprox*/summary.json")).unlink()
    for read in (fl.read, fl.Comparison.read):
        caplog.clear()
        compared = read(tmp_path)
        assert isinstance(compared, fl.Comparison)
        assert len(compared) == 1
        assert "is left out: unfinished, 1 of 1 rounds" in caplog.text
