"""Methods without their own part are the simpler method that they extend, and refuse options that make no sense."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from support import TinyBN, absent_clients_keep_their_models, after, configured, furthest, handmade, same_tree, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
# A method, its options, the method that it is under them, and the largest difference: 0 where they have the same bits.
# After a colon: the part of a method's entries that is the other method's model.
LIMITS = [
    ("ccvr", {"server_epochs": 0}, "fedavg", 0),
    ("ditto:shared.", {"personal_epochs": 0}, "fedavg", 0),
    ("fd", {"gamma": 0}, "local", 0),
    ("fedamp", {"weight": 0.0}, "local", 0),
    ("fedavg+decorr", {"decorr_beta": 0.0}, "fedavg", 1e-6),
    ("fedavgm", {"beta": 0.0}, "fedavg", 1e-6),
    ("fedavgm+decorr", {"decorr_beta": 0.0}, "fedavgm", 1e-6),
    ("fedcda", {}, "fedavg", 0),  # the warm-up
    ("feddf", {"steps": 0}, "fedavg", 0),
    ("feddisco", {"a": 0.0, "b": 0.0}, "fedavg", 1e-6),
    ("feddisco", {"a": 50.0}, "fedavg", 0),  # no client has a positive weight
    ("feddistill", {"weight": 0}, "fedavg", 0),
    ("fedgen", {"weight": 0}, "fedavg", 1e-6),
    ("fedmd", {"digest_epochs": 0}, "local", 0),
    ("fedntd", {"beta": 0.0}, "fedavg", 0),
    ("fedorgp", {"weight": 0, "server_epochs": 2}, "local", 0),
    ("fedplvm", {"weight": 0}, "fedavg", 0),
    ("fedproto", {"weight": 0, "average_model": True}, "fedavg", 0),
    ("fedproto", {"weight": 0}, "local", 0),
    ("fedprox", {"mu": 0.0}, "fedavg", 0),
    ("fedprox+decorr", {"decorr_beta": 0.0}, "fedprox", 1e-6),
    ("fedrcl", {"weight": 0.0}, "fedavg", 1e-6),
    ("fedrod", {"balanced": False}, "fedavg", 0),
    ("fedrs", {"alpha": 1.0}, "fedavg", 0),
    ("fedsam", {"rho": 0.0}, "fedavg", 0),
    ("fedsam+decorr", {"decorr_beta": 0.0}, "fedsam", 1e-6),
    ("fedtgp", {"weight": 0}, "local", 0),
    ("feduv", {"variance": 0.0, "uniformity": 0.0}, "fedavg", 1e-6),
    ("floco", {"ends": 1}, "fedavg", 1e-6),
    ("fml:meme.", {"alpha": 1, "beta": 1}, "fedavg", 0),
    ("fml:own.", {"alpha": 1, "beta": 1}, "local", 0),
    ("fpl", {"contrast": 0, "pull": 0}, "fedavg", 0),
    ("ifca", {"clusters": 1}, "fedavg", 1e-6),
    ("moon", {"mu": 0.0}, "fedavg", 0),
    ("protonorm", {"weight": 0}, "local", 0),
]


def models(federation, base, prefix=""):
    """The models that a run of `base` has, of the server or of its clients by number: the entries with a prefix."""
    states = {client: state["model"] for client, state in federation.states.items() if base == "local"}
    trees = states or {-1: federation.server["model"]}
    return {
        k: {n.removeprefix(prefix): v for n, v in tree.items() if n.startswith(prefix)} for k, tree in trees.items()
    }


@pytest.mark.parametrize(("name", "options", "base", "difference"), LIMITS, ids=lambda value: str(value))
def test_without_its_own_part_a_method_is_the_one_that_it_extends(name, options, base, difference):
    name, _, prefix = name.partition(":")
    ours, plain = (
        after(world(method, LABELS, net=TinyBN, epochs=2, participation=0.6), 3).federation
        for method in (handmade(name, **options), configured(base))
    )
    ours, plain = models(ours, base, prefix), models(plain, base)
    assert ours.keys() == plain.keys()
    for client, tree in plain.items():
        if difference:
            assert furthest(ours[client], tree) < difference
        else:
            assert same_tree({entry: ours[client][entry] for entry in tree}, tree)


# Methods whose clients keep a part of the model.
KEPT = "fedamp fedas fedbn fedco2 fedgh fedmrl fedper fedrep fedrod gpfl lgfedavg local"


@pytest.mark.parametrize("name", KEPT.split())
def test_clients_that_are_not_drawn_keep_their_models(name):
    toy = world(handmade(name), LABELS, net=TinyBN, participation=0.4)
    assert absent_clients_keep_their_models(toy, 4)
    private = {entry for state in toy.federation.states.values() for entry in state["model"]}
    shared = toy.federation.server.get("model", {}).keys()
    assert private
    assert name == "fedas" or not private & shared


# Options by method: values that must be refused in one line. `test_descriptions.py` has negative numbers of them all.
OUT_OF_RANGE = {
    "ccvr": {"features": [0]}, "fed3r": {"ridge": [0]},
    "fedavg+dp": {"dp_clip": [0.0], "dp_delta": [1.0], "dp_noise": [0.0]},
    "fedavg+servermomentum": {"servermomentum_beta": [1.0]}, "fedavg+topk": {"topk_share": [0, 1.5]},
    "fedavgm": {"beta": [1.0], "server_lr": [0.0]}, "fedbn": {"bn_stats": ["global"], "weights": ["sample"]},
    "fedcda": {"batches": [0], "kept": [0]}, "fedco2": {"algorithm": ["both"], "bank": ["all"], "personal": ["body"]},
    "feddf": {"server_lr": [0]}, "feddisco": {"distance": ["l1"]}, "feddistill": {"ema": [0, 1.5]},
    "feddw": {"absent_row": ["drop"], "mu_decay": [(0, 10), (9, 0), (9, 0.5)], "sl_ema": [0, 1.5]},
    "feddyn": {"alpha": [0.0], "clip": [0.0]}, "fedgen": {"draws": [0], "server_lr": [0]}, "fedgh": {"server_lr": [0]},
    "fedkd": {"energy_last": [1.1]}, "fednh": {"clip": [0.0], "rho": [1.1], "scale": [0.0]}, "fedntd": {"tau": [0.0]},
    "fedpac": {"head_lr": [0]}, "fedpcl": {"tau": [0]}, "fedplvm": {"alpha": [2]}, "fedprox": {"mu": ["strong"]},
    "fedrcl": {"tau": [0.0], "threshold": [1.1]},
    "fedsc": {"cpdr": ["l3"], "neighbour": ["angel"], "neighbours": [1.5], "scale": [None], "tau": [0.0]},
    "fedskc": {"beta": [0, 1.1], "gda": ["shares"], "gpr_clip": [(2, 1)], "tau": [0]},
    "fedssa": {"average": ["no"], "clip": [0.0], "mu0": [1.1], "pool": ["all"]}, "fml": {"alpha": [1.5]},
    "fpl": {"tau": [0]}, "moon": {"tau": [0.0]}, "pfedfda": {"beta": [2]}, "protonorm": {"scale": [0]},
    "qfedavg": {"q": [60.5]}, "scaffold": {"server_lr": [0]},
    **{name: {"beta1": [1.0], "tau": [0.0, 2e6]} for name in ("fedadagrad", "fedadam", "fedyogi")},
}  # fmt: skip


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_values_out_of_range_are_errors_that_name_key_and_value(name):
    for key, values in OUT_OF_RANGE[name].items():
        for value in values:
            with pytest.raises(ConfigError) as caught:
                configured(name, **{key: value})
            message = str(caught.value)
            assert f"{name}.{key}" in message
            assert "\n" not in message
            assert isinstance(value, tuple) or str(value) in message


@pytest.mark.parametrize("name", ["feddw", "fedl2g", "fedprox", "fedsc", "fedskc"])
def test_the_order_of_uploads_does_not_matter(name):
    toy = world(configured(name), LABELS)
    uploads = {client: toy.worker.run(toy.job(client)).upload for client in range(len(LABELS))}
    turned = {client: uploads[client] for client in (3, 1, 0, 4, 2)}
    ctx = toy.federation.server_context()
    one, other = (toy.method.aggregate(toy.federation.server, sent, ctx) for sent in (uploads, turned))
    for key, value in one.items():
        if isinstance(value, dict):
            assert furthest(value, other[key]) < 1e-6
        elif hasattr(value, "held") and key != "relational":  # whose rows are the uploads'
            assert torch.equal(value.held, other[key].held)
            assert torch.allclose(value.values, other[key].values, rtol=0, atol=1e-6)
        elif isinstance(value, torch.Tensor):
            assert torch.allclose(value.double(), other[key].double(), rtol=0, atol=1e-6)
