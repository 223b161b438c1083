"""FedProc against golden numbers of three rounds; its last round is FedAvg's."""

from dataclasses import replace

import pytest

from fedloom.core.records import get_table, get_tree
from fedloom.methods import METHODS
from golden_world import CLASS_KNOWLEDGE, WORLD, golden_run, matches, probe, refuted
from support import TinyBN, configured, same_bits, world

GOLD = CLASS_KNOWLEDGE["fedproc"]
FEDPROC = METHODS.get("fedproc")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
NAMES = [*WORLD["init"], "rows"]


class Planned(FEDPROC):
    """As if as many rounds were planned as the golden numbers say."""

    def begin(self, payload, state, ctx):
        rounds = GOLD["options"]["planned_rounds"]
        return super().begin(payload, state, replace(ctx, task=replace(ctx.task, rounds=rounds)))


def told(server):
    return get_tree(server, "model") | {"rows": get_table(server, "prototypes").values}


@pytest.mark.parametrize(
    ("entry", "options"),
    [("out", {}), ("released", {"learns_at_once": False, "prototypes_from": "last_epoch"})],
)
def test_golden_rounds(entry, options):
    _, servers = golden_run(Planned, keep_absent=False, **options)
    for number, server in enumerate(servers, 1):
        wanted, table = GOLD[entry][f"round{number}"], get_table(server, "prototypes")
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        assert matches({"": table.values}, {"": wanted["rows"]}, tolerance=2e-6)
        assert table.held.tolist() == wanted["held"]
        assert abs(probe(told(server), NAMES) - wanted["probe"]) < 2e-5
    assert refuted(told(servers[-1]), GOLD, NAMES)


@pytest.mark.parametrize("options", [{}, {"learns_at_once": False}])
def test_the_last_round_is_fedavgs(options):
    """With a share of 0; both begin it with the same weights."""
    mine, fedavg = (
        world(configured(name, **o), LABELS, net=TinyBN, rounds=2) for name, o in (("fedproc", options), ("fedavg", {}))
    )
    mine.federation.step()
    fedavg.federation.server, fedavg.federation.round = {"model": mine.federation.server["model"]}, 1
    for toy in (mine, fedavg):
        toy.federation.step()
    assert same_bits({"": mine.federation.server["model"]}, {"": fedavg.federation.server["model"]})


def test_in_the_released_form_round_1_learns_nothing():
    toy = world(configured("fedproc", learns_at_once=False), LABELS)
    first = get_tree(toy.federation.server, "model")
    toy.federation.step()
    assert same_bits({"": first}, {"": toy.federation.server["model"]})


def test_a_single_round_is_reported():
    toy = world(configured("fedproc"), LABELS, rounds=1)
    assert [found.code for found in toy.method.examine([toy.task], 2)] == ["fedproc.one_round"]
    toy.federation.step()
    assert toy.method.examine([replace(toy.task, rounds=2)], 2) == []
