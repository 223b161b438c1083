"""The client x class picture as a file of its own, in the light theme's colours."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.core.files import write_atomic
from fedloom.results.report.holdings import draw_holdings, owners
from fedloom.results.report.svg import in_light_theme


def save_holdings(scenario: Mapping[str, Any], path: Path) -> Path:
    """Draw who holds what (`scenario` is what scenario.json holds) to a .png, .svg or .pdf; returns `path`.

    Raises `ConfigError` if the file cannot be written.
    """
    content = holdings_picture(scenario, path.suffix.lower()[1:])
    try:
        write_atomic(path, content)
    except OSError as error:
        raise ConfigError(f"{path}: the picture cannot be written there ({error.strerror})") from None
    return path


def holdings_picture(scenario: Mapping[str, Any], format: str, dpi: int = 160) -> bytes:
    """Return the picture of `save_holdings` as a file's content.

    Args:
        scenario: the contents of scenario.json.
        format: "png", "svg" or "pdf".
        dpi: pixels of a png for each inch.
    """
    stream = io.BytesIO()
    with in_light_theme() as page:
        figure = draw_holdings(scenario["class_counts"], scenario["classes"], owners(scenario))
        figure.savefig(stream, format=format, dpi=dpi, facecolor=page)
    return stream.getvalue()
