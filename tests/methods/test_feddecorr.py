"""FedDecorr: golden numbers, its term by hand, and as a wrapper."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS
from fedloom.methods.contract.phases import Batch
from fedloom.methods.feddecorr import FedDecorr, correlation
from golden_world import SHARED_BASELINES, WORLD, GoldenNet, golden_run, noting, refuted, rounds_match
from support import Tiny, after, configured, near, same_bits, world

GOLD = SHARED_BASELINES["feddecorr"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


@pytest.mark.parametrize(("way", "form"), [("out", "code"), ("paper", "paper")])
def test_golden(way, form):
    kind, firsts = noting(FedDecorr)
    _, servers = golden_run(kind, rounds=2, form=form, **GOLD["options"])
    assert rounds_match(servers, GOLD[way])
    if form == "code":
        assert refuted(servers[1]["model"], GOLD)
        for client in WORLD["rounds"][0]:
            term = float(firsts[f"round1/{client}"].terms["decorr"].detach()) / GOLD["options"]["beta"]
            assert term == pytest.approx(GOLD["first_terms"][str(client)], abs=1e-7)
        for client, term in GOLD["first_terms"].items():
            z = GoldenNet().features(torch.tensor(WORLD["x"][int(client)], dtype=torch.float64)).detach()
            assert of(z) == pytest.approx(term, abs=1e-7)


def of(z, mask=None, form="code"):
    return float(correlation(z, Batch(z, torch.zeros(len(z)), mask), form))


def test_padded_rows_do_not_count():
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([True] * 5 + [False] * 2)
    assert of(z, mask) == pytest.approx(of(z[:5]), rel=1e-5)
    assert of(z, torch.arange(7) < 1) == 0.0


def test_a_dead_feature_has_a_finite_gradient():
    z = torch.stack([torch.arange(4.0), torch.zeros(4)], 1).requires_grad_()
    (gradient,) = torch.autograd.grad(correlation(z, Batch(z, torch.zeros(4))), z)
    assert torch.isfinite(gradient).all()


def test_over_fedavg_it_is_feddecorr():
    toys = [after(world(METHODS.get(n).configured("sound", {}), LABELS), 2) for n in ("feddecorr", "fedavg+decorr")]
    assert same_bits(*(toy.federation.server for toy in toys))


def test_it_changes_a_base_with_a_loss_of_its_own():
    toys = [after(world(METHODS.get(n).configured("sound", {}), LABELS), 2) for n in ("moon", "moon+decorr")]
    assert not near(*(toy.federation.server["model"] for toy in toys), 1e-4)
    assert {"contrast", "decorr"} <= toys[1].reports[-1].terms.keys()


def test_features_are_computed_once():
    class Counting(Tiny):
        calls = 0

        def features(self, x):
            Counting.calls += self.training
            return super().features(x)

    toy = world(configured("feddecorr"), LABELS[:1], net=Counting, batch_size=7)
    toy.federation.step()
    assert Counting.calls == 1
    assert "features" not in vars(toy.net)


def test_refusals():
    with pytest.raises(ConfigError, match="has the term of FedDecorr already"):
        METHODS.get("feddecorr+decorr")
    with pytest.raises(ConfigError, match="acts on the features of one net"):
        METHODS.get("fml+decorr").configured("sound", {})
    with pytest.raises(ConfigError, match="needs one forward pass of a batch, and its steps take gradients inside"):
        METHODS.get("perfedavg+decorr").configured("sound", {})
    with pytest.raises(ConfigError, match="acts on one view of each sample"):
        METHODS.get("fedclassavg+decorr").configured("sound", {})
