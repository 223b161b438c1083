"""The page as text: complete, escaped, self-contained, the same each time."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from fedloom.core.errors import ConfigError
from fedloom.results.data_table import DataTable
from fedloom.results.page_sections import PageSection
from fedloom.results.report import write_report

NASTY = "<script>alert('1')</script> & \"$x$\" 漢 ${title}"


class Elements(HTMLParser):
    """Start tags with attributes, and whether every tag is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in {"meta"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture
def page_of(tmp_path):
    def written(results, title=None):
        return write_report(results, tmp_path / "report.html", title).read_text(encoding="utf-8")

    return written


def test_an_epsilon_is_next_to_the_accuracy(page_of, make_result):
    text = page_of([make_result("fedavg+dp", figures={"epsilon": 5.25})])
    assert re.search(r"Accuracy %.{0,60}Epsilon", text, re.DOTALL)


def test_page_is_complete(page_of, two_methods):
    text = page_of(two_methods)
    elements = Elements(text)
    assert elements.open == []
    assert "<h1>fedavg and fedsc on toy</h1>" in text
    assert "+2.0 points (98.0\u00a0±\u00a01.0 against 96.0\u00a0±\u00a01.0)" in text
    for part in ("Results", "Learning curves", "Cost", "Data", "Config", "Environment and runs"):
        assert f">{part}</h2>" in text
    assert "<b>98.0</b>" in text
    assert "± 1.0" in text
    for word in ("global/global", "last", "1.00 kB", "3.00 kB", "4.00 s", "alpha: 0.1", f"{2:064x}"):
        assert word in text
    assert "The partition of seed 0; other seeds deal the data anew." in text
    assert "unbounded: one is empty" in text
    assert "Single clients" not in text


def test_charts_are_named_and_their_ids_unique(page_of, two_methods):
    text = page_of(two_methods)
    elements = Elements(text)
    charts = elements.all("svg")
    assert len(charts) == 2 + 2 + 1
    described = re.findall(r'<title id="([^"]+)">[^<]+</title>\n<desc id="([^"]+)">[^<]{20,}</desc>', text)
    assert [(chart["aria-labelledby"], chart["aria-describedby"]) for chart in charts] == described
    assert all(chart["role"] == "img" and chart["data-name"] for chart in charts)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
    assert {a or b for a, b in used} <= set(ids)
    assert {a["scope"] for a in elements.all("th")} == {"col", "row"}


def test_colours_and_fonts_come_from_the_page(page_of, two_methods):
    charts = "".join(re.findall(r"<svg.*?</svg>", page_of(two_methods), flags=re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}\b", charts)
    assert "DejaVu" not in charts
    assert "var(--c0)" in charts  # FedAvg's grey
    assert "var(--c1)" in charts


def test_nothing_is_loaded_from_elsewhere(page_of, two_methods):
    text = page_of(two_methods)
    assert "http://" not in text
    assert "https://" not in text
    assert not re.findall(r'(?:src|href)="(?!#|data:)', text)
    assert "@import" not in text


def test_tables_can_be_saved_and_are_whole_without_a_script(page_of, make_result):
    text = page_of([make_result("fedsc", best_val=None), make_result("fedavg, mine")])
    links = {a["download"]: unquote(a["href"]).partition(",")[2] for a in Elements(text).all("a")}
    costs = ["costs.csv", "costs.md", "costs.tex"]
    assert list(links) == ["results.csv", "results.md", "results.tex", *costs, "runs.csv"]
    assert [line.split("|")[1].strip() for line in links["results.md"].splitlines()][::2] == ["method", "fedsc"]
    assert r"\begin{tabular}" in links["results.tex"]
    results, runs = ([*csv.DictReader(links[name].splitlines())] for name in ("results.csv", "runs.csv"))
    assert [(row["method"], row["accuracy"], row["best_val"]) for row in results] == [
        ("fedsc", "0.9", ""),
        ("fedavg, mine", "0.9", "0.8"),
    ]
    assert [row["checkpoint_sha256"] for row in runs] == ["0" * 64] * 2
    assert "<button" not in text.partition("<table")[2]  # those of headings are the script's
    assert 'data-value="0.8"' in text


def test_axes_name_what_they_show(page_of, two_methods):
    text = page_of(two_methods)
    assert re.search(r"<text[^>]*>test accuracy</text>", text)


def test_a_method_is_named_once_in_a_note_and_runs_that_stopped_are_told(page_of, make_result):
    stopped = {"round": 2, "reason": "validation accuracy has not risen"}
    result = make_result("fedprox", degenerate=["fedprox: the loss term prox is inactive"], stopped=stopped)
    text = page_of([result])
    assert "fedprox: the loss term prox is inactive" in text
    assert "fedprox: fedprox:" not in text
    assert "fedprox: seed 0 stopped after round 2 of 3: validation accuracy has not risen." in text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("t.csv", "fedloom table RUNS --format csv"),
        ("t", "an .html page"),
        ("mine.html", "not a report"),
        ("d.html", "cannot be written"),
    ],
)
def test_a_place_that_is_not_a_reports_is_refused_and_left_alone(two_methods, tmp_path, name, says):
    (tmp_path / "mine.html").write_text("mine")
    (tmp_path / "d.html").mkdir()
    with pytest.raises(ConfigError, match=says) as refused:
        write_report(two_methods, tmp_path / name)
    assert "\n" not in str(refused.value)
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.html", "d.html"}


def test_same_results_give_the_same_bytes(page_of, two_methods):
    assert page_of(two_methods) == page_of(two_methods)


def test_another_process_gives_the_same_bytes(make_result, tmp_path):
    result = make_result("fedsc", terms=("ce", "rpcl"), client_accuracies=(0.2, 0.9))
    values = {name: getattr(result, name) for name in ("numbers", "rows", "config", "scenario")}
    (tmp_path / "result.json").write_text(json.dumps(values))
    code = (
        "import json, sys; from pathlib import Path; from fedloom.results.report import write_report; "
        "from fedloom.results.result import Result; "
        "write_report([Result(**json.loads(Path(sys.argv[1]).read_text()))], Path(sys.argv[2]))"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "result.json", tmp_path / "theirs.html"], check=True)
    assert (tmp_path / "theirs.html").read_bytes() == write_report([result], tmp_path / "ours.html").read_bytes()


def test_strings_of_configs_are_text(page_of, make_result, make_scenario):
    world = make_scenario() | {"classes": [NASTY, "a$b$", "c", "d"]}
    text = page_of(
        [
            make_result(NASTY, world=world, source=NASTY, model=NASTY, degenerate=[NASTY], run_dir=NASTY),
            make_result("fedsc", terms=(NASTY, "ce"), config={"note": NASTY}, engine=NASTY),
        ],
        title=NASTY,
    )
    elements = Elements(text)
    assert len(elements.all("script")) == 1
    assert "<script>alert" not in text
    assert "${title}" in text
    assert "$x$" in text


def test_a_part_of_somebody_else_is_a_section_whose_tables_sort_and_save(tmp_path, make_result):
    rows = [["hard", NASTY, ("98.0 ± 1.0", 98.0)], ["mild", "fedavg", ("–", None)]]
    sheet = DataTable("values", NASTY, ("column", "row", "accuracy %"), rows, heads=2)
    part = PageSection("paper", NASTY, [NASTY, sheet, [NASTY, "left open"], []], [f"limits: {NASTY}"])
    text = write_report([make_result()], tmp_path / "report.html", parts=[part]).read_text(encoding="utf-8")
    elements = Elements(text)
    assert elements.open == []
    assert len(elements.all("script")) == 1
    section = re.search(r'<section class="part" aria-labelledby="paper">.*?</section>', text, flags=re.DOTALL)[0]
    assert section.count('<th scope="row">') == 4
    assert '<table class="sorts" aria-labelledby="paper-values-note">' in section
    assert '<th scope="col" class="num">Accuracy %</th>' in section
    assert '<td class="num" data-label="Accuracy %" data-value="98.0">98.0 ± 1.0</td>' in section
    assert '<td class="num" data-label="Accuracy %">–</td>' in section
    assert "<li>left open</li>" in section
    assert section.count("<ul>") == 1
    assert "limits: &lt;script&gt;" in re.search(r"<aside.*?</aside>", text, flags=re.DOTALL)[0]
    links = {a["download"]: unquote(a["href"]).partition(",")[2] for a in Elements(section).all("a")}
    assert list(links) == ["paper-values.csv", "paper-values.md", "paper-values.tex"]
    assert [*csv.reader(links["paper-values.csv"].splitlines())][1:] == [
        ["hard", NASTY, "98.0 ± 1.0"],
        ["mild", "fedavg", "–"],
    ]


def test_no_results_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="at least one finished run"):
        write_report([], tmp_path / "report.html")


def test_unequal_seeds_are_named(page_of, make_result):
    results = [make_result("fedavg", seed) for seed in (0, 1, 2)]
    others = [make_result(name, seed) for name in ("fedsc", "fedskc") for seed in (0, 1)]
    assert "unequal seeds: 0, 1 and 2 for fedavg; 0 and 1 for fedsc and fedskc." in page_of(results + others)
    assert "unequal seeds" not in page_of(others)


def test_degenerate_methods_and_limits_are_visible(page_of, make_result):
    results = [
        make_result("fedskc", degenerate=["weights are uniform (0.001)"], select="best_test"),
        make_result("fedskc", seed=1, select="best_test"),
        make_result("fedskc", seed=1, select="best_test"),
        make_result("fedsc"),
    ]
    notes = re.search(r"<aside.*?</aside>", page_of(results), flags=re.DOTALL)[0]
    assert "fedskc: weights are uniform (0.001)" in notes
    assert "best_test chooses the round by looking at the test set" in notes
    assert "1 run left out, whose seed is already counted" in notes
    assert "One seed only for fedsc" in notes
    assert "answer different questions" in notes


def test_a_diverged_term_is_a_note_and_leaves_the_rest(page_of, make_result):
    result = make_result("fedsc", terms=("ce", "rpcl"))
    bad = next(row for row in result.rows if row["name"] == "rpcl" and row["round"] == 2)
    bad["value"] = float("inf")
    text = page_of([result])
    assert "fedsc: train rpcl is not finite from round 2 on" in text


def test_single_clients_have_their_chart(page_of, make_result):
    text = page_of([make_result("local", protocol="personal/local", client_accuracies=(0.25, 0.5, 1.0))])
    assert "Single clients" in text
    assert "local from 25.0 to 100.0 %" in text
    assert "median 50.0 · lowest 25.0" in text


def test_many_clients_and_classes_become_a_heat_grid(page_of, make_result, make_scenario):
    world = make_scenario(clients=200, classes=100) | {"clients": 1000}
    text = page_of([make_result(world=world)])
    assert "data:image/png;base64" in text
    assert "the first 200 of 1,000 clients" in text
    assert len(text) < 200_000


def test_environment_and_folder_of_runs_on_disk(page_of, make_result, tmp_path):
    folder = tmp_path / "run <1>"
    folder.mkdir()
    (folder / "env.json").write_text(json.dumps({"cores": 2, "processor": "P9 <b>", "versions": {"torch": "2.99"}}))
    text = page_of([replace(make_result(), folder=folder)])
    for word in ("P9 &lt;b&gt;", "2.99", "run &lt;1&gt;"):
        assert word in text


def test_run_of_one_round_and_without_pictures(page_of, make_result):
    text = page_of([make_result(accuracies=(0.5,), world={"clients": 3, "class_counts": []})])
    assert "Who holds what" not in text


def test_differences_are_drawn(page_of, make_result):
    runs = []
    for k in range(5):
        for method, accuracy in (("fedavg", 0.5), ("fedsc", 0.7), ("moon", 0.6)):
            run = (make_result(method, seed, [accuracy + seed / 100], config={"rounds": k + 1}) for seed in range(3))
            runs += [replace(one, cell=(f"setting {k}", method)) for one in run]
    text = page_of(runs)
    assert "Differences in accuracy from fedavg: setting 0/fedsc: ahead, +20.0 points" in text
    assert Elements(text).open == []


def test_a_page_is_drawn_again_only_for_other_results(tmp_path, monkeypatch, two_methods):
    from fedloom.results.report import page as drawing

    drawn, page = [], drawing.page
    monkeypatch.setattr(drawing, "page", lambda *arguments: drawn.append(1) or page(*arguments))
    path, first = tmp_path / "report.html", two_methods[:1]
    for results, title in (first, None), (first, None), (two_methods, None), (first, None), (first, "other"):
        write_report(results, path, title)
    assert len(drawn) == 4
    path.write_text(path.read_text() + " ")
    write_report(first, path, "other")
    assert len(drawn) == 5
