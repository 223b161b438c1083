"""FedMD against golden numbers of three rounds, with one exchange a round and with the paper's two."""

from types import SimpleNamespace

import pytest
import torch

from fedloom.methods import METHODS, Collect
from fedloom.methods.contract.phases import Train
from golden_world import CLASS_KNOWLEDGE, WORLD, golden_run, matches, personal, probe, refuted
from support import configured, handmade, world

GOLD = CLASS_KNOWLEDGE["fedmd"]
FEDMD = METHODS.get("fedmd")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]
RUN = {"digest_epochs": GOLD["options"]["digest_steps"], "digest_lr": GOLD["options"]["digest_lr"]}


class Golden(FEDMD):
    """FedMD whose clients begin with the golden world's own first weights."""

    def client_init(self, ctx):
        first = GOLD["first"][str(ctx.client)]
        return {"model": {name: torch.tensor(value, dtype=torch.float64) for name, value in first.items()}}


class TwoExchanges(Golden):
    """The paper's order: of two rounds with the same participants, the first only asks for logits."""

    def phases(self, start, ctx):
        phases = super().phases(start, ctx)
        return [p for p in phases if ctx.round % 2 == 0 or isinstance(p, Collect)]


NAMES = [f"{client}.{name}" for client in range(3) for name in WORLD["init"]]


def joined(federation):
    """The nets of all clients, which the golden probes cover, as one tree."""
    return {f"{client}.{name}": value for client in range(3) for name, value in personal(federation, client).items()}


def own_nets(federation, entry, tolerance):
    return all(matches(personal(federation, int(k)), own, tolerance=tolerance) for k, own in entry["own"].items())


def test_golden_rounds_of_one_exchange():
    federation, servers = golden_run(Golden, **RUN)
    entry = GOLD["one_exchange"]
    for number in (1, 2):
        wanted = entry[f"round{number + 1}"]["consensus"]
        assert matches({"": servers[number - 1]["consensus"]}, {"": wanted}, tolerance=2e-6)
    assert own_nets(federation, entry, 2e-6)
    for number in (1, 2, 3):
        after_it, _ = golden_run(Golden, number, **RUN)
        assert abs(probe(joined(after_it), NAMES) - entry[f"round{number}"]["probe"]) < 2e-6


@pytest.mark.parametrize(("entry", "distance"), [("out", "absolute"), ("squared", "squared")])
def test_golden_rounds_of_two_exchanges(entry, distance):
    drawn = [participants for participants in WORLD["rounds"] for _ in range(2)]
    federation, servers = golden_run(TwoExchanges, drawn=drawn, distance=distance, **RUN)
    for number in range(3):
        wanted = GOLD[entry][f"round{number + 1}"]["consensus"]
        assert matches({"": servers[2 * number]["consensus"]}, {"": wanted}, tolerance=2e-6)
    assert own_nets(federation, GOLD[entry], 2e-6)
    for number in (1, 2, 3):
        after_it, _ = golden_run(TwoExchanges, 2 * number, drawn=drawn, distance=distance, **RUN)
        assert abs(probe(joined(after_it), NAMES) - GOLD[entry][f"round{number}"]["probe"]) < 2e-6
    assert refuted(joined(federation), GOLD, NAMES)


def test_clients_draw_first_weights_of_their_own():
    ctx = SimpleNamespace(task=SimpleNamespace(fresh=lambda client: {"w": torch.tensor(client)}), client=2)
    assert int(configured("fedmd", "authors").client_init(ctx)["model"]["w"]) == 2


def test_findings():
    toy = world(handmade("fedmd"), LABELS)
    assert [found.code for found in toy.method.examine([toy.task], 3)] == ["fedmd.alike_nets"]
    assert configured("fedmd", "authors").examine([toy.task], 3) == []
    assert not any(isinstance(phase, Train) and phase.on == "received" for phase in toy.worker.begin(toy.job(0)).phases)
