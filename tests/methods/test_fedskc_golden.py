"""FedSKC against the worked example of its specification: every entry of `tests/golden/fedskc.json`.

The numbers were computed outside this library (see the file's note). Both precisions are held to it: float64 within
2e-6 (the file has 6 decimals), float32 within 1e-4.
"""

import json
from pathlib import Path

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.core.trees import combine, weighted_mean
from fedloom.methods import fedskc
from fedloom.methods.contract.contexts import ServerContext, Start, Work
from fedloom.methods.contract.phases import Batch
from fedloom.methods.contract.sample_statistics import ClassMeans, SampleMean
from fedloom.methods.parts.contrast import mean_distances
from fedloom.methods.parts.prototypes import client_distances, merge_neighbours, nearest_holders, shares
from support import CLASSES, DOUBLE, SINGLE, Precision, Through, configured, rows_of, world
from worked_examples import Noting, assert_table, samplewise

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "fedskc.json").read_text())["fedskc"]
INPUTS, OUTPUTS = GOLDEN["inputs"], GOLDEN["outputs"]
CLIENTS = 3
SAMPLES = torch.tensor(INPUTS["N"], dtype=torch.float64)


def table_of(precision: Precision, rows: dict) -> ClassTable:
    """The golden file's {class: row} as a table [C, C]."""
    values = torch.zeros(CLASSES, CLASSES, dtype=precision.dtype)
    held = torch.zeros(CLASSES, dtype=torch.bool)
    for label, row in rows.items():
        values[int(label)], held[int(label)] = precision.tensor(row), True
    return ClassTable(values, held)


def local_means(precision: Precision, client: int) -> ClassTable:
    """A client's class means of logits, through the statistic that clients run, in two batches."""
    logits, y = precision.tensor(INPUTS["logits"][str(client)]), torch.tensor(INPUTS["labels"][str(client)])
    means, sums = ClassMeans("logits"), {}
    for part in (slice(0, 1), slice(1, None)):
        sums = means.add(sums, logits[part], Batch(logits[part], y[part]), CLASSES)
    return ClassTable.from_sums(sums["sums"], sums["counts"]).to(precision.dtype)


def local_knowledge(precision: Precision, **options) -> ClassTable:
    """c of all clients [3, 4, 4], as `end` uploads them."""
    method = configured("fedskc", "paper", **options)
    toy = world(method, [[0, 0, 1]])
    tables = []
    for client in range(CLIENTS):
        work = Work(toy.task.init, {"knowledge": local_means(precision, client)}, 1)
        payload, state = method.end(work, {}, toy.federation.client_context(0, 1))
        assert state == {}
        tables.append(payload["knowledge"])
    return ClassTable.stack(tables)


def knowledge(precision: Precision, neighbours: int = INPUTS["M"], **options) -> ClassTable:
    return fedskc.global_knowledge(local_knowledge(precision, **options), neighbours)


def batch_of(precision: Precision, kind: type[Batch] = Batch) -> Batch:
    return kind(precision.tensor(INPUTS["lcl_batch_logits"]), torch.tensor(INPUTS["lcl_batch_labels"]))


def constants(precision: Precision, preset: str = "paper", **options):
    """The method, and the constants that its client gets in round 2 from the golden c~ (M = 1)."""
    if preset == "paper":  # the example takes U over the batch
        options = {"scale": "batch"} | options
    method = configured("fedskc", preset, tau=INPUTS["tau"], **options)
    toy = world(method, [[0, 1]])
    payload = {"model": toy.task.init, "knowledge": knowledge(precision)}
    return method, method.begin(payload, {}, toy.federation.client_context(0, 2)).consts


def identity(precision: Precision) -> Through:
    """A net whose logits are its inputs."""
    return Through(torch.eye(CLASSES, dtype=precision.dtype))


def test_the_example_is_the_one_described():
    assert INPUTS["C"] == CLASSES
    assert INPUTS["N"] == [len(INPUTS["labels"][str(k)]) for k in range(CLIENTS)]


# -- client: local knowledge -------------------------------------------------------------------------------------------
def test_local_mean(precision):
    for client in range(CLIENTS):
        assert_table(local_means(precision, client), OUTPUTS["local_mean"][str(client)], precision)


def test_local_c(precision):
    c = local_knowledge(precision)
    for client in range(CLIENTS):
        assert_table(ClassTable(c.values[client], c.held[client]), OUTPUTS["local_c"][str(client)], precision)


# -- server: Eq. 1 -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("neighbours", [0, 1, 2])
def test_neighbours_in_order_self_first(precision, neighbours):
    local = local_knowledge(precision)
    merged = [nearest_holders(client_distances(local), local.held, count) for count in range(neighbours + 1)]
    for label in range(CLASSES):
        golden = OUTPUTS["global"][f"M{neighbours}"]["neighbours"].get(str(label), {})
        for client in range(CLIENTS):
            order: list[int] = []
            for mask in merged:  # who joins when one more neighbour is allowed
                order += sorted(set(mask[label, client].nonzero().flatten().tolist()) - set(order))
            assert order == golden.get(str(client), [])


@pytest.mark.parametrize("neighbours", [0, 1, 2])
def test_c_tilde_k(precision, neighbours):
    local, golden = local_knowledge(precision), OUTPUTS["global"][f"M{neighbours}"]["c_tilde_k"]
    merged = merge_neighbours(local, nearest_holders(client_distances(local), local.held, neighbours))
    for label in range(CLASSES):
        rows = golden.get(str(label), {})
        assert merged.held[:, label].tolist() == [str(k) in rows for k in range(CLIENTS)]
        for client, row in rows.items():
            assert precision.matches(merged.values[int(client), label], row)


@pytest.mark.parametrize("neighbours", [0, 1, 2])
def test_c_tilde(precision, neighbours):
    assert_table(knowledge(precision, neighbours), OUTPUTS["global"][f"M{neighbours}"]["c_tilde"], precision)


def test_c_tilde_without_silu(precision):
    golden = OUTPUTS["global"]["M1_without_silu"]["c_tilde"]
    assert_table(knowledge(precision, 1, silu=False), golden, precision)


# -- client: LCL -------------------------------------------------------------------------------------------------------
def test_U_of_the_batch(precision):
    _, consts = constants(precision)
    batch = batch_of(precision)
    lengths, dots = batch.x.square().sum(1, keepdim=True), batch.x @ rows_of(consts).T
    ours = mean_distances(lengths, dots, consts["prototypes"].squares, batch)
    for place, value in enumerate(OUTPUTS["lcl"]["U_batch"].values()):  # of known classes, in their order
        assert precision.matches(ours[place], value)
    assert consts["known"].tolist() == [str(j) in OUTPUTS["lcl"]["U_batch"] for j in range(CLASSES)]


@pytest.mark.parametrize(("scale", "suffix"), [("batch", ""), ("none", "_U1")])
def test_lcl_per_sample_and_loss(precision, scale, suffix):
    method, consts = constants(precision, scale=scale)
    batch = batch_of(precision, Noting)
    loss = fedskc.lcl(batch.x, batch, consts, method.options)
    assert precision.matches(loss, OUTPUTS["lcl"]["loss" + suffix])
    assert samplewise(batch.per_sample(), OUTPUTS["lcl"]["per_sample" + suffix], precision.atol)


def test_U_of_the_data_set_of_client_0_and_its_loss(precision):
    method, consts = constants(precision, scale="dataset")
    logits, y = precision.tensor(INPUTS["logits"]["0"]), torch.tensor(INPUTS["labels"]["0"])
    toy = world(method, [[0, 1]])
    start = Start(toy.task.init, consts)
    (statistic,) = method.phases(start, toy.federation.client_context(0, 2))[0].refresh.values()
    assert isinstance(statistic, SampleMean)
    sums = {}
    for part in (slice(0, 2), slice(2, None)):
        batch = Batch(logits[part], y[part])
        sums = statistic.add(sums, statistic.of(identity(precision), batch, consts), batch, CLASSES)
    scale = (sums["sums"] / sums["counts"]).to(precision.dtype)
    for label, value in OUTPUTS["lcl"]["U_dataset_client0_features"].items():
        assert precision.matches(scale[int(label)], value)
    batch = batch_of(precision)
    loss = fedskc.lcl(batch.x, batch, consts | {"scale": scale}, method.options)
    assert precision.matches(loss, OUTPUTS["lcl"]["loss_U_dataset"])


@pytest.mark.parametrize("detached", [True, False])
def test_gradient_of_the_logits(precision, detached):
    method, consts = constants(precision, detach_scale=detached)
    batch = batch_of(precision)
    logits = batch.x.requires_grad_()
    (ours,) = torch.autograd.grad(fedskc.lcl(logits, batch, consts, method.options), logits)
    assert precision.matches(ours, OUTPUTS["lcl"][f"grad_logits_U_{'' if detached else 'not_'}detached"])
    other = OUTPUTS["lcl"][f"grad_logits_U_{'not_' if detached else ''}detached"]
    assert not torch.allclose(ours, precision.tensor(other), atol=1e-2)


def test_released_code(precision):
    method, consts = constants(precision, "authors")
    batch = batch_of(precision, Noting)
    loss = fedskc.lcl(batch.x, batch, consts, method.options)
    assert precision.matches(loss, OUTPUTS["lcl"]["released_code_loss"])
    assert samplewise(batch.per_sample(), OUTPUTS["lcl"]["released_code_per_sample"], precision.atol)


def test_total(precision):
    method, consts = constants(precision)
    batch = batch_of(precision, Noting)
    objective = method.loss(identity(precision), batch, consts)
    assert precision.matches(objective.total, OUTPUTS["lcl"]["total_paper"])
    assert precision.matches(objective.terms["ce"], OUTPUTS["lcl"]["ce_mean"])
    assert precision.matches(objective.terms["lcl"], OUTPUTS["lcl"]["loss"])
    ce = torch.logsumexp(batch.x, 1) - batch.x.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    assert precision.matches(ce, OUTPUTS["lcl"]["ce_per_sample"])


@pytest.mark.parametrize("preset", ["paper", "authors", "sound"])
def test_round_1_is_cross_entropy_alone(precision, preset):
    method = configured("fedskc", preset)
    toy = world(method, [[0, 1]])
    consts = method.begin(toy.job(0).payload, {}, toy.federation.client_context(0, 1)).consts
    objective = method.loss(identity(precision), batch_of(precision), consts)
    assert precision.matches(objective.total, OUTPUTS["lcl"]["ce_mean"] + OUTPUTS["round1"]["lcl"])
    assert set(objective.terms) == {"ce"}


# -- server: GDA -------------------------------------------------------------------------------------------------------
def test_distances_and_shares():
    local = local_knowledge(DOUBLE)
    c = knowledge(DOUBLE)
    d = torch.where(local.held, (local.values - c.values).norm(dim=2), 0.0).sum(1)
    assert DOUBLE.matches(d, OUTPUTS["gda"]["d"])
    assert DOUBLE.matches(shares(d), OUTPUTS["gda"]["a"])
    assert DOUBLE.matches(shares(SAMPLES), OUTPUTS["gda"]["b"])
    assert DOUBLE.matches(SAMPLES - shares(d) * d + shares(SAMPLES), OUTPUTS["gda"]["u"])
    assert DOUBLE.matches(shares(SAMPLES) - shares(d), OUTPUTS["gda"]["u_share"])


@pytest.mark.parametrize("mode", ["paper", "share"])
def test_weights(mode):
    e = fedskc.aggregation_weights(local_knowledge(DOUBLE), knowledge(DOUBLE), SAMPLES, mode)
    assert DOUBLE.matches(e, OUTPUTS["gda"][f"e_{mode}"])
    trees = [{"w": DOUBLE.tensor(w)} for w in INPUTS["client_weights"]]
    assert DOUBLE.matches(weighted_mean(trees, e.tolist())["w"], OUTPUTS["gda"][f"w_{mode}"])


def test_weights_of_ordinary_clients_are_uniform_as_printed():
    samples = torch.tensor(OUTPUTS["gda"]["N_big"], dtype=torch.float64)
    e = fedskc.aggregation_weights(local_knowledge(DOUBLE), knowledge(DOUBLE), samples, "paper")
    assert DOUBLE.matches(e, OUTPUTS["gda"]["e_paper_N_big"])
    assert float((e - 1 / 3).abs().max()) < 1e-12


def uploads(dtype: torch.dtype):
    local = local_knowledge(SINGLE)
    return {
        client: {
            "model": {"w": torch.tensor(INPUTS["client_weights"][client], dtype=dtype)},
            "samples": INPUTS["N"][client],
            "knowledge": ClassTable(local.values[client], local.held[client]),
        }
        for client in range(CLIENTS)
    }


def aggregated(dtype: torch.dtype, server: dict | None = None, **options):
    method = configured("fedskc", "paper", **options)
    return method.aggregate(server or {}, uploads(dtype), ServerContext(world(method, [[0]]).task, 2))


@pytest.mark.parametrize(("gda", "entry"), [("paper", "w_paper"), ("share", "w_share"), ("fedavg", "w_fedavg")])
def test_aggregate_in_round_1_has_no_gpr(precision, gda, entry):
    assert OUTPUTS["round1"]["gpr"] == "skipped"
    server = aggregated(precision.dtype, gda=gda)
    assert precision.matches(server["model"]["w"], OUTPUTS["gda"][entry])
    assert_table(server["knowledge"], OUTPUTS["global"]["M1"]["c_tilde"], SINGLE)
    assert set(server) == {"model", "knowledge"}


def test_fedavg_weights():
    assert DOUBLE.matches(SAMPLES / SAMPLES.sum(), OUTPUTS["gda"]["e_fedavg"])


# -- server: GPR -------------------------------------------------------------------------------------------------------
def previous(precision: Precision) -> ClassTable:
    return table_of(precision, INPUTS["prev_c_tilde"])


@pytest.mark.parametrize(("classes", "golden"), [("intersection", OUTPUTS["gpr"]), ("own", OUTPUTS["gpr"]["own_sets"])])
def test_variances_and_their_ratio(classes, golden):
    current, last = knowledge(DOUBLE), previous(DOUBLE)
    for table, entry in ((current, "var_cur"), (last, "var_prev")):
        for label, value in golden[entry].items():
            assert DOUBLE.matches(table.values[int(label)].var(correction=0), value)
    assert fedskc.variance_ratio(current, last, classes) == pytest.approx(golden["ratio"], abs=2e-6)


@pytest.mark.parametrize(
    ("options", "golden"),
    [
        ({"gpr": "paper"}, OUTPUTS["gpr"]["w_paper"]),
        ({"gpr": "affine"}, OUTPUTS["gpr"]["w_affine"]),
        ({"gpr": "off"}, OUTPUTS["gpr"]["w_in"]),
        ({"gpr_classes": "own"}, OUTPUTS["gpr"]["own_sets"]["w_paper"]),
        ({"gpr_clip": (0.0, 0.0)}, OUTPUTS["gpr"]["ratio_zero_w_paper"]),
        ({"gpr_clip": (0.0, 0.0), "gpr": "affine"}, OUTPUTS["gpr"]["w_in"]),
    ],
    ids=str,
)
def test_gpr(precision, options, golden):
    assert OUTPUTS["gpr"]["w_prev"] == INPUTS["w_prev"]
    server = {"model": {"w": precision.tensor(INPUTS["w_prev"])}, "knowledge": previous(SINGLE)}
    new = aggregated(precision.dtype, server, beta=INPUTS["beta"], **options)
    assert precision.matches(new["model"]["w"], golden)
    assert ("rho" in new) == (options.get("gpr") != "off")


def test_gpr_is_the_printed_formula():
    beta, rho = INPUTS["beta"], OUTPUTS["gpr"]["ratio"]
    new, last = DOUBLE.tensor(OUTPUTS["gpr"]["w_in"]), DOUBLE.tensor(OUTPUTS["gpr"]["w_prev"])
    printed = beta * new + (1 - beta) * rho * (last - new)
    assert DOUBLE.matches(printed, OUTPUTS["gpr"]["w_paper"])
    back = (1 - beta) * rho
    assert DOUBLE.matches(combine([{"w": new}, {"w": last}], [beta - back, back])["w"], printed.tolist())
