"""Take the picture of a report that the tutorial and README.md show: `python docs/report_picture.py REPORT`.

REPORT is the page that `fedloom demo` writes, runs/demo/report.html. Chromium has to be on the path.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "report.png"
WIDTH, HEIGHT = 1000, 1190  # CSS pixels: the verdict, the table, and the comparison seed by seed
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main(report: Path) -> None:
    """Write the top of a report as a picture. Ends with a message if no browser or report is found."""
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None or not report.is_file():
        raise SystemExit(f"need {' or '.join(_NAMES)} on the path" if browser is None else f"{report}: no such report")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
    with tempfile.TemporaryDirectory() as profile:
        size = (f"--screenshot={PICTURE}", f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={profile}")
        subprocess.run([browser, *flags, *size, report.resolve().as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo/report.html"))
