"""The cells that a study file makes and their states in a folder: settings, methods, lists, seeds; and refusals."""

from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import ConfigError
from fedloom.runs.config.kinds import overlaid
from fedloom.runs.config.run_config import parse
from fedloom.runs.studies.plan import parse_study, read_study
from fedloom.runs.studies.study_folder import StudyFolder, read

SHARED: dict[str, Any] = {
    "scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 3},
    "rounds": 1,
}


def names(values: dict[str, Any]) -> list[str]:
    return [cell.name for cell in parse_study(SHARED | values).cells]


def test_settings_methods_and_seeds_make_the_grid() -> None:
    study = parse_study(
        SHARED
        | {
            "settings": {"mild": {"scenario": {"alpha": 1.0}}, "hard": {"scenario": {"alpha": 0.1}, "rounds": 2}},
            "methods": {"fedavg": None, "weak": {"method": "fedprox", "fedprox": {"mu": 0.01}}},
            "seeds": [0, 7],
        }
    )
    assert [cell.name for cell in study.cells] == [
        f"{setting}/{method}/seed{seed}"
        for setting in ("mild", "hard")
        for method in ("fedavg", "weak")
        for seed in (0, 7)
    ]
    weak = study.chosen(["hard/weak/seed7"])[0].config
    assert (weak.method, weak.rounds, weak.build_method().options.mu, weak.seed) == ("fedprox", 2, 0.01, 7)
    assert weak.resolved()["scenario"]["alpha"] == 0.1


def test_listed_values_are_points_of_every_method() -> None:
    found = names(
        {
            "scenario": SHARED["scenario"] | {"alpha": [0.1, 1.0]},
            "methods": ["fedavg", "local"],
            "seeds": 1,
            "evaluation": {"protocol": "personal/local"},
            "preset": "sound",
        }
    )
    assert found == [f"{m}/alpha={a}/seed0" for m in ("fedavg", "local") for a in (0.1, 1.0)]


def test_a_config_with_lists_is_a_study() -> None:
    assert names({"method": ["fedavg", "fedprox"], "seed": [3]}) == ["fedavg/seed3", "fedprox/seed3"]
    assert names({"method": "fedprox", "seed": 5}) == ["fedprox/seed5", "fedprox/seed6", "fedprox/seed7"]


def test_ready_configs_are_settings_and_keys_of_the_file_lie_over_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("scenario: {source: digits, alpha: 0.7}\nrounds: 9\n")
    path = tmp_path / "study.yaml"
    path.write_text("settings: {own: {config: mine.yaml}, demo: {config: demo}}\nmethods: [fedavg]\nrounds: 4\n")
    cells = read_study(path).cells
    assert {(cell.setting, cell.config.rounds) for cell in cells} == {("own", 4), ("demo", 4)}
    assert cells[0].config.resolved()["scenario"]["alpha"] == 0.7
    assert [cell.setting for cell in parse_study({"settings": ["demo"], "methods": ["fedavg"], "seeds": 1}).cells] == [
        "demo"
    ]


def test_cells_of_one_config_share_a_folder() -> None:
    one, two = parse_study(
        SHARED | {"methods": {"a": {"method": "fedavg"}, "b": {"method": "fedavg"}}, "seeds": 1}
    ).cells
    assert one.name != two.name
    assert one.folder == two.folder


def test_the_hash_is_of_everything_but_how_cells_are_executed() -> None:
    plain = parse_study(SHARED | {"methods": ["fedavg"]})
    assert plain.hash == parse_study(SHARED | {"methods": ["fedavg"], "engine": "serial"}).hash
    assert plain.hash != parse_study(SHARED | {"methods": ["fedavg"], "rounds": 2}).hash
    assert plain.hash == parse_study(plain.values).hash  # what is kept in the folder says as much


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"methods": ["fedagv"]}, "did you mean 'fedavg'"),
        ({"methods": ["fedavg", "fedavg"]}, "methods = 'fedavg' stands twice"),
        ({"settings": ["nowhere"]}, "nowhere: no such config file"),
        ({"settings": {"a": {"config": 3}}}, "config = 3: need a YAML file"),
        ({"seeds": 0}, "seeds = 0: need seeds, or how many"),
        ({"seeds": []}, "seeds = []: need seeds"),
        ({"seeds": "three"}, "seeds = 'three': need seeds, or how many"),
        ({"seeds": [0, "x"]}, "seeds = [0, 'x']: need seeds, or how many"),
        ({"seeds": 20240101}, "seeds = 20240101: more than 10,000; this one seed is written seeds: [20240101]"),
        ({"tune": {"optimizer.lr": []}}, "tune.optimizer.lr = []"),
        ({"tune": {"optimizer.lr": [0.1, 0.1]}}, "tune.optimizer.lr = 0.1 stands twice"),
        ({"methods": 3}, "methods = 3"),
        ({"setings": ["demo"]}, "setings"),
        ({"settings": {"a": {"without": [["fedavg"]]}}, "methods": ["fedavg"]}, "without = [['fedavg']]: need a list"),
        ({"without": 3, "methods": ["fedavg"]}, "without = 3: need a list of methods of the study"),
        ({"settings": {}}, "settings = []: no cell is left"),
        ({"settings": []}, "settings = []: no cell is left"),
        ({"settings": {"a": {"without": ["fedavg"]}}, "methods": ["fedavg"]}, "settings = ['a']: no cell is left"),
        ({"trials": {"rounds": 2}}, "trials = {'rounds': 2}: nothing is tuned; give tune, or leave trials out"),
        ({"tune": {"seed": [1, 2]}}, "tune.seed: every cell has its own seed; tune other keys"),
        ({"tune": {"method": ["fedavg", "fedprox"]}}, "tune.method: every cell has its own method"),
        ({"tune": {"preset": {"low": 1, "high": 2}}, "tries": 2}, "tune.preset: every cell has its own preset"),
        (
            {"methods": {"weird": {"method": ["fedavg", "fedprox"]}}},
            "methods.weird.method = ['fedavg', 'fedprox']: a label names one method; give each method a label",
        ),
        (
            {
                "settings": {"a/b": {}, "a": {}},
                "methods": {"c": {"method": "fedavg"}, "b/c": {"method": "fedprox"}},
                "seeds": 1,
            },
            "a/b/c/seed0: two different cells have this name; settings, methods and lists must give each cell another",
        ),
    ],
)
def test_what_no_study_can_be_is_one_line(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_study(SHARED | values)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", ["[]", "{}", ""])
def test_no_methods_in_a_file_are_refused_and_in_the_folder_of_a_study_they_are_the_config_s(
    tmp_path: Path, given: str
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"scenario: {{source: digits}}\nmethods: {given}\n")
    with pytest.raises(ConfigError, match=r"methods = .*: need one; leave methods out for the config's own"):
        read_study(path)
    assert [cell.method for cell in parse_study(parse_study(SHARED).values).cells] == ["fedavg"] * 3


def test_patterns_choose_by_setting_method_or_seed() -> None:
    study = parse_study(
        SHARED | {"settings": {"a": {}, "b": {"rounds": 2}}, "methods": ["fedavg", "fedprox"], "seeds": 2}
    )
    assert len(study.chosen(["a"])) == len(study.chosen(["fedprox"])) == len(study.chosen(["seed1"])) == 4
    assert [cell.name for cell in study.chosen(["b/fedavg/*"])] == ["b/fedavg/seed0", "b/fedavg/seed1"]
    assert len(study.chosen(["a", "seed0"])) == 6
    fits = r"fits no cell of the study \(such as 'a/fedavg/seed0'\): "
    for pattern, hint in {"c*": "known: a, b, fedavg, fedprox$", "a/fedprx/*": "did you mean 'fedprox'"}.items():
        with pytest.raises(ConfigError, match=f"{fits}{hint}"):
            study.chosen([pattern])
    named = parse_study(SHARED | {"methods": {"FedDW [authors]": {"method": "feddw"}, "FedDW a": {"method": "moon"}}})
    assert {cell.method for cell in named.chosen(["FedDW [authors]"])} == {"FedDW [authors]"}


def test_sections_are_joined_key_by_key_and_words_are_names() -> None:
    assert overlaid({"optimizer": "adam", "a": {"b": 1, "c": 2}}, {"optimizer": {"lr": 0.1}, "a": {"c": 3}}) == {
        "optimizer": {"name": "adam", "lr": 0.1},
        "a": {"b": 1, "c": 3},
    }
    assert overlaid({"model": "mlp"}, {"model": {"name": "lenet5"}}) == {"model": {"name": "lenet5"}}


CONFIG = parse({"scenario": {"source": "digits", "partition": "iid", "clients": 2}})


def test_looking_at_a_cell_creates_nothing(tmp_path: Path) -> None:
    study_folder = StudyFolder(tmp_path)
    assert study_folder.state("cell", CONFIG) == "left"
    assert not list(tmp_path.iterdir())


def test_a_study_with_other_names_for_the_same_cells_takes_the_folder_over(tmp_path: Path) -> None:
    study_folder, keys = StudyFolder(tmp_path), {"scenario": {"source": "digits", "partition": "iid", "clients": 2}}
    old = parse_study(keys | {"methods": {"weak": {"method": "fedprox"}}, "seeds": 2})
    new = parse_study(keys | {"methods": {"FedProx": {"method": "fedprox"}}, "seeds": 2})
    for study in (old, new):
        study_folder.claim(study)
        kept = read(tmp_path)
        assert kept is not None
        assert kept.values == study.values
    study_folder.claim(
        parse_study(keys | {"methods": {"weak": {"method": "fedprox"}}, "seeds": 1})
    )  # a part changes nothing
    assert read(tmp_path) == new


def test_a_cell_that_somebody_holds_is_under_way(tmp_path: Path) -> None:
    with StudyFolder(tmp_path).cell_lock("trials/cell"):
        assert StudyFolder(tmp_path).state("trials/cell", CONFIG) == "under way"
    assert StudyFolder(tmp_path).state("trials/cell", CONFIG) == "left"
