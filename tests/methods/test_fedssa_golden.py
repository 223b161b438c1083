"""FedSSA against the worked example of its specification: every entry of `tests/golden/fedssa.json`.

The numbers were computed outside this library (see the file's note). Both precisions are held to it: float64 within
2e-6 (the file has 6 decimals), float32 within 1e-4. The server keeps its rows in float32: what goes through
`aggregate` is held to 2e-6 in either.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.methods.contract.contexts import ClientContext, ServerContext, Task, Work
from fedloom.methods.fedssa import fused_rows, fusion_weight
from fedloom.nets.net import Net
from support import SINGLE, Precision, Through, configured

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "fedssa.json").read_text())
MEAN, FUSE, TRACE = GOLDEN["fedssa_aggregate"], GOLDEN["fedssa_fuse_literal"], GOLDEN["fedssa_trace"]
CLIENTS, CLASSES, WIDTH = 3, MEAN["inputs"]["S"], MEAN["inputs"]["d"]
SEEN = MEAN["inputs"]["seen"]


STORED = Precision(torch.float32, 2e-6)  # the server's rows


def mask(client: int) -> Tensor:
    return torch.tensor([s in SEEN[client] for s in range(CLASSES)])


def rows(precision: Precision, weights, bias=None) -> Tensor:
    """Header rows [C, d], or [C, d + 1] with the bias behind."""
    weights = precision.tensor(weights)
    return weights if bias is None else torch.cat([weights, precision.tensor(bias).unsqueeze(-1)], -1)


def table(precision: Precision, weights, bias=None, held=None) -> ClassTable:
    values = rows(precision, weights, bias)
    return ClassTable(values, torch.ones(values.shape[:-1], dtype=torch.bool) if held is None else held)


def tree(precision: Precision, weights, bias=None):
    found = {"head.weight": precision.tensor(weights)}
    return found if bias is None else found | {"head.bias": precision.tensor(bias)}


def header_net(weights, bias=None) -> Net:
    net = Through(torch.tensor(weights))
    if bias is not None:
        net.head.register_parameter("bias", torch.nn.Parameter(torch.tensor(bias)))
    return net


def task_of(weights, bias=None) -> Task:
    """A run that starts from this header."""
    net = header_net(weights, bias)
    return Task.of(net, clients=CLIENTS, num_classes=len(weights), rounds=9, local_epochs=1, streams=Streams(0))


def context(task: Task, client: int, round_: int, counts: Tensor | None = None) -> ClientContext:
    counts = mask(client).long() if counts is None else counts
    return ClientContext(task, round_, client, int(counts.sum()), counts)


# -- server ------------------------------------------------------------------------------------------------------------
def uploaded(method, client: int, *, local=None, with_bias=True):
    """A client's payload as `end` makes it."""
    inputs, bias = MEAN["inputs"], MEAN["inputs"]["b_local"][client] if with_bias else None
    weights = (inputs["W_local"] if local is None else local)[client]
    task = task_of(inputs["W_global_prev"], inputs["b_global_prev"] if with_bias else None)
    work = Work(tree(SINGLE, weights, bias), {}, 1)
    payload, state = method.end(work, {}, context(task, client, 1))
    assert state == {"model": work.tree}
    return payload


def served(rounds, **options) -> Tensor:
    """The server's rows after rounds with these participants, from the example's previous rows."""
    method, inputs = configured("fedssa", "paper", **options), MEAN["inputs"]
    task = task_of(inputs["W_global_prev"], inputs["b_global_prev"])
    server = method.server_init(ServerContext(task, 0))
    for number, participants in enumerate(rounds, 1):
        uploads = {k: uploaded(method, k) for k in participants}
        server = method.aggregate(server, uploads, ServerContext(task, number))
    assert server["header"].held.all()
    return server["header"].values


def test_only_rows_of_seen_classes_are_uploaded():
    for client in range(CLIENTS):
        header = uploaded(configured("fedssa", "paper"), client)["header"]
        assert header.held.tolist() == MEAN["mask"][client]
        assert STORED.matches(header.values[:, :WIDTH], MEAN["uploaded_W_zero_filled"][client])
        bias = STORED.tensor(MEAN["inputs"]["b_local"][client])
        assert torch.equal(header.values[:, WIDTH], bias * torch.tensor(MEAN["mask"][client]))


@pytest.mark.parametrize(
    ("rounds", "options", "entry", "bias"),
    [
        ([[0, 1, 2]], {}, "W_global_all", "b_global_all"),
        ([[0, 1]], {}, "W_global_sampled_0_1", "b_global_sampled_0_1"),
        (
            [[0, 1, 2], [0, 1]],
            {"pool": "all_known"},
            "W_global_code_mode_sampled_0_1_but_all_known_rows_pooled",
            "b_global_all",
        ),
        ([[0, 1, 2]], {"average": "all", "take_over": "all"}, "W_global_lg_fedavg_all_rows", None),
    ],
)
def test_global_rows(rounds, options, entry, bias):
    values = served(rounds, **options)
    assert STORED.matches(values[:, :WIDTH], MEAN[entry])
    assert bias is None or STORED.matches(values[:, WIDTH], MEAN[bias])


def test_pooling_of_stored_rows_is_not_the_default():
    pooled = MEAN["W_global_code_mode_sampled_0_1_but_all_known_rows_pooled"]
    assert not STORED.matches(served([[0, 1, 2], [0, 1]])[:, :WIDTH], pooled)


def test_a_row_of_zeros_counts_where_the_mask_says_so(precision):
    trap = MEAN["zero_row_trap"]
    local = trap["W_local_with_client1_row0_zero"]
    tables = [table(precision, local[k]).keep_classes(mask(k)) for k in range(CLIENTS)]
    row = ClassTable.stack(tables).mean_over_clients().values[0]
    assert precision.matches(row, trap["row0_with_mask"])
    assert not precision.matches(row, trap["row0_with_nonzero_detection"])
    method, task = configured("fedssa", "paper"), task_of(MEAN["inputs"]["W_global_prev"])
    uploads = {k: uploaded(method, k, local=local, with_bias=False) for k in range(CLIENTS)}
    server = method.aggregate(method.server_init(ServerContext(task, 0)), uploads, ServerContext(task, 1))
    assert STORED.matches(server["header"].values[0], trap["row0_with_mask"])


# -- client ------------------------------------------------------------------------------------------------------------
def fused_tree(precision: Precision, client: int, t: int, **options):
    """What a client starts round t (from 0) with, through `begin`, and the whole tree that it had."""
    inputs = FUSE["inputs"]
    method = configured("fedssa", "paper", mu0=inputs["mu0"], t_stable=inputs["T_stable"], **options)
    own = tree(precision, inputs["W_local"][client], inputs["b_local"][client])
    payload = {"header": table(precision, inputs["W_global"], inputs["b_global"])}
    task = task_of(inputs["W_global"], inputs["b_global"])
    assert inputs["seen"] == SEEN
    return method.begin(payload, {"model": own}, context(task, client, t + 1)).tree, own


@pytest.mark.parametrize("t", range(4))
def test_fusion_of_rows(precision, t):
    expected, inputs = FUSE[f"t{t}"], FUSE["inputs"]
    mu = fusion_weight(t, inputs["mu0"], inputs["T_stable"])
    assert mu == pytest.approx(expected["mu"], abs=2e-6)
    for client in range(CLIENTS):
        start, own = fused_tree(precision, client, t)
        assert precision.matches(start["head.weight"], expected["W"][client])
        assert precision.matches(start["head.bias"], expected["b"][client])
        assert torch.equal(start["head.weight"][~mask(client)], own["head.weight"][~mask(client)])
        direct = fused_rows(own["head.weight"], precision.tensor(inputs["W_global"]), mask(client), mu)
        assert torch.equal(direct, start["head.weight"])


def test_convex_fusion_of_rows(precision):
    for client in range(CLIENTS):
        start, _ = fused_tree(precision, client, 1, fusion="convex")
        assert precision.matches(start["head.weight"], FUSE["t1_convex_option"]["W"][client])
        assert not precision.matches(fused_tree(precision, client, 1)[0]["head.weight"], start["head.weight"].tolist())


@pytest.mark.parametrize(
    ("entry", "mu0", "t_stable", "times"),
    [
        ("mu0_0.5_T2", 0.5, 2, range(4)),
        ("mu0_0.5_T45_t0_15_30_45_46", 0.5, 45, [0, 15, 30, 45, 46]),
        ("mu0_1_T10", 1.0, 10, range(12)),
    ],
)
def test_schedule_of_mu(entry, mu0, t_stable, times):
    ours = [fusion_weight(t, mu0, t_stable) for t in times]
    assert ours == pytest.approx(GOLDEN["fedssa_mu_schedule"][entry], abs=2e-6)
    assert fusion_weight(t_stable, mu0, t_stable) == 0.0


@pytest.mark.parametrize("t_stable", [2, 10, 20, 45])
def test_rows_of_one_holder_grow_by_the_product_of_1_plus_mu(t_stable):
    """Rounds without training, client 2's row of class 2: sent, averaged alone, fused with itself."""
    gain = GOLDEN["fedssa_mu_schedule"]["row_gain_if_no_training_product_1plus_mu"][f"mu0_0.5_T{t_stable}"]
    product = math.prod(1 + fusion_weight(t, 0.5, t_stable) for t in range(t_stable))
    digits = {20: 4, 45: -1}.get(t_stable, 6)  # the file prints these two shorter: 265.848389, 222810.57
    assert round(product, digits) == pytest.approx(gain, abs=2e-6)
    method, task = configured("fedssa", "paper", t_stable=t_stable), task_of(MEAN["inputs"]["W_local"][2])
    server, state = method.server_init(ServerContext(task, 0)), method.client_init(context(task, 2, 1))
    for number in range(1, t_stable + 3):
        ctx = context(task, 2, number)
        start = method.begin(method.down(server, 2, ServerContext(task, number)), state, ctx)
        payload, state = method.end(Work(start.tree, {}, 0), state, ctx)
        server = method.aggregate(server, {2: payload}, ServerContext(task, number))
    grown = server["header"].values[2] / task.init["head.weight"][2]
    assert torch.allclose(grown, torch.tensor(product), rtol=1e-5)


# -- several rounds ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_trace_of_three_rounds_with_partial_participation(dtype):
    inputs, stored = TRACE["inputs"], Precision(dtype, 2e-6)
    assert inputs["training_stub"] == "add 0.1*(client+1) to every header weight"
    assert inputs["seen"] == SEEN
    method = configured("fedssa", "paper", mu0=inputs["mu0"], t_stable=inputs["T_stable"])
    task = task_of(inputs["W_global0"])
    server = method.server_init(ServerContext(task, 0))
    states = {k: {"model": tree(stored, inputs["W_local0"][k])} for k in range(CLIENTS)}
    for golden in TRACE["rounds"]:
        round_, uploads = golden["t"] + 1, {}
        assert fusion_weight(golden["t"], inputs["mu0"], inputs["T_stable"]) == pytest.approx(golden["mu"], abs=2e-6)
        for k in golden["sampled"]:
            ctx = context(task, k, round_)
            start = method.begin(method.down(server, k, ServerContext(task, round_)), states[k], ctx)
            trained = {name: value + 0.1 * (k + 1) for name, value in start.tree.items()}
            uploads[k], states[k] = method.end(Work(trained, {}, 1), states[k], ctx)
        server = method.aggregate(server, uploads, ServerContext(task, round_))
        assert STORED.matches(server["header"].values, golden["W_global_after"])
        for k, state in states.items():
            assert stored.matches(state["model"]["head.weight"], golden["W_local_after"][k])


# -- what travels ------------------------------------------------------------------------------------------------------
def numbers(classes: int, held: int, **options) -> list[int]:
    """Header numbers down and up of a client with `held` classes, in its first and second participation, d = 500."""
    method = configured("fedssa", "paper", **options)
    task = task_of(torch.zeros(classes, 500).tolist(), [0.0] * classes)
    counts, found = torch.arange(classes) < held, []
    server, state = method.server_init(ServerContext(task, 0)), None
    for round_ in (1, 2):
        ctx, at = context(task, 0, round_, counts.long()), ServerContext(task, round_)
        state = method.client_init(ctx) if state is None else state
        down = method.down(server, 0, at)
        up, state = method.end(Work(method.begin(down, state, ctx).tree, {}, 0), state, ctx)
        server = method.aggregate(server, {0: up}, at)
        assert set(down) == set(up) == {"header"}
        found.append(sum(int(p["header"].held.sum()) * p["header"].values.shape[1] for p in (down, up)))
    return found


@pytest.mark.parametrize(("name", "classes", "held"), [("cifar10", 10, 2), ("cifar100", 100, 10)])
def test_header_numbers_per_client_and_round(name, classes, held):
    golden = GOLDEN["fedssa_comm_params_per_client_round"]
    whole = {"average": "all", "take_over": "all"}
    full, narrow = golden["full_header_weight_and_bias"][name], golden["full_header_weight_only"][name]
    assert numbers(classes, held, **whole) == [full] * 2
    assert numbers(classes, held, **whole, share_bias=False) == [narrow] * 2
    seen = golden["seen_rows_weight_and_bias"][f"{name}_{held}cls"]
    assert numbers(classes, held) == [full // 2 + seen // 2, seen]  # at first contact the whole header comes down
