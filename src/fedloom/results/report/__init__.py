"""Figures and the HTML report, from stored results only.

Importing this loads neither torch nor matplotlib; writing a report loads matplotlib."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, printable
from fedloom.core.files import expand_home, read_file, refuse_unwritable, write_atomic
from fedloom.results.page_sections import PageSection
from fedloom.runs.storage.run_data import RunData

_PICTURES = (".png", ".svg", ".pdf")
_MARK = b'<p class="eyebrow">fedloom report</p>'  # every page has it


def check_picture(path: Path) -> None:
    """Raises `ConfigError` if `save_holdings` cannot write to `path`, for use before the data are read."""
    if path.suffix.lower() not in _PICTURES:
        raise ConfigError(f"{path}: pictures end in one of {', '.join(_PICTURES)}")
    try:
        refuse_unwritable(path)
    except OSError as error:
        raise ConfigError(f"{path}: the picture cannot be written there ({error.strerror})") from None


def save_holdings(scenario: Mapping[str, Any], path: Path) -> Path:
    """Draw who holds what to a picture file, whose ending is .png, .svg or .pdf.

    Raises `ConfigError` for another ending, or if the file cannot be written."""
    path = expand_home(path)
    check_picture(path)
    from fedloom.results.report import charts  # brings matplotlib

    return charts.save_holdings(scenario, path)


def write_report(
    results: Sequence[RunData], path: Path | str, title: str | None = None, parts: Sequence[PageSection] = ()
) -> Path:
    """Write one self-contained HTML page about finished runs, whole or not at all, and return its path.

    The same results give the same bytes. A page that shows the same results already is left as it is.

    Args:
        results: finished runs.
        path: the page, which ends in .html.
        title: the title; None names the methods and the data.
        parts: further sections, such as the progress of a study; those of measured drift follow them.

    Raises `ConfigError` if there are no results, and for a path that does not end in .html or holds something else;
    `OSError` if it cannot be written.
    """
    if not results:
        raise ConfigError("a report needs at least one finished run, got none")
    path = expand_home(path)
    check_place(path)
    from fedloom.results.report.drift import drift_sections

    parts = [*parts, *drift_sections(results)]
    mark = f"<!-- results {_digest(results, title, parts)} -->\n"
    if path.exists() and read_file(path).endswith(mark.encode()):
        return path
    from fedloom.results.report.page import page  # brings matplotlib

    # Names of classes and machines are on the page, and they may hold control characters.
    write_atomic(path, printable(page(results, title, parts), keep_lines=True) + mark)
    return path


def _digest(results: Sequence[RunData], title: str | None, parts: Sequence[PageSection]) -> str:
    """Return a digest of all that a page is made of: drawing takes seconds, and studies are asked again and again."""
    digest = hashlib.sha256(repr((__version__, title, parts)).encode())
    for run in results:
        facts = run.numbers, run.cell, run.plan, run.rows, None if run.folder else run.client_details
        # in the order of their keys, in which files hold them
        digest.update(json.dumps((run.config, run.scenario, facts), sort_keys=True, default=repr).encode())
        for file in [] if run.folder is None else sorted(run.folder.glob("*.json")):
            digest.update(file.read_bytes())  # no times of files: a copy of a folder gives the same page
    return digest.hexdigest()


def check_place(path: Path, mark: bytes = _MARK) -> None:
    """Raises `ConfigError` if a report cannot be written to `path`, for use before hours of training.

    Nothing but a report, which has the `mark`, is written over, and nothing but a page is called a report."""
    if mark == _MARK and path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: a report is an .html page; `fedloom table RUNS --format csv` prints tables")
    try:
        refuse_unwritable(path)
        written = read_file(path) if path.exists() else mark
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another place with out=...") from None
    if mark not in written:
        raise ConfigError(f"{path}: this file is not a report of fedloom; choose another name")
