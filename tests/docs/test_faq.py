"""Answers of the FAQ are short, and each has a link and something to type; the SLURM script requeues a saved job."""

import os
import re
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
ANSWERS = re.split(r"^### (.+)\n", (DOCS / "faq.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
QUESTIONS = dict(zip(ANSWERS[::2], ANSWERS[1::2], strict=True))


def test_there_are_25_questions() -> None:
    assert len(QUESTIONS) == 25


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_short_and_has_a_link_and_something_to_type(question: str) -> None:
    answer = QUESTIONS[question].partition("\n## ")[0]
    prose, *typed = re.split(r"^```.*$", answer, flags=re.MULTILINE)
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", prose)
    assert len([line for line in prose.splitlines() if line.strip()]) <= 5
    assert links
    assert typed
    for page, anchor in links:
        headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize(("code", "requeued"), [(75, True), (0, False), (2, False), (143, False)])
def test_the_slurm_script_requeues_a_job_that_was_saved(tmp_path: Path, code: int, requeued: bool) -> None:
    """`srun` and `scontrol` are stand-ins: the one ends with a code, the other writes its arguments down."""
    page = (DOCS / "how-to" / "clusters.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for name, does in {"srun": f"exit {code}", "scontrol": f'echo "$@" > {tmp_path}/called'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    slurm = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "4"}
    assert subprocess.run(["bash", "-c", script], env=slurm, check=False).returncode == code
    called = tmp_path / "called"
    assert (called.read_text() if called.exists() else "") == ("requeue 7\n" if requeued else "")
