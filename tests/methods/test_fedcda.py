"""FedCDA: golden numbers, choices by hand, and who is counted."""

import itertools

import pytest
import torch

from fedloom.core.trees import weighted_mean
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.fedcda import COMBINATIONS, FedCDA, closest
from golden_world import GOLDEN, golden_run, refuted, rounds_match
from support import TinyBN, after, alike, configured, furthest, world

GOLD = GOLDEN["fedcda"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    options = dict(GOLD["options"])
    _, servers = golden_run(FedCDA, drawn=options.pop("rounds"), batches=1, **options)
    assert rounds_match(servers, GOLD["out"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        chosen = {str(client): pick for client, pick in enumerate(server["choice"].tolist()) if pick >= 0}
        assert chosen == wanted["choice"]
    assert refuted(servers[3]["model"], GOLD)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_an_old_model_that_is_near_is_chosen():
    fixed = [(vector(0, 0), 1.0), (vector(0, 1), 1.0)]
    options = [[(vector(4, 4), 1.0), (vector(0, 0.5), 1.1)], [(vector(1, 0), 1.0), (vector(9, 9), 0.0)]]
    assert closest(fixed, options, 1.0) == [1, 0]
    assert closest(fixed, options, 0.0) == [0, 1]  # losses alone
    assert closest([], [[(vector(1), 2.0), (vector(2), 2.0)]], 1.0) == [0]  # alone, all are as near: the newest


def test_the_choice_is_the_best_of_all_combinations():
    rng = torch.Generator().manual_seed(4)
    draw = lambda: (torch.randn(3, generator=rng, dtype=torch.float64), float(torch.rand(1, generator=rng)))  # noqa: E731
    fixed, options = [draw() for _ in range(2)], [[draw() for _ in range(n)] for n in (3, 2, 3)]

    def cost(picked):
        every = [*fixed, *(client[pick] for client, pick in zip(options, picked, strict=True))]
        weights = torch.stack([w for w, _ in every])
        spread = (weights - weights.mean(0)).square().sum(1).mean()
        return sum(loss for _, loss in every) / len(every) + 0.35 * float(spread)

    best = min(itertools.product(range(3), range(2), range(3)), key=cost)
    assert best != (0, 0, 0)
    assert closest(fixed, options, 0.7) == list(best)


def test_the_model_is_the_mean_of_all_choices_absent_clients_included():
    toy = world(configured("fedcda", warmup=1, kept=2), LABELS, net=TinyBN, participation=0.6, epochs=2)
    for round_ in range(1, 6):
        toy.federation.step()
        server = toy.federation.server
        picked = {k: int(pick) for k, pick in enumerate(server["choice"]) if pick >= 0}
        if round_ > 1:
            trees = [server[f"kept.{k}.{pick}"] for k, pick in picked.items()]
            assert furthest(server["model"], weighted_mean(trees, [1.0] * len(trees))) < 1e-6
            assert len(trees) > 3
        assert all(f"kept.{k}.2" not in server for k in range(5))


@pytest.mark.parametrize(("warmup", "codes"), [(4, ["fedcda.only_warmup"]), (3, [])])
def test_a_run_that_is_all_warm_up_says_so(warmup, codes):
    toy = world(configured("fedcda", warmup=warmup), LABELS, rounds=4)
    assert [diagnostic.code for diagnostic in toy.method.examine([toy.task], 5)] == codes


@pytest.mark.parametrize(("kept", "batches", "clients"), [(3, 3, 5), (3, 1, 40), (2, 1, 12), (1, 2, 9), (4, 3, 2)])
def test_groups_hold_everybody_once_and_few_combinations(kept, batches, clients):
    method = configured("fedcda", kept=kept, batches=batches)
    toy = world(method, [[0, 1]])
    groups = method._groups(list(range(10, 10 + clients)), ServerContext(toy.task, 4))
    assert sorted(itertools.chain(*groups)) == list(range(10, 10 + clients))
    assert len(groups) >= min(batches, clients)
    assert max(kept ** len(group) for group in groups) <= COMBINATIONS
    assert min(len(group) for group in groups) > 0


@pytest.mark.parametrize("engine", ["processes", "stacked"])
def test_engines_agree(engine):
    toys = [world(configured("fedcda", warmup=1), LABELS, net=TinyBN, participation=0.8) for _ in range(2)]
    after(toys[0], 3)
    after(toys[1], 3, engine)
    if engine == "processes":
        assert alike(*toys, engine)
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-5
    assert torch.equal(*(toy.federation.server["choice"] for toy in toys))
