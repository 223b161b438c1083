"""FedSC and FedSKC against the worked examples of their specifications: every entry of `tests/golden/fedsc.json` and
`fedskc.json`.

The numbers were computed outside this library (see the files' notes). Both precisions are held to them: float64 within
2e-6 (the files have 6 decimals), float32 within 1e-4.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.core.trees import combine, weighted_mean
from fedloom.methods import fedsc, fedskc
from fedloom.methods.contract.contexts import ServerContext, Start, Work
from fedloom.methods.contract.phases import Batch, cross_entropy
from fedloom.methods.contract.sample_statistics import ClassMeans, SampleMean
from fedloom.methods.parts.contrast import contrast_of, mean_distances, scaled_similarities
from fedloom.methods.parts.prototypes import (
    client_distances,
    label_discrepancy,
    merge_neighbours,
    nearest_holders,
    shares,
    sigmoid_weights,
)
from support import CLASSES, DOUBLE, SINGLE, Precision, Through, configured, rows_of, world
from worked_examples import Noting, assert_table, samplewise


def example(name):
    golden = json.loads((Path(__file__).parents[1] / "golden" / f"{name}.json").read_text())[name]
    return golden["inputs"], golden["outputs"]


SC, SC_OUT = example("fedsc")
SKC, SKC_OUT = example("fedskc")
CLIENTS = 3
COUNTS = torch.tensor(SC["class_counts"])
SAMPLES = torch.tensor(SKC["N"], dtype=torch.float64)
ORDER = SC_OUT["rpcl"]["prototype_order_class_client"]


def test_the_examples_are_the_ones_described():
    for inputs, sizes in ((SC, SC["n"]), (SKC, SKC["N"])):
        assert inputs["C"] == CLASSES
        assert sizes == [len(inputs["labels"][str(k)]) for k in range(CLIENTS)]
    for client in range(CLIENTS):
        labels = torch.tensor(SC["labels"][str(client)])
        assert torch.equal(torch.bincount(labels, minlength=CLASSES), COUNTS[client])


def class_means(values: Tensor, labels, statistic: ClassMeans) -> ClassTable:
    """Class means through the statistic that clients run, in two batches."""
    y, sums = torch.tensor(labels), {}
    for part in (slice(0, 1), slice(1, None)):
        sums = statistic.add(sums, values[part], Batch(values[part], y[part]), CLASSES)
    return ClassTable.from_sums(sums["sums"], sums["counts"]).to(values.dtype)


def client_rows(table: ClassTable, client: int) -> ClassTable:
    return ClassTable(table.values[client], table.held[client])


def assert_rows_by_class(table: ClassTable, golden, precision: Precision) -> None:
    """Tables of clients [m, C, d] hold the golden rows {class: {client: row}}, and no others."""
    for label in range(CLASSES):
        rows = golden.get(str(label), {})
        assert table.held[:, label].tolist() == [str(k) in rows for k in range(CLIENTS)]
        for client, row in rows.items():
            assert precision.matches(table.values[int(client), label], row)


def assert_neighbours(distance: Tensor, held: Tensor, neighbours: int, golden) -> None:
    """Neighbours of each client in order, itself first: who joins when one more neighbour is allowed."""
    merged = [nearest_holders(distance, held, count) for count in range(neighbours + 1)]
    for label in range(CLASSES):
        for client in range(CLIENTS):
            order: list[int] = []
            for mask in merged:
                order += sorted(set(mask[label, client].nonzero().flatten().tolist()) - set(order))
            assert order == golden.get(str(label), {}).get(str(client), [])


def sc_batch(precision: Precision, kind: type[Batch] = Batch) -> Batch:
    return kind(precision.tensor(SC["batch_z"]), torch.tensor(SC["batch_y"]))


def skc_batch(precision: Precision, kind: type[Batch] = Batch) -> Batch:
    return kind(precision.tensor(SKC["lcl_batch_logits"]), torch.tensor(SKC["lcl_batch_labels"]))


def sc_net(precision: Precision) -> Through:
    return Through(precision.tensor(SC["classifier_V"]))


def identity(precision: Precision) -> Through:
    """A net whose logits are its inputs."""
    return Through(torch.eye(CLASSES, dtype=precision.dtype))


def slope(loss: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(loss, x)[0]


def begun(method, **tables: ClassTable):
    """The method, and the constants that its client gets in round 2 from these tables."""
    toy = world(method, [[0, 1]])
    payload = {"model": toy.task.init, **tables}
    return method, method.begin(payload, {}, toy.federation.client_context(0, 2)).consts


def server_after(method, uploads, server=None, round_=2):
    return method.aggregate(server or {}, uploads, ServerContext(world(method, [[0]]).task, round_))


# -- FedSC's server: prototypes, R, O ----------------------------------------------------------------------------------
def local_prototypes(precision: Precision) -> ClassTable:
    """P of all clients [3, 4, 2]."""
    features = [(precision.tensor(SC["features"][str(k)]), SC["labels"][str(k)]) for k in range(CLIENTS)]
    return ClassTable.stack([class_means(z, y, ClassMeans("features")) for z, y in features])


def relational(precision: Precision, neighbours: int = SC["relational_M_for_losses"]) -> ClassTable:
    return fedsc.relational_prototypes(local_prototypes(precision), neighbours, "angle")


def sc_constants(precision: Precision, preset: str = "paper", **options):
    """The method, and what its client gets from the golden R and O; the example takes U over the batch."""
    options = {"scale": "batch", **options} if preset == "paper" else options
    method = configured("fedsc", preset, tau=SC["tau"], neighbours=1, **options)
    r = fedsc.relational_prototypes(local_prototypes(precision), 1, method.options.neighbour)
    o = fedsc.consistent_prototypes(r, fedsc.discrepancy_weights(COUNTS), method.options.consistent)
    return begun(method, relational=r, consistent=o.to(precision.dtype))


def in_golden_order(values: Tensor) -> Tensor:
    """Columns of ours (client by client) in the file's order (class by class), held prototypes only."""
    ours = sorted((client, label) for label, client in ORDER)
    assert values.shape[-1] == len(ours)
    return values[..., [ours.index((client, label)) for label, client in ORDER]]


def test_prototypes(precision):
    for client in range(CLIENTS):
        assert_table(client_rows(local_prototypes(precision), client), SC_OUT["prototypes"][str(client)], precision)


@pytest.mark.parametrize("neighbours", [1, 2])
def test_relational_prototypes(precision, neighbours):
    local, golden = local_prototypes(precision), SC_OUT[f"relational_M{neighbours}"]
    assert_table(local.mean_over_clients(), golden["g"], precision)
    phi = fedsc.angles(local)
    for label, by_client in golden["phi"].items():
        for client, value in by_client.items():
            assert precision.matches(phi[int(client), int(label)], value)
    distance = (phi.T.unsqueeze(2) - phi.T.unsqueeze(1)).abs()
    assert_neighbours(distance, local.held, neighbours, golden["neighbours"])
    assert_rows_by_class(relational(precision, neighbours), golden["r"], precision)


def test_euclidean_neighbours_of_class_0_differ_from_angular_ones(precision):
    r = fedsc.relational_prototypes(local_prototypes(precision), 1, "l2")
    for client, nearest in SC_OUT["euclid_nearest_class0"].items():
        own, other = (torch.tensor(SC_OUT["prototypes"][k]["0"]) for k in (client, str(nearest)))
        assert precision.matches(r.values[int(client), 0], ((own + other) / 2).tolist())
    assert not torch.allclose(r.values[:, 0], relational(precision, 1).values[:, 0], atol=0.1)


def test_consistent_d_u_e():
    golden = SC_OUT["consistent"]
    assert DOUBLE.matches(label_discrepancy(COUNTS), golden["d"])
    assert DOUBLE.matches(sigmoid_weights(torch.tensor(golden["u"]).double()), golden["e"])
    assert DOUBLE.matches(fedsc.discrepancy_weights(COUNTS), golden["e"])


MODES = [
    ("paper", "renorm", "o_renormalised"),
    ("paper", "zero_fill", "o_literal_zero_fill"),
    ("authors", "code", "o_released_code"),
]


@pytest.mark.parametrize(("preset", "mode", "entry"), MODES)
def test_consistent_o(precision, preset, mode, entry):
    # The released code computes R and throws it away: its O is taken over the raw local prototypes.
    r = local_prototypes(precision) if mode == "code" else relational(precision)
    weights = fedsc.discrepancy_weights(COUNTS).to(precision.dtype)
    assert_table(fedsc.consistent_prototypes(r, weights, mode), SC_OUT["consistent"][entry], precision)


def sc_uploads(dtype: torch.dtype = torch.float32):
    local = local_prototypes(SINGLE)
    return {
        client: {
            "model": {"w": torch.tensor(SC["client_weights"][client], dtype=dtype)},
            "samples": SC["n"][client],
            "prototypes": client_rows(local, client),
            "class_counts": COUNTS[client],
        }
        for client in range(CLIENTS)
    }


@pytest.mark.parametrize(("preset", "mode", "entry"), MODES)
def test_aggregate_puts_it_all_together(preset, mode, entry):
    server = server_after(configured("fedsc", preset, neighbours=1, consistent=mode), sc_uploads(), round_=1)
    assert_table(server["consistent"], SC_OUT["consistent"][entry], SINGLE)
    if preset == "paper":
        assert_rows_by_class(server["relational"], SC_OUT["relational_M1"]["r"], SINGLE)
    assert server["relational"].held.T.tolist() == [
        [str(label) in SC_OUT["prototypes"][str(client)] for client in range(CLIENTS)] for label in range(CLASSES)
    ]


def test_aggregate_weights_divide_by_the_participants_total(precision):
    model = server_after(configured("fedsc"), sc_uploads(precision.dtype), round_=1)["model"]
    assert precision.matches(model["w"], SC_OUT["aggregate"]["w"])
    assert not precision.matches(model["w"], SC_OUT["aggregate"]["w_if_divided_by_N_of_all_clients_18"])


# -- FedSC's client: RPCL, CPDR and the whole objective ----------------------------------------------------------------
def test_rpcl_scales_and_similarities(precision):
    method, consts = sc_constants(precision)
    batch, golden = sc_batch(precision), SC_OUT["rpcl"]
    lengths, dots = batch.x.square().sum(1, keepdim=True), batch.x @ rows_of(consts).T
    scales = in_golden_order(mean_distances(lengths, dots, consts["prototypes"].squares, batch))
    assert precision.matches(scales, [golden["U_batch"][f"{j},{k}"] for j, k in ORDER])
    similarities = in_golden_order(scaled_similarities(batch.x, batch, consts, method.options))
    assert precision.matches(similarities * SC["tau"], golden["s"])


@pytest.mark.parametrize(
    ("options", "suffix"),
    [({}, ""), ({"scale": "none"}, "_U1"), ({"scale": "none", "positives": "mean"}, "_U1_mean_positive")],
)
def test_rpcl_per_sample_and_loss(precision, options, suffix):
    method, consts = sc_constants(precision, **options)
    batch = sc_batch(precision, Noting)
    loss = fedsc.rpcl(batch.x, batch, consts, method.options)
    assert precision.matches(loss, SC_OUT["rpcl"]["loss" + suffix])
    assert samplewise(batch.per_sample(), SC_OUT["rpcl"]["per_sample" + suffix], precision.atol)


def test_rpcl_per_sample_from_the_golden_similarities(precision):
    """The contrast alone, fed with the file's s: own-class sums and the dropped sample, whatever Eq. 13 does."""
    scores = precision.tensor(SC_OUT["rpcl"]["s"]) / SC["tau"]
    own = torch.tensor([label for label, _ in ORDER]) == sc_batch(precision).y.unsqueeze(1)  # [B, Q]
    everyone = torch.arange(len(ORDER)).expand_as(own)
    losses, *_ = contrast_of(scores, everyone, torch.where(own, 0.0, -1e30).to(scores.dtype), None)
    ours = [float(v) if d else None for v, d in zip(losses, own.any(1), strict=True)]
    # s is given to 1e-6 and divided by tau = 0.05
    assert samplewise(ours, SC_OUT["rpcl"]["per_sample"], max(precision.atol, 3e-5))


@pytest.mark.parametrize("detached", [True, False])
def test_rpcl_gradient(precision, detached):
    method, consts = sc_constants(precision, detach_scale=detached)
    batch = sc_batch(precision)
    z = batch.x.requires_grad_()
    loss = fedsc.rpcl(z, batch, consts, method.options)
    golden = precision.tensor(SC_OUT["rpcl"]["grad_z_U_detached"])
    assert precision.matches(loss, SC_OUT["rpcl"]["loss"])
    assert torch.allclose(slope(loss, z), golden, rtol=0, atol=precision.atol if detached else 1e-2) is detached


def test_released_repulsion(precision):
    method, consts = sc_constants(precision, "authors")
    batch = sc_batch(precision, Noting)
    objective = method.loss(sc_net(precision), batch, consts)
    assert set(objective.terms) == {"ce", "rpcl"}
    assert precision.matches(objective.terms["rpcl"], SC_OUT["rpcl"]["released_code_loss"])
    assert samplewise(batch.per_sample(), SC_OUT["rpcl"]["released_code_per_sample"], precision.atol)
    if precision is DOUBLE:  # every exp((cos - 1) / tau) is 1: what is left is the count
        flat = type(method)(method.options.model_copy(update={"tau": 1e9}))
        size = float(flat.loss(sc_net(precision), sc_batch(precision), consts).terms["rpcl"].exp().detach() - 1)
        assert size == pytest.approx(SC_OUT["rpcl"]["released_code_pool_size"], abs=1e-6)


@pytest.mark.parametrize("norm", ["l1", "l2", "mse"])
def test_cpdr(precision, norm):
    _, consts = sc_constants(precision)
    batch = sc_batch(precision, Noting)
    loss = fedsc.cpdr(batch.x, batch, consts, norm)
    assert precision.matches(loss, SC_OUT["cpdr"]["loss"][norm])
    assert samplewise(batch.per_sample(), SC_OUT["cpdr"]["per_sample"][norm], precision.atol)


@pytest.mark.parametrize("norm", ["l1", "mse"])
def test_total(precision, norm):
    method, consts = sc_constants(precision, cpdr=norm)
    net, batch, golden = sc_net(precision), sc_batch(precision), SC_OUT["total"]
    assert precision.matches(net(batch.x), golden["logits"])
    assert precision.matches(cross_entropy(net(batch.x), batch.y), golden["ce_per_sample"])
    objective = method.loss(net, batch, consts)
    assert precision.matches(objective.total, golden[f"total_{norm}"])
    assert precision.matches(objective.terms["ce"], golden["ce_mean"])
    assert precision.matches(objective.terms["rpcl"], SC_OUT["rpcl"]["loss"])
    assert precision.matches(objective.terms["cpdr"], SC_OUT["cpdr"]["loss"][norm])


@pytest.mark.parametrize(("which", "weight"), [("rpcl", 0.25), ("cpdr", 3.0)])
def test_total_weights_its_terms(precision, which, weight):
    method, consts = sc_constants(precision, **{f"lambda_{which}": weight})
    objective = method.loss(sc_net(precision), sc_batch(precision), consts)
    term = SC_OUT["rpcl"]["loss"] if which == "rpcl" else SC_OUT["cpdr"]["loss"]["l1"]
    assert precision.matches(objective.total, SC_OUT["total"]["total_l1"] + (weight - 1) * term)


@pytest.mark.parametrize("preset", ["paper", "authors", "sound"])
@pytest.mark.parametrize(
    ("name", "net", "batch_of", "loss"),
    [
        ("fedsc", sc_net, sc_batch, SC_OUT["total"]["ce_mean"] + sum(SC_OUT["round1"][t] for t in ("rpcl", "cpdr"))),
        ("fedskc", identity, skc_batch, SKC_OUT["lcl"]["ce_mean"] + SKC_OUT["round1"]["lcl"]),
    ],
)
def test_round_1_is_cross_entropy_alone(precision, preset, name, net, batch_of, loss):
    method = configured(name, preset)
    toy = world(method, [[0, 1]])
    consts = method.begin(toy.job(0).payload, {}, toy.federation.client_context(0, 1)).consts
    objective = method.loss(net(precision), batch_of(precision), consts)
    assert precision.matches(objective.total, loss)
    assert set(objective.terms) == {"ce"}


# -- FedSKC: local knowledge, Eq. 1 ------------------------------------------------------------------------------------
def local_means(precision: Precision, client: int) -> ClassTable:
    """A client's class means of logits."""
    logits = precision.tensor(SKC["logits"][str(client)])
    return class_means(logits, SKC["labels"][str(client)], ClassMeans("logits"))


def local_knowledge(precision: Precision, **options) -> ClassTable:
    """c of all clients [3, 4, 4], as `end` uploads them."""
    method, tables = configured("fedskc", "paper", **options), []
    toy = world(method, [[0, 0, 1]])
    for client in range(CLIENTS):
        work = Work(toy.task.init, {"knowledge": local_means(precision, client)}, 1)
        payload, state = method.end(work, {}, toy.federation.client_context(0, 1))
        assert state == {}
        tables.append(payload["knowledge"])
    return ClassTable.stack(tables)


def knowledge(precision: Precision, neighbours: int = SKC["M"], **options) -> ClassTable:
    return fedskc.global_knowledge(local_knowledge(precision, **options), neighbours)


def skc_constants(precision: Precision, preset: str = "paper", **options):
    """As `sc_constants`, from the golden c~ (M = 1)."""
    options = {"scale": "batch", **options} if preset == "paper" else options
    return begun(configured("fedskc", preset, tau=SKC["tau"], **options), knowledge=knowledge(precision))


def test_local_knowledge(precision):
    c = local_knowledge(precision)
    for client in range(CLIENTS):
        assert_table(local_means(precision, client), SKC_OUT["local_mean"][str(client)], precision)
        assert_table(client_rows(c, client), SKC_OUT["local_c"][str(client)], precision)


@pytest.mark.parametrize("neighbours", [0, 1, 2])
def test_global_knowledge(precision, neighbours):
    local, golden = local_knowledge(precision), SKC_OUT["global"][f"M{neighbours}"]
    assert_neighbours(client_distances(local), local.held, neighbours, golden["neighbours"])
    merged = merge_neighbours(local, nearest_holders(client_distances(local), local.held, neighbours))
    assert_rows_by_class(merged, golden["c_tilde_k"], precision)
    assert_table(knowledge(precision, neighbours), golden["c_tilde"], precision)


def test_c_tilde_without_silu(precision):
    assert_table(knowledge(precision, 1, silu=False), SKC_OUT["global"]["M1_without_silu"]["c_tilde"], precision)


# -- FedSKC's client: LCL ----------------------------------------------------------------------------------------------
LCL = SKC_OUT["lcl"]


def test_U_of_the_batch(precision):
    _, consts = skc_constants(precision)
    batch = skc_batch(precision)
    lengths, dots = batch.x.square().sum(1, keepdim=True), batch.x @ rows_of(consts).T
    ours = mean_distances(lengths, dots, consts["prototypes"].squares, batch)
    for place, value in enumerate(LCL["U_batch"].values()):  # of known classes, in their order
        assert precision.matches(ours[place], value)
    assert consts["known"].tolist() == [str(j) in LCL["U_batch"] for j in range(CLASSES)]


@pytest.mark.parametrize(
    ("preset", "options", "loss", "per_sample"),
    [
        ("paper", {"scale": "batch"}, "loss", "per_sample"),
        ("paper", {"scale": "none"}, "loss_U1", "per_sample_U1"),
        ("authors", {}, "released_code_loss", "released_code_per_sample"),
    ],
)
def test_lcl_per_sample_and_loss(precision, preset, options, loss, per_sample):
    method, consts = skc_constants(precision, preset, **options)
    batch = skc_batch(precision, Noting)
    assert precision.matches(fedskc.lcl(batch.x, batch, consts, method.options), LCL[loss])
    assert samplewise(batch.per_sample(), LCL[per_sample], precision.atol)


def test_U_of_the_data_set_of_client_0_and_its_loss(precision):
    method, consts = skc_constants(precision, scale="dataset")
    logits, y = precision.tensor(SKC["logits"]["0"]), torch.tensor(SKC["labels"]["0"])
    toy = world(method, [[0, 1]])
    start = Start(toy.task.init, consts)
    (statistic,) = method.phases(start, toy.federation.client_context(0, 2))[0].refresh.values()
    assert isinstance(statistic, SampleMean)
    sums = {}
    for part in (slice(0, 2), slice(2, None)):
        batch = Batch(logits[part], y[part])
        sums = statistic.add(sums, statistic.of(identity(precision), batch, consts), batch, CLASSES)
    scale = (sums["sums"] / sums["counts"]).to(precision.dtype)
    for label, value in LCL["U_dataset_client0_features"].items():
        assert precision.matches(scale[int(label)], value)
    batch = skc_batch(precision)
    loss = fedskc.lcl(batch.x, batch, consts | {"scale": scale}, method.options)
    assert precision.matches(loss, LCL["loss_U_dataset"])


@pytest.mark.parametrize("detached", [True, False])
def test_gradient_of_the_logits(precision, detached):
    method, consts = skc_constants(precision, detach_scale=detached)
    batch = skc_batch(precision)
    logits = batch.x.requires_grad_()
    ours = slope(fedskc.lcl(logits, batch, consts, method.options), logits)
    golden, other = (LCL[f"grad_logits_U_{word}detached"] for word in (("", "not_") if detached else ("not_", "")))
    assert precision.matches(ours, golden)
    assert not torch.allclose(ours, precision.tensor(other), atol=1e-2)


def test_total_of_fedskc(precision):
    method, consts = skc_constants(precision)
    batch = skc_batch(precision)
    objective = method.loss(identity(precision), batch, consts)
    assert precision.matches(objective.total, LCL["total_paper"])
    assert precision.matches(objective.terms["ce"], LCL["ce_mean"])
    assert precision.matches(objective.terms["lcl"], LCL["loss"])
    assert precision.matches(cross_entropy(batch.x, batch.y), LCL["ce_per_sample"])


# -- FedSKC's server: GDA ----------------------------------------------------------------------------------------------
GDA = SKC_OUT["gda"]


def test_distances_and_shares():
    local, c = local_knowledge(DOUBLE), knowledge(DOUBLE)
    d = torch.where(local.held, (local.values - c.values).norm(dim=2), 0.0).sum(1)
    a, b = shares(d), shares(SAMPLES)
    for ours, entry in ((d, "d"), (a, "a"), (b, "b"), (SAMPLES - a * d + b, "u"), (b - a, "u_share")):
        assert DOUBLE.matches(ours, GDA[entry])
    assert DOUBLE.matches(SAMPLES / SAMPLES.sum(), GDA["e_fedavg"])


@pytest.mark.parametrize("mode", ["paper", "share"])
def test_weights(mode):
    e = fedskc.aggregation_weights(local_knowledge(DOUBLE), knowledge(DOUBLE), SAMPLES, mode)
    assert DOUBLE.matches(e, GDA[f"e_{mode}"])
    trees = [{"w": DOUBLE.tensor(w)} for w in SKC["client_weights"]]
    assert DOUBLE.matches(weighted_mean(trees, e.tolist())["w"], GDA[f"w_{mode}"])


def test_weights_of_ordinary_clients_are_uniform_as_printed():
    samples = torch.tensor(GDA["N_big"], dtype=torch.float64)
    e = fedskc.aggregation_weights(local_knowledge(DOUBLE), knowledge(DOUBLE), samples, "paper")
    assert DOUBLE.matches(e, GDA["e_paper_N_big"])
    assert float((e - 1 / 3).abs().max()) < 1e-12


def skc_server(dtype: torch.dtype, server: dict | None = None, **options):
    local = local_knowledge(SINGLE)
    uploads = {
        client: {
            "model": {"w": torch.tensor(SKC["client_weights"][client], dtype=dtype)},
            "samples": SKC["N"][client],
            "knowledge": client_rows(local, client),
        }
        for client in range(CLIENTS)
    }
    return server_after(configured("fedskc", "paper", **options), uploads, server)


@pytest.mark.parametrize("gda", ["paper", "share", "fedavg"])
def test_aggregate_in_round_1_has_no_gpr(precision, gda):
    assert SKC_OUT["round1"]["gpr"] == "skipped"
    server = skc_server(precision.dtype, gda=gda)
    assert precision.matches(server["model"]["w"], GDA[f"w_{gda}"])
    assert_table(server["knowledge"], SKC_OUT["global"]["M1"]["c_tilde"], SINGLE)
    assert set(server) == {"model", "knowledge"}


# -- FedSKC's server: GPR ----------------------------------------------------------------------------------------------
GPR = SKC_OUT["gpr"]


def previous(precision: Precision) -> ClassTable:
    """The golden file's {class: row} as a table [C, C]."""
    values, held = torch.zeros(CLASSES, CLASSES, dtype=precision.dtype), torch.zeros(CLASSES, dtype=torch.bool)
    for label, row in SKC["prev_c_tilde"].items():
        values[int(label)], held[int(label)] = precision.tensor(row), True
    return ClassTable(values, held)


@pytest.mark.parametrize(("classes", "golden"), [("intersection", GPR), ("own", GPR["own_sets"])])
def test_variances_and_their_ratio(classes, golden):
    current, last = knowledge(DOUBLE), previous(DOUBLE)
    for table, entry in ((current, "var_cur"), (last, "var_prev")):
        for label, value in golden[entry].items():
            assert DOUBLE.matches(table.values[int(label)].var(correction=0), value)
    assert fedskc.variance_ratio(current, last, classes) == pytest.approx(golden["ratio"], abs=2e-6)


@pytest.mark.parametrize(
    ("options", "golden"),
    [
        ({"gpr": "paper"}, GPR["w_paper"]),
        ({"gpr": "affine"}, GPR["w_affine"]),
        ({"gpr": "off"}, GPR["w_in"]),
        ({"gpr_classes": "own"}, GPR["own_sets"]["w_paper"]),
        ({"gpr_clip": (0.0, 0.0)}, GPR["ratio_zero_w_paper"]),
        ({"gpr_clip": (0.0, 0.0), "gpr": "affine"}, GPR["w_in"]),
    ],
    ids=str,
)
def test_gpr(precision, options, golden):
    assert GPR["w_prev"] == SKC["w_prev"]
    server = {"model": {"w": precision.tensor(SKC["w_prev"])}, "knowledge": previous(SINGLE)}
    new = skc_server(precision.dtype, server, beta=SKC["beta"], **options)
    assert precision.matches(new["model"]["w"], golden)
    assert ("rho" in new) == (options.get("gpr") != "off")


def test_gpr_is_the_printed_formula():
    beta, rho = SKC["beta"], GPR["ratio"]
    new, last = DOUBLE.tensor(GPR["w_in"]), DOUBLE.tensor(GPR["w_prev"])
    printed = beta * new + (1 - beta) * rho * (last - new)
    assert DOUBLE.matches(printed, GPR["w_paper"])
    back = (1 - beta) * rho
    assert DOUBLE.matches(combine([{"w": new}, {"w": last}], [beta - back, back])["w"], printed.tolist())
