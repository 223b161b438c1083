"""Fed-CO2 against the worked example of its specification: every entry of `tests/golden/fedco2.json`.

The numbers were computed outside this library (see the file's note). Both precisions are held to it: float64 within
2e-6 (the file has 6 decimals), float32 within 1e-4. What the file calls WRONG must not come out.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.engine import LocalTraining, Worker
from fedloom.engine.jobs import Job
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Task, Work
from fedloom.methods.contract.phases import Batch, OptimizerSpec, kl_divergence
from fedloom.methods.fedco2 import foreign_losses, fused, head_stacks
from fedloom.nets.blueprint import Bundle, prepare_net
from fedloom.nets.net import Net, tree_of
from support import Precision, Through, configured

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "fedco2.json").read_text())
NETS = ("online", "offline")


class Block(Net):
    """A net by its answers: `maps` are its inputs; `given` stands for its own logits; FC, BN, ReLU, FC is its block."""

    classifier_block: ClassVar[tuple[str, ...]] = ("fc", "head")

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, eps=GOLDEN["l_gen"]["in"]["bn_eps"]), nn.ReLU())
        self.head = nn.Linear(2, 3)

    def maps(self, x: Tensor) -> Tensor:
        return self.features_given

    def classify(self, maps: Tensor) -> Tensor:
        return self.logits_given if self.training else super().classify(maps)  # foreign heads are in evaluation mode


class Straight(Net):
    """One linear map."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3, dtype=dtype)

    def features(self, x: Tensor) -> Tensor:
        return x.to(self.head.weight.dtype)


def pair(net, **values) -> Bundle:
    """A bundle whose nets hold `values` by full name."""
    bundle = prepare_net(net, nets=dict.fromkeys(NETS))
    bundle.load_state_dict(values)
    return bundle


def answering(logits: dict[str, Tensor]) -> tuple[Bundle, Batch]:
    """Nets that give these logits [B, C] (net by net) for the rows of the identity, and these rows as a batch."""
    bundle = pair(Through(logits["online"].T), **{f"{name}.head.weight": logits[name].T for name in NETS})
    rows = len(logits["online"])
    return bundle, Batch(torch.eye(rows, dtype=logits["online"].dtype), torch.zeros(rows, dtype=torch.int64))


def context(task: Task, client: int = 0, samples: int = 2, round_: int = 2) -> ClientContext:
    return ClientContext(task, round_, client, samples, torch.tensor([samples, 0, 0]))


# -- the mutual phase --------------------------------------------------------------------------------------------------
KL = GOLDEN["kl"]


def distilled(precision: Precision):
    given = {name: precision.tensor(values) for name, values in KL["in"].items()}
    bundle, batch = answering({name: given[f"student_{name}"] for name in NETS})
    teachers = {name: {"head.weight": given[f"teacher_{name}"].T} for name in NETS}
    return bundle, configured("fedco2", "paper").mutual(bundle, batch, {"teachers": teachers})


@pytest.mark.parametrize("name", NETS)
def test_kl_of_student_to_teacher_and_its_gradient(precision, name):
    bundle, objective = distilled(precision)
    assert precision.matches(objective.terms[f"intra_{name}"], KL["out"][f"loss_{name}"])
    assert precision.matches(objective.total, KL["out"]["loss_online"] + KL["out"]["loss_offline"])
    for loss in (objective.total, objective.terms[f"intra_{name}"]):
        (gradient,) = torch.autograd.grad(loss, bundle[name].head.weight, retain_graph=True)
        assert precision.matches(gradient.T, KL["out"][f"grad_{name}_logits"])


def test_kl_is_not_reversed_nor_summed_nor_a_mean_over_classes(precision):
    ours = distilled(precision)[1].terms["intra_online"]
    teacher, student = (precision.tensor(KL["in"][name]) for name in ("teacher_offline", "student_online"))
    rows = kl_divergence(teacher, student)
    mistakes = {"sum": rows.sum(), "elementwise_mean": rows.mean() / 3}
    mistakes["reverse_direction"] = kl_divergence(student, teacher).mean()
    for mistake, value in mistakes.items():
        wrong = KL["out"][f"WRONG_{mistake}_online"]
        assert precision.matches(value, wrong)
        assert not precision.matches(ours, wrong)
    assert {f"WRONG_{name}_online" for name in mistakes} == {name for name in KL["out"] if name.startswith("WRONG")}


STEP = GOLDEN["mutual_step"]
SHORT = {"online": "on", "offline": "off"}


def mutual_round(precision: Precision, epochs: int):
    """What a client leaves after a mutual phase of `epochs` full-batch steps, and no local training."""
    values = {}
    for name, short in SHORT.items():
        values[f"{name}.head.weight"] = precision.tensor(STEP["in"][f"W_{short}"])
        values[f"{name}.head.bias"] = precision.tensor(STEP["in"][f"b_{short}"])
    bundle = pair(Straight(precision.dtype), **values)
    task = Task.of(bundle, clients=2, num_classes=3, rounds=3, local_epochs=0, streams=Streams(0))
    method = configured("fedco2", "paper", mutual_epochs=epochs)
    data = Dataset(torch.tensor(STEP["in"]["x"]), torch.tensor([0, 0]), ("a", "b", "c"))
    worker = Worker(method, [bundle], data, LocalTraining(2, OptimizerSpec("sgd", lr=STEP["in"]["lr"])))
    server = method.server_init(ServerContext(task, 0))
    ctx = context(task)
    state = method.client_init(ctx) | {"participated": True}
    payload = method.down(server, 0, ServerContext(task, 2))
    return worker.run(Job(ctx, payload, state, torch.arange(2)))


def test_one_step_of_mutual_learning(precision):
    done, out = mutual_round(precision, 1), STEP["out"]
    after = done.upload["model"] | done.state["model"]
    for name, short in SHORT.items():
        assert done.terms[f"intra_{name}"] == pytest.approx(out[f"loss_{short}_step1"], abs=precision.atol)
        assert precision.matches(after[f"{name}.head.weight"], out[f"W_{short}_after"])
        assert precision.matches(after[f"{name}.head.bias"], out[f"b_{short}_after"])
    assert done.steps == 1


def test_teachers_stay_as_they_were_before_the_first_step(precision):
    done, out = mutual_round(precision, 2), STEP["out"]
    assert done.steps == 2
    for name, short in SHORT.items():
        assert done.terms[f"intra_{name}"] == pytest.approx(out[f"loss_{short}_step2"], abs=precision.atol)
    moved = mutual_round(precision, 1)
    tree, x = moved.upload["model"] | moved.state["model"], precision.tensor(STEP["in"]["x"])
    online, offline = (x @ tree[f"{name}.head.weight"].T + tree[f"{name}.head.bias"] for name in NETS)
    wrong = out["WRONG_loss_on_step2_if_teacher_not_frozen"]
    assert precision.matches(kl_divergence(offline, online).mean(), wrong)
    assert abs(done.terms["intra_online"] - wrong) > 10 * precision.atol


# -- the foreign heads -------------------------------------------------------------------------------------------------
GEN = GOLDEN["l_gen"]
NAMES = {"fc1_w": "fc.0.weight", "fc1_b": "fc.0.bias", "fc3_w": "head.weight", "fc3_b": "head.bias"}
NAMES |= {f"bn_{name}": f"fc.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}


def heads(precision: Precision) -> list[dict[str, Tensor]]:
    counter = {"fc.1.num_batches_tracked": torch.tensor(7)}
    return [{NAMES[n]: precision.tensor(v) for n, v in head.items()} | counter for head in GEN["in"]["heads"]]


def adapted(precision: Precision, **options):
    """The local objective of client 0 through `down`, `begin` and `loss`, and the bundle that it was taken on."""
    bundle = prepare_net(Block().to(precision.dtype), nets=dict.fromkeys(NETS))
    for name in NETS:
        bundle[name].features_given = precision.tensor(GEN["in"][f"features_{name}"]).requires_grad_()
        bundle[name].logits_given = precision.tensor(GEN["in"][f"own_logits_{name}"])
    method = configured("fedco2", "paper", mu=GEN["in"]["mu"], **options)
    task = Task.of(bundle, clients=GEN["in"]["N"], num_classes=3, rounds=3, local_epochs=1, streams=Streams(0))
    server = method.server_init(ServerContext(task, 0))
    ctx, me = context(task), GEN["in"]["i"]
    uploads = {k: {"model": server["model"], "samples": 1, "head": head} for k, head in enumerate(heads(precision))}
    payload = method.down(method.aggregate(server, uploads, ServerContext(task, 1)), me, ServerContext(task, 2))
    consts = method.begin(payload, method.client_init(ctx), ctx).consts
    bundle.train()
    batch = Batch(torch.zeros(2, 2), torch.tensor(GEN["in"]["y"]))
    return bundle, method.loss(bundle, batch, consts)


@pytest.mark.parametrize("name", NETS)
def test_losses_of_foreign_heads(precision, name):
    bundle, objective = adapted(precision)
    out = GEN["out"]
    batch = Batch(torch.zeros(2, 2), torch.tensor(GEN["in"]["y"]))
    for head, expected in zip(heads(precision), out[f"ce_per_head_{name}"], strict=True):
        assert precision.matches(
            foreign_losses(bundle, bundle[name].features_given, batch, head_stacks([head])), expected
        )
    ce, foreign = objective.terms[f"ce_{name}"], objective.terms[f"inter_{name}"]
    assert precision.matches(ce, out[f"L_ce_{name}"])
    assert precision.matches(foreign, out[f"L_gen_{name}"])
    assert precision.matches(ce + foreign, out[f"L_total_{name}"])
    assert precision.matches(objective.total, out["L_total_online"] + out["L_total_offline"])


def test_own_head_is_left_out_the_sum_is_no_mean_and_batch_norm_is_in_evaluation_mode(precision):
    bundle, objective = adapted(precision)
    ours, out = objective.terms["inter_online"], GEN["out"]
    maps, batch = bundle["online"].features_given, Batch(torch.zeros(2, 2), torch.tensor(GEN["in"]["y"]))
    training = torch.zeros((), dtype=precision.dtype)
    for head in heads(precision)[1:]:
        net = Block().to(precision.dtype)
        net.load_state_dict(head)
        training += nn.functional.cross_entropy(net.head(net.fc(maps)), batch.y)
    mistakes = {
        "including_own_head": foreign_losses(bundle, maps, batch, head_stacks(heads(precision))),
        "mean_over_heads": adapted(precision, inter_reduce="mean")[1].terms["inter_online"],
        "head_bn_in_train_mode": training,
    }
    for mistake, value in mistakes.items():
        assert precision.matches(value, out[f"WRONG_{mistake}_online"])
        assert not precision.matches(ours, out[f"WRONG_{mistake}_online"])
    assert {f"WRONG_{name}_online" for name in mistakes} == {name for name in out if name.startswith("WRONG")}


def test_gradients_pass_through_foreign_heads_into_the_maps():
    """Central differences of the same sum; the file has no gradients for this block."""
    precision = Precision(torch.float64, 1e-6)
    bundle, objective = adapted(precision)
    maps, batch = bundle["online"].features_given, Batch(torch.zeros(2, 2), torch.tensor(GEN["in"]["y"]))
    (gradient,) = torch.autograd.grad(objective.total, maps)
    stacks = head_stacks(heads(precision)[1:])
    with torch.no_grad():
        for place in torch.eye(maps.numel(), dtype=torch.float64).view(-1, *maps.shape):
            up, down = (foreign_losses(bundle, maps + s * place, batch, stacks) for s in (1e-5, -1e-5))
            assert precision.matches((gradient * place).sum(), float(up - down) / 2e-5)


# -- aggregation -------------------------------------------------------------------------------------------------------
MEAN = GOLDEN["aggregate"]


class Weight(nn.Module):
    """Parameters of these shapes, named weight and bias."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))


class Listed(Net):
    """A net with the entries of the example."""

    classifier_block: ClassVar[tuple[str, ...]] = ("classifier",)
    head = SimpleNamespace(in_features=2)

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = Weight(weight=(2,), bias=(1,)), nn.BatchNorm1d(1)
        bn4 = nn.BatchNorm1d(1, track_running_stats=False)
        bn4.register_parameter("bias", None)
        parts = {"fc1": Weight(weight=(1, 2)), "bn4": bn4, "fc3": Weight(bias=(1,))}
        self.classifier = nn.ModuleDict(parts)


def trees(precision: Precision) -> list[dict[str, Tensor]]:
    """The three clients' online and offline nets (the same values twice)."""
    found = []
    for state in MEAN["in"]["states"]:
        values = {n: torch.tensor(v) if isinstance(v, int) else precision.tensor(v) for n, v in state.items()}
        found.append({f"{net}.{name}": value for net in NETS for name, value in values.items()})
    return found


def averaged(precision: Precision, participants, **options):
    """Server weights by their plain names, and the names that stayed with client 0, both of the online net."""
    method, bundle = (
        configured("fedco2", "paper", **options),
        prepare_net(Listed().to(precision.dtype), nets=dict.fromkeys(NETS)),
    )
    task = Task.of(bundle, clients=3, num_classes=3, rounds=3, local_epochs=1, streams=Streams(0))
    assert set(tree_of(bundle)) == set(trees(precision)[0])
    uploads, states = {}, {}
    for k in participants:
        work, ctx = Work(trees(precision)[k], {}, 1), context(task, k, MEAN["in"]["n_k"][k])
        uploads[k], states[k] = method.end(work, method.client_init(ctx), ctx)
    server = method.aggregate(method.server_init(ServerContext(task, 0)), uploads, ServerContext(task, 1))
    assert [name for name in server if name != "model"] == [f"head.{k}" for k in participants]
    block = {name for name in Listed().state_dict() if name.startswith("classifier.")}
    assert all(server[f"head.{k}"].keys() == block for k in participants)
    assert all(name.startswith("online.") for name in server["model"])
    own = [name.removeprefix("online.") for name in states[0]["model"] if name.startswith("online.")]
    return {name.removeprefix("online."): value for name, value in server["model"].items()}, own


@pytest.mark.parametrize(
    ("participants", "entry"),
    [([0, 1, 2], "paper_and_featureskew_code_shared"), ([0, 2], "partial_participation_clients_0_and_2")],
)
def test_shared_entries_are_averaged_alike_and_batch_norm_stays(precision, participants, entry):
    shared, own = averaged(precision, participants)
    assert own == MEAN["out"]["personal_keys"]
    assert shared.keys() == MEAN["out"][entry].keys()
    assert all(precision.matches(shared[name], value) for name, value in MEAN["out"][entry].items())


def test_label_skew_code_weighs_by_samples_and_averages_statistics(precision):
    out, sizes = MEAN["out"], MEAN["in"]["n_k"]
    shared, own = averaged(precision, [0, 1, 2], weights="samples", bn_stats="shared")
    assert own == out["labelskew_code_personal_keys"]
    assert [n / sum(sizes) for n in sizes] == pytest.approx(out["labelskew_code_weights"], abs=1e-12)
    every = configured("fedavg").mean({k: {"model": t, "samples": sizes[k]} for k, t in enumerate(trees(precision))})
    for name, value in out["labelskew_code_global_all_keys"].items():
        assert precision.matches(every[f"online.{name}"], value)  # the code's server averages what clients ignore, too
        assert name in own or precision.matches(shared[name], value)
    assert shared.keys() == out["labelskew_code_global_all_keys"].keys() - set(own) | {"bn1.num_batches_tracked"}


# -- prediction --------------------------------------------------------------------------------------------------------
def predicted(precision: Precision, block: str) -> dict[str, Tensor]:
    """Logits by kind of predictor, through `predictors`."""
    given = {name: precision.tensor(GOLDEN[block]["in"][f"logits_{name}"]) for name in NETS}
    bundle, batch = answering(given)
    task = Task.of(bundle, clients=2, num_classes=3, rounds=3, local_epochs=1, streams=Streams(0))
    method = configured("fedco2", "paper")
    server, state = method.server_init(ServerContext(task, 0)), method.client_init(context(task))
    offered = method.predictors(server, state, ServerContext(task, 1))
    assert set(offered) == {"personal", *NETS}
    with torch.no_grad():
        for name, predictor in offered.items():
            bundle.load_state_dict(predictor.tree)
            given[name] = predictor.logits(bundle, batch.x)
        assert torch.equal(given["personal"], fused(bundle, batch.x))
    return given


def test_logits_are_added(precision):
    logits, out = predicted(precision, "fusion"), GOLDEN["fusion"]["out"]
    assert precision.matches(logits["personal"], out["fused_logits"])
    assert precision.matches(logits["personal"].softmax(1), out["fused_softmax_of_sum"])
    for name, entry in (("personal", "pred"), ("online", "pred_online"), ("offline", "pred_offline")):
        assert logits[name].argmax(1).tolist() == out[entry]
    softmax = logits["online"].softmax(1) + logits["offline"].softmax(1)
    assert precision.matches(softmax, out["WRONG_sum_of_softmax"])
    assert softmax.argmax(1).tolist() == out["pred_sum_of_softmax"]
    for ours in (logits["personal"], logits["personal"].softmax(1)):
        assert not precision.matches(ours, out["WRONG_sum_of_softmax"])


def test_the_sum_of_logits_and_that_of_softmax_outputs_disagree(precision):
    logits, out = predicted(precision, "fusion_disagreement"), GOLDEN["fusion_disagreement"]["out"]
    assert logits["personal"].argmax(1).tolist() == out["pred_logit_sum"]
    softmax = logits["online"].softmax(1) + logits["offline"].softmax(1)
    assert precision.matches(softmax, out["softmax_sum"])
    assert softmax.argmax(1).tolist() == out["pred_softmax_sum"] != out["pred_logit_sum"]
