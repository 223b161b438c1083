"""The page in a real browser: every chart drawn, no error, both themes, a phone's width, tables saved."""

import csv
import dataclasses
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from fedloom.results.data_table import DataTable
from fedloom.results.page_sections import PageSection
from fedloom.results.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium executable (chromium, google-chrome) on the path"),
]
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr --v=0"
)
PROBE = """<script>
addEventListener("load", function () {
  var charts = [...document.querySelectorAll("svg")].filter(s => getComputedStyle(s).display !== "none");
  var texts = [...document.querySelectorAll("svg text")].filter(t => t.getBoundingClientRect().width > 0);
  var boxes = charts.map(s => s.getBoundingClientRect());
  var root = document.documentElement, before = root.dataset.theme;
  document.querySelectorAll("details").forEach(part => { part.open = true; });
  var table = document.querySelector("table.sorts"), heads = [...table.tHead.rows[0].cells];
  var first = () => [...table.tBodies[0].rows].map(row => row.cells[2].dataset.value);
  var press = heads[2].querySelector("button"), orders = [first()], said = [];
  var label = table.parentNode.querySelector(".sort-by"), field = label.querySelector("select");
  var shows = part => getComputedStyle(part).display !== "none", sorters = [table.tHead, label].map(shows);
  function choose(value) {
    field.value = value;
    field.dispatchEvent(new Event("change"));
  }
  for (var k = 0; k < 2; k++) {
    if (shows(label)) choose("2" + "+-"[k]);
    else {
      press.focus();
      document.activeElement.click();
    }
    orders.push(first());
    said.push(heads.map(head => head.getAttribute("aria-sort")));
  }
  choose("");
  orders.push(first());
  heads[0].querySelector("button").click();
  var chosen = field.selectedOptions[0].textContent;
  field = document.querySelector(".filter input");
  var shown = [];
  ["FEDSC", "no such row", ""].forEach(function (words) {
    field.value = words;
    field.dispatchEvent(new Event("input"));
    var rows = [...field.closest("section").querySelector("tbody").rows].filter(row => !row.hidden);
    shown.push([rows.length, document.querySelector(".filter [role=status]").textContent]);
  });
  var names = [...table.tBodies[0].rows].map(row => row.cells[0].textContent);
  document.getElementById("theme").click();
  var after = root.dataset.theme;
  root.dataset.theme = before;
  console.log("PROBE" + JSON.stringify({
    charts: boxes.map(b => [b.width, b.height]),
    drawn: charts.map(s => s.querySelectorAll("path, use, image").length),
    text: Math.min(...texts.map(t => t.getBoundingClientRect().height)),
    right: Math.max(...texts.map(t => t.getBoundingClientRect().right)),
    scroll: root.scrollWidth, inner: innerWidth, page: getComputedStyle(document.body).backgroundColor, after: after,
    orders: orders.map(order => order.map(Number)), said: said, names: names, shown: shown, sorters: sorters,
    chosen: chosen,
  }) + "END");
});
</script>"""

# The page as it is written, its policy included, in a frame: its tables are read and its links clicked.
SAVE = """<!DOCTYPE html><iframe src="report.html"></iframe><script>
document.querySelector("iframe").addEventListener("load", function () {
  var page = this.contentDocument, text = cell => cell.textContent;
  console.log("PROBE" + JSON.stringify([...page.querySelectorAll("table.sorts")].map(table => [
    [...table.tHead.rows[0].cells].map(text),
    [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => [text(cell), cell.dataset.value])),
  ])) + "END");
  // A browser starts ten downloads a second at most.
  page.querySelectorAll("a[download]").forEach((link, k) => setTimeout(() => link.click(), 150 * k));
});
</script>"""


PRESS = """<!DOCTYPE html><iframe src="report.html"></iframe><script>
document.querySelector("iframe").addEventListener("load", function () {
  var page = this.contentDocument;
  page.querySelector('[data-name="data-0"]').closest("figure").querySelectorAll(".save button").forEach(b => b.click());
});
</script>"""


def browse(profile: Path, page: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)


@pytest.fixture
def report(make_result, make_scenario, tmp_path):
    def runs(method, last, **more):
        return [make_result(method, s, (0.4, 0.8, last + s / 100), **more) for s in range(3)]

    heat = {"scenario": {"source": "toy", "partition": "iid", "seed": None}}
    results = runs("fedavg", 0.9) + runs("fedsc", 0.95, terms=("ce", "rpcl"))
    results += runs("a-method-with-a-long-name", 0.93, protocol="personal/local", client_accuracies=(0.1, 0.8, 1.0))
    results.append(make_result("fedavg", world=make_scenario(60, 30), config=heat, degenerate=["weights are uniform"]))
    failed = "DataError: source mnist: no folder; " + "put the files there, " * 12
    rows = [["mnist/fedavg", ("0, 1, 2", 3), "–"], ["mnist/a-method-with-a-long-name", ("–", 0), failed]]
    part = PageSection(
        "cells", "Cells", ["1 failed.", DataTable("rows", "Seeds.", ("row", "done", "why"), rows), ["open"]]
    )
    return write_report(results, tmp_path / "report.html", parts=[part])


def test_the_page_as_written_runs_its_script_without_errors(report, tmp_path):
    done = browse(tmp_path / "profile", report, "--dump-dom")
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    button = re.search(r"<button[^>]*>[^<]*</button>", done.stdout)
    assert button is not None
    assert "hidden" not in button[0]  # the script, allowed by its hash, has run


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 3600), (390, 6400)])
def test_every_chart_is_drawn(report, tmp_path, theme, width, height):
    text = re.sub(r"<meta http-equiv[^>]*>", PROBE, report.read_text())  # the page's own policy forbids the probe
    inner = tmp_path / "probed.html"
    inner.write_text(text.replace('<html lang="en"', f'<html lang="en" data-theme="{theme}"'))
    # A window is never narrower than 500 px, a frame may be.
    frame = tmp_path / "frame.html"
    style = f"border:0;width:{width}px;height:{height}px"
    frame.write_text(f'<!DOCTYPE html><body style="margin:0"><iframe src="{inner.name}" style="{style}"></iframe>')
    shot = tmp_path / "shot.png"
    size = f"--window-size={max(width, 500)},{height}"
    done = browse(tmp_path / "profile", frame, f"--screenshot={shot}", size)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert [line for line in console if "PROBE" not in line] == []
    seen = json.loads(re.search(r"PROBE(.*)END", console[0])[1])

    assert len(seen["charts"]) == 7  # of the twins for wide and narrow screens, one each
    assert all(w > 200 and h > 40 for w, h in seen["charts"])
    assert all(count > 0 for count in seen["drawn"])
    assert seen["text"] >= 10  # CSS pixels
    assert seen["right"] <= width
    assert seen["inner"] == width
    assert seen["scroll"] <= width
    assert seen["after"] == ("dark" if theme == "light" else "light")
    assert (seen["page"] == "rgb(255, 255, 255)") == (theme == "light")

    rising = sorted(seen["orders"][0])
    assert seen["orders"][1:] == [rising, rising[::-1], seen["orders"][0]]
    assert seen["sorters"] == [width > 390, width == 390]  # headings, or on a phone one field
    assert seen["chosen"] == "Method ↑"
    assert [said[2] for said in seen["said"]] == ["ascending", "descending"]
    assert not any(any(said[:2] + said[3:]) for said in seen["said"])
    assert seen["names"] == sorted(seen["names"])
    assert seen["shown"] == [[3, "3 of 10 rows"], [0, "0 of 10 rows"], [10, ""]]

    pixels = np.asarray(imread(shot))[:, :width, :3]
    assert pixels.shape[:2] == (height, width)
    assert pixels.std() > 0.03
    assert (pixels.mean() > 0.5) == (theme == "light")
    for band in np.array_split(pixels[: height // 2], 6):  # nothing stays empty over a long stretch
        assert band.std() > 0.01


def saved_by_clicks(page: Path, folder: Path, names: set[str]) -> str:
    """Open a page until files of these names are in a new folder; what the browser said."""
    profile = folder.with_name("profile")
    (profile / "Default").mkdir(parents=True)
    folder.mkdir()
    settings = {
        "download": {"default_directory": str(folder), "prompt_for_download": False},
        "profile": {"default_content_setting_values": {"automatic_downloads": 1}},
    }
    (profile / "Default" / "Preferences").write_text(json.dumps(settings))
    # The frame reads another file, and nothing else keeps a headless browser open.
    more = (f"--user-data-dir={profile}", "--allow-file-access-from-files", "--remote-debugging-port=0")
    end = time.monotonic() + 60
    with folder.with_name("said").open("w+") as said:
        browser = subprocess.Popen([CHROMIUM, *FLAGS.split(), *more, page.as_uri()], stderr=said)
        try:
            while time.monotonic() < end and {path.name for path in folder.iterdir()} != names:
                time.sleep(0.05)
        finally:
            browser.terminate()
            browser.wait(timeout=30)
        said.seek(0)
        return said.read()


def test_links_save_the_tables_that_are_shown(report, tmp_path):
    frame, folder = tmp_path / "frame.html", tmp_path / "saved"
    frame.write_text(SAVE)
    names = ("results", "fairness", "costs", "cells-rows")
    tables = [f"{name}.{kind}" for name in names for kind in ("csv", "md", "tex")]
    said = saved_by_clicks(frame, folder, {*tables, "client-table-0.csv", "runs.csv"})
    assert {path.name for path in folder.iterdir()} == {*tables, "client-table-0.csv", "runs.csv"}
    console = [line for line in said.splitlines() if "CONSOLE" in line]
    assert len(console) == 1  # the probe's: no error
    rows_by_table = [[dict(zip(heads, row, strict=True)) for row in rows] for heads, rows in tables_of(console[0])]
    costs, results, runs = [next(rows for rows in rows_by_table if name in rows[0]) for name in ("up", "n", "seed")]
    text = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}

    assert {"setting", "against fedavg"} < results[0].keys()
    numeric = ("n", "accuracy %", "best val %")
    shown = [[row[name][0] for name in numeric] for row in results]
    markdown = [line.strip("|").split("|") for line in text["results.md"].splitlines()]
    signs = {r"\\": "", r"\%": "%", r"$\pm$": "±", r"--": "–"}
    latex = re.sub("|".join(map(re.escape, signs)), lambda match: signs[match[0]], text["results.tex"])
    latex = re.sub(r"\\textbf\{(.*?)\}", r"\1", latex)
    for saved in ([markdown[0], *markdown[2:]], [line.split("&") for line in latex.splitlines() if "&" in line]):
        heads, *rows = map(bare, saved)
        columns = [heads.index(bare([name])[0]) for name in numeric]
        assert [[row[k] for k in columns] for row in rows] == [bare(line) for line in shown]
        methods = [bare([row["method"][0]])[0] for row in results]
        assert all(row[0].startswith(method) for row, method in zip(rows, methods, strict=True))

    names = {"accuracy": "accuracy %", "n": "n", "best_val": "best val %"}
    plain = list(csv.DictReader(text["results.csv"].splitlines()))
    assert numbers(plain, names) == [[float(row[name][1]) for name in names.values()] for row in results]
    names = {"bytes_up": "up", "bytes_down": "down", "seconds": "time", "peak_memory_mb": "memory mib"}
    for saved in (plain, list(csv.DictReader(text["costs.csv"].splitlines()))):
        assert numbers(saved, names) == [[float(row[name][1]) for name in names.values()] for row in costs]
    plain = list(csv.DictReader(text["runs.csv"].splitlines()))
    assert [(row["run"], row["checkpoint_sha256"]) for row in plain] == [
        (row["run"][0], row["checkpoint sha256"][0]) for row in runs
    ]
    names = {"seed": "seed", "accuracy": "accuracy %", "peak_memory_mb": "memory mib"}
    assert numbers(plain, names) == [[float(row[name][1]) for name in names.values()] for row in runs]


def tables_of(line):
    """Headings in small letters and rows of (text, number or None), table by table, of the probe's line."""
    names = {"at best val %": "best val %"}
    for heads, rows in json.loads(re.search(r"PROBE(.*)END", line)[1]):
        yield [names.get(head.lower(), head.lower()) for head in heads], rows


def bare(cells):
    return ["".join(cell.split()) for cell in cells]


def numbers(rows, names):
    return [[float(row[name]) for name in names] for row in rows]


def test_buttons_save_a_chart_in_the_colours_that_are_shown(report, tmp_path):
    frame, folder = tmp_path / "frame.html", tmp_path / "saved"
    frame.write_text(PRESS)
    said = saved_by_clicks(frame, folder, {"data-0.svg", "data-0.png"})
    assert "CONSOLE" not in said
    drawing = ElementTree.fromstring((folder / "data-0.svg").read_text())
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    text = (folder / "data-0.svg").read_text()
    assert "var(--" not in text
    assert "#2a628f" in text  # the light theme's colour of bubbles
    assert drawing.find("{http://www.w3.org/2000/svg}title").text == "Who holds what"
    pixels = imread(folder / "data-0.png")
    assert pixels.shape[1] == 1600
    assert pixels[0, 0, :3] == pytest.approx(1.0)  # the page's ground
    assert pixels.std() > 0.03


CHOOSE = """<!DOCTYPE html><body style="margin:0"><iframe src="report.html" style="border:0;width:400px"></iframe>
<script>
document.querySelector("iframe").addEventListener("load", function () {
  var figure = this.contentDocument.querySelector(".client-confusion"), field = figure.querySelector("select");
  var seen = () => [figure.querySelector("[role=status]").textContent, figure.querySelectorAll("svg").length,
    [...figure.querySelectorAll("svg > rect title")].map(title => title.textContent)];
  var first = seen();
  field.selectedIndex = 1;
  field.dispatchEvent(new Event("change"));
  var right = figure.querySelector("svg").getBoundingClientRect().right;
  console.log("PROBE" + JSON.stringify({first, second: seen(), right, buttons: figure.querySelectorAll("button").length,
    clients: [...field.options].map(option => option.textContent)}) + "END");
});
</script>"""


def test_a_field_chooses_the_client_whose_matrix_is_drawn(make_result, make_scenario, tmp_path):
    confusion = [[3, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 2]]
    recall = {"by_class": [1.0, 0.0, None, 1.0]}
    details = {"balanced_accuracy": {"confusion": confusion}, "recall": recall, "precision": recall}
    kept = {"global/local": {"0": {"confusion": [0, 0, 3, 3, 3, 1]}, "2": {"confusion": [1, 0, 1, 3, 3, 1]}}}
    run = make_result(protocol="global/local", details=details, world=make_scenario(3, 4))
    write_report([dataclasses.replace(run, client_details=kept)], tmp_path / "report.html")
    frame = tmp_path / "frame.html"
    frame.write_text(CHOOSE)
    done = browse(tmp_path / "profile", frame, "--allow-file-access-from-files", "--dump-dom")
    (line,) = [line for line in done.stderr.splitlines() if "CONSOLE" in line]  # the probe's: no error
    seen = json.loads(re.search(r"PROBE(.*)END", line)[1])
    assert seen["clients"] == ["client 2", "client 0"]
    words = "1 of 2 test samples are correct. Most frequent mistakes: 1 taken for 0 (1)."
    assert seen["first"] == [words, 1, ["1 predicted as 0: 1", "3 predicted as 3: 1"]]
    assert seen["second"] == ["4 of 4 test samples are correct.", 1, ["0 predicted as 0: 3", "3 predicted as 3: 1"]]
    assert seen["right"] <= 400
    assert seen["buttons"] == 2
