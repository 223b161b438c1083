"""HeteroFL: golden numbers on three widths, slices that stay, and what it refuses."""

import math

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.engine import Federation, LocalTraining, Serial, Worker
from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.heterofl import HeteroFL
from golden_world import (
    CLASSES,
    CLIENTS,
    SHARED_BASELINES,
    WIDTH,
    WORLD,
    GoldenNet,
    golden_scenario,
    matches,
    probe,
    refuted,
)
from support import Recording, Tiny, TinyBN, Uniform, after, configured, furthest, mixed, same_bits, world

GOLD = SHARED_BASELINES["heterofl"]
BATCH = max(WORLD["n"]) + 2  # all samples of any client
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
ALL = [[0, 1, 2, 3, 0, 1, 2], [3, 2, 1, 0], [0, 1, 2, 3, 3]]


class GoldenSlice(GoldenNet):
    """The golden net with its first `width` features."""

    def __init__(self, width):
        super().__init__()
        self.fc.weight, self.fc.bias, self.head.weight = (
            torch.nn.Parameter(value.detach()[part].clone())
            for value, part in (
                (self.fc.weight, slice(width)),
                (self.fc.bias, slice(width)),
                (self.head.weight, (slice(None), slice(width))),
            )
        )
        self.head.in_features = width


def golden_servers(engine=Serial, drawn=WORLD["rounds"], **options):
    class Drawn(HeteroFL):
        def select(self, server, count, ctx):
            return drawn[ctx.round - 1]

    method, scenario, optimizer = Drawn(HeteroFL.Options(**options)), golden_scenario(), OptimizerSpec(lr=WORLD["lr"])
    nets = [GoldenSlice(width) for width in (math.ceil(rate * WIDTH) for rate in GOLD["options"]["rates"])]
    facts = {"clients": CLIENTS, "num_classes": CLASSES, "rounds": 2, "streams": Streams(0)}
    facts |= {"local_epochs": WORLD["epochs"]}
    tasks = [Task.of(n, **facts, optimizer=optimizer, batch_size=BATCH, group=g) for g, n in enumerate(nets)]
    worker = Worker(method, nets, scenario.train_set, LocalTraining(BATCH, optimizer))
    federation = Federation(method, engine(worker), tasks, scenario, participation=2 / CLIENTS)
    servers = []
    for _ in range(2):
        federation.step()
        servers.append(federation.server)
    return federation, servers


def held_entries(federation, uploads):
    """How many numbers of each entry count for a client at least, by the weights of the mean."""
    method, task, model = federation.method, federation.tasks[0], federation.server["model"]
    held = {name: torch.zeros_like(value) for name, value in model.items()}
    for upload in uploads:
        for name, weight in method._weights(upload, task).items():
            part = upload["model"][name]
            held[name][tuple(map(slice, part.shape))] += weight.expand_as(part)
    return {name: int((value > 0).sum()) for name, value in held.items()}


def test_golden():
    federation, servers = golden_servers(engine=Recording)
    done = list(federation.engine.done)
    for number, server in enumerate(servers, 1):
        gold = GOLD["out"][f"round{number}"]
        assert matches(server["model"], gold["server"])
        assert abs(probe(server["model"]) - gold["probe"]) < 1e-7
        uploads = [d.upload for d in done[2 * (number - 1) : 2 * number]]
        assert held_entries(federation, uploads) == gold["held_entries"]
        for client, sent in gold["clients"].items():
            payload = next(d.upload for d in done[2 * (number - 1) : 2 * number] if d.client == int(client))
            assert matches(payload["model"], sent)
    assert refuted(servers[1]["model"], GOLD, others=["masked_out_of_softmax_probe"])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"weights": "samples"}, "size_weights_probe"),
        ({"scaler": False}, "WRONG_without_scaler"),
        ({"mask": False}, "WRONG_without_mask"),
    ],
)
def test_options_are_the_golden_variants(options, name):
    assert abs(probe(golden_servers(**options)[1][1]["model"]) - GOLD[name]) < 1e-7


def test_outside_the_slice_of_the_only_client_nothing_moves():
    client = len(GOLD["options"]["rates"]) - 1
    width = math.ceil(GOLD["options"]["rates"][client] * WIDTH)
    _, servers = golden_servers(drawn=[[client], [client]])
    init = {name: torch.tensor(value, dtype=torch.float64) for name, value in WORLD["init"].items()}
    model = servers[1]["model"]
    assert torch.equal(model["fc.weight"][width:], init["fc.weight"][width:])
    assert torch.equal(model["head.weight"][:, width:], init["head.weight"][:, width:])
    assert not torch.equal(model["fc.weight"][:width], init["fc.weight"][:width])


def test_one_width_and_all_classes_everywhere_is_the_plain_mean_bit_for_bit():
    toys = [after(world(m, ALL, net=TinyBN, epochs=2), 2) for m in (Uniform(), configured("heterofl"))]
    assert same_bits(*(toy.federation.server["model"] for toy in toys))
    (diagnostic,) = toys[1].federation.initial_diagnostics
    assert diagnostic.code == "heterofl.one_width"


def of_width(kind, width):
    """A toy net with so many features."""
    net = kind()
    net.fc, net.head = torch.nn.Linear(5, width), torch.nn.Linear(width, 4)
    if hasattr(net, "norm"):
        net.norm = torch.nn.BatchNorm1d(width)
    return net


def two_widths(name="heterofl", net=TinyBN, widths=(6, 3)):
    torch.manual_seed(1)
    method = METHODS.get(name).configured("sound", {})
    return mixed(method, [of_width(net, width) for width in widths], LABELS, participation=0.6)


def test_two_widths_with_batch_norm_and_newcomers():
    federation = two_widths()
    first = {name: value.clone() for name, value in federation.server["model"].items()}
    for _ in range(3):
        report = federation.step()
        assert all(value == value for value in report.terms.values())
    model = federation.server["model"]
    assert {done.client % 2 for done in federation.engine.done} == {0, 1}
    assert furthest(first, model) > 1e-3
    assert (model["norm.running_var"] > 0).all()
    for done in federation.engine.done:
        assert len(done.upload["model"]["fc.bias"]) == (6, 3)[done.client % 2]


@pytest.mark.parametrize("wrapper", ["finetune", "lpft"])
def test_clients_tune_the_slice_of_their_own_width(wrapper):
    federation = two_widths(f"heterofl+{wrapper}", Tiny)
    federation.step()
    worker = federation.engine.worker
    for client, width in ((0, 6), (1, 3)):
        predictor = federation.method.predictors(federation.server, {}, federation.server_context(client))["personal"]
        assert torch.equal(predictor.tree["fc.weight"], federation.server["model"]["fc.weight"][:width])
        loaded_net, ctx = worker.net_of_client(client), federation.client_context(client, 1)
        worker.adapt(loaded_net, predictor, ctx, federation.scenario.train.tensor(client))
        assert loaded_net.tree["fc.weight"].shape == predictor.tree["fc.weight"].shape
        assert not torch.equal(loaded_net.tree["fc.weight"], predictor.tree["fc.weight"])


@pytest.mark.parametrize("wrapper", ["median", "trimmed", "normbound", "int8", "topk"])
def test_wrappers_that_act_on_slices(wrapper):
    federation = two_widths(f"heterofl+{wrapper}", Tiny)
    for _ in range(2):
        federation.step()
    assert all(value.isfinite().all() for value in federation.server["model"].values())


@pytest.mark.parametrize(("widths", "message"), [((3, 6), "is no slice of .* the first model must be the widest")])
def test_widths_that_are_no_slices_are_refused(widths, message):
    with pytest.raises(ConfigError, match=message):
        two_widths(widths=widths)


def test_other_kinds_of_nets_are_refused():
    with pytest.raises(ConfigError, match=r"models differ in norm\.bias; give several widths of one kind of model"):
        mixed(configured("heterofl"), [of_width(TinyBN, 6), of_width(Tiny, 3)], LABELS)


def test_wrappers_that_need_whole_uploads_refuse_it():
    with pytest.raises(ConfigError, match="krum compares whole uploads"):
        METHODS.get("heterofl+krum").configured("sound", {})
    with pytest.raises(ConfigError, match="noise on a mean does not hide"):
        METHODS.get("heterofl+dp").configured("sound", {})
