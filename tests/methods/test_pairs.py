"""A method that pairs the participants of a round: `ctx.drawn` has the client of every payload, whoever asks for it."""

import pytest

import fedloom as fl
import fedloom.methods as fm
from fedloom.methods import METHODS
from fedloom.methods.catalogue import wrappers_of

KEYS = {"model": {"name": "mlp", "hidden": [4]}, "rounds": 2, "local_epochs": 1, "progress": False}


class Pairs(fm.Method):
    """Pairs: partners start from weights that differ by the sign of a small step."""

    def down(self, server, client, ctx):
        sign = 1 - 2 * (ctx.drawn.index(client) % 2)
        return {"model": fm.combine([fm.get_tree(server, "model")], [1 + 0.01 * sign])}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    METHODS.names()
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))
    fm.register(Pairs)


def scenario(**keys):
    return fl.scenario("digits", partition="iid", clients=5, **keys)


@pytest.mark.parametrize("method", ["pairs", "pairs+topk", "pairs+dw"])
def test_it_runs_alone_and_in_wrappers_that_ask_for_a_payload(method):
    assert fl.run(method, scenario=scenario(), participation=0.6, **KEYS).numbers["accuracy"] > 0


def test_a_newcomer_gets_a_payload():
    result = fl.run("pairs", scenario=scenario(held_out=[4]), **KEYS)
    assert "zero-shot" in result.numbers["newcomers"]["tests"]


def test_the_list_of_wrappers_names_no_error():
    assert [why for why in wrappers_of("pairs").values() if why] == []


def test_an_error_of_a_hook_is_a_line_of_the_list():
    class Broken(fm.Method):
        """Broken: no state."""

        def server_init(self, ctx):
            raise LookupError("no such thing")

    fm.register(Broken)
    assert set(wrappers_of("broken").values()) == {"LookupError: no such thing"}
