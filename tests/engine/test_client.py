"""One client's round: what the phases of a method may rely on."""

import itertools

import pytest
import torch
from torch import nn

from fedloom.core.errors import ClientError
from fedloom.core.trees import clone
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Objective, OptimizerSpec, Train, cross_entropy
from fedloom.methods.contract.sample_statistics import ClassMeans, SampleMean
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import BN_ROLES, Net, Role
from support import CLASSES, WIDTH, Tiny, TinyBN, TinyDropout, configured, furthest, same_bits, same_tree, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3]]


class Noting(Method):
    """FedAvg that notes every batch: (labels, whether the net was in training mode, head bias before the step)."""

    def __init__(self, options=None):
        super().__init__(options)
        self.batches = []

    def loss(self, net, batch, consts):
        self.batches.append((batch.y.tolist(), net.training, net.head.bias.detach().clone()))
        return super().loss(net, batch, consts)


# -- batches -----------------------------------------------------------------------------------------------------------
def test_every_epoch_sees_every_sample_once_in_a_new_order_and_keeps_the_last_partial_batch():
    toy = world(Noting(), LABELS, epochs=3, batch_size=3)
    done = toy.worker.run(toy.job(0))
    labels = [y for y, _, _ in toy.method.batches]
    assert [len(y) for y in labels] == [3, 3, 1] * 3
    epochs = [list(itertools.chain(*labels[i : i + 3])) for i in (0, 3, 6)]
    assert all(sorted(epoch) == sorted(LABELS[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    assert (done.steps, done.samples) == (9, 21)
    assert all(training for _, training, _ in toy.method.batches)


def test_shuffles_differ_between_clients_rounds_and_seeds_and_only_there():
    def order(client=0, round_=1, seed=3, method=None):
        """Positions in the client's data, in the order in which one epoch sees them."""
        toy = world(method or Method(), [[0] * 20, [0] * 20], batch_size=5, seed=seed)
        x, seen = toy.samples(client)[0], []

        def spy(net, batch, consts, loss=toy.method.loss):
            seen.extend(int((x == row).all(1).nonzero()) for row in batch.x)
            return loss(net, batch, consts)

        toy.method.loss = spy
        toy.worker.run(toy.job(client, round_=round_))
        return seen

    orders = [order(), order(client=1), order(round_=2), order(seed=4)]
    assert all(sorted(o) == list(range(20)) for o in orders)
    assert len({tuple(o) for o in orders}) == 4
    torch.manual_seed(99)
    assert order() == orders[0]
    assert order(method=configured("fedprox")) == orders[0]


def test_a_batch_of_one_is_skipped_under_batch_norm_only():
    for net, sizes in ((TinyBN, [3, 3] * 2), (Tiny, [3, 3, 1] * 2)):
        toy = world(Noting(), LABELS, epochs=2, batch_size=3, net=net)
        done = toy.worker.run(toy.job(0))
        assert [len(y) for y, _, _ in toy.method.batches] == sizes
        assert (done.steps, done.samples) == (len(sizes), sum(sizes))


def test_a_batch_of_one_is_skipped_for_a_loss_with_batch_statistics():
    class Statistical(Noting):
        spec = Spec(batch_statistics=True)

    toy = world(Statistical(), LABELS, batch_size=3)
    toy.worker.run(toy.job(0))
    assert [len(y) for y, _, _ in toy.method.batches] == [3, 3]


def test_a_client_with_one_sample_under_batch_norm_sends_what_it_received():
    toy = world(Method(), LABELS, net=TinyBN)
    done = toy.worker.run(toy.job(2))
    assert (done.steps, done.samples, dict(done.terms)) == (0, 0, {})
    assert same_tree(done.upload["model"], toy.task.init)
    assert done.upload["samples"] == 1


# -- hooks of a training phase -----------------------------------------------------------------------------------------
class Shaped(Method):
    """One training phase, shaped by keyword arguments; losses are FedAvg's."""

    def __init__(self, **fields):
        super().__init__()
        self.fields = fields

    def begin(self, payload, state, ctx):
        return Start(super().begin(payload, state, ctx).tree, {"limit": 0.0625})

    def phases(self, start, ctx):
        return [Train(self.fields.get("loss", self.loss), **{"epochs": ctx.task.local_epochs} | self._rest())]

    def _rest(self):
        return {name: value for name, value in self.fields.items() if name != "loss"}


def plain(labels=LABELS, client=0, **keys):
    toy = world(Method(), labels, **keys)
    return toy, toy.worker.run(toy.job(client))


def test_grad_map_changes_gradients_before_the_step():
    calls = []

    def reversed_head(gradients, parameters, consts):
        calls.append((list(gradients), list(parameters), consts["limit"]))
        return {n: -g if n.startswith("head") else torch.zeros_like(g) for n, g in gradients.items()}

    toy = world(Shaped(grad_map=reversed_head), LABELS, batch_size=8)
    ours = toy.worker.run(toy.job(0)).upload["model"]
    _, expected = plain(batch_size=8)
    expected, init = expected.upload["model"], toy.task.init
    assert calls == [([*init], [*init], 0.0625)]
    for name in ("head.weight", "head.bias"):  # one step: exactly the other way round
        assert torch.allclose(ours[name] - init[name], init[name] - expected[name], rtol=0, atol=1e-7)
        assert not torch.equal(ours[name], init[name])
    for name in ("fc.weight", "fc.bias"):
        assert torch.equal(ours[name], init[name])


def test_project_changes_parameters_after_every_step():
    def into_box(parameters, consts):
        return {n: p.clamp(-consts["limit"], consts["limit"]) for n, p in parameters.items()}

    seen = []

    class Watching(Shaped):
        def loss(self, net, batch, consts):
            seen.append(max(float(p.detach().abs().max()) for p in net.parameters()))
            return super().loss(net, batch, consts)

    toy = world(Watching(project=into_box), LABELS, batch_size=3)
    done = toy.worker.run(toy.job(0))
    assert seen[0] > 0.0625
    assert len(seen) == 3
    assert all(largest <= 0.0625 for largest in seen[1:])
    assert max(float(v.abs().max()) for v in done.upload["model"].values()) == 0.0625


def test_only_the_named_roles_are_trained():
    toy = world(Shaped(trains=frozenset({Role.HEAD})), LABELS, net=TinyBN, epochs=2)
    tree, init = toy.worker.run(toy.job(0)).upload["model"], toy.task.init
    moved = {name for name in init if not torch.equal(tree[name], init[name])}
    # batch-norm statistics move whenever the net is in training mode
    assert moved == {"head.weight", "head.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


class Pair(Method):
    """Two nets side by side, each trained on cross-entropy; the second stays with the client. `phase` shapes it."""

    spec = Spec(nets={"first": None, "second": None}, private_nets=frozenset({"second"}))

    def __init__(self, **phase):
        super().__init__()
        self.phase = phase

    def phases(self, start, ctx):
        return [Train(self.loss, ctx.task.local_epochs, **self.phase)]

    def loss(self, net, batch, consts):
        ce = {name: batch.mean(cross_entropy(net[name](batch.x), batch.y)) for name in self.spec.nets}
        return Objective.sum({f"ce_{name}": value for name, value in ce.items()})


STATISTICS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
HEAD = frozenset({Role.HEAD})


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ({}, {"first": set(TinyBN().state_dict()), "second": set(TinyBN().state_dict())}),
        ({"nets": ("second",)}, {"first": STATISTICS, "second": set(TinyBN().state_dict())}),
        (
            {"nets": ("first",), "trains": HEAD},
            {"first": STATISTICS | {"head.weight", "head.bias"}, "second": STATISTICS},
        ),
    ],
)
def test_only_the_named_nets_are_trained(phase, expected):
    toy = world(Pair(**phase), LABELS, net=TinyBN, epochs=2)
    done = toy.worker.run(toy.job(0))
    tree, init = done.upload["model"] | done.state["model"], toy.task.init
    assert {name.partition(".")[0] for name in done.upload["model"]} == {"first"}
    assert {name.partition(".")[0] for name in done.state["model"]} == {"second"}
    assert tree.keys() == init.keys()
    moved = {name for name in init if not torch.equal(tree[name], init[name])}
    # batch-norm statistics move whenever a net is in training mode
    assert moved == {f"{net}.{name}" for net, names in expected.items() for name in names}
    assert set(done.terms) == {"ce_first", "ce_second"}


def test_a_net_beside_others_trains_as_it_would_alone():
    both, alone = (world(method, LABELS, net=TinyBN, epochs=2, batch_size=3) for method in (Pair(), Method()))
    done, expected = (toy.worker.run(toy.job(0)) for toy in (both, alone))
    for kept, name in ((done.upload, "first"), (done.state, "second")):
        tree = {entry.removeprefix(f"{name}."): value for entry, value in kept["model"].items()}
        assert same_tree(tree, expected.upload["model"])


def test_a_phase_may_have_its_own_optimiser():
    own = OptimizerSpec(lr=0.01, momentum=0.5)
    toy = world(Shaped(optimizer=own), LABELS, epochs=2)
    ours = toy.worker.run(toy.job(0)).upload["model"]
    assert same_tree(ours, plain(epochs=2, optimizer=own)[1].upload["model"])
    assert not same_tree(ours, plain(epochs=2)[1].upload["model"])


def test_momentum_does_not_cross_phases():
    class Twice(Method):
        def phases(self, start, ctx):
            return [Train(self.loss, epochs=1), Train(self.loss, epochs=1)]

    momentum = OptimizerSpec(lr=0.1, momentum=0.9)
    two = world(Twice(), LABELS, optimizer=momentum, batch_size=8)
    two = two.worker.run(two.job(0))
    assert two.steps == 2
    one = plain(epochs=2, optimizer=momentum, batch_size=8)[1]
    without = plain(epochs=2, optimizer=OptimizerSpec(lr=0.1), batch_size=8)[1]
    assert furthest(two.upload["model"], without.upload["model"]) < 1e-6
    assert furthest(two.upload["model"], one.upload["model"]) > 1e-4


def test_refresh_is_taken_before_every_epoch_in_evaluation_mode_over_all_samples():
    modes, given = [], []

    def feature(net, batch, consts):
        modes.append(net.training)
        return net.features(batch.x)

    def loss(net, batch, consts):
        given.append((consts["centre"], [p.detach().clone() for p in net.parameters()]))
        return batch.mean(cross_entropy(net(batch.x), batch.y))

    toy = world(Shaped(loss=loss, refresh={"centre": SampleMean(feature)}), LABELS, epochs=3, net=TinyBN, batch_size=3)
    toy.worker.run(toy.job(0))
    assert modes == [False] * 3
    assert len(given) == 6  # 7 samples in threes, without the batch of one, three times
    centres = [centre for centre, _ in given]
    for epoch in range(3):
        assert torch.equal(centres[2 * epoch], centres[2 * epoch + 1])
    assert not torch.allclose(centres[0], centres[2], atol=1e-4)
    fresh = TinyBN().eval()
    fresh.load_state_dict(toy.task.init)
    with torch.no_grad():
        expected = fresh.features(toy.samples(0)[0]).mean(0)
    assert torch.allclose(centres[0], expected, rtol=0, atol=1e-6)


def test_collect_gathers_the_last_epoch_before_each_step():
    noted = []

    class Tapping(Shaped):
        def loss(self, net, batch, consts):
            logits = net(batch.x)
            noted.append((logits.detach(), batch.y))
            return Objective(batch.mean(cross_entropy(logits, batch.y)), taps={"logits": logits.detach()})

        def end(self, work, state, ctx):
            self.collected = work.collected
            return super().end(work, state, ctx)

    statistics = {"by_class": ClassMeans("logits"), "overall": SampleMean("logits")}
    toy = world(Tapping(collect=statistics), [[0, 1, 2, 0, 1, 2, 0]], epochs=3, batch_size=3)
    toy.worker.run(toy.job(0))
    last = noted[6:]
    logits, y = torch.cat([z for z, _ in last]).double(), torch.cat([y for _, y in last])
    assert len(y) == 7
    table = toy.method.collected["by_class"]
    assert table.held.tolist() == [True, True, True, False]
    for label in range(3):
        mean = logits[y == label].mean(0)
        assert torch.allclose(table.values[label].double(), mean, rtol=0, atol=1e-6)
    assert torch.allclose(toy.method.collected["overall"].double(), logits.mean(0), rtol=0, atol=1e-6)
    assert table.values.dtype == toy.method.collected["overall"].dtype == torch.float32


def test_a_statistics_pass_sees_all_samples_changes_nothing_and_feeds_later_phases():
    modes = []

    def inputs(net, batch, consts):
        modes.append((net.training, torch.is_grad_enabled(), len(batch.y)))
        return batch.x

    class Passing(Method):
        def phases(self, start, ctx):
            return [Collect({"mean": SampleMean(inputs), "means": ClassMeans(inputs)}), Train(self.loss, epochs=1)]

        def loss(self, net, batch, consts):
            self.consts = consts
            return super().loss(net, batch, consts)

        def end(self, work, state, ctx):
            self.collected = work.collected
            return super().end(work, state, ctx)

    toy = world(Passing(), LABELS, net=TinyBN, batch_size=3)
    done = toy.worker.run(toy.job(0))
    x, y = toy.samples(0)
    assert modes == [(False, False, 7)] * 2
    for where in (toy.method.consts, toy.method.collected):
        assert torch.allclose(where["mean"], x.mean(0), rtol=0, atol=1e-6)
        for label in range(CLASSES):
            assert torch.allclose(where["means"].values[label], x[y == label].mean(0), rtol=0, atol=1e-6)
    assert same_tree(done.upload["model"], plain(net=TinyBN, batch_size=3)[1].upload["model"])


def test_terms_and_taps_need_not_be_detached():
    class Attached(Method):
        def phases(self, start, ctx):
            return [Train(self.loss, 2, collect={"z": SampleMean("z")})]

        def loss(self, net, batch, consts):
            z = net.features(batch.x)
            return Objective.sum({"ce": batch.mean(cross_entropy(net.head(z), batch.y))}, {"z": z})

        def end(self, work, state, ctx):
            payload, state = super().end(work, state, ctx)
            return payload | {"z": work.collected["z"]}, state

    toy = world(Attached(), LABELS, batch_size=3)
    done, expected = toy.worker.run(toy.job(0)), plain(epochs=2, batch_size=3)[1]
    assert not done.upload["z"].requires_grad
    assert same_tree(done.upload["model"], expected.upload["model"])
    assert dict(done.terms) == {"ce": expected.terms["loss"]}


def test_an_objective_is_the_sum_of_its_terms_in_their_order():
    terms = {name: torch.tensor(value) for name, value in (("a", 1e8), ("b", 1.0), ("c", -1e8))}
    out = Objective.sum(terms)
    assert float(out.total) == 0.0  # float32: (1e8 + 1) - 1e8
    assert (out.terms, out.taps) == (terms, {})
    assert Objective.sum({"a": terms["a"]}).total is terms["a"]


def test_terms_are_those_of_the_last_phase_that_made_a_step():
    class Phased(Method):
        def phases(self, start, ctx):
            first, second = (
                lambda *a, n=n: Objective(self.loss(*a), terms={"phase": torch.tensor(n)}) for n in (1.0, 2.0)
            )
            return [Train(first, epochs=1), Train(second, epochs=1), Train(self.loss, epochs=0)]

    toy = world(Phased(), LABELS)
    assert dict(toy.worker.run(toy.job(0)).terms) == {"phase": 2.0}


# -- errors ------------------------------------------------------------------------------------------------------------
class Failing(Method):
    """Raises in the training or in the later statistics pass of client 1."""

    stage = ""

    def phases(self, start, ctx):
        def raising(stage):
            if stage == self.stage and ctx.client == 1:
                raise ZeroDivisionError("on purpose")

        def loss(net, batch, consts):
            raising("phase 0")
            return self.loss(net, batch, consts)

        passed = SampleMean(lambda net, batch, consts: raising("phase 1") or batch.x)
        return [Train(loss, epochs=1), Collect({"mean": passed})]


@pytest.mark.parametrize("stage", ["phase 0", "phase 1"])
def test_a_failed_round_names_its_client_leaves_all_as_it_was_and_can_be_run_again(stage):
    toy, calm = world(Failing(), LABELS), world(Failing(), LABELS)
    toy.federation.round = calm.federation.round = 6
    toy.method.stage = stage
    with pytest.raises(ClientError, match=rf"client 1 .* round 7 \({stage}\): ZeroDivisionError: on purpose") as caught:
        toy.federation.step()
    assert (caught.value.client, caught.value.round, caught.value.stage) == (1, 7, stage)
    assert (toy.federation.round, toy.federation.states) == (6, {})
    toy.method.stage = ""
    toy.federation.step()
    calm.federation.step()
    assert same_bits(toy.federation.server, calm.federation.server)


# -- ownership of memory -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedsc", "local"])
@pytest.mark.parametrize("net", [Tiny, TinyBN])
def test_what_a_client_is_given_is_never_written(name, net):
    toy = world(configured(name), LABELS, net=net, epochs=2, optimizer=OptimizerSpec(lr=0.1, momentum=0.9))
    toy.federation.step()
    job = toy.job(0, round_=2)
    given = job.payload.get("model") or job.state["model"]
    before, init = clone(given), clone(toy.task.init)
    done = toy.worker.run(job)
    toy.worker.run(toy.job(1, round_=2))
    assert same_tree(given, before)
    assert same_tree(toy.task.init, init)
    left = done.upload.get("model") or done.state["model"]
    assert furthest(left, before) > 1e-4


# -- dropout -----------------------------------------------------------------------------------------------------------
class Masking(Net):
    """Notes its dropout masks."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.masks = []

    def features(self, x):
        mask = self.drop(torch.ones_like(x))
        if self.training:
            self.masks.append(mask)
        return x * mask


def masks(toy, client, round_):
    toy.net.masks.clear()
    toy.worker.run(toy.job(client, round_=round_))
    return torch.stack(list(toy.net.masks))


def test_dropout_is_the_same_in_any_order_and_leaves_the_global_generator_alone():
    payloads = {}
    for order, seed in (((0, 1, 2), 0), ((2, 0, 1), 1)):
        toy = world(Method(), LABELS, net=TinyDropout, epochs=2)
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        for client in order:
            payloads.setdefault(client, []).append(toy.worker.run(toy.job(client)).upload)
        assert torch.equal(torch.get_rng_state(), before)
    assert all(same_bits(*pair) for pair in payloads.values())


def test_dropout_differs_between_clients_rounds_steps_and_seeds():
    same_sizes = [[0, 1, 2, 3]] * 2
    toy = world(Method(), same_sizes, net=Masking, epochs=2)
    first = masks(toy, 0, 1)
    assert torch.equal(first, masks(toy, 0, 1))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, masks(toy, 1, 1))
    assert not torch.equal(first, masks(toy, 0, 2))
    assert not torch.equal(first, masks(world(Method(), same_sizes, net=Masking, epochs=2, seed=4), 0, 1))
    assert set(first.unique().tolist()) == {0.0, 2.0}


def test_dropout_differs_between_phases():
    class Twice(Method):
        def phases(self, start, ctx):
            return [Train(self.loss, epochs=1), Train(self.loss, epochs=1)]

    first, second = masks(world(Twice(), [[0, 1, 2, 3]], net=Masking), 0, 1)
    assert not torch.equal(first, second)


def test_private_roles_start_from_the_client_and_shared_ones_from_the_server():
    class Split(Method):
        spec = Spec(private=BN_ROLES)

    toy = world(Split(), LABELS, net=TinyBN, optimizer=OptimizerSpec(lr=0.0))
    state = {"model": {name: v + 3 for name, v in toy.task.init.items() if toy.task.roles[name] in BN_ROLES}}
    start = toy.method.begin({"model": toy.federation.server["model"]}, state, toy.federation.client_context(0, 2))
    assert list(start.tree) == list(toy.task.init)
    for name, value in start.tree.items():
        assert torch.equal(value, toy.task.init[name] + 3 * (toy.task.roles[name] in BN_ROLES))
    done = toy.worker.run(toy.job(0, state=state))
    assert torch.equal(done.state["model"]["norm.weight"], state["model"]["norm.weight"])
    assert int(done.state["model"]["norm.num_batches_tracked"]) == 3 + done.steps
