"""Fed-CO2: the properties that its equations promise, whatever the numbers."""

import copy
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, softmax

from fedloom.core.errors import ConfigError
from fedloom.core.records import wire_size
from fedloom.core.streams import Streams
from fedloom.methods import fedco2 as module
from fedloom.methods.contract.contexts import ServerContext, Task
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from fedloom.methods.fedco2 import foreign_losses, fused, head_stacks
from fedloom.nets.blocks import dense
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import Net
from support import CLASSES, WIDTH, Recording, Tiny, configured, furthest, same_bits, same_tree, world

NETS = ("online", "offline")
OFF = dict.fromkeys(("intra_to_online", "intra_to_offline", "inter_online", "inter_offline"), False)
LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2, 3], [3, 3, 2, 0, 1, 0]]
MOMENTUM = OptimizerSpec(lr=0.05, momentum=0.9, weight_decay=1e-3)


class Block(Net):
    """Maps of width 6 behind batch norm, then a classifier of two layers with batch norm between them."""

    classifier_block: ClassVar[tuple[str, ...]] = ("fc", "head")

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Linear(WIDTH, 6), nn.BatchNorm1d(6)
        self.fc = dense([6, 4], batch_norm=True)
        self.head = nn.Linear(4, CLASSES)

    def maps(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()

    def features(self, x: Tensor) -> Tensor:
        return self.fc(self.maps(x))


def fedco2(net=Block, labels=LABELS, rounds=0, options=None, method="fedco2", **details):
    """A federation after some rounds; every job and result is kept."""
    toy = world(configured(method, "paper", **(options or {})), labels, net=net, engine=Recording, **details)
    for _ in range(rounds):
        toy.federation.step()
    return toy


def child(tree, name):
    return {n.removeprefix(f"{name}."): v for n, v in tree.items() if n.startswith(f"{name}.")}


def heads_in(record) -> list[str]:
    return sorted(name for name in record if name.startswith("head."))


def after_mutual_phase(options, **details):
    """Client 0 before and after a mutual phase alone, in its second round, and what it did."""
    toy = fedco2(rounds=1, options=options, **details)
    for state in toy.federation.states.values():  # so that the nets differ
        state["model"] = {n: v + 0.1 if n.startswith("offline.conv") else v for n, v in state["model"].items()}
    toy.federation.tasks[0] = replace(toy.task, local_epochs=0)
    job = toy.job(0, round_=2)
    before, done = toy.method.begin(job.payload, job.state, job.ctx).tree, toy.worker.run(job)
    after = done.upload["model"] | done.state["model"]
    return before, {name: after[name] for name in before}, done


def batch_of(toy, client=0, mask=None):
    x, y = toy.samples(client)
    return Batch(x, y, mask)


# -- what stays and what moves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("personal", "own"),
    [("head", ["fc.", "head."]), ("bn+head", ["fc.", "head.", "norm."]), ("bn", ["fc.1.", "norm."])],
)
def test_personal_says_which_online_entries_stay(personal, own):
    toy = fedco2(rounds=2, options={"personal": personal})
    kept = {n for n in toy.task.init if n.startswith(("offline.", *(f"online.{part}" for part in own)))}
    assert all(set(done.upload["model"]) == set(toy.task.init) - kept for done in toy.federation.engine.done)
    assert all(set(done.state["model"]) == kept for done in toy.federation.engine.done)


def test_the_head_that_is_sent_is_the_offline_net_s():
    for done in fedco2(rounds=2).federation.engine.done[len(LABELS) :]:  # in round 1 both nets are one
        trained = done.upload["model"] | done.state["model"]
        offline, online = (
            {n: v for n, v in child(trained, net).items() if n.startswith(("fc.", "head."))}
            for net in ("offline", "online")
        )
        assert same_tree(done.upload["head"], offline)
        assert furthest(done.upload["head"], online) > 1e-3


# -- what it is without its parts --------------------------------------------------------------------------------------
@pytest.mark.parametrize("participation", [1.0, 2 / 3])
def test_with_all_transfer_off_feature_skew_is_label_skew(participation):
    details = {"rounds": 4, "epochs": 2, "optimizer": MOMENTUM, "participation": participation}
    ours, plain = (fedco2(options=o, **details) for o in (OFF, {"algorithm": "label_skew"}))
    assert same_bits(ours.federation.server, plain.federation.server)
    for a, b in zip(ours.federation.engine.done, plain.federation.engine.done, strict=True):
        assert same_bits(a.upload, b.upload)
        assert same_bits(a.state, b.state)
        assert (a.terms, a.steps) == (b.terms, b.steps)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("statistics", ["personal", "shared"])
def test_the_online_branch_is_fedbn_and_the_offline_branch_is_local(weights, statistics):
    details = {"rounds": 3, "epochs": 2, "optimizer": MOMENTUM}
    options = {"weights": weights, "bn_stats": statistics}
    ours = fedco2(options=options | {"algorithm": "label_skew"}, **details).federation
    fedbn = fedco2(options=options, method="fedbn", **details).federation
    local = fedco2(method="local", **details).federation
    assert same_tree(child(ours.server["model"], "online"), fedbn.server["model"])
    for client in range(3):
        state = ours.states[client]["model"]
        assert same_tree(child(state, "online"), fedbn.states[client]["model"])
        assert same_tree(child(state, "offline"), local.states[client]["model"])


# -- the mutual phase --------------------------------------------------------------------------------------------------
def test_a_first_participation_has_no_mutual_phase_however_late():
    toy = fedco2(rounds=8, participation=1 / 3, epochs=2)
    firsts = {}
    for job, done in zip(toy.federation.engine.jobs, toy.federation.engine.done, strict=True):
        passes = 2 if job.ctx.client not in firsts else 3
        firsts.setdefault(job.ctx.client, job.ctx.round)
        full, rest = divmod(len(LABELS[job.ctx.client]), 4)
        assert done.steps == passes * (full + (rest > 1))
    assert len(firsts) == 3
    assert max(firsts.values()) > 2


def test_teachers_answer_in_evaluation_mode_and_students_in_training_mode():
    toy = fedco2(rounds=2)
    job = toy.job(0, round_=3)
    start, batch = toy.method.begin(job.payload, job.state, job.ctx), batch_of(toy)
    toy.worker.loaded_nets[0].load(start.tree)
    bundle, teachers = toy.net.train(), copy.deepcopy(toy.net).eval()
    objective = toy.method.mutual(bundle, batch, start.consts)
    assert list(objective.terms) == ["intra_online", "intra_offline"]
    toy.worker.loaded_nets[0].load(start.tree)
    for student, teacher in (NETS, NETS[::-1]):
        targets, answers = softmax(teachers[teacher](batch.x), 1), log_softmax(bundle[student](batch.x), 1)
        expected = kl_div(answers, targets, reduction="batchmean")
        assert torch.allclose(objective.terms[f"intra_{student}"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("off", "still", "moving"), [("intra_to_online", *NETS), ("intra_to_offline", *NETS[::-1])])
def test_a_net_that_learns_nothing_from_the_other_keeps_its_bits(off, still, moving):
    before, after, done = after_mutual_phase({off: False}, optimizer=MOMENTUM)
    assert same_tree(child(before, still), child(after, still))
    assert furthest(child(before, moving), child(after, moving)) > 1e-4
    assert set(done.terms) == {f"intra_{moving}"}
    assert done.steps == 2


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({"intra_to_online": False}, {"ce_online", "intra_offline"}),
        ({"intra_to_online": False, "intra_to_offline": False}, {"ce_online", "ce_offline"}),
        ({}, {"intra_online", "intra_offline"}),
    ],
)
def test_replace_intra_makes_steps_equal(options, terms):
    before, after, done = after_mutual_phase(options | {"replace_intra": True, "mutual_epochs": 2})
    assert (done.steps, set(done.terms)) == (4, terms)
    assert all(furthest(child(before, name), child(after, name)) > 1e-4 for name in NETS)
    both_off = {"intra_to_online": False, "intra_to_offline": False}
    assert after_mutual_phase(both_off)[2].steps == after_mutual_phase({"mutual_epochs": 0})[2].steps == 0


# -- the bank of heads -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("bank", ["cache", "last_round"])
def test_bank_holds_the_last_head_of_clients_met_so_far_or_of_the_last_round(bank):
    toy = fedco2(participation=2 / 3, labels=[*LABELS, LABELS[0]], options={"bank": bank})
    assert heads_in(toy.job(4 - 1).payload) == ["head.0", "head.1", "head.2"]  # until somebody sends one, the first
    known = {}
    for _ in range(6):
        toy.federation.engine.jobs.clear()
        toy.federation.engine.done.clear()
        before = set(heads_in(toy.federation.server)) or {f"head.{k}" for k in range(4)}
        toy.federation.step()
        for job in toy.federation.engine.jobs:
            assert set(heads_in(job.payload)) == before - {f"head.{job.ctx.client}"}
        new = {f"head.{done.client}": done.upload["head"] for done in toy.federation.engine.done}
        known = known | new if bank == "cache" else new
        assert heads_in(toy.federation.server) == sorted(known)
        assert all(same_tree(toy.federation.server[name], head) for name, head in known.items())


@pytest.mark.parametrize("off", ["inter_online", "inter_offline"])
def test_inter_switches_are_separate(off):
    toy = fedco2(options={off: False})
    kept = {"inter_online", "inter_offline"} - {off}
    assert set(toy.federation.step().terms) == {"ce_online", "ce_offline"} | kept


# -- first weights, predictors, bytes ----------------------------------------------------------------------------------
def test_independent_offline_nets():
    def states(seed):
        toy = fedco2(net="mlp", options={"offline_init": "independent", "personal": "head"}, seed=seed)
        plan = Blueprint("mlp", (WIDTH,), CLASSES, nets=toy.method.spec.nets)
        toy.federation.tasks[0] = replace(toy.task, blueprint=plan)
        assert heads_in(toy.federation.server) == []
        return toy, [toy.federation.state_of(toy.federation.client_context(k, 1))["model"] for k in range(3)]

    toy, ours = states(3)
    again, other = states(3)[1], states(4)[1]
    for k in range(3):
        assert {n for n in toy.task.init if n.startswith(("offline.", "online.head."))} == set(ours[k])
        assert same_tree(ours[k], again[k])
        assert all(torch.equal(ours[k][n], toy.task.init[n]) for n in ours[k] if n.startswith("online."))
        rest = [ours[j] for j in range(3) if j != k]
        for different in (*rest, other[k], {n: toy.task.init[n] for n in ours[k]}):
            assert furthest(ours[k], different) > 1e-2
    toy.federation.step()
    with pytest.raises(ConfigError, match="registered model"):
        fedco2(options={"offline_init": "independent"}).federation.step()


def test_predictors_are_both_nets_and_the_sum_of_their_logits():
    toy, x = fedco2(rounds=2), torch.randn(7, WIDTH)
    ctx = ServerContext(toy.task, 2)
    offered = toy.method.predictors(toy.federation.server, toy.federation.states[0], ctx)
    assert list(offered) == ["personal", *NETS]
    assert toy.method.predictors(toy.federation.server, None, ctx) == {}
    plain, logits = Block().eval(), {}
    for name, predictor in offered.items():
        toy.net.load_state_dict(predictor.tree)
        logits[name] = predictor.logits(toy.net.eval(), x)
    for name in NETS:
        plain.load_state_dict(child(offered["personal"].tree, name))
        assert torch.equal(logits[name], plain(x))
    assert torch.equal(logits["personal"], logits["online"] + logits["offline"])
    assert torch.equal(logits["personal"], fused(toy.net, x))
    assert not torch.allclose(logits["online"], logits["offline"], atol=1e-2)


def numbers(tree) -> int:
    """Without batch norm's counters."""
    return sum(value.numel() for value in tree.values() if value.is_floating_point())


@pytest.mark.parametrize(
    ("net", "side", "shared", "head"),
    [("fedbn-digits-cnn", 28, 14_213_578, 13_911_562), ("fedbn-alexnet", 256, 57_044_810, 54_607_882)],
)
def test_numbers_on_the_wire_of_the_papers_nets(net, side, shared, head):
    method, streams = configured("fedco2", "paper"), Streams(0)
    with torch.device("meta"):
        bundle = Blueprint(net, (3, side, side), 10, nets=method.spec.nets).build(streams)
    task = Task.of(bundle, clients=6, num_classes=10, rounds=2, local_epochs=1, streams=streams)
    payload = method.down(method.server_init(ServerContext(task, 0)), 2, ServerContext(task, 1))
    assert numbers(payload["model"]) == shared
    assert heads_in(payload) == [f"head.{k}" for k in (0, 1, 3, 4, 5)]
    assert all(numbers(payload[name]) == head for name in heads_in(payload))
    assert 0 <= wire_size(payload) - 4 * (shared + 5 * head) < 20_000


def test_a_net_with_buffers_that_are_not_saved_can_teach():
    class Scaled(Tiny):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((6,), 2.0), persistent=False)

        def features(self, x: Tensor) -> Tensor:
            return super().features(x) * self.scale

    assert set(fedco2(net=Scaled, rounds=2).federation.engine.done[-1].terms) >= {"inter_online", "inter_offline"}


# -- edges -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"intra_to_online": False, "replace_intra": True, "inter_reduce": "mean"}])
@pytest.mark.parametrize("net", [Block, Tiny])
def test_a_batch_that_is_padding_alone_gives_nothing(net, options):
    toy = fedco2(net=net, rounds=1, options=options)
    job = toy.job(0, round_=2)
    start = toy.method.begin(job.payload, job.state, job.ctx)
    batch = batch_of(toy, mask=torch.zeros(len(LABELS[0]), dtype=torch.bool))
    for objective in (f(toy.net.train(), batch, start.consts) for f in (toy.method.mutual, toy.method.loss)):
        for value in (*objective.terms.values(), objective.total):
            assert float(value.detach()) == 0.0
            for g in torch.autograd.grad(value, list(toy.net.parameters()), retain_graph=True, allow_unused=True):
                assert g is None or not g.any()


def test_a_net_without_batch_norm_is_reported_before_the_run():
    assert [f.code for f in fedco2(net=Tiny).federation.initial_diagnostics] == ["fedco2.no_batch_norm"]
    assert fedco2().federation.initial_diagnostics == []


# -- many heads at once ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("net", [Tiny, Block])
@pytest.mark.parametrize("stack_bytes", [0, 4 << 20])
def test_stacks_of_foreign_heads_have_the_loss_of_one_head_after_another(net, stack_bytes, monkeypatch):
    """A head alone, where all rows are one matrix, and a block with batch norm; in one stack, and each by itself."""
    monkeypatch.setattr(module, "_STACK_BYTES", stack_bytes)
    toy = fedco2(net, rounds=2)
    job = toy.job(0, round_=3)
    heads = [tree for name, tree in job.payload.items() if name != "model"]
    stacks = head_stacks(heads)
    assert len(heads) > 1
    assert len(stacks) == (1 if stack_bytes else len(heads))
    batch, bundle = batch_of(toy), toy.net.train()
    maps = bundle["offline"].maps(batch.x).detach().requires_grad_()
    one_by_one = sum(
        torch.nn.functional.cross_entropy(bundle.functional.classify(head, maps), batch.y) for head in heads
    )
    at_once = foreign_losses(bundle, maps, batch, stacks)
    assert torch.allclose(at_once, one_by_one, rtol=1e-5)
    (expected,), (gradient,) = (torch.autograd.grad(loss, maps) for loss in (one_by_one, at_once))
    assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-6)
