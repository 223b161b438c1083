"""The palette of figures is the report's."""

import re

from fedloom.results.plots.palette import TONES, dash, tone_name, tones_of
from fedloom.results.report.markup import asset


def test_the_baseline_is_grey_and_colours_that_come_again_are_dashed() -> None:
    methods = [f"m{number}" for number in range(20)]
    assert {tone_name(tone) for tone in range(40)} == {f"c{tone}" for tone in range(TONES)}
    tones = tones_of(["m0", "m1", *methods], "m3")
    assert (tones["m3"], tones["m0"], tones["m4"]) == (0, 1, 4)
    looks = {(tone_name(tone), str(dash(tone))) for tone in tones.values()}
    assert len(looks) == len(methods)
    assert tones_of(methods, None)["m0"] == 1


def test_both_ways_to_the_dark_theme_have_its_colours() -> None:
    """The system's choice and the reader's stand in two blocks, as CSS has no common name for them."""
    blocks = [
        set(re.findall(r"--\w+: #\w+", block))
        for block in re.findall(r"scheme: dark;(.*?)}", asset("style.css"), re.DOTALL)
    ]
    assert len(blocks) == 2
    assert blocks[0] == blocks[1]
    light = re.findall(r"(--\w+): #\w+;", asset("style.css").split("}")[0])
    assert {entry.partition(":")[0] for entry in blocks[0]} == set(light)
