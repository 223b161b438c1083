"""The preset `sound` is what its rule chose, and every departure of released code was measured."""

from benchmarks.cells import read_cells
from benchmarks.tables import departures, sound
from fedloom.methods import METHODS
from fedloom.runs.studies.plan import read_study


def test_sound_is_the_plainest_candidate_within_a_point_of_the_best():
    plain, simple, rich = (sound.Candidate(name, options, ("a", "b")) for name, options in OPTIONS.items())

    def cells(*scores):
        labels = [one.label for one in (plain, simple, rich)]
        return {
            f"{at}/{label}": {"validations": [score - off, score + off], "warnings": []}
            for label, score in zip(labels, scores, strict=True)
            for at, off in (("a", 0.1), ("b", 0.2))
        }

    among = [plain, simple, rich]
    assert sound.chosen(among, cells(0.5, 0.7, 0.9)) == rich
    assert sound.chosen(among, cells(0.5, 0.895, 0.9)) == simple
    assert sound.chosen(among, cells(0.891, 0.895, 0.9)) == plain
    assert sound.chosen(among, cells(0.89 - 1e-9, 0.895, 0.9)) == simple
    missing = cells(0.5, 0.7, 0.9)
    del missing["b/plain"]
    assert sound.chosen(among, missing) is None  # no choice before every rival has a score


OPTIONS = {"plain": {}, "simple": {"x": 1}, "rich": {"x": 1, "y": 2}}


def test_what_was_chosen_is_shown_beside_the_plain_method():
    cells = {
        f"{at}/{one.label}": {"validations": [0.5, 0.7], "accuracies": [0.4, 0.6], "warnings": []}
        for at in sound.CHOOSE
        for one in sound.candidates("fedssa")
    }
    cells |= {
        f"{at}/local": {"validations": [0.6, 0.6], "accuracies": [0.9, 0.9], "warnings": []} for at in sound.CHOOSE
    }
    cells["domains/fedssa-paper"] = {"accuracies": [0.4, 0.6], "warnings": []}
    cells["domains/local"] = {"accuracies": [0.45, 0.5], "warnings": []}
    tables = sound.sound_tables(cells)
    assert tables["sound-chosen"].splitlines()[2:] == [
        "| FedSSA | nothing | 60.0 | 60.0 | Local, own models: 60.0 | in 4 of 8 runs |"
    ]
    assert tables["sound-unseen"].splitlines()[2:] == [
        "| FedSSA | Local, own models | – | – | – | +2.5, higher on 1 of 2 |"
    ]


def test_fedco2_is_not_scored_where_it_has_no_batch_norm():
    assert {one.settings for one in sound.candidates("fedco2")} == {("fashion-0.1", "fashion-0.5", "cifar10-0.3")}
    assert {one.settings for one in sound.candidates("fedsc")} == {sound.CHOOSE}


def test_preset_sound_is_what_the_rule_chose():
    cells = read_cells("sound")
    for name in sound.FIVE:
        assert sound.chosen(sound.candidates(name), cells).options == METHODS.get(name).presets["sound"], name


def test_every_departure_of_released_code_has_a_row_of_its_own():
    there = {}
    for cell in read_study(departures.STUDY).cells:
        there[cell.method] = (cell.config.method, cell.values.get("preset"), cell.values.get(cell.config.method, {}))
    wanted = {"fedavg": ("fedavg", None, {}), "local": ("local", None, {})}
    for name in departures.FIVE:
        for option, (_, released) in departures.departures(name).items():
            wanted[f"{name}-{option.replace('_', '-')}"] = (name, "paper", {option: released})
        presets = {preset for preset, values in METHODS.get(name).presets.items() if values} | {"paper"}
        wanted |= {f"{name}-{preset}": (name, preset, {}) for preset in presets}
    assert {label: (name, preset, list(own)) for label, (name, preset, own) in there.items()} == {
        label: (name, preset, list(own)) for label, (name, preset, own) in wanted.items()
    }
    for label, (_, _, own) in wanted.items():
        for option, released in own.items():
            given = there[label][2][option]
            assert (tuple(given) if isinstance(given, list) else given) == released


def test_a_departure_is_compared_with_the_paper_seed_by_seed():
    cells = {
        "/feddw-paper": {"accuracies": [0.5, 0.6], "warnings": []},
        "/feddw-sl-ema": {"accuracies": [0.51, 0.57], "warnings": ["diverged: in round 3 ..."]},
    }
    assert "| FedAvg | – |" in departures.departure_tables(cells)["departures-others"]
    row = next(line for line in departures.departure_tables(cells)["departures-feddw"].splitlines() if "sl_ema" in line)
    assert row.endswith("| 54.0 ± 4.2, diverged | -1.0, higher on 1 of 2 |")
