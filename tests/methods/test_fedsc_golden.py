"""FedSC against the worked example of its specification: every entry of `tests/golden/fedsc.json`.

The numbers were computed outside this library (see the file's note). Both precisions are held to it: float64 within
2e-6 (the file has 6 decimals), float32 within 1e-4.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods import fedsc
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Batch, cross_entropy
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.methods.parts.contrast import contrast_of, mean_distances, scaled_similarities
from fedloom.methods.parts.prototypes import label_discrepancy, nearest_holders
from support import CLASSES, Precision, Through, configured, rows_of, world
from worked_examples import Noting, assert_table, samplewise

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "fedsc.json").read_text())["fedsc"]
INPUTS, OUTPUTS = GOLDEN["inputs"], GOLDEN["outputs"]
CLIENTS = 3
COUNTS = torch.tensor(INPUTS["class_counts"])


def local_prototypes(precision: Precision) -> ClassTable:
    """P of all clients [3, 4, 2], through the statistic that clients run, in two batches each."""
    tables = []
    for client in map(str, range(CLIENTS)):
        z, y = precision.tensor(INPUTS["features"][client]), torch.tensor(INPUTS["labels"][client])
        means, sums = ClassMeans("features"), {}
        for part in (slice(0, 1), slice(1, None)):
            sums = means.add(sums, z[part], Batch(z[part], y[part]), CLASSES)
        tables.append(means.result(sums))
    return ClassTable.stack(tables).to(precision.dtype)


def batch_of(precision: Precision, kind: type[Batch] = Batch) -> Batch:
    return kind(precision.tensor(INPUTS["batch_z"]), torch.tensor(INPUTS["batch_y"]))


def relational(precision: Precision, neighbours: int = INPUTS["relational_M_for_losses"]) -> ClassTable:
    return fedsc.relational_prototypes(local_prototypes(precision), neighbours, "angle")


def constants(precision: Precision, preset: str = "paper", **options):
    """The method, and the constants that its client gets from the golden R and O."""
    if preset == "paper":  # the example takes U over the batch
        options = {"scale": "batch"} | options
    method = configured("fedsc", preset, tau=INPUTS["tau"], neighbours=1, **options)
    local = local_prototypes(precision)
    r = fedsc.relational_prototypes(local, 1, method.options.neighbour)
    o = fedsc.consistent_prototypes(r, fedsc.discrepancy_weights(COUNTS), method.options.consistent)
    toy = world(method, [[0, 1]])
    payload = {"model": toy.task.init, "relational": r, "consistent": o.to(precision.dtype)}
    return method, method.begin(payload, {}, toy.federation.client_context(0, 2)).consts


def in_golden_order(values: Tensor) -> Tensor:
    """Columns of ours (client by client) in the file's order (class by class), held prototypes only."""
    order = OUTPUTS["rpcl"]["prototype_order_class_client"]
    ours = sorted((client, label) for label, client in order)  # client by client
    assert values.shape[-1] == len(ours)
    return values[..., [ours.index((client, label)) for label, client in order]]


def test_the_example_is_the_one_described():
    assert INPUTS["C"] == CLASSES
    assert INPUTS["n"] == [len(INPUTS["labels"][str(k)]) for k in range(CLIENTS)]
    for client in range(CLIENTS):
        labels = torch.tensor(INPUTS["labels"][str(client)])
        assert torch.equal(torch.bincount(labels, minlength=CLASSES), COUNTS[client])


# -- server: prototypes, R, O ------------------------------------------------------------------------------------------
def test_prototypes(precision):
    local = local_prototypes(precision)
    for client in range(CLIENTS):
        assert_table(
            ClassTable(local.values[client], local.held[client]), OUTPUTS["prototypes"][str(client)], precision
        )


@pytest.mark.parametrize("neighbours", [1, 2])
def test_relational_g(precision, neighbours):
    assert_table(local_prototypes(precision).mean_over_clients(), OUTPUTS[f"relational_M{neighbours}"]["g"], precision)


@pytest.mark.parametrize("neighbours", [1, 2])
def test_relational_phi(precision, neighbours):
    phi = fedsc.angles(local_prototypes(precision))
    for label, by_client in OUTPUTS[f"relational_M{neighbours}"]["phi"].items():
        for client, value in by_client.items():
            assert precision.matches(phi[int(client), int(label)], value)


@pytest.mark.parametrize("neighbours", [1, 2])
def test_relational_neighbours_in_order_self_first(precision, neighbours):
    local = local_prototypes(precision)
    phi = fedsc.angles(local).T
    distance = (phi.unsqueeze(2) - phi.unsqueeze(1)).abs()
    merged = [nearest_holders(distance, local.held, count) for count in range(neighbours + 1)]
    for label in range(CLASSES):
        golden = OUTPUTS[f"relational_M{neighbours}"]["neighbours"].get(str(label), {})
        for client in range(CLIENTS):
            order: list[int] = []
            for mask in merged:  # who joins when one more neighbour is allowed
                order += sorted(set(mask[label, client].nonzero().flatten().tolist()) - set(order))
            assert order == golden.get(str(client), [])


@pytest.mark.parametrize("neighbours", [1, 2])
def test_relational_r(precision, neighbours):
    r, golden = relational(precision, neighbours), OUTPUTS[f"relational_M{neighbours}"]["r"]
    for label in range(CLASSES):
        assert r.held[:, label].tolist() == [str(k) in golden.get(str(label), {}) for k in range(CLIENTS)]
        for client, row in golden.get(str(label), {}).items():
            assert precision.matches(r.values[int(client), label], row)


def test_euclidean_neighbours_of_class_0_differ_from_angular_ones(precision):
    local = local_prototypes(precision)
    r = fedsc.relational_prototypes(local, 1, "l2")
    for client, nearest in OUTPUTS["euclid_nearest_class0"].items():
        own = torch.tensor(OUTPUTS["prototypes"][client]["0"])
        other = torch.tensor(OUTPUTS["prototypes"][str(nearest)]["0"])
        assert precision.matches(r.values[int(client), 0], ((own + other) / 2).tolist())
    assert not torch.allclose(r.values[:, 0], relational(precision, 1).values[:, 0], atol=0.1)


def test_consistent_d_u_e():
    golden = OUTPUTS["consistent"]
    double = Precision(torch.float64, 2e-6)
    assert double.matches(label_discrepancy(COUNTS), golden["d"])
    assert double.matches(fedsc.size_against_discrepancy(COUNTS), golden["u"])
    assert double.matches(fedsc.discrepancy_weights(COUNTS), golden["e"])


@pytest.mark.parametrize(
    ("mode", "entry"), [("renorm", "o_renormalised"), ("zero_fill", "o_literal_zero_fill"), ("code", "o_released_code")]
)
def test_consistent_o(precision, mode, entry):
    # The released code computes R and throws it away: its O is taken over the raw local prototypes.
    r = local_prototypes(precision) if mode == "code" else relational(precision)
    weights = fedsc.discrepancy_weights(COUNTS).to(precision.dtype)
    assert_table(fedsc.consistent_prototypes(r, weights, mode), OUTPUTS["consistent"][entry], precision)


@pytest.mark.parametrize(
    ("preset", "mode", "entry"),
    [
        ("paper", "renorm", "o_renormalised"),
        ("paper", "zero_fill", "o_literal_zero_fill"),
        ("authors", "code", "o_released_code"),
    ],
)
def test_aggregate_puts_it_all_together(preset, mode, entry):
    method = configured("fedsc", preset, neighbours=1, consistent=mode)
    server = method.aggregate({}, uploads(), ServerContext(world(method, [[0]]).task, 1))
    single = Precision(torch.float32, 1e-4)
    assert_table(server["consistent"], OUTPUTS["consistent"][entry], single)
    if preset == "paper":
        golden = OUTPUTS["relational_M1"]["r"]
        for label, by_client in golden.items():
            for client, row in by_client.items():
                assert single.matches(server["relational"].values[int(client), int(label)], row)
    assert server["relational"].held.T.tolist() == [
        [str(label) in OUTPUTS["prototypes"][str(client)] for client in range(CLIENTS)] for label in range(CLASSES)
    ]


def uploads(dtype: torch.dtype = torch.float32):
    local = local_prototypes(Precision(torch.float32, 1e-4))
    return {
        client: {
            "model": {"w": torch.tensor(INPUTS["client_weights"][client], dtype=dtype)},
            "samples": INPUTS["n"][client],
            "prototypes": ClassTable(local.values[client], local.held[client]),
            "class_counts": COUNTS[client],
        }
        for client in range(CLIENTS)
    }


def test_aggregate_weights_divide_by_the_participants_total(precision):
    method = configured("fedsc")
    server = method.aggregate({}, uploads(precision.dtype), ServerContext(world(method, [[0]]).task, 1))
    assert precision.matches(server["model"]["w"], OUTPUTS["aggregate"]["w"])
    assert not precision.matches(server["model"]["w"], OUTPUTS["aggregate"]["w_if_divided_by_N_of_all_clients_18"])


# -- client: RPCL ------------------------------------------------------------------------------------------------------
def test_rpcl_scale_of_every_prototype(precision):
    _, consts = constants(precision)
    batch = batch_of(precision)
    lengths, dots = batch.x.square().sum(1, keepdim=True), batch.x @ rows_of(consts).T
    ours = in_golden_order(mean_distances(lengths, dots, consts["prototypes"].squares, batch))
    golden = [OUTPUTS["rpcl"]["U_batch"][f"{j},{k}"] for j, k in OUTPUTS["rpcl"]["prototype_order_class_client"]]
    assert precision.matches(ours, golden)


def test_rpcl_scaled_similarities(precision):
    method, consts = constants(precision)
    batch = batch_of(precision)
    ours = scaled_similarities(batch.x, batch, consts, method.options)
    assert precision.matches(in_golden_order(ours) * INPUTS["tau"], OUTPUTS["rpcl"]["s"])


@pytest.mark.parametrize(
    ("options", "suffix"),
    [({}, ""), ({"scale": "none"}, "_U1"), ({"scale": "none", "positives": "mean"}, "_U1_mean_positive")],
)
def test_rpcl_per_sample_and_loss(precision, options, suffix):
    method, consts = constants(precision, **options)
    batch = batch_of(precision, Noting)
    loss = fedsc.rpcl(batch.x, batch, consts, method.options)
    assert precision.matches(loss, OUTPUTS["rpcl"]["loss" + suffix])
    assert samplewise(batch.per_sample(), OUTPUTS["rpcl"]["per_sample" + suffix], precision.atol)


def test_rpcl_per_sample_from_the_golden_similarities(precision):
    """The contrast alone, fed with the file's s: own-class sums and the dropped sample, whatever Eq. 13 does."""
    order = OUTPUTS["rpcl"]["prototype_order_class_client"]
    scores = precision.tensor(OUTPUTS["rpcl"]["s"]) / INPUTS["tau"]
    own = torch.tensor([label for label, _ in order]) == batch_of(precision).y.unsqueeze(1)  # [B, Q]
    everyone = torch.arange(len(order)).expand_as(own)
    losses, *_ = contrast_of(scores, everyone, torch.where(own, 0.0, -1e30).to(scores.dtype), None)
    golden = OUTPUTS["rpcl"]["per_sample"]
    ours = [float(v) if d else None for v, d in zip(losses, own.any(1), strict=True)]
    assert samplewise(ours, golden, max(precision.atol, 3e-5))  # s is given to 1e-6 and divided by tau = 0.05


def test_rpcl_gradient_with_detached_scale(precision):
    method, consts = constants(precision)
    batch = batch_of(precision)
    z = batch.x.requires_grad_()
    (ours,) = torch.autograd.grad(fedsc.rpcl(z, batch, consts, method.options), z)
    assert precision.matches(ours, OUTPUTS["rpcl"]["grad_z_U_detached"])


def test_rpcl_gradient_differs_where_the_scale_is_not_detached():
    precision = Precision(torch.float64, 2e-6)
    method, consts = constants(precision, detach_scale=False)
    batch = batch_of(precision)
    z = batch.x.requires_grad_()
    loss = fedsc.rpcl(z, batch, consts, method.options)
    (ours,) = torch.autograd.grad(loss, z)
    assert precision.matches(loss, OUTPUTS["rpcl"]["loss"])
    assert not torch.allclose(ours, precision.tensor(OUTPUTS["rpcl"]["grad_z_U_detached"]), atol=1e-2)


# -- client: what the released code trains -----------------------------------------------------------------------------
def released_loss(precision: Precision, kind: type[Batch] = Batch, **options):
    """The repulsion that preset `authors` adds to CE, and its batch."""
    method, consts = constants(precision, "authors", **options)
    batch = batch_of(precision, kind)
    objective = method.loss(Through(precision.tensor(INPUTS["classifier_V"])), batch, consts)
    assert set(objective.terms) == {"ce", "rpcl"}
    return objective, batch


def test_released_code_loss(precision):
    objective, batch = released_loss(precision, Noting)
    assert precision.matches(objective.terms["rpcl"], OUTPUTS["rpcl"]["released_code_loss"])
    assert samplewise(batch.per_sample(), OUTPUTS["rpcl"]["released_code_per_sample"], precision.atol)


def test_released_code_pool_size():
    precision = Precision(torch.float64, 2e-6)
    method, consts = constants(precision, "authors")
    flat = method.options.model_copy(update={"tau": 1e9})  # every exp((cos - 1) / tau) is 1: what is left is the count
    objective = type(method)(flat).loss(Through(precision.tensor(INPUTS["classifier_V"])), batch_of(precision), consts)
    assert float(objective.terms["rpcl"].exp() - 1) == pytest.approx(
        OUTPUTS["rpcl"]["released_code_pool_size"], abs=1e-6
    )


# -- client: CPDR and the whole objective ------------------------------------------------------------------------------
@pytest.mark.parametrize("norm", ["l1", "l2", "mse"])
def test_cpdr(precision, norm):
    _, consts = constants(precision)
    batch = batch_of(precision, Noting)
    loss = fedsc.cpdr(batch.x, batch, consts, norm)
    assert precision.matches(loss, OUTPUTS["cpdr"]["loss"][norm])
    assert samplewise(batch.per_sample(), OUTPUTS["cpdr"]["per_sample"][norm], precision.atol)


def test_total_cross_entropy(precision):
    net, batch = Through(precision.tensor(INPUTS["classifier_V"])), batch_of(precision)
    assert precision.matches(net(batch.x), OUTPUTS["total"]["logits"])
    assert precision.matches(cross_entropy(net(batch.x), batch.y), OUTPUTS["total"]["ce_per_sample"])


@pytest.mark.parametrize("norm", ["l1", "mse"])
def test_total(precision, norm):
    method, consts = constants(precision, cpdr=norm)
    objective = method.loss(Through(precision.tensor(INPUTS["classifier_V"])), batch_of(precision), consts)
    assert precision.matches(objective.total, OUTPUTS["total"][f"total_{norm}"])
    assert precision.matches(objective.terms["ce"], OUTPUTS["total"]["ce_mean"])
    assert precision.matches(objective.terms["rpcl"], OUTPUTS["rpcl"]["loss"])
    assert precision.matches(objective.terms["cpdr"], OUTPUTS["cpdr"]["loss"][norm])


@pytest.mark.parametrize(("which", "weight"), [("rpcl", 0.25), ("cpdr", 3.0)])
def test_total_weights_its_terms(precision, which, weight):
    method, consts = constants(precision, **{f"lambda_{which}": weight})
    objective = method.loss(Through(precision.tensor(INPUTS["classifier_V"])), batch_of(precision), consts)
    term = OUTPUTS["rpcl"]["loss"] if which == "rpcl" else OUTPUTS["cpdr"]["loss"]["l1"]
    assert precision.matches(objective.total, OUTPUTS["total"]["total_l1"] + (weight - 1) * term)


@pytest.mark.parametrize("preset", ["paper", "authors", "sound"])
def test_round_1_is_cross_entropy_alone(precision, preset):
    method = configured("fedsc", preset)
    toy = world(method, [[0, 1]])
    consts = method.begin(toy.job(0).payload, {}, toy.federation.client_context(0, 1)).consts
    objective = method.loss(Through(precision.tensor(INPUTS["classifier_V"])), batch_of(precision), consts)
    golden = OUTPUTS["total"]["ce_mean"] + OUTPUTS["round1"]["rpcl"] + OUTPUTS["round1"]["cpdr"]
    assert precision.matches(objective.total, golden)
    assert set(objective.terms) == {"ce"}
