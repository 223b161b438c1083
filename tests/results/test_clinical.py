"""Clinical reports: every item in its order, what the run knows, and the answers of people."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from command_line import call
from fedloom.results.clinical import write_clinical
from toy_results import MakeResult

TRIPOD = re.findall(
    r"\S+",
    "1 2 3a 3b 3c 4 5a 5b 6a 6b 6c 7 8a 8b 8c 9a 9b 9c 10 11 12a 12b 12c 12d 12e 12f 12g 13 14 15 16 17 "
    "18a 18b 18c 18d 18e 18f 19 20a 20b 20c 21 22 23a 23b 24 25 26 27a 27b 27c",
)
IN_TWO = {10, 12, 13, 21}  # items of STARD 2015 that have the parts a and b
STARD = {str(k) for k in range(1, 31) if k not in IN_TWO} | {f"{k}{part}" for k in IN_TWO for part in "ab"}
CONFIG = {
    "method": "fedavg",
    "model": "logistic",
    "rounds": 1,
    "scenario": {
        "source": "csv",
        "path": "visits.csv",
        "label": "state",
        "owner": "ward",
        "group": "person",
        "incomplete": "impute",
        "partition": "natural",
        "val": 0.25,
        "held_out": {"share": 0.25},
    },
    "evaluation": {
        "protocol": "global/global",
        "metrics": ["auroc"],
        "decision": {"class": "<b>ill", "rule": {"specificity": 0.8}},
        "intervals": {"draws": 100},
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on 80 persons of four wards with three visits each; six visits have no label."""
    folder, rng = tmp_path_factory.mktemp("clinical"), np.random.default_rng(0)
    lines = ["person,ward,age,sex,chol,state"]
    for visit in range(240):
        person = visit // 3
        age, state = rng.normal(50 + 8 * (person % 2), 5), ("well", "<b>ill")[person % 2] if visit % 40 else ""
        chol = "" if visit % 5 == 0 else 200 + visit % 7
        lines.append(f"p{person},{'ABCD'[person // 2 % 4]},{age:.1f},{'fm'[visit % 2]},{chol},{state}")
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    CONFIG["scenario"]["path"] = str(folder / "visits.csv")
    (folder / "run.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder


@pytest.fixture(scope="module")
def finished(run: Path) -> Path:
    import fedloom as fl

    result = fl.run("fedavg", out=run / "run", **{k: v for k, v in CONFIG.items() if k != "method"})
    result.evaluate(by="sex")
    return run / "run"


def test_items_stand_in_the_order_of_tripod(finished, capsys):
    code, out, err = call(capsys, "report", str(finished), "--clinical", "--json")
    assert code == 0, err
    ((page, counts),) = json.loads(out)["reports"].items()
    assert sum(counts.values()) == len(TRIPOD) + 4  # and those of CONSORT-AI and the FDA
    text = Path(page).with_suffix(".md").read_text()
    headings = [line.removeprefix("### ").replace("\\", "") for line in text.splitlines() if line.startswith("### ")]
    assert [heading.split()[0] for heading in headings[: len(TRIPOD)]] == TRIPOD
    stard = {
        number for heading in headings if "[" in heading for number in heading.split("[")[1].split("]")[0].split(", ")
    }
    assert stard == STARD


def test_what_the_run_knows_is_filled(finished, capsys):
    call(capsys, "report", str(finished), "--clinical")
    text = (finished / "clinical.md").read_text()
    for words in (
        "| read | 240 | 80 |",
        "| labelled | 234 | 80 |",
        "| complete | 234 | 80 |",
        "| A | 60 / 20 |",  # 20 of 80 persons, with three visits each
        "Tested clients that never trained: 1.",
        "The rule is specificity 0.8, on validation samples",
        "| chol | mean | ",
        "Subgroups tested, see item 23a: sex=f and sex=m.",
        "| threshold % | model % | all % |",
        "| global/global | auroc | ",
    ):
        assert words in text, words
    assert "Unknown" not in text


def test_answers_survive_and_html_is_escaped(finished, capsys):
    answers = finished / "report.yaml"
    answers.unlink(missing_ok=True)
    call(capsys, "report", str(finished), "--clinical")
    asked = yaml.safe_load(answers.read_text())
    assert {"funding", "eligibility", "change_plan"} <= asked.keys()
    assert set(asked.values()) == {None}
    answers.write_text(answers.read_text().replace("funding:\n", "funding: |\n  <script>1</script>\n  None *else*.\n"))
    before = answers.read_bytes()
    _, out, _ = call(capsys, "report", str(finished), "--clinical", "--json")
    assert answers.read_bytes() == before
    (counts,) = json.loads(out)["reports"].values()
    assert counts["to be written"] == 28
    page, text = ((finished / f"clinical.{end}").read_text() for end in ("html", "md"))
    assert "<p>&lt;script&gt;1&lt;/script&gt;</p>" in page
    assert "<b>ill" not in page
    assert "\\<script\\>1\\</script\\>\n\nNone \\*else\\*." in text
    assert "### 18a Funding \\[30\\] (filled)" in text


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("fundin: me\n", "unknown key 'fundin': did you mean 'funding'?"),
        ("funding: [a]\n", "funding = ['a']: need a text"),
        ("- a\n", "['a'] answers no question"),
        ("funding: 'a\n", "not readable as YAML"),
        ("a: 1\na: 2\n", "the key 'a' comes twice"),
    ],
)
def test_answers_that_cannot_be_used_are_one_line(finished, capsys, tmp_path, answers, words):
    (finished / "report.yaml").write_text(answers)
    code, out, err = call(capsys, "report", str(finished), "--clinical", "--out", str(tmp_path / "page.html"))
    (finished / "report.yaml").unlink()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_questions_that_an_older_file_lacks_are_appended(finished, capsys, end):
    answers = finished / "report.yaml"
    before = f"# My notes.\r\nfunding: |+\n  None.\n  # no comment{end}".encode()
    answers.write_bytes(before)
    call(capsys, "report", str(finished), "--clinical")
    after = answers.read_bytes()
    assert after.startswith(before)
    asked = yaml.safe_load(after)
    assert asked.pop("funding").strip() == "None.\n# no comment"
    assert "eligibility" in asked
    assert {*asked.values()} == {None}
    call(capsys, "report", str(finished), "--clinical")
    assert answers.read_bytes() == after
    answers.write_text("{funding: none}\n")
    code, _, err = call(capsys, "report", str(finished), "--clinical")
    answers.unlink()
    assert (code, err.count("\n")) == (2, 1)
    assert "further questions fit only below lines `key: text` without braces" in err


def test_counts_of_nodes_are_unknown(make_result: MakeResult, tmp_path):
    world = {"name": "nodes", "clients": 3, "classes": ["a", "b"]}
    result = make_result(world=world, config={"scenario": {"source": "nodes"}}, metrics={"auroc": None})
    counts = write_clinical(result, tmp_path, tmp_path / "page.html")
    text = (tmp_path / "page.md").read_text()
    assert "### 20a Flow of participants \\[19\\] (partly)\n\nUnknown: this run recorded no counts." in text
    assert "Not validated outside these data." in text
    assert counts["to be written"] > 20


def test_one_page_for_one_run(finished, capsys, tmp_path):
    (tmp_path / "page.md").write_text("my own text")
    for words, why in (("page.html", "is not a report of fedloom"), ("page.txt", "a report is an .html page")):
        code, _, err = call(capsys, "report", str(finished), "--clinical", "--out", str(tmp_path / words))
        assert (code, why in err) == (2, True)
    assert (tmp_path / "page.md").read_text() == "my own text"
