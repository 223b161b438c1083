"""Compression of uploads: its equations in numpy, what is left over, bytes on the wire, any order, refusals."""

import copy

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import to_bytes, wire_size
from fedloom.methods import METHODS, wrapped
from fedloom.methods.wrappers import compression
from fedloom.nets.net import ALL_ROLES, Role
from support import (
    FEDERATED,
    PLAIN_SGD,
    ROW_METHODS,
    Recording,
    Tiny,
    TinyBN,
    after,
    alike,
    configured,
    furthest,
    mixed,
    near,
    same_bits,
    world,
)

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
WORDS = compression.WORDS
SIZES = [4, 1, 3]
RNG = np.random.default_rng(5)
CHANGE = RNG.normal(size=8)


def wrapper(word, **options):
    return configured(f"fedavg+{word}", **options)


def round_trip(word, change, sizes=SIZES, seed=0, **options):
    method = wrapper(word, **options)
    sent = method.squeezed(torch.from_numpy(change), sizes, np.random.default_rng(seed))
    return sent, method.restored(sent, sizes).numpy()


# -- equations -----------------------------------------------------------------------------------------------


def test_sign_sends_a_bit_and_the_mean_magnitude_of_each_tensor():
    change = CHANGE.copy()
    change[1] = 0.0
    sent, found = round_trip("sign", change)
    parts = np.split(change, np.cumsum(SIZES)[:-1])
    wanted = np.concatenate([np.where(part >= 0, 1, -1) * np.abs(part).mean() for part in parts])
    assert sent["bits"].dtype == torch.uint8
    assert len(sent["bits"]) == 1
    assert np.allclose(found, wanted, rtol=0, atol=1e-15)


def test_int8_rounds_to_one_of_the_two_nearest_steps():
    sent, found = round_trip("int8", CHANGE)
    parts = np.split(CHANGE, np.cumsum(SIZES)[:-1])
    steps = np.repeat([np.abs(part).max() / 127 for part in parts], SIZES)
    assert sent["levels"].dtype == torch.int8
    assert sent["steps"].shape == (3,)
    assert (np.abs(found - CHANGE) < steps * (1 + 1e-6)).all()
    assert np.allclose(found, np.round(found / steps) * steps, rtol=1e-6, atol=0)
    assert abs(found[4]) == pytest.approx(abs(CHANGE[4]), rel=1e-6)  # alone in its tensor: the largest is exact


# -- in a federation -----------------------------------------------------------------------------------------
def federation(name, rounds=1, net=Tiny, labels=LABELS, **options):
    return after(world(configured(name, **options), labels, net=net, engine=Recording), rounds)


def changes_of(toy, round_=0):
    """What each client's trained entries moved in a round, as one vector, float64."""
    clients = len(toy.scenario.train)
    jobs = toy.federation.engine.jobs[round_ * clients :][:clients]
    found = []
    for job in jobs:
        plain = world(configured("fedavg"), LABELS)
        done = plain.worker.run(job.__class__(job.ctx, {"model": job.payload["model"]}, {}, job.indices))
        had, new = job.payload["model"], done.upload["model"]
        found.append(torch.cat([(new[n].double() - had[n].double()).flatten() for n in had]))
    return found


@pytest.mark.parametrize("word", ["topk", "sign"])
@pytest.mark.parametrize(
    ("base", "key", "roles"),
    [
        ("fedamp", "weights", ALL_ROLES),
        ("fedas", "model", {Role.HEAD}),
        ("fedala", "model", {Role.HEAD}),
        ("fedcp", "head", ALL_ROLES),
        ("ifca", "model", ALL_ROLES),
        ("fedprox", "model", set()),
    ],
)
def test_nothing_is_added_to_what_goes_on_from_the_clients_own(base, key, roles, word):
    """A client that keeps such an entry sends what was left out with its next change anyway."""
    toy = federation(f"{base}+{word}", rounds=2)
    for job, done in zip(toy.federation.engine.jobs, toy.federation.engine.done, strict=True):
        entry, like = f"{word}.{key}", job.payload["model" if base == "ifca" else key]
        if all(toy.task.roles[name] in roles for name in like):
            assert entry not in done.state
            continue
        parts = torch.split(done.state[entry], [value.numel() for value in like.values()])
        for name, part in zip(like, parts, strict=True):
            assert part.any() == (toy.task.roles[name] not in roles), name


@pytest.mark.parametrize("word", ["topk", "sign"])
def test_what_was_sent_and_what_is_left_are_all_changes(word):
    """Over three rounds, for each client; float32 roundings apart."""
    toy = federation(f"fedavg+{word}", 3)
    method, sizes = toy.method, [value.numel() for value in toy.task.init.values()]
    for client in range(len(LABELS)):
        made = sum(changes_of(toy, round_)[client] for round_ in range(3))
        done = [toy.federation.engine.done[round_ * len(LABELS) + client] for round_ in range(3)]
        sent = sum(method.restored(one.upload[f"{word}.model"], sizes) for one in done)
        left = toy.federation.states[client][f"{word}.model"].double()
        assert torch.allclose(sent + left, made, rtol=0, atol=1e-6)
        assert left.abs().max() > 1e-4


@pytest.mark.parametrize("word", WORDS)
def test_the_server_averages_what_arrives(word):
    """One round of FedAvg over numpy's own compression of the clients' changes."""
    toy = federation(f"fedavg+{word}")
    changes, sizes = changes_of(toy), [value.numel() for value in toy.task.init.values()]
    received = []
    for client, change in enumerate(changes):
        stream = toy.task.streams.numpy(f"{word}.model", 1, client)
        sent = toy.method.squeezed(change, sizes, stream)
        received.append(toy.method.restored(sent, sizes).numpy())
    weights = np.array([len(labels) for labels in LABELS], dtype=float)
    mean = weights @ np.stack(received) / weights.sum()
    old = np.concatenate([value.double().numpy().ravel() for value in toy.task.init.values()])
    new = torch.cat([value.double().flatten() for value in toy.federation.server["model"].values()]).numpy()
    assert np.allclose(new, old + mean, rtol=0, atol=2e-6)


@pytest.mark.parametrize("word", WORDS)
def test_buffers_travel_as_they_are(word):
    plain, toy = federation("fedavg", 1, TinyBN), federation(f"fedavg+{word}", 1, TinyBN)
    one, other = plain.federation.server["model"], toy.federation.server["model"]
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(one[name], other[name])
    assert furthest(one, other) > 1e-5


def test_a_control_variate_is_compressed_as_the_change_that_it_is():
    toy = world(configured("scaffold+topk", topk_share=0.5), LABELS, optimizer=PLAIN_SGD, engine=Recording)
    after(toy, 1)
    sent = toy.federation.engine.done[0].upload
    assert {"topk.model", "topk.control"} <= sent.keys()
    assert sent.keys() & {"model", "control"} == set()
    left = toy.federation.states[0]["topk.control"]
    server = toy.federation.server | {"control": toy.task.init}
    read = toy.method.unpack(server, {0: sent}, toy.federation.server_context)
    whole = torch.cat([value.flatten() for value in read[0]["control"].values()])
    assert torch.count_nonzero(whole) <= -(-len(whole) // 2)
    assert not (whole.bool() & left.bool()).any()


# -- bytes ---------------------------------------------------------------------------------------------------
class Wide(Tiny):
    """Enough weights that names and headers hardly count."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(5, 4000)
        self.head = torch.nn.Linear(4000, 4)


D = 5 * 4000 + 4000 + 4 * 4000 + 4


@pytest.mark.parametrize(
    ("word", "values"), [("topk", 8 * int(np.ceil(0.1 * D))), ("int8", D + 4 * 4), ("sign", -(-D // 8) + 4 * 4)]
)
def test_bytes_on_the_wire_are_those_of_the_compressed_form(word, values):
    toy = federation(f"fedavg+{word}", net=Wide, labels=LABELS[:2])
    report, done = toy.reports[0], toy.federation.engine.done
    assert report.bytes_up == sum(len(to_bytes(one.upload)) for one in done)
    assert 0 < report.bytes_up / 2 - values < 700  # names and shapes
    assert report.bytes_down == 2 * wire_size({"model": toy.task.init})


# -- state ---------------------------------------------------------------------------------------------------


class Forgets(METHODS.get("fedavg")):
    """Keeps nothing of a client between rounds, so that it always begins with its first state."""

    def client_init(self, ctx):
        return {"first": ctx.client}

    def begin(self, payload, state, ctx):
        assert state == {"first": ctx.client}
        return super().begin(payload, state, ctx)

    def end(self, work, state, ctx):
        return super().end(work, state, ctx)[0], {}


def test_a_client_without_state_starts_from_its_first_one_in_every_round():
    kind = wrapped(compression.TopK, Forgets, "topk", compression.TopKShare)
    toy = after(world(kind(kind.Options()), LABELS), 3)
    assert all(state.keys() == {"first", "topk.model"} for state in toy.federation.states.values())


# -- engines and other wrappers ------------------------------------------------------------------------------
@pytest.mark.parametrize("base", ["fedavg", "fedsc", "fedrep"])
def test_stacked_clients_send_the_same(base):
    """int8 and signs turn a rounding into a step, so stacks are compared with topk."""
    toys = [world(configured(f"{base}+topk"), LABELS, epochs=2, rounds=2, participation=0.6) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, "stacked"), "stacked")


PAIRS = [(word, other) for word in WORDS for other in ("dw", "median", "normbound", "servermomentum", "dp")]


@pytest.mark.parametrize(("word", "other"), [*PAIRS, ("median", "servermomentum"), ("dp", "servermomentum")])
def test_the_order_of_wrappers_does_not_matter(word, other):
    options = {"dw_mu": 0.5} if other == "dw" else {"normbound_length": 0.05} if other == "normbound" else {}
    toys = [world(configured(name, **options), LABELS) for name in (f"fedavg+{word}+{other}", f"fedavg+{other}+{word}")]
    one, two = (after(toy, 2).federation.server for toy in toys)
    assert one.keys() == two.keys()
    assert all(same_bits({"": one[name]}, {"": two[name]}) for name in one)


NO_TREES = {
    *[
        "fd",
        "fedfomo",
        "fedgh",
        "fedkd",
        "fedl2g",
        "fedmd",
        "fedorgp",
        "fedpcl",
        "fedproto",
        "fedssa",
        "fedtgp",
        "local",
        "protonorm",
    ]
}


@pytest.mark.parametrize("name", [name for name in ROW_METHODS if name in FEDERATED and name not in NO_TREES])
def test_it_goes_over_every_method_that_sends_trees(name):
    plain, toy = (after(world(configured(method), LABELS, participation=0.6), 2) for method in (name, f"{name}+topk"))
    assert toy.reports[0].participants == plain.reports[0].participants
    assert toy.reports[0].bytes_up != plain.reports[0].bytes_up
    assert not near(toy.federation.server, plain.federation.server, 0)


@pytest.mark.parametrize("name", sorted(NO_TREES))
def test_it_refuses_every_other_one(name):
    with pytest.raises(ConfigError, match="topk compresses the change of trees that the server has, too, and here"):
        world(configured(f"{name}+topk"), LABELS)


def test_a_change_is_added_to_what_the_clients_architecture_received():
    """Of different nets the heads travel. With everything kept, compression changes nothing but roundings."""
    nets = [Tiny(), TinyBN()]
    servers = []
    for name, options in (("lgfedavg", {}), ("lgfedavg+topk", {"topk_share": 1.0})):
        federation = mixed(configured(name, **options), copy.deepcopy(nets), LABELS)
        for _ in range(2):
            federation.step()
        servers.append(federation.server)
    assert near(*servers, 1e-4)


def test_a_method_with_a_model_for_each_architecture_refuses():
    with pytest.raises(ConfigError, match="a wrapper works on one architecture"):
        mixed(configured("feddf+topk"), [Tiny(), TinyBN()], LABELS)


# -- refusals ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("word", WORDS)
def test_refusals(word):
    with pytest.raises(ConfigError, match=rf"local\+{word}: {word} compresses .* clients send none \(sent: nothing\)"):
        configured(f"local+{word}")
    with pytest.raises(ConfigError, match=rf"fedkd\+{word}: {word} compresses .* \(sent: model\)"):
        configured(f"fedkd+{word}")
    with pytest.raises(
        ConfigError, match=rf"fedproto\+{word}: {word} compresses .* \(sent: prototypes, class_counts\)"
    ):
        world(configured(f"fedproto+{word}"), LABELS)
    other = WORDS[WORDS.index(word) - 1]
    with pytest.raises(ConfigError, match=rf"fedavg\+{other} has a compression already: {word} would .*; take one"):
        configured(f"fedavg+{other}+{word}")
    with pytest.raises(ConfigError, match=f"has {word} already"):
        configured(f"fedavg+{word}+{word}")
