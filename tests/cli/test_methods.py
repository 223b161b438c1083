"""The command `methods`: filters, one method, narrow and wide terminals."""

import io
import json

import pytest
from rich.console import Console

import command_line
from fedloom.cli.terminal import print_catalogue
from fedloom.methods import METHODS
from fedloom.methods.catalogue import entry


def call(capsys, *words):
    return command_line.call(capsys, "methods", *words)


def names(capsys, *words):
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    return set(json.loads(out))


def test_filters_narrow_the_list_and_combine(capsys):
    every = names(capsys)
    both, personal = names(capsys, "--global", "--personal"), names(capsys, "--personal")
    assert {"ditto", "fednh"} <= both < personal < every
    assert "fedavg" not in personal
    assert names(capsys, "--any-architecture", "--stateless") == {"feddf", "heterofl"}
    assert {"fedavg", "scaffold"} & names(capsys, "--stateless") == {"fedavg"}
    assert "fedsc" not in names(capsys, "--secure-sum")
    assert "perfedavg" not in names(capsys, "--stacks")
    assert {"fedprox", "fednh"} & names(capsys, "--takes", "dw") == {"fedprox"}
    found = names(capsys, "--compared-in", "fedssa")
    assert found == {"fd", "fedclassavg", "fedkd", "fedproto", "fml", "lgfedavg", "local"}


def test_nothing_found_is_said(capsys):
    code, out, _ = call(capsys, "--any-architecture", "--stateless", "--secure-sum")
    assert (code, out.strip()) == (0, "no method matches all filters")


def test_one_method_shows_text_facts_options_presets_and_own_choices(capsys):
    code, out, _ = call(capsys, "fedprox")
    assert code == 0
    for told in ["(mu / 2) sum_params", "arXiv 1812.06127", "feddw 0.01, fedco2 0.001", "optimizer.name adam"]:
        assert told in out
    assert "all entries of the net, buffers included" in out
    assert "none noted" in out
    _, out, _ = call(capsys, "scaffold")
    assert "Option I's gradient is taken in evaluation mode" in out
    _, out, _ = call(capsys, "fedper+median")
    assert "median" in out


def test_one_method_as_json(capsys):
    _, out, _ = call(capsys, "fedprox", "--json")
    facts = json.loads(out)
    assert facts["options"] == {"mu": 0.01}
    assert facts["presets"]["fedco2"] == {"mu": 0.001}
    assert (facts["down"], facts["yields"], facts["source"]) == ("P", "global", METHODS.get("fedprox").citation.source)


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200, 400])
def test_no_fact_is_cut_in_any_terminal(width):
    shown = [(name, entry(name).facts()) for name in ("fedavg", "fedclassavg", "fedco2")]
    stream = io.StringIO()
    print_catalogue(Console(file=stream, width=width, highlight=False), "method", shown)
    text = " ".join(stream.getvalue().split())
    assert all(len(line) <= width for line in stream.getvalue().splitlines()) or width < 40
    for name, facts in shown:
        assert name in text
        for fact in facts.values():
            assert all(word in text for word in fact.split())


def test_a_method_says_which_protocols_it_offers(capsys):
    facts = {name: json.loads(call(capsys, name, "--json")[1])["protocols"] for name in ("fedavg", "ditto", "local")}
    assert facts["fedavg"] == ["global/global", "global/local"]
    assert facts["local"] == ["personal/global", "personal/local", "personal/others"]
    assert facts["ditto"] == facts["fedavg"] + facts["local"]
    assert "personal/global, personal/local, personal/others (evaluation.protocols)" in " ".join(
        call(capsys, "local")[1].split()
    )
