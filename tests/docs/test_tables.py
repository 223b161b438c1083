"""Every placeholder of a page names a table that exists, and every table has a place."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.tables import gpu, performance, tables

DOCS = Path(__file__).parents[2] / "docs"
PLACED = {
    name: page
    for page in sorted(DOCS.rglob("*.md"))
    for name in re.findall(r"^\{\{ table (.+) \}\}$", page.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_every_table_has_a_place_and_every_place_a_table():
    assert PLACED.keys() == tables().keys()


@pytest.mark.parametrize("name", PLACED)
def test_a_table_is_whole(name):
    rows = [line for line in tables()[name].splitlines() if line.startswith("|")]
    sentences = ("apart-from-rounds", "advice-verdict", "advice-first")
    assert rows or name in (*sentences, "gpu")  # the latter is empty until a GPU has been measured
    for header, rule in pairwise(rows):
        if re.fullmatch(r"[|:-]+", rule):
            assert header.count("|") == rule.count("|")


def test_the_section_on_a_gpu_has_what_was_measured_there():
    times = {"median": 0.2, "min": 0.1, "max": 0.3, "n": 5}
    section = gpu.section(
        {
            "environment": {"device": "cuda (NVIDIA H200)", "driver": "580", "versions": {"torch": "2.11"}},
            "float32, lenet": {"left out": {"batched": "why"}, "default": times, "figures": {"a / b": 2.0}},
            "peers, mlp": {"left out": {}, "default": times, "jax": times},
            "methods, mlp": {"fedavg": times, "figures": {"fedsc / fedavg": 1.4}},
            "bits, fedavg": {"same bits": True, "batched": {"difference": 1e-7}},
            "other-bits, ditto": {"same bits": False, "batched": {"difference": 2e-3}},
        }
    )
    assert "on one cuda (NVIDIA H200) with torch 2.11, driver 580" in section
    assert "| **fedloom, default** | float32 | 0.200 (0.100 to 0.300) |  |  |" in section
    assert "| JAX, vmap over clients | tf32 |  | 0.200 (0.100 to 0.300) |  |" in section
    assert section.count("default") == 1
    assert "| fedsc / fedavg |  | 1.4 |  |" in section
    assert "for 1 of 2 methods; they differ for ditto." in section
    assert "for 1; they are not for ditto (2e-03)." in section


def test_the_picture_of_performance_is_drawn():
    assert performance.picture().startswith(b"\x89PNG")
