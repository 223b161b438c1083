"""The results page shows what was measured."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import departures
import hundred_rounds
import results
import settings_side_by_side
import sound
from fedloom.methods import METHODS
from fedloom.runs.studies.plan import read_study
from marked_tables import with_tables

ROOT = Path(__file__).parents[2]


def test_the_tables_of_all_pages_are_those_of_the_studies():
    for page, tables in results.tables().items():
        text = page.read_text(encoding="utf-8")
        assert tables
        assert with_tables(text, tables) == text


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


def test_a_hundred_rounds_say_when_a_loss_was_lost():
    case = {"method": "fedskc", "preset": "paper", "options": {"tau": 0.01}, "alpha": 0.2, "finite": 4, "seeds": 5}
    lost = case | {"first_not_finite": [None, 5, None, None, None], "accuracy": [0.581, 0.441]}
    rows = hundred_rounds.table([lost]).splitlines()
    assert rows[2] == "| FedSKC | 0.2 | paper | tau=0.01 | 4 of 5 (round 5) | 58.1 ± 44.1 |"


def test_fedco2_is_not_scored_where_it_has_no_batch_norm():
    assert {one.settings for one in sound.candidates("fedco2")} == {("fashion-0.1", "fashion-0.5", "cifar10-0.3")}
    assert {one.settings for one in sound.candidates("fedsc")} == {sound.CHOOSE}


def test_preset_sound_is_what_the_rule_chose():
    cells = json.loads((ROOT / "benchmarks" / "results" / "studies" / "sound.json").read_text())["cells"]
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


def test_methods_are_compared_with_the_plain_one_of_their_protocol():
    def cell(protocol, *accuracies, warnings=()):
        return {"protocol": protocol, "seeds": [0, 1, 2], "accuracies": list(accuracies), "warnings": warnings}

    cells = {
        "mild/fedavg": cell("global/global", 0.5, 0.5, 0.5),
        "mild/fedsc": cell("global/global", 0.6, 0.601, 0.602),
        "mild/moon": cell("global/global", 0.52, 0.517, 0.526),
        "mild/feddw": cell("global/global", 0.52, 0.517, 0.526),
        "mild/fednh": cell("global/global", 0.52, 0.517, 0.526),
        "mild/fedlc": cell("global/global", 0.52, 0.517, 0.526),
        "mild/copa": cell("global/global", 0.1, 0.7, 0.7, warnings=["diverged: in round 2 the losses of 1 of 8 ..."]),
        "mild/ditto": cell("personal/local", 0.9, 0.9, 0.9),  # local training was not run
        "strong/fedavg": cell("global/global", 0.1, 0.1, 0.1),
    }
    words = results.differences(cells, "mild")
    assert words["mild/fedsc"] == "+10.1, ahead"
    assert words["mild/moon"] == "+2.1, no difference seen *"
    assert words["mild/copa"] == "diverged"  # and does not enter the correction of the others
    assert set(words) == {f"mild/{name}" for name in ("fedsc", "moon", "feddw", "fednh", "fedlc", "copa")}
    assert "mild/copa" not in results.seeds_higher(cells, "mild")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="pdflatex is not installed")
def test_a_table_and_a_figure_of_the_page_compile_in_a_paper(tmp_path: Path) -> None:
    studies = results.studies_by_name()
    settings_side_by_side.draw(studies, tmp_path / "figure.pdf")
    (tmp_path / "table.tex").write_text(settings_side_by_side.table_of(studies).latex(), encoding="utf-8")
    (tmp_path / "paper.tex").write_text(PAPER, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for _ in range(2):  # the second time knows the references
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    log = ended.stdout.decode(errors="replace")
    assert ended.returncode == 0, log[-2000:]
    assert "Overfull" not in log
    assert "undefined" not in log


PAPER = r"""
\documentclass[10pt]{article}
\usepackage[textwidth=6.9in,textheight=9.5in]{geometry}
\usepackage{booktabs,graphicx}
\begin{document}
Table~\ref{tab:three-settings} and Figure~\ref{fig:dots}.
\input{table.tex}
\begin{figure}\noindent\includegraphics{figure.pdf}\caption{Dots.}\label{fig:dots}\end{figure}
\end{document}
"""
