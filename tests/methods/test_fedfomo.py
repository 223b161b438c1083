"""FedFomo against golden numbers of three rounds; whose models a client gets; degenerate settings; what it reports."""

import math

import pytest
import torch

from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.fedfomo import length_of, mixed, raw_weights
from golden_world import SHARED_BASELINES, WORLD, golden_run, matches, mistakes, personal, probe
from support import Tiny, TinyBN, after, configured, furthest, same_tree, world

GOLD = SHARED_BASELINES["fedfomo"]
FEDFOMO = METHODS.get("fedfomo")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [2, 2, 0]]
DRAWN = [*WORLD["rounds"], [0, 1]][:3]
GOLDEN = {"drawn_validation": False, "explore": 0.0, **GOLD["options"]}


def golden(rounds, **options):
    return golden_run(FEDFOMO, rounds, drawn=DRAWN, **GOLDEN, **options)


def fingerprint(federation, participants=DRAWN[2]):
    return sum(probe(personal(federation, client)) for client in participants)


def mixed_shares(raw):
    """The share of each model in a mix, read from models that differ in one entry each, at a distance of 1."""
    if not raw:
        return {}
    eye = torch.eye(len(raw), dtype=torch.float64)
    models, start = [{"w": row} for row in eye], {"w": torch.zeros(len(raw), dtype=torch.float64)}
    losses = torch.tensor([0.0, *(-weight for weight in raw.values())], dtype=torch.float64)
    lengths = torch.tensor([0.0] + [1.0] * len(raw))
    found = mixed(start, {"models": [start, *models], "losses": losses, "lengths": lengths})
    return dict(zip(raw, found["w"].tolist(), strict=True))


def test_golden_rounds():
    rows = torch.eye(3, dtype=torch.float64)
    for number in (1, 2, 3):
        federation, servers = golden(number)
        wanted = GOLD["out"][f"round{number}"]
        for client, tree in wanted["own"].items():
            state = federation.states[int(client)]
            assert matches(state["model"], tree, tolerance=1e-5)
            assert matches(state["base"], wanted["start"][client], tolerance=1e-5)
            raw = wanted["weights"][client]["raw"]
            for other, weight in raw.items():
                rows[int(client), int(other)] += weight
            used = mixed_shares(wanted["weights"][client]["raw"])
            assert used == pytest.approx(wanted["weights"][client]["used"], abs=1e-6)
        assert abs(fingerprint(federation, DRAWN[number - 1]) - wanted["probe"]) < 1e-5
        assert torch.allclose(servers[-1]["affinity"].double(), rows, rtol=0, atol=1e-4)
    assert torch.allclose(rows, torch.tensor(GOLD["out"]["affinity"], dtype=torch.float64), rtol=0, atol=1e-6)
    others = mistakes(GOLD, *(name for name in GOLD if "flbench" in name))
    assert all(abs(fingerprint(federation) - value) > 1e-4 for value in others)


def test_golden_base_of_its_own_latest_and_squared_lengths():
    assert abs(fingerprint(golden(3, base="own")[0]) - GOLD["flbench_base_is_own_latest_probe"]) < 1e-5
    assert abs(fingerprint(golden(3, norm="squared")[0]) - GOLD["WRONG_norm_squared"]) < 1e-5


@pytest.mark.parametrize(("norm", "name"), [("l1", "l1"), ("squared", "l2"), ("by_tensor", "l2_root")])
def test_golden_lengths_of_the_released_code(norm, name):
    _, servers = golden(2, norm=norm)
    for other, weight in GOLD["authors_raw_of_client_1_in_round_2"][name].items():
        assert abs(float(servers[-1]["affinity"][1, int(other)]) - weight) < 2e-5


def test_validation_samples_are_the_golden_ones_and_never_train():
    federation, _ = golden(1)
    part, streams = federation.method._validation(), federation.tasks[0].streams
    for client, rows in GOLD["validation_rows"].items():
        indices = torch.arange(WORLD["n"][int(client)])
        assert part.of(indices, streams, int(client)).tolist() == rows
        trains = part.others.of(indices, streams, int(client)).tolist()
        assert sorted([*trains, *rows]) == indices.tolist()


def test_raw_weights_by_hand():
    losses, lengths = torch.tensor([2.0, 1.0, 3.0, math.nan, 0.5]), torch.tensor([0.0, 2.0, 4.0, 1.0, math.inf])
    assert raw_weights(losses, lengths).tolist() == [0, 0.5, -0.25, 0, 0]
    base, change = (
        {"w": torch.zeros(2), "b": torch.zeros(1)},
        {"w": torch.tensor([3.0, -4.0]), "b": torch.tensor([12.0])},
    )
    lengths = [length_of(change, base, norm) for norm in ("l2", "l1", "squared", "by_tensor")]
    assert lengths == [13, 19, 169, 17]


def test_a_mix_ignores_the_scale_of_losses_and_stays_without_gain():
    models = [{"w": torch.tensor([value])} for value in (0.0, 1.0, 4.0)]
    consts = {"models": models, "lengths": torch.tensor([0.0, 1.0, 4.0])}
    one = mixed(models[0], consts | {"losses": torch.tensor([1.0, 0.5, 0.0])})
    assert float(one["w"]) == pytest.approx((0.5 * 1 + 0.25 * 4) / 0.75)
    tenfold = mixed(models[0], consts | {"losses": torch.tensor([10.0, 5.0, 0.0])})
    assert torch.allclose(one["w"], tenfold["w"])
    assert same_tree(mixed(models[0], consts | {"losses": torch.tensor([1.0, 1.5, 2.0])}), models[0])


def test_a_client_gets_the_models_it_likes_best_or_drawn_ones():
    toy = world(configured("fedfomo", models=2, explore=0.0), LABELS)
    affinity = torch.tensor([[1.0, -3.0, 5.0, 2.0]] + [[0.0] * 4] * 3)
    server = {f"client.{k}": {"w": torch.tensor([k])} for k in range(4)} | {"affinity": affinity}

    def of(method, round_, client=0):
        return set(method.down(server, client, ServerContext(toy.task, round_, client=client)))

    assert of(toy.method, 2) == {"client.2", "client.3"}
    explores = configured("fedfomo", models=1, explore=1.0, explore_decay=0.5)
    found = {round_: of(explores, round_) for round_ in range(1, 4)}
    assert found[3] == {"client.2"}, "the probability has fallen to 0"
    falling, always = (configured("fedfomo", models=1, explore=1.0, explore_decay=decay) for decay in (1.0, 0.0))
    for client in range(4):  # in round 1 nothing has fallen, and in round 2 all of it
        assert of(falling, 1, client) == of(always, 1, client)
        assert of(falling, 2, client) == of(configured("fedfomo", models=1, explore=0.0), 2, client)
    many = configured("fedfomo", models=1, explore=1.0, explore_decay=0.0)
    assert {"client.1"} in [of(many, round_) for round_ in range(1, 20)]
    assert of(toy.method, 2, 9) <= {f"client.{k}" for k in range(4)}, "a newcomer likes nobody yet"
    everybody = configured("fedfomo", models=9)
    assert of(everybody, 2) == {"client.1", "client.2", "client.3"}


def test_without_models_to_mix_each_client_trains_alone():
    toy = after(world(configured("fedfomo"), LABELS, net=TinyBN), 1)
    assert all(same_tree(state["base"], toy.task.init) for state in toy.federation.states.values())
    assert furthest(toy.federation.states[0]["model"], toy.task.init) > 0


def test_it_says_when_nobody_gains():
    toy = after(world(configured("fedfomo"), LABELS, net=Tiny), 2)
    context = toy.federation.server_context()

    def codes(*rows):
        uploads = {k: {"raw": torch.tensor(row)} for k, row in enumerate(rows)}
        return [found.code for found in toy.method.diagnostics(toy.federation.server, uploads, context)]

    assert codes([2.0, -1.0], [-0.5, 1.0]) == ["fedfomo.alone"]
    assert codes([2.0, 1.0], [-0.5, 1.0]) == codes([1.0, 0.0], [0.0, 1.0]) == []
