"""Golden numbers of FedAvg, FedBN, FedProx and compression: whole rounds, first gradients, and known mistakes."""

import numpy as np
import pytest
import torch
from torch.func import functional_call

from fedloom.methods import METHODS
from golden_world import (
    CLASS_KNOWLEDGE,
    GOLDEN,
    SHARED_BASELINES,
    WORLD,
    GoldenNorm,
    Values,
    assert_golden,
    golden_run,
    matches,
    noting_uploads,
    personal,
    probe,
)
from support import Uniform, configured

FEDAVG, FEDBN, FEDPROX, COMPRESSION = (GOLDEN[name] for name in ("fedavg", "fedbn", "fedprox", "compression"))
ROUNDS = sum(name.startswith("round") for name in FEDAVG["out"])


def test_all_files_have_one_world():
    assert CLASS_KNOWLEDGE["world"].data == WORLD.data
    assert SHARED_BASELINES["world"].data == {**WORLD.data, "init_2": SHARED_BASELINES["world"]["init_2"].data}


def test_fedavg():
    kind, uploads = noting_uploads(METHODS.get("fedavg"))
    assert_golden(kind, FEDAVG, **FEDAVG["options"])
    for round_, sent in uploads.items():
        for client, tree in FEDAVG["out"][round_].get("clients", {}).items():
            assert matches(sent[client]["model"], tree)


def test_fedavg_with_equal_weights():
    _, servers = golden_run(Uniform, ROUNDS)
    assert abs(probe(servers[-1]["model"]) - FEDAVG["uniform_weights_probe"]) < 1e-7


@pytest.mark.parametrize("client", range(3))
def test_first_loss_and_gradient(client):
    losses = []

    class Noting(METHODS.get("fedavg")):
        def loss(self, net, batch, consts):
            losses.append(super().loss(net, batch, consts))
            return losses[-1]

    _, (server,) = golden_run(Noting, 1, drawn=[[client]], epochs=1)
    assert float(losses[0].detach()) == pytest.approx(FEDAVG["out"]["first_loss"][str(client)], abs=1e-7)
    gradients = {
        name: (torch.tensor(WORLD["init"][name], dtype=torch.float64) - value) / WORLD["lr"]
        for name, value in server["model"].items()
    }
    assert matches(gradients, FEDAVG["out"]["first_gradient"][str(client)], tolerance=1e-6)


@pytest.mark.parametrize(
    ("entry", "method", "options"),
    [("out", "fedbn", {}), ("stats_shared", "fedbn", {"bn_stats": "shared"}), ("fedavg", "fedavg", {})],
)
def test_fedbn(entry, method, options):
    gold = FEDBN[entry]
    rounds = sum(name.startswith("round") for name in gold)
    federation, servers = golden_run(METHODS.get(method), rounds, net=GoldenNorm(), **options)
    for number, server in enumerate(servers, 1):
        wanted = gold[f"round{number}"]
        assert matches(server["model"], wanted["server"])
        assert abs(probe(server["model"], wanted["server"]) - wanted["probe"]) < 1e-7
    for client, own in gold["own"].items():
        assert not own or matches(federation.states[int(client)]["model"], own)
    tree = personal(federation, 2) if method == "fedbn" else servers[-1]["model"]
    x = torch.tensor(WORLD["x"][1], dtype=torch.float64)
    logits = functional_call(GoldenNorm().eval(), tree, x)
    wanted = torch.tensor(gold["logits_of_client_2_on_x_of_client_1"], dtype=torch.float64)
    assert torch.allclose(logits, wanted, rtol=0, atol=1e-7)


def test_fedprox():
    assert_golden(METHODS.get("fedprox"), FEDPROX, **FEDPROX["options"])


@pytest.mark.parametrize("word", ["topk", "sign"])
def test_compression_with_error_feedback(word):
    updates = torch.tensor(COMPRESSION["options"]["updates"], dtype=torch.float64)
    share = COMPRESSION["options"]["k"] / updates.shape[1]
    method = configured(f"fedavg+{word}", **({"topk_share": share} if word == "topk" else {}))
    residual, sizes = torch.zeros_like(updates[0]), [updates.shape[1]]
    for update, wanted in zip(updates, COMPRESSION["top_k" if word == "topk" else "sign"], strict=True):
        change = update + residual
        sent = method.squeezed(change, sizes, np.random.default_rng(0))
        restored = method.restored(sent, sizes)
        if word == "topk":
            assert sent["indices"].tolist() == wanted["places"]
            assert sent["values"].tolist() == pytest.approx(wanted["values"], abs=1e-7)
        else:
            assert float(sent["scales"]) == pytest.approx(wanted["scale"], abs=1e-7)
            assert restored.sign().tolist() == wanted["signs"]
        residual = change - restored
        assert residual.tolist() == pytest.approx(wanted["residual"], abs=1e-7)


def test_int8():
    class Given(np.random.Generator):
        def random(self, count):
            # rounding up where u < fraction is the floor of fraction + (1 - u)
            return 1 - np.array(COMPRESSION["options"]["uniform"][:count])

    change = torch.tensor(COMPRESSION["options"]["updates"][0], dtype=torch.float64)
    method, wanted = configured("fedavg+int8"), COMPRESSION["int8"]
    sent = method.squeezed(change, [len(change)], Given(np.random.PCG64(0)))
    assert float(sent["steps"]) == pytest.approx(wanted["scale"], abs=1e-7)
    assert sent["levels"].tolist() == wanted["integers"]
    # a step travels as float32
    assert method.restored(sent, [len(change)]).tolist() == pytest.approx(wanted["values"], abs=1e-6)


def test_local():
    gold = GOLDEN["local"]
    federation, _ = golden_run(METHODS.get("local"), rounds=2, **gold["options"])
    for client, own in gold["own"].items():
        assert matches(personal(federation, int(client)), own)


def test_probes_are_the_fingerprints_of_their_trees():
    """A run that has a tree's numbers has its fingerprint."""
    checked = 0
    for entry in filter(lambda values: isinstance(values, Values), GOLDEN.values()):
        rounds = [values for variant in entry.values() if isinstance(variant, Values) for values in variant.values()]
        for values in rounds:
            if isinstance(values, Values) and {"server", "probe"} <= values.keys():
                tree = {name: torch.tensor(value, dtype=torch.float64) for name, value in values["server"].items()}
                assert abs(probe(tree, tree) - values["probe"]) < 1e-6
                checked += 1
    assert checked > 50
