"""A finding of a check: one line, with what to do if something is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedloom.core.errors import ConfigError, printable


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    subject: what was checked, in one or two words. level: an error is something that would fail. text: one line.
    """

    subject: str
    level: Literal["ok", "warning", "error"]
    text: str

    def facts(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def ok(subject: str, text: str) -> Finding:
    """Return a finding of something that is as it should be."""
    return Finding(subject, "ok", printable(text))


def warning(subject: str, text: str) -> Finding:
    """Return a finding of something that works now, but should be changed."""
    return Finding(subject, "warning", printable(text))


def error(subject: str, text: str) -> Finding:
    """Return a finding of something that would fail."""
    return Finding(subject, "error", printable(text))


def has_error(findings: Iterable[Finding]) -> bool:
    """Whether one of the findings is an error."""
    return any(finding.level == "error" for finding in findings)


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raise `ConfigError` with the first error; it says how many others there are."""
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        others = f" (and {len(errors) - 1} more: fedloom flower check)" if len(errors) > 1 else ""
        raise ConfigError(errors[0].text + others)
