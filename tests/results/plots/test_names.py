"""Shortened names in figures: different ones stay different, and they fit."""

from itertools import product

import pytest

from fedloom.results.plots.palette import shortened, shortened_names

MUS = [f"fedprox, proximal weight mu = {mu}" for mu in (0.1, 1.0, 10)]


def test_names_that_fit_are_left_alone() -> None:
    assert shortened_names(["fedavg", "fedprox", "fedavg"], 7) == ["fedavg", "fedprox", "fedavg"]
    assert shortened_names([], 3) == []
    assert shortened("fedprox", 1) == "f…"


def test_names_are_cut_at_their_ends_and_in_the_middle_where_they_would_be_alike() -> None:
    assert shortened_names([MUS[0], "moon"], 12) == ["fedprox, pr…", "moon"]
    assert shortened_names(MUS, 12) == ["fedpro…= 0.1", "fedpro…= 1.0", "fedpro… = 10"]


@pytest.mark.parametrize("letters", [0, 3, 9, 25, 100])
@pytest.mark.parametrize(
    "names",
    [
        MUS,
        [f"a long head that is common, {k}, and a long tail that is common, too" for k in range(12)],
        ["".join(letters) for letters in product("ab", repeat=7)],
    ],
)
def test_different_names_stay_different_and_take_at_most_twice_the_room(names: list[str], letters: int) -> None:
    cut = shortened_names(names, letters)
    assert len(set(cut)) == len(names)
    assert max(map(len, cut)) <= max(6, 2 * letters)
