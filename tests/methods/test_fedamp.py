"""FedAMP against golden numbers of three rounds; its weights; degenerate settings; what it says of itself."""

import math

import pytest
import torch

from fedloom.methods import METHODS
from golden_world import SHARED_BASELINES, WORLD, golden_run, matches, mistakes, probe
from support import Tiny, TinyBN, configured, world

GOLD = SHARED_BASELINES["fedamp"]
FEDAMP = METHODS.get("fedamp")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3], [2, 2]]
DRAWN = [*WORLD["rounds"], [0, 1]][:3]


def options(**changed):
    names = {"alpha": "alpha", "lambda": "weight", "sigma": "sigma"}
    return {"kernel": "exponential"} | {names[key]: value for key, value in GOLD["options"].items()} | changed


def fingerprint(federation, participants):
    return sum(probe(federation.states[client]["model"]) for client in participants)


def test_golden_rounds():
    clouds = []

    class Noting(FEDAMP):
        def down(self, server, client, ctx):
            payload = super().down(server, client, ctx)
            clouds.append(
                (ctx.round, client, payload["weights"], self.partner_weights(*self._models(server, client, ctx)))
            )
            return payload

    for rounds in (1, 2, 3):
        clouds.clear()
        federation, _ = golden_run(Noting, rounds, drawn=DRAWN, **options())
        wanted = GOLD["out"][f"round{rounds}"]
        for client, tree in wanted["own"].items():
            assert matches(federation.states[int(client)]["model"], tree)
        for number, client, cloud, weights in clouds:
            if number == rounds:
                assert matches(cloud, wanted["cloud"][str(client)])
                others = [w for other, w in sorted(wanted["weights"][str(client)].items()) if other != str(client)]
                assert weights == pytest.approx(others, abs=1e-7)
        assert abs(fingerprint(federation, DRAWN[rounds - 1]) - wanted["probe"]) < 1e-7
    others = mistakes(GOLD, *(name for name in GOLD if "pfllib" in name))
    assert all(abs(fingerprint(federation, DRAWN[2]) - value) > 1e-5 for value in others)


def test_golden_among_the_last_participants():
    federation, _ = golden_run(FEDAMP, 3, drawn=DRAWN, **options(among="participants"))
    assert abs(fingerprint(federation, DRAWN[2]) - GOLD["pfllib_last_participants_only_probe"]) < 1e-7


def clouds_of(method, trees):
    server = {f"client.{k}": tree for k, tree in enumerate(trees)} | {"round": 1}
    server |= {f"round.{k}": 1 for k in range(len(trees))}
    return [method.down(server, k, None)["weights"] for k in range(len(trees))]


def test_two_clouds_sum_to_the_sum_of_the_models():
    trees = [{"w": torch.tensor([1.0, -2.0])}, {"w": torch.tensor([0.5, 3.0])}]
    clouds = clouds_of(configured("fedamp", kernel="exponential", sigma=20.0), trees)
    assert torch.allclose(clouds[0]["w"] + clouds[1]["w"], trees[0]["w"] + trees[1]["w"])
    weight = math.exp(-25.25 / 20) / 20  # |w_0 - w_1|^2 = 0.25 + 25
    assert torch.allclose(clouds[0]["w"], (1 - weight) * trees[0]["w"] + weight * trees[1]["w"])


def test_cosine_weights_by_hand_and_a_diverged_model_has_none():
    method = configured("fedamp", sigma=2.0, own_share=0.25)
    own, same, turned = (
        {"w": torch.tensor([1.0, 0.0])},
        {"w": torch.tensor([3.0, 0.0])},
        {"w": torch.tensor([0.0, 1.0])},
    )
    weights = method.partner_weights(own, [same, turned])
    assert weights == pytest.approx([0.75 * math.exp(2) / (math.exp(2) + 1), 0.75 / (math.exp(2) + 1)])
    lost = {"w": torch.tensor([math.nan, 0.0])}
    for kernel in ("cosine", "exponential"):
        assert configured("fedamp", kernel=kernel).partner_weights(own, [lost, same])[0] == 0
        assert clouds_of(configured("fedamp", kernel=kernel), [own, lost, same])[0]["w"].isfinite().all()
    assert method.partner_weights(own, [lost]) == [0]


def test_statistics_of_batch_norm_neither_travel_nor_mix():
    toy = world(configured("fedamp"), LABELS, net=TinyBN)
    toy.federation.step()
    sent = set(toy.federation.server["client.0"])
    assert {"norm.weight", "fc.weight"} <= sent
    assert not any("running" in name or "tracked" in name for name in sent)


def test_it_says_when_nobody_learns_from_anybody():
    def codes(**own):
        toy = world(configured("fedamp", **own), LABELS, net=Tiny)
        toy.federation.step()
        uploads = {client: {} for client in range(4)}
        return [d.code for d in toy.method.diagnostics(toy.federation.server, uploads, toy.federation.server_context())]

    assert codes() == []
    assert codes(kernel="exponential", sigma=1e-4) == ["fedamp.alone"]
    assert codes(kernel="exponential", sigma=1.0, alpha=5.0) == ["fedamp.negative_own"]
