"""Charts by round: test accuracy, test loss, loss terms of training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup

from fedloom.plots.palette import tone_name
from fedloom.report.curves import Size, draw_lines, shows_seeds
from fedloom.report.markup import chart, key
from fedloom.report.measures import Line, by_protocol, line, terms, tones
from fedloom.report.svg import inline
from fedloom.results.table import Group
from fedloom.results.text import percent

_HERO, _FLAT, _HALF, _PHONE = Size(900, 380, 30), Size(900, 260, 30), Size(390, 260, 12), Size(360, 290, 9)
_LOSS, _LOSS_CAPTION = "test loss (nats)", "Cross-entropy in nats, mean over seeds."


def learning_curves(groups: Sequence[Group]) -> list[Markup]:
    """Test accuracy by round of every group, a chart for each protocol."""
    charts = []
    for k, (title, toned) in enumerate(by_protocol(groups)):
        if lines := _by_group(toned, "accuracy"):
            charts.append(_learning_curve(lines, title, f"accuracy{k or ''}"))
    return charts


def _learning_curve(lines: Sequence[Line], title: str, name: str) -> Markup:
    ends = ", ".join(f"{ln.label} ends at {percent(ln.mean[-1])} %" for ln in lines)
    words = f", {title[:1].lower()}{title[1:]}" if title else ""
    label = f"Learning curves, test accuracy by round{words}: {ends}."
    svgs = _wide(lines, _HERO, name, "Learning curves", label, "test accuracy", share=True)
    caption = "Test accuracy by round."
    if any(ln.std for ln in lines):
        caption += " Mean over seeds; band: ± sample standard deviation"
        caption += "; thin lines: single seeds." if shows_seeds(lines) else "."
    return chart(svgs, title, caption, _phone_key(lines))


def losses(groups: Sequence[Group]) -> list[Markup]:
    """Test loss of every group, and the loss terms of each method that logs several; an even number fills the rows."""
    parts: list[Markup] = []
    for k, (group, tone) in enumerate(zip(groups, tones([group.row for group in groups]), strict=True)):
        if group.is_further:  # it trained once
            continue
        maybe_lines = [line(name, tone, group.results, name, "train") for name in terms(group.results)]
        lines = [curve for curve in maybe_lines if curve is not None]
        if len(lines) > 1:
            parts.append(_terms(f"terms-{k}", group.row["label"], lines))
    by_title = {title: lines for title, toned in by_protocol(groups) if (lines := _by_group(toned, "loss"))}
    if len(by_title) == 1 and len(parts) % 2:
        (lines,) = by_title.values()
        svg = inline(
            partial(draw_lines, lines, _HALF, _LOSS, share=False),
            "loss",
            "Test loss",
            f"Test loss by round: {_ends(lines)}.",
        )
        return [chart([svg], "Test loss", _LOSS_CAPTION), *parts]
    return [*(_test_loss(lines, title, f"loss{k or ''}") for k, (title, lines) in enumerate(by_title.items())), *parts]


def _test_loss(lines: Sequence[Line], title: str, name: str) -> Markup:
    """The test loss by round in one protocol, across all columns."""
    words = f", {title[:1].lower()}{title[1:]}" if title else ""
    svgs = _wide(lines, _FLAT, name, "Test loss", f"Test loss by round{words}: {_ends(lines)}.", _LOSS, share=False)
    return chart(svgs, f"Test loss{words}", _LOSS_CAPTION, _phone_key(lines), wide=True)


def _terms(name: str, method: str, lines: Sequence[Line]) -> Markup:
    label = f"Loss terms of {method} in training by round: {_ends(lines)}."
    svg = inline(
        partial(draw_lines, lines, _HALF, "loss term", share=False, marked=True), name, f"Loss terms of {method}", label
    )
    return chart([svg], f"Loss terms of {method}", "As logged in training, mean over seeds.")


def _wide(
    lines: Sequence[Line], size: Size, name: str, title: str, label: str, quantity: str, *, share: bool
) -> list[Markup]:
    """The same chart for wide and for narrow screens; the page shows one of them."""
    wide = inline(partial(draw_lines, lines, size, quantity, share=share), f"{name}-wide", title, label, "wide")
    narrow = inline(partial(draw_lines, lines, _PHONE, quantity, share=share), f"{name}-narrow", title, label, "narrow")
    return [wide, narrow]


def _by_group(toned: Sequence[tuple[Group, int]], name: str) -> list[Line]:
    maybe_lines = [line(group.row["label"], tone, group.results, name, "test") for group, tone in toned]
    return [curve for curve in maybe_lines if curve is not None]


def _phone_key(lines: Sequence[Line]) -> Markup | None:
    """A legend for narrow screens, where some name is too long to stand beside its line."""
    if all(len(ln.label) <= _PHONE.characters for ln in lines):
        return None
    return key([(tone_name(ln.tone), ln.label) for ln in lines], "narrow")


def _ends(lines: Sequence[Line]) -> str:
    return ", ".join(f"{ln.label} ends at {ln.mean[-1]:.3g}" for ln in lines)
