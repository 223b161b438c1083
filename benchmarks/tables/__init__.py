"""Tables of the documentation, made from committed measurements when the site is built.

A line `{{ table NAME }}` of a page becomes the table of this name.
"""

from functools import cache

from benchmarks import advice, verdict_power
from benchmarks.tables import (
    costs,
    departures,
    federation,
    gpu,
    honest_scale,
    performance,
    registered,
    reproduction,
    sound,
    studies,
)


@cache
def tables() -> dict[str, str]:
    """Return every table by name."""
    modules = (
        studies,
        honest_scale,
        costs,
        registered,
        sound,
        departures,
        advice,
        federation,
        performance,
        gpu,
        verdict_power,
    )
    papers = {f"reproduction-{name}": section for name, section in reproduction.sections().items()}
    return {name: text for module in modules for name, text in module.tables().items()} | papers
