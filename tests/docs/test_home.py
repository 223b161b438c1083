"""The home page: three lines of Python and the picture that they draw, and four doors, on one screen."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MEASURE = """
addEventListener("load", function () {
  var doors = [...document.querySelectorAll(".doors a")], root = document.documentElement;
  var pictures = [...document.querySelectorAll(".home img")].filter(image => image.getBoundingClientRect().width > 0);
  var texts = doors.map(door => door.textContent);
  document.body.dataset.probe = JSON.stringify({
    doors: doors.length, focusable: doors.every(door => door.tabIndex === 0 && door.href),
    bottom: Math.max(...doors.map(door => door.getBoundingClientRect().bottom)), pictures: pictures.map(p => p.src),
    wide: root.scrollWidth, inner: innerWidth,
  });
});
"""


def home_picture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("home_picture", DOCS / "home_picture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lines_are_three_and_the_last_one_draws() -> None:
    lines = [line for line in home_picture().lines_of_the_page().splitlines() if line]
    assert len(lines) == 3
    assert ".plot(" in lines[-1]


def test_both_pictures_are_of_one_run() -> None:
    script = home_picture()
    light, dark = (script.PICTURES[theme].read_text(encoding="utf-8") for theme in ("light", "dark"))
    assert script.dark(light) == dark
    assert not set(re.findall(r"#\w{6}", dark)) & set(script.LIGHT.values())


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1200, 800), (400, 800)])
def test_everything_is_on_one_screen_and_nothing_is_cut_off(
    read_page: Callable[..., str], width: int, height: int
) -> None:
    opened = read_page("index.html", script=MEASURE, size=f"{width},{height + 100}")
    probe = json.loads(re.search(r'data-probe="(.*?)"', opened)[1].replace("&quot;", '"'))  # type: ignore[index]
    assert (probe["doors"], probe["focusable"], len(probe["pictures"])) == (4, True, 1)
    assert probe["wide"] <= probe["inner"]
    if width == 1200:
        assert probe["bottom"] <= height
