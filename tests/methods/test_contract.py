"""What holds for every method: options, padding, partial participation, purity."""

import copy
import dataclasses

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import from_bytes, to_bytes
from fedloom.core.tables import ClassTable
from fedloom.methods import METHODS
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.method import PRESETS
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from fedloom.methods.contract.sample_statistics import ClassMeans, SampleMean
from support import (
    CLASSES,
    Recording,
    TinyBN,
    configured,
    dataset,
    each_preset,
    furthest,
    handmade,
    rows_of,
    same_bits,
    same_tree,
    world,
)

NAMES = ["fedavg", "fedbn", "fedco2", "feddw", "fedprox", "fedsc", "fedskc", "fedssa", "local"]
SERVERS = ["fedadagrad", "fedadam", "fedavgm", "fedcda", "feddisco", "feddyn", "fednova", "fedyogi", "scaffold"]
LOSSES = ["fedlc", "fedntd", "fedrcl", "fedrod", "feduv", "moon"]
NAMES += [*SERVERS, *LOSSES, "fednh"]
# Methods whose loss is made of the batch alone but for fedprox's pull; feddw and fedskc have tests of their own.
BATCHWISE = ["fedavg", "fedbn", "fedco2", "fedprox", "fedssa", "local", "fednh", "fedntd", "fedrcl", "feduv", "moon"]
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
FEDSC = [
    {"scale": scale, "detach_scale": detach, "positives": positives, "rpcl_reduce": reduce, "cpdr": norm}
    for scale in ("batch", "dataset", "none")
    for detach in (True, False)
    for positives in ("all", "mean", "self")
    for reduce in ("sum", "mean_exp")
    for norm in ("l1", "l2", "mse", "off")
]


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key", "hint"),
    [
        ("fedsc", "taus", "tau"),
        ("fedsc", "neighbors", "neighbours"),
        ("fedprox", "muu", "mu"),
        ("fedsc", "CPDR", "cpdr"),
    ],
)
def test_unknown_options_are_errors_that_suggest_the_nearest(name, key, hint):
    with pytest.raises(ConfigError) as caught:
        configured(name, **{key: 0.1})
    assert f"'{name}.{key}'" in str(caught.value)
    assert f"did you mean '{hint}'?" in str(caught.value)


def test_unknown_presets_are_errors_that_suggest_the_nearest():
    with pytest.raises(ConfigError, match=r"'papers'.*did you mean 'paper'\?"):
        configured("fedsc", "papers")


def test_unknown_methods_are_errors_that_suggest_the_nearest():
    with pytest.raises(ConfigError, match=r"'fedpro'.*did you mean 'fedprox'\?"):
        METHODS.get("fedpro")


# -- padding -----------------------------------------------------------------------------------------------------------
def doubled(record):
    """A record in float64."""
    return {
        name: {n: v.double() for n, v in value.items()}
        if isinstance(value, dict)
        else value.to(torch.float64)
        if isinstance(value, ClassTable)
        else value
        for name, value in record.items()
    }


def prepared(name, preset="paper", **options):
    """A method after a round, a float64 net away from the received weights, five real rows, and constants; those of
    FedSC come from random tables."""
    method = handmade(name, preset, **options)
    toy = world(method, [[0, 1], [2, 3]])
    toy.federation.step()
    job = toy.job(0, round_=2)
    rng = torch.Generator().manual_seed(5)
    payload, state = doubled(job.payload), doubled(job.state)
    if name == "fedsc":
        held = torch.tensor([[True, True, False, False], [True, True, True, False], [True, False, False, False]])
        r = ClassTable(torch.randn(3, CLASSES, 6, generator=rng, dtype=torch.float64) * held.unsqueeze(-1), held)
        o = torch.randn(CLASSES, 6, generator=rng, dtype=torch.float64)
        payload |= {"relational": r, "consistent": ClassTable(o * held.any(0).unsqueeze(-1), held.any(0))}
    start = method.begin(payload, state, job.ctx)
    net, consts = toy.net.double(), start.consts
    net.load_state_dict({n: v + 0.05 for n, v in start.tree.items()})
    if getattr(method.options, "scale", None) == "dataset":
        consts["scale"] = torch.linspace(0.5, 2, len(rows_of(consts)), dtype=torch.float64)
    data = dataset([0, 1, 2, 3, 0])
    return method, net, data.x.double(), data.y, consts


def loss_terms_gradients(method, net, batch, consts):
    out = method.loss(net, batch, consts)
    total, terms = (out, {}) if isinstance(out, torch.Tensor) else (out.total, dict(out.terms))
    terms = {term: value.detach() for term, value in terms.items()}
    return total.detach(), terms, torch.autograd.grad(total, list(net.parameters()), materialize_grads=True)


def assert_padding_is_ignored(name, preset="paper", **options):
    method, net, x, y, consts = prepared(name, preset, **options)
    rng = torch.Generator().manual_seed(6)
    bare = loss_terms_gradients(method, net, Batch(x, y), consts)
    for front, behind in ((0, 3), (2, 1), (0, 30)):  # 30: distances take another path in torch from 26 rows on
        junk = [torch.randn(k, x.shape[1], generator=rng, dtype=x.dtype) * 100 for k in (front, behind)]
        labels = [torch.arange(k) % CLASSES for k in (front, behind)]
        mask = torch.tensor([False] * front + [True] * len(y) + [False] * behind)
        padded = Batch(torch.cat([junk[0], x, junk[1]]), torch.cat([labels[0], y, labels[1]]), mask)
        total, terms, gradients = loss_terms_gradients(method, net, padded, consts)
        assert torch.allclose(total, bare[0], rtol=0, atol=1e-10)
        assert terms.keys() == bare[1].keys()
        for term, value in terms.items():
            assert torch.allclose(value, bare[1][term], rtol=0, atol=1e-10), term
        for ours, expected in zip(gradients, bare[2], strict=True):
            assert torch.allclose(ours, expected, rtol=0, atol=1e-9)
    assert float(bare[0]) > 0.1
    assert max(float(g.abs().max()) for g in bare[2]) > 1e-3
    # a mask of ones is no mask
    whole = loss_terms_gradients(method, net, Batch(x, y, torch.ones(len(y), dtype=torch.bool)), consts)
    assert torch.allclose(whole[0], bare[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BATCHWISE)
def test_padded_rows_change_nothing(name):
    assert_padding_is_ignored(name)


@pytest.mark.parametrize("preset", PRESETS)
def test_padded_rows_change_nothing_in_fedsc_presets(preset):
    assert_padding_is_ignored("fedsc", preset)


@pytest.mark.parametrize("options", FEDSC, ids=lambda o: "-".join(map(str, o.values())))
def test_padded_rows_change_nothing_in_any_option_of_fedsc(options):
    assert_padding_is_ignored("fedsc", **options)


@pytest.mark.parametrize(("name", "preset"), each_preset(NAMES))
def test_the_terms_of_a_loss_are_its_parts(name, preset):
    """They add up to the total, and the cross-entropies are called so: what the comparison of gradients relies on."""
    method, net, x, y, consts = prepared(name, preset)
    out = method.loss(net, Batch(x, y), consts)
    if isinstance(out, torch.Tensor):
        return
    parts = torch.stack(list(out.terms.values())).sum()
    assert torch.allclose(parts, out.total, rtol=0, atol=1e-12)
    assert [term for term in out.terms if term.startswith("ce")]
    weights = list(net.parameters())
    gradients = [torch.autograd.grad(v, weights, retain_graph=True) for v in (parts, out.total)]
    for ours, expected in zip(*gradients, strict=True):
        assert torch.allclose(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [*BATCHWISE, "fedsc"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_batch_of_padding_alone_is_zero_without_gradient(name, preset):
    method, net, x, y, consts = prepared(name, preset)
    if name == "fedprox":  # its pull does not come from the batch: stand where it is zero
        consts = {"received": dict(net.named_parameters())}
    empty = Batch(x, y, torch.zeros(len(y), dtype=torch.bool))
    total, terms, gradients = loss_terms_gradients(method, net, empty, consts)
    assert float(total) == 0.0
    assert all(float(value) == 0.0 for value in terms.values())
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)


@pytest.mark.parametrize("kind", [ClassMeans, SampleMean])
def test_padded_rows_do_not_enter_statistics(kind):
    statistic = kind("z")
    z = torch.tensor([[1.0, 2.0], [3.0, -4.0], [5.0, 0.0]])
    y = torch.tensor([0, 2, 0])
    bare = statistic.result(statistic.add({}, z, Batch(z, y), CLASSES))
    junk = torch.full((2, 2), 1e3)
    padded = Batch(torch.cat([z, junk]), torch.cat([y, torch.tensor([0, 1])]), torch.tensor([True] * 3 + [False] * 2))
    sums = statistic.add({}, padded.x, padded, CLASSES)
    sums = statistic.add(sums, junk, Batch(junk, torch.tensor([2, 3]), torch.zeros(2, dtype=torch.bool)), CLASSES)
    ours = statistic.result(sums)
    if kind is ClassMeans:
        assert bare.held.tolist() == ours.held.tolist() == [True, False, True, False]
        assert bare.values.tolist() == ours.values.tolist() == [[3, 1], [0, 0], [3, -4], [0, 0]]
    else:
        assert torch.allclose(bare, torch.tensor([3.0, -2 / 3]))
        assert torch.allclose(ours, bare)


@pytest.mark.parametrize(
    ("mask", "among", "expected"),
    [
        (None, None, 2.5),
        ([True, True, False, True], None, 7 / 3),
        (None, [False, True, True, False], 2.5),
        ([True, True, False, False], [False, True, True, True], 2.0),
        ([True, False, False, False], [False, True, True, True], 0.0),
    ],
)
def test_batch_mean(mask, among, expected):
    values = torch.tensor([1.0, 2, 3, 4], requires_grad=True)
    mask, among = (None if m is None else torch.tensor(m) for m in (mask, among))
    mean = Batch(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), mask).mean(values, among)
    assert float(mean.detach()) == pytest.approx(expected)
    counted = torch.ones(4, dtype=torch.bool)
    for m in (mask, among):
        counted = counted if m is None else counted & m
    (gradient,) = torch.autograd.grad(mean, values)
    assert torch.allclose(gradient, counted / max(1, int(counted.sum())))


# -- rounds ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedco2", "fedprox", "fedsc"])
@pytest.mark.parametrize("participation", [1.0, 0.5, 0.25])
def test_aggregation_weights_sum_to_one(name, participation):
    """Clients that do not move (learning rate 0) leave the model as it was, whoever takes part."""
    toy = world(configured(name), LABELS, participation=participation, optimizer=OptimizerSpec(lr=0.0))
    for _ in range(4):
        toy.federation.step()
        model = toy.federation.server["model"]
        assert furthest(model, {name: toy.task.init[name] for name in model}) < 1e-7


@pytest.mark.parametrize(("name", "preset"), each_preset(NAMES))
def test_a_method_keeps_nothing_to_itself(name, preset):
    toy = world(handmade(name, preset), LABELS, epochs=2)
    before = copy.deepcopy(vars(toy.method))
    for _ in range(2):
        toy.federation.step()
    assert vars(toy.method) == before
    assert vars(type(toy.method)(toy.method.options)).keys() == before.keys()


@pytest.mark.parametrize(("name", "preset"), each_preset(NAMES))
def test_hooks_do_not_write_their_arguments(name, preset):
    """Two rounds on records that are checked before and after every hook of the server."""
    toy = world(handmade(name, preset), LABELS, engine=Recording, net=TinyBN)
    for _ in range(2):
        server = toy.federation.server
        before = to_bytes(server)
        toy.federation.engine.done.clear()
        toy.federation.engine.jobs.clear()
        toy.federation.step()
        assert to_bytes(server) == before
        uploads = {done.client: done.upload for done in toy.federation.engine.done}
        sent = {client: to_bytes(upload) for client, upload in uploads.items()}
        again = toy.method.aggregate(server, uploads, ServerContext(toy.task, toy.federation.round))
        toy.method.diagnostics(again, uploads, ServerContext(toy.task, toy.federation.round))
        assert same_bits(again, toy.federation.server)
        assert {client: to_bytes(upload) for client, upload in uploads.items()} == sent
        assert to_bytes(server) == before


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_is_kept_or_travels_survives_serialisation(name):
    """Records go through bytes between all hooks: the result is that of passing them by reference."""
    plain, wired = (world(configured(name), LABELS, net=TinyBN) for _ in range(2))
    for _ in range(3):
        plain.federation.step()
        wired.federation.server = from_bytes(to_bytes(wired.federation.server))
        wired.federation.states = {k: from_bytes(to_bytes(v)) for k, v in wired.federation.states.items()}
        wired.federation.step()
    assert same_bits(plain.federation.server, wired.federation.server)
    assert {k: to_bytes(v) for k, v in plain.federation.states.items()} == {
        k: to_bytes(v) for k, v in wired.federation.states.items()
    }


@pytest.mark.parametrize("name", sorted({*NAMES} - {"fednh"}))  # whose server replaces the head
def test_first_states_depend_on_nothing_but_the_task(name):
    toy = world(configured(name), LABELS, net=TinyBN)
    ctx = ServerContext(toy.task, 0)
    assert same_bits(toy.method.server_init(ctx), toy.method.server_init(ctx))
    assert same_bits(toy.method.server_init(ctx), toy.federation.server)
    early, late = (toy.method.client_init(toy.federation.client_context(1, round_)) for round_ in (1, 4))
    assert same_bits(early, late)
    shared, own = (record.get("model", {}) for record in (toy.federation.server, early))
    held = shared | own
    assert len(shared) + len(own) == len(held) == len(toy.task.init)  # every entry is shared or private, none is both
    assert same_tree({name: held[name] for name in toy.task.init}, toy.task.init)


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        ("same_heads", r"{} shares the head: that of group 1 .* same feature width"),
        ("same_width", r"{} compares features: those of group 1 have 3 entries, those of group 0 6; choose"),
    ],
)
def test_heads_or_features_that_differ_between_architectures_are_refused(requirement, message):
    names = [name for name, kind in METHODS if requirement in kind.spec.requires]
    assert len(names) > 2
    task = world(configured("fedavg"), [[0, 1]]).task
    narrow = dataclasses.replace(task, init=task.init | {"head.weight": torch.zeros(CLASSES, 3)}, feature_dim=3)
    for name in names:
        with pytest.raises(ConfigError, match=message.format(name)):
            handmade(name).examine([task, narrow], 2)
