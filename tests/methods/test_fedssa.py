"""FedSSA: the properties that its equations promise, whatever the numbers."""

import math

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.fedssa import fusion_weight
from fedloom.nets import build
from fedloom.nets.loaded_net import MODEL_GROUPS
from fedloom.nets.net import Net
from support import CLASSES, Recording, Tiny, TinyBN, configured, furthest, mixed, same_bits, same_tree, world

# Class 3 is held by nobody, class 2 by client 2 alone; client 3 has one sample.
SKEWED = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
LONELY = [[0, 0, 0, 1], [2, 2, 2], [3, 3, 3, 3, 3]]
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9)
STILL = OptimizerSpec(lr=0.0)
D = 6  # feature width of Tiny


def fedssa(labels=SKEWED, rounds=0, options=None, method="fedssa", **details):
    toy = world(configured(method, "paper", **(options or {})), labels, engine=Recording, **details)
    for _ in range(rounds):
        toy.federation.step()
    return toy


def seen(labels) -> Tensor:
    return torch.bincount(torch.tensor(labels), minlength=CLASSES) > 0


def header(tree) -> Tensor:
    return torch.cat([tree["head.weight"], tree["head.bias"].unsqueeze(1)], 1)


def start_of(toy, client, round_):
    """The weights with which a client would start, and its own before them."""
    job = toy.job(client, round_=round_)
    return toy.method.begin(job.payload, job.state, job.ctx).tree, job.state["model"]


# -- fusion ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"fusion": "convex"}, {"average": "all"}, {"share_bias": False}])
def test_fusion_changes_rows_of_seen_classes_and_nothing_else(options):
    toy = fedssa(rounds=2, options=options)
    for client, labels in enumerate(SKEWED):
        start, own = start_of(toy, client, 2)
        rows = seen(labels)
        assert list(start) == list(own) == list(toy.task.init)
        assert same_tree(*({n: t[n] for n in ("fc.weight", "fc.bias")} for t in (start, own)))
        for name in ("head.weight", "head.bias"):
            assert torch.equal(start[name][~rows], own[name][~rows])
            if name == "head.weight" or options.get("share_bias", True):
                assert (start[name][rows] != own[name][rows]).any(-1).all()
            else:
                assert torch.equal(start[name], own[name])


@pytest.mark.parametrize(("t_stable", "round_"), [(0, 1), (0, 3), (2, 3), (2, 9)])
def test_from_t_stable_on_rows_are_the_servers(t_stable, round_):
    toy = fedssa(rounds=round_ - 1, options={"t_stable": t_stable})
    start, _ = start_of(toy, 0, round_)
    assert torch.equal(header(start)[seen(SKEWED[0])], toy.federation.server["header"].values[seen(SKEWED[0])])


def test_mu_counts_rounds_not_participations_and_a_late_comer_fuses_its_first_header():
    toy = fedssa(participation=0.25, options={"t_stable": 9}, rounds=4)
    (late, *_) = set(range(4)) - toy.federation.states.keys()
    job = toy.job(late, round_=5)
    start, own = start_of(toy, late, 5)
    assert same_tree(own, toy.task.init)
    assert job.payload["header"].held.all()
    rows = job.payload["header"].values + fusion_weight(4, 0.5, 9) * header(toy.task.init)
    expected = torch.where(seen(SKEWED[late]).unsqueeze(1), rows, header(toy.task.init))
    assert torch.allclose(header(start), expected, rtol=0, atol=1e-6)


def test_skip_first_fusion_is_about_round_1_alone():
    toy = fedssa(options={"skip_first_fusion": True})
    assert same_tree(*start_of(toy, 0, 1))
    toy.federation.step()
    assert furthest(*start_of(toy, 0, 2)) > 1e-3
    fused = fedssa()
    assert torch.equal(header(start_of(fused, 0, 1)[0])[:2], 1.5 * header(fused.task.init)[:2])


# -- server ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pool", ["sampled", "all_known"])
def test_server_rows_without_a_holder_keep_their_bits(pool):
    toy, known = fedssa(participation=0.25, options={"pool": pool}), torch.zeros(CLASSES, dtype=torch.bool)
    for _ in range(8):
        before = toy.federation.server["header"].values.clone()
        (client,) = toy.federation.step().participants
        known |= seen(SKEWED[client])
        after, touched = toy.federation.server["header"].values, seen(SKEWED[client])
        assert torch.equal(after[~touched], before[~touched])
        assert (after[touched] != before[touched]).any(1).all()
    assert torch.equal(after[~known], header(toy.task.init)[~known])
    assert toy.federation.server["header"].held.all()


def test_rows_weigh_alike_or_by_samples_of_the_class():
    for weights in ("uniform", "count"):
        toy = fedssa(rounds=1, options={"weights": weights})
        done = toy.federation.engine.done
        assert all(("class_counts" in d.upload) is (weights == "count") for d in done)
        counts = torch.stack([torch.bincount(torch.tensor(part), minlength=CLASSES) for part in SKEWED])
        shares = (counts if weights == "count" else counts > 0).double()
        rows = torch.stack([header(d.state["model"]).double() for d in done])
        for s in range(3):
            mean = (shares[:, s, None] * rows[:, s]).sum(0) / shares[:, s].sum()
            assert torch.allclose(toy.federation.server["header"].values[s].double(), mean, rtol=0, atol=1e-6)


def test_counts_of_earlier_rounds_are_not_known():
    with pytest.raises(ConfigError, match=r"fedssa\.weights.*pool"):
        configured("fedssa", "authors", weights="count")


# -- what travels, and whose it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"average": "all"}, {"share_bias": False}, {"average": "all", "share_bias": False}, {"pool": "all_known"}],
)
def test_uploads_and_states_share_no_memory(options):
    toy = fedssa(rounds=2, options=options)
    first = {n: v.clone() for n, v in toy.task.init.items()}
    states = [state["model"] for state in toy.federation.states.values()]
    owned = [v for tree in (*states, toy.task.init, toy.worker.loaded_nets[0].tree) for v in tree.values()]
    sent = [d.upload["header"].values for d in toy.federation.engine.done[-4:]]
    sent.append(toy.federation.server["header"].values)
    places = [v.untyped_storage().data_ptr() for v in owned + sent]
    assert len(set(places)) == len(places)
    toy.federation.step()
    assert same_tree(first, toy.task.init)


# -- what it is without its parts --------------------------------------------------------------------------------------
@pytest.mark.parametrize("net", [Tiny, TinyBN])
def test_with_one_holder_per_class_and_no_fusion_it_is_local_training(net):
    details = {"labels": LONELY, "rounds": 4, "net": net, "epochs": 2, "optimizer": MOMENTUM}
    ours, local = fedssa(options={"mu0": 0.0}, **details), fedssa(method="local", **details)
    for client in range(3):
        assert same_bits(ours.federation.states[client], local.federation.states[client])
    with_fusion = fedssa(**details).federation.states[0]["model"]
    assert furthest(with_fusion, local.federation.states[0]["model"]) > 1e-2


def test_clipping_bounds_steps_and_leaves_small_gradients_alone():
    plain, loose, tight = (fedssa(rounds=2, options={"clip": c}).federation for c in (None, 1e3, 1e-3))
    assert same_bits(plain.server, loose.server)
    assert all(same_bits(state, loose.states[k]) for k, state in plain.states.items())
    assert furthest(plain.states[0]["model"], tight.states[0]["model"]) > 1e-3
    toy = fedssa(options={"clip": 1e-3}, labels=[[0, 1, 2, 3]])
    start, _ = start_of(toy, 0, 1)
    after = toy.worker.run(toy.job(0)).state["model"]
    moved = math.sqrt(sum(float((after[n] - start[n]).square().sum()) for n in start))
    assert moved == pytest.approx(0.1 * 1e-3, rel=1e-2)


# -- several architectures ---------------------------------------------------------------------------------------------
def small_cnns(names, shape=(3, 16, 16)) -> list[Net]:
    return [build(name, input_shape=shape, num_classes=CLASSES, streams=Streams(3)) for name in names]


def test_five_architectures_train_together_and_exchange_rows():
    labels = [[0, 1, 0, 1], [1, 2, 2], [0, 2, 0, 2], [0, 1, 1], [1, 2, 1], [0, 0, 2]]
    nets = small_cnns(MODEL_GROUPS["fedssa-cnn"])
    federation = mixed(configured("fedssa", "paper"), nets, labels, shape=(3, 16, 16))
    first = federation.tasks[0].init
    assert torch.equal(federation.server["header"].values, header(first))
    for _ in range(2):
        before = federation.server["header"].values.clone()
        report = federation.step()
    assert report.participants == tuple(range(6))
    sizes = {federation.states[k]["model"]["fc.0.weight"].shape for k in range(6)}
    assert len(sizes) == 5
    done = federation.engine.done[-6:]
    assert all(set(d.upload) == {"header"} and d.upload["header"].values.shape == (CLASSES, 501) for d in done)
    rows = torch.stack([header(federation.states[k]["model"]) for k in (1, 2, 4, 5)])[:, 2]
    mean = rows.double().mean(0).float()
    assert torch.allclose(federation.server["header"].values[2], mean, rtol=0, atol=1e-6)
    assert not torch.equal(federation.server["header"].values[2], before[2])
    assert torch.equal(federation.server["header"].values[3], header(first)[3])
    for client in range(6):
        state = federation.state_of(federation.client_context(client, 3))
        ctx = federation.server_context(client)
        (predictor,) = federation.method.predictors(federation.server, state, ctx).values()
        assert same_tree(predictor.tree, state["model"])


def test_headers_of_different_width_are_refused():
    with pytest.raises(ConfigError, match="group 1 have headers of 4 x 7, those of group 0 of 4 x 501"):
        mixed(configured("fedssa"), [*small_cnns(["fedssa-cnn5"]), Tiny()], [[0], [1]], shape=(3, 16, 16))


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedco2"])
def test_methods_that_average_weights_refuse_two_architectures(name):
    with pytest.raises(ConfigError, match=rf"{name} averages weights of one architecture.*fedssa.*local"):
        mixed(configured(name), [Tiny(), TinyBN()], [[0], [1]])


def test_a_head_of_two_layers_is_refused():
    class Deep(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Sequential(nn.Linear(D, 3), nn.Linear(3, CLASSES))
            self.head.in_features = D

    with pytest.raises(ConfigError, match="one linear layer"):
        fedssa(net=Deep)


# -- diagnostics, options, edges --------------------------------------------------------------------------------------
def codes(report) -> list[str]:
    return [diagnostic.code for diagnostic in report.diagnostics]


def test_rows_that_grow_without_end_are_reported():
    """Rounds without training: rows grow by 1 + mu each, and pass 100 times their length in round 12."""
    toy = fedssa(options={"t_stable": 45}, optimizer=STILL, rounds=11)
    assert codes(toy.federation.step()) == ["fedssa.rows_grow"]
    calm = fedssa(optimizer=STILL, rounds=11)
    assert codes(calm.federation.step()) == []


def test_growth_is_the_longest_sent_row_in_units_of_its_first_length():
    toy = fedssa()
    first = header(toy.task.init)
    for factor, found in ((99.0, []), (101.0, ["fedssa.rows_grow"])):
        values = torch.stack([first[0], factor * first[1], 1e6 * first[2], first[3]])
        uploads = {
            k: {"header": ClassTable(values, torch.ones(CLASSES).bool()).keep_classes(seen([0, 1]))} for k in range(2)
        }
        diagnostics = toy.method.diagnostics(toy.federation.server, uploads, ServerContext(toy.task, 1))
        assert [diagnostic.code for diagnostic in diagnostics] == found
        assert all(diagnostic.figure == pytest.approx(factor) for diagnostic in diagnostics)
