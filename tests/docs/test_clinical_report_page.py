"""The commands of the page on clinical reports, as a reader types them, on a table such as the page describes."""

import shlex
from pathlib import Path

import numpy as np

from command_line import call
from typed_commands import block_of, commands_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "clinical-report.md"


def test_the_report_is_written_and_takes_the_answers_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng, lines = np.random.default_rng(0), ["patient,hospital,age,chol,outcome"]
    for visit in range(360):
        patient = visit // 3
        chol = "" if rng.random() < 0.1 else f"{rng.normal(200 + 20 * (patient % 2), 30):.0f}"
        lines.append(
            f"p{patient},{'NESW'[patient % 4]},{rng.normal(60, 9):.0f},{chol},{('well', 'ill')[patient // 4 % 2]}"
        )
    Path("visits.csv").write_text("\n".join(lines) + "\n")
    Path("clinic.yaml").write_text(block_of(PAGE, "source: csv").replace("draws: 200", "draws: 100"))
    commands = [command.text for command in commands_of(PAGE) if command.section == "Write the report"]
    commands = [text for text in commands if text.startswith("fedloom ")]
    assert [text.split()[1] for text in commands] == ["run", "evaluate", "report"]
    for text in (*commands, commands[-1]):
        code, out, err = call(capsys, *shlex.split(text)[1:])
        assert code == 0, f"{text}: {err}"
        if (folder := Path("runs/clinic")) and "report" in text:
            (folder / "report.yaml").write_text(block_of(PAGE, "eligibility: Adults"))
    assert "to be written: runs/clinic/clinical.html" in out
    assert "It had no part in the study." in (folder / "clinical.md").read_text()
