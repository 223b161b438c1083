"""The batched engine: within 1e-5 of the serial engine, for every method, whatever the clients' sizes."""

import dataclasses

import pytest
import torch

from fedloom.core.errors import ClientError, ConfigError
from fedloom.data.augment import Augmentation
from fedloom.engine.choose import EngineChoice, choose_engine
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from fedloom.engine.stacked.batched import obstacle
from fedloom.methods import METHODS
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.contract.spec import Spec
from fedloom.methods.fedavg import FedAvg
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from stacked_world import UNEQUAL as LABELS
from stacked_world import DoubleBN, agree, stacked
from support import (
    ROW_METHODS,
    STEEP,
    Tiny,
    TinyBN,
    TinyDropout,
    after,
    alike,
    configured,
    each_preset,
    handmade,
    near,
    sampled,
    sampled_cases,
    world,
)

# FedCDA chooses between models, and FedKD cuts ranks, at thresholds that roundings may cross: tests of their own.
METHOD_NAMES = [
    *(n for n in ROW_METHODS if METHODS.get(n).spec.unstackable is None and n not in ("fedcda", "fedkd")),
    "fedprox+dw",
    "fedsc+dw",
]
# Batch norm over two samples multiplies roundings: clients that keep their bodies show it, in single precision alone.
OWN_BODIES = {name for name in METHOD_NAMES if METHODS.get(name).spec.architectures == "any"} - {"fedssa", "local"}
PROTOTYPES_IN_SINGLE = ("fedsc", "fedskc")
REFUSE_MOMENTUM = {"qfedavg", "scaffold"}


@pytest.mark.parametrize("net", [Tiny, TinyBN])
@pytest.mark.parametrize(
    ("name", "preset"), sampled_cases(each_preset(METHOD_NAMES), "apfl", "ditto", "fednh", "fedproto", "scaffold")
)
def test_every_method_agrees_with_the_serial_engine(name, preset, net):
    labels = LABELS[:-1] if net is TinyBN and name in OWN_BODIES else LABELS
    if net is TinyBN and name in STEEP:  # some processors' roundings pass the bound
        net = DoubleBN
    agree(handmade(name, preset), net=net, labels=labels)


@pytest.mark.parametrize(
    "name",
    sampled(
        [name for name in METHOD_NAMES if not name.startswith(PROTOTYPES_IN_SINGLE)], "ditto", "fedrep", "scaffold"
    ),
)
def test_in_double_precision_only_the_order_of_sums_is_left(name):
    agree(configured(name), net=DoubleBN, epochs=2, rounds=4, tolerance=1e-6)


@pytest.mark.parametrize("spec", [OptimizerSpec(momentum=0.9, weight_decay=1e-3), OptimizerSpec(name="adam", lr=0.001)])
def test_optimizers_with_memory(spec):
    agree(configured("fedavg"), optimizer=spec, epochs=3)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_any_width_of_the_stacks(width):
    agree(configured("fedsc"), engine=lambda worker: Batched(worker, width))


@pytest.mark.parametrize("scale", ["dataset", "batch"])
@pytest.mark.parametrize("name", ["fedskc", "fedsc"])
def test_the_scale_is_taken_in_every_epoch_or_batch(name, scale):
    agree(configured(name, "sound", scale=scale), epochs=3)


def test_gradients_that_are_clipped():
    agree(configured("fedssa", "sound", clip=0.1))


@pytest.mark.parametrize("name", sampled(sorted({*METHOD_NAMES} - REFUSE_MOMENTUM), "ditto", "fedrep", "moon"))
def test_clients_of_one_size_with_momentum(name):
    alike = [[0, 1, 2, 0, 1, 1, 0, 3], [1, 1, 2, 3, 3, 0, 1, 2], [0, 1, 2, 3, 0, 1, 2, 3]]
    momentum = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=1e-3)
    agree(configured(name), labels=alike, optimizer=momentum, epochs=2, rounds=3)


def test_augmented_images():
    toys = [world(configured("fedavg"), LABELS, net="conv4", shape=(1, 16, 16)) for _ in range(2)]
    toys[1].federation.engine = stacked(toys[1].worker)
    for toy in toys:
        toy.worker.sampler.local_training = dataclasses.replace(
            toy.worker.local_training, augment=Augmentation(crop=2, flip=True)
        )
        toy.federation.step()
    assert near(toys[0].federation.server, toys[1].federation.server, 1e-5)


@pytest.mark.parametrize(("net", "shape", "rounds"), [("lenet5-bn", (1, 28, 28), 2), ("resnet8", (3, 16, 16), 1)])
def test_convolutional_nets_with_batch_norm(net, shape, rounds):
    """One round of ResNet-8, whose kernels differ (channels last): batch norm over two samples multiplies rounding."""
    agree(configured("fedbn"), net=net, shape=shape, rounds=rounds, optimizer=OptimizerSpec(lr=0.01))


def test_stacks_on_several_processes():
    toys = [world(configured("fedco2"), LABELS, net=TinyBN, batch_size=4) for _ in range(2)]
    toys[1].federation.engine = Processes(toys[1].worker, toys[1].federation.tasks, workers=2, stack=2)
    try:
        for toy in toys:
            toy.federation.step()
            toy.federation.step()
    finally:
        toys[1].federation.engine.close()
    one, other = (toy.federation for toy in toys)
    assert near(one.server, other.server, 1e-5)
    assert all(near(one.states[client], other.states[client], 1e-5) for client in one.states)


def test_clients_of_several_architectures_are_stacked_by_architecture():
    models = [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [16, 8]}]
    config = {
        "method": "fedssa",
        "model": models,
        "scenario": {"source": "digits", "partition": "classes", "classes_per_client": 2, "clients": 10},
        "rounds": 2,
        "participation": 1.0,
        "evaluation": {"protocol": "personal/global"},
    }
    serial, batched = (run(parse(config | {"engine": engine})).numbers for engine in ("serial", {"name": "batched"}))
    assert batched["engine"] == "batched"
    assert batched["test_loss"] == pytest.approx(serial["test_loss"], abs=1e-5)


def test_a_state_that_is_kept_does_not_keep_its_stack():
    toy = world(configured("local"), LABELS)
    toy.federation.engine = stacked(toy.worker)
    toy.federation.step()
    for state in toy.federation.states.values():
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in state["model"].values())


class Alone(FedAvg):
    spec = Spec(unstackable="its step size is searched for")


@pytest.mark.parametrize(
    ("method", "net", "why"),
    [(Alone(), Tiny, "its step size is searched"), (configured("fedavg"), TinyDropout, "drop")],
)
def test_what_cannot_be_stacked_says_why(method, net, why):
    toy = world(method, LABELS, net=net)
    assert why in obstacle(toy.worker)
    with pytest.raises(ConfigError, match=why):
        choose_engine(toy.federation, toy.worker, EngineChoice(name="batched"))
    engine = choose_engine(toy.federation, toy.worker, EngineChoice(name="auto", workers=1, same_bits=False)).engine
    toy.federation.engine = engine
    for _ in range(2):
        toy.federation.step()
    assert (engine.name, engine.reason) == ("serial", None)


def test_recurrent_nets_cannot_be_stacked():
    class Recurrent(Tiny):
        def __init__(self):
            super().__init__()
            self.rnn = torch.nn.LSTM(5, 5)

    assert "recurrent" in obstacle(world(configured("fedavg"), LABELS, net=Recurrent).worker)


class Fails(FedAvg):
    def loss(self, net, batch, consts):
        if float(batch.y.sum()) >= 0:  # a value that decides: nothing that can be stacked
            raise ValueError("a loss of the user's own")
        return super().loss(net, batch, consts)


def test_an_exception_names_the_clients_that_were_stacked():
    toy = world(Fails(), LABELS)
    toy.federation.engine = stacked(toy.worker)
    with pytest.raises(ClientError, match="failed in round 1") as caught:
        toy.federation.step()
    assert any("trained together" in note for note in caught.value.__cause__.__notes__)


class TinyAttention(Tiny):
    """As `Tiny`, its features as tokens that attend to each other: torch's fast attention has no rule under vmap."""

    def features(self, x):
        tokens = super().features(x).view(len(x), 1, 3, 2)
        return torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens).flatten(1)


def test_attention_is_stacked_without_a_warning():
    toys = [after(world(FedAvg(), LABELS, net=TinyAttention), 2, engine) for engine in ("serial", "stacked")]
    assert alike(*toys, "stacked")
