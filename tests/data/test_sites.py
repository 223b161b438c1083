"""Columns of sites, compared by means and deviations."""

import numpy as np
import pytest

from fedloom.data.sites import unlike_columns

RNG = np.random.default_rng(0)
NAMES = ["age", "pressure", "temperature", "smoker"]


def site(shift=0.0, rows=200):
    """A hospital whose patients are `shift` years older."""
    columns = [RNG.normal(55 + shift, 15, rows), RNG.normal(125, 18, rows), RNG.normal(37, 0.8, rows)]
    return np.stack([*columns, RNG.integers(0, 2, rows)], 1)


def unlike(*sites):
    means, deviations = (np.array([getattr(rows, key)(axis=0) for rows in sites]) for key in ("mean", "std"))
    counts = np.array([[len(rows)] * rows.shape[1] for rows in sites])
    return {(of.site, of.column): of for of in unlike_columns(NAMES, means, deviations, counts)}


def with_mark(values, mark):
    return np.where(np.arange(len(values)) % 20 == 0, mark, values)


@pytest.mark.parametrize(
    ("column", "change", "reason"),
    [
        (0, lambda age: age * 12, "months and years"),
        (1, lambda pressure: pressure / 7.5006, "mmHg and kPa"),
        (2, lambda celsius: 1.8 * celsius + 32, "°F and °C"),
        (0, lambda age: with_mark(age, 999), "999 in 5.0% of the cells would explain it, as a mark of missing values"),
        (1, lambda pressure: with_mark(pressure, -999), "-999 in 5.0% of the cells would explain it, as a mark"),
        (3, lambda smoker: smoker + 1, "coded 1 and 2 in place of 0 and 1"),
        (3, lambda smoker: 100 * smoker, "coded 0 and 100 in place of 0 and 1"),
    ],
)
@pytest.mark.parametrize("sites", [2, 3, 5])
def test_a_mistake_at_one_site_is_explained(column, change, reason, sites):
    parts = [site(5 * number) for number in range(sites)]
    parts[1][:, column] = change(parts[1][:, column])
    (*others, found) = [of for (where, _), of in sorted(unlike(*parts).items(), reverse=True) if not of.is_note]
    assert (found.site, found.column) in ((1, NAMES[column]), (0, NAMES[column]))
    assert reason in {1: found, **{of.site: of for of in others}}[1].reason
    assert sites == 2 or not others  # of two, either may be the wrong one


def test_columns_in_another_order_look_like_each_other():
    swapped = site()[:, [1, 2, 0, 3]]
    found = unlike(site(), swapped, site(), site())
    assert [of.reason for of in found.values()] == [
        f"as '{name}' of the others, in another order of columns" for name in ("pressure", "temperature", "age")
    ]
    assert {where for where, _ in found} == {1}


def test_honest_differences_are_notes():
    """A children's hospital, and one where nobody smokes; a site of ten rows is not compared."""
    children, abstinent, small = site(-47, rows=300), site(), 12 * site(rows=10)
    children[:, 0] = RNG.normal(8, 5, 300)
    abstinent[:, 3] = 0
    found = unlike(site(), site(4), children, site(-4), abstinent, small)
    assert {key: (of.reason, of.is_note) for key, of in found.items()} == {(2, "age"): ("", True)}


def test_a_site_that_differs_in_most_columns_is_another_population():
    """One of its three unlike columns happens to be twelve times as large."""
    other = site() * [12, 3.3, 0.2, 1]
    assert all(of.is_note for of in unlike(site(), site(), other, site()).values())


def test_sites_that_differ_by_nature_among_themselves_have_no_findings():
    populations = [np.full((50, 1), 10.0**power) * RNG.normal(1, 0.2, (50, 4)) for power in (1, 2, 3, 4, 5)]
    assert not [of for of in unlike(*populations).values() if not of.is_note]
