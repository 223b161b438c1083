"""Draw the picture of the home page by running the page's own Python lines: `python docs/home_picture.py`.

The lines take a minute. The picture is written twice, for light and dark pages, in the colours of reports.
"""

import io
import re
from pathlib import Path

import matplotlib

from fedloom.core.files import write_atomic
from fedloom.results.plots.drawing import light_colors

DOCS = Path(__file__).parent
LIGHT = light_colors()
STYLE = DOCS.parent / "src" / "fedloom" / "results" / "report" / "assets" / "style.css"
PICTURES = {"light": DOCS / "images" / "home.svg", "dark": DOCS / "images" / "home-dark.svg"}


def lines_of_the_page() -> str:
    """Return the Python block of the home page."""
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block is not None, "docs/index.md has no Python block"
    return block[1]


def drawn() -> str:
    """Run the lines, and return the figure that they leave as SVG, without a ground of its own."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    exec(lines_of_the_page(), {})
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "fedloom"}):
        plt.gcf().savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def dark(picture: str) -> str:
    """Return a picture with each light colour of the report replaced by the dark one of the same name."""
    block = re.search(r':root\[data-theme="dark"\] \{(.*?)\}', STYLE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None, f"{STYLE} has no dark theme"
    tones = dict(re.findall(r"--(\w+): (#\w{6})", block[1]))
    names = {colour: name for name, colour in LIGHT.items()}
    return re.sub("|".join(names), lambda colour: tones[names[colour[0]]], picture)


if __name__ == "__main__":
    picture = drawn()
    write_atomic(PICTURES["light"], picture.encode())
    write_atomic(PICTURES["dark"], dark(picture).encode())
