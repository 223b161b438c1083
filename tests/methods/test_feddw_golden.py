"""FedDW against the worked example of its specification: every entry of `tests/golden/feddw.json`.

The numbers were computed outside this library (see the file's note). Both precisions are held to it: float64 within
2e-6 (the file has 6 decimals), float32 within 1e-4.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods.contract.contexts import ServerContext, Start, Work
from fedloom.methods.contract.phases import Batch
from fedloom.methods.parts.consistency import class_relations, gram_linearised, inconsistency, softmax_linearised
from support import CLASSES, DOUBLE, SINGLE, Precision, Through, configured, world

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "feddw.json").read_text())
SL, LOSS, LINEAR = GOLDEN["feddw_sl"], GOLDEN["feddw_loss"], GOLDEN["feddw_linearised"]
CLIENTS = 3
KEEP = SL["global_all3_keep"]


def consts_of(precision: Precision, soft_labels, *, rows=None, mu=1.0, reference=None):
    return {
        "soft_labels": precision.tensor(soft_labels),
        "soft_label_rows": torch.tensor(rows or [True] * CLASSES),
        "mu": mu,
        "reference": precision.tensor(reference or LOSS["inputs"]["W"]),
    }


def regulariser_and_gradient(weight: Tensor, consts, **options):
    weight = weight.clone().requires_grad_()
    value = configured("feddw", "paper", **options).regulariser(weight, consts)
    return value.detach(), torch.autograd.grad(value, weight)[0]


# -- client: soft labels -----------------------------------------------------------------------------------------------
def local_sums(precision: Precision, client: int):
    """Class sums and counts of softmax outputs, through the statistic that clients run, in two batches.

    Features are the logits: the head is the identity.
    """
    logits = precision.tensor(SL["inputs"]["logits"][client])
    y = torch.tensor(SL["inputs"]["labels"][client])
    method = configured("feddw", "paper")
    toy = world(method, [[0, 1]])
    start = Start(toy.task.init, {})
    (statistic,) = method.phases(start, toy.federation.client_context(0, 1))[-1].statistics.values()
    net, sums = Through(torch.eye(CLASSES, dtype=precision.dtype)), {}
    consts = consts_of(precision, KEEP)
    for part in (slice(0, 2), slice(2, None)):
        batch = Batch(logits[part], y[part])
        outputs = statistic.of(net, batch, consts)
        assert precision.matches(outputs[:, :CLASSES], SL["local_soft_labels"][client][part])
        sums = statistic.add(sums, outputs, batch, CLASSES)
    return sums["sums"][:, :CLASSES].to(precision.dtype), sums["counts"].to(precision.dtype), statistic.result(sums)


def test_local_sums_counts_and_means(precision):
    for client in range(CLIENTS):
        sums, counts, table = local_sums(precision, client)
        assert precision.matches(sums, SL["local_sum"][client])
        assert counts.tolist() == SL["local_count"][client]
        means = ClassTable.from_sums(sums, counts)
        assert precision.matches(means.values, SL["local_mean_absent_rows_zero"][client])
        assert means.held.tolist() == table.held.tolist() == [n > 0 for n in SL["local_count"][client]]


def upload(client: int):
    """A client's payload, as `end` makes it, with the golden file's weights and sizes for Eq. 8."""
    method = configured("feddw", "paper")
    labels = SL["inputs"]["labels"][client]
    toy = world(method, [labels])
    work = Work(toy.task.init, {"soft_labels": local_sums(SINGLE, client)[2]}, 1)
    payload, state = method.end(work, {}, toy.federation.client_context(0, 1))
    assert state == {}
    assert payload["class_counts"].tolist() == SL["local_count"][client]
    return payload | {"model": {"w": torch.tensor(GOLDEN["feddw_fedavg"]["inputs"]["theta"][client])}}


def served(preset: str, rounds: list[list[int]], **options):
    """The server after rounds with these participants."""
    method = configured("feddw", preset, **options)
    toy = world(method, [[0, 1]])
    server = method.server_init(ServerContext(toy.task, 0))
    for number, participants in enumerate(rounds, 1):
        uploads = {k: upload(k) for k in participants}
        server = method.aggregate(server, uploads, ServerContext(toy.task, number))
    return server


@pytest.mark.parametrize(
    ("preset", "options", "rounds", "entry"),
    [
        ("paper", {}, [[0, 1, 2]], "global_all3_keep"),
        ("paper", {"absent_row": "uniform"}, [[0, 1, 2]], "global_all3_absent_uniform"),
        ("paper", {}, [[0, 1]], "paper_mode_round1_clients01_keep"),
        ("paper", {}, [[0, 1], [2]], "paper_mode_round2_client2_keep"),
        ("authors", {}, [[0, 1]], "code_mode_round1_ema05"),
        ("authors", {}, [[0, 1], [2]], "code_mode_round2_cumulative_ema05"),
    ],
)
def test_global_soft_labels(preset, options, rounds, entry):
    server = served(preset, rounds, **options)
    assert server["soft_labels"].held.all()
    assert torch.allclose(server["soft_labels"].values, torch.tensor(SL[entry]), rtol=0, atol=2e-6)


def test_weights_as_fedavg(precision):
    golden = GOLDEN["feddw_fedavg"]
    uploads = {k: upload(k) | {"model": {"w": precision.tensor(golden["inputs"]["theta"][k])}} for k in range(CLIENTS)}
    assert [u["samples"] for u in uploads.values()] == golden["inputs"]["n"]
    method = configured("feddw")
    assert precision.matches(method.mean(uploads)["w"], golden["theta_global"])
    shares = torch.tensor(golden["inputs"]["n"]) / sum(golden["inputs"]["n"])
    assert torch.allclose(shares, torch.tensor(golden["weights"]), atol=2e-6)


# -- client: the regulariser -------------------------------------------------------------------------------------------
def test_class_relations(precision):
    weight = precision.tensor(LOSS["inputs"]["W"])
    assert precision.matches(weight @ weight.T, LOSS["CR"])
    assert precision.matches(class_relations(weight), LOSS["softmax_rows_CR"])


@pytest.mark.parametrize(
    ("soft_labels", "rows", "value", "gradient"),
    [
        (LOSS["inputs"]["Omega"], None, "L_reg", "grad_L_reg_W"),
        (LOSS["inputs"]["Omega"], None, "L_reg", "grad_L_reg_W_finite_diff"),
        (
            LOSS["inputs"]["Omega"],
            [bool(row) for row in LOSS["inputs"]["seen_rows"]],
            "L_reg_masked_unseen_rows_denomC2",
            "grad_masked_W",
        ),
        (torch.eye(CLASSES).tolist(), None, "L_reg_vs_identity_round1", "grad_round1_identity_W"),
    ],
)
def test_regulariser(precision, soft_labels, rows, value, gradient):
    consts = consts_of(precision, soft_labels, rows=rows)
    ours, slope = regulariser_and_gradient(precision.tensor(LOSS["inputs"]["W"]), consts)
    assert precision.matches(ours, LOSS[value])
    assert precision.matches(slope, LOSS[gradient])


def test_central_differences_were_right():
    assert max(LOSS["fd_check_max_abs"].values()) < 1e-10


def test_regulariser_is_a_mean_not_a_sum_and_has_no_relu(precision):
    consts = consts_of(precision, LOSS["inputs"]["Omega"])
    weight = precision.tensor(LOSS["inputs"]["W"])
    ours, _ = regulariser_and_gradient(weight, consts)
    assert precision.matches(CLASSES**2 * ours, LOSS["L_reg_unnormalised_frobenius_sq"])
    assert not precision.matches(ours, LOSS["L_reg_unnormalised_frobenius_sq"])
    assert not precision.matches(ours, LOSS["relu_variant_L_reg"])
    assert precision.matches(regulariser_and_gradient(weight, consts, relu_on_cr=True)[0], LOSS["relu_variant_L_reg"])


def test_objective_and_one_step(precision):
    inputs = LOSS["inputs"]
    method, net = configured("feddw", "paper", mu=inputs["mu"]), Through(precision.tensor(inputs["W"]))
    consts = consts_of(precision, inputs["Omega"], mu=inputs["mu"])
    batch = Batch(precision.tensor(inputs["H"]), torch.tensor(inputs["y"]))
    objective = method.loss(net, batch, consts)
    assert precision.matches(objective.total, LOSS["L_total"])
    assert precision.matches(objective.terms["ce"], LOSS["L_cla"])
    assert precision.matches(objective.terms["dw"] / inputs["mu"], LOSS["L_reg"])
    (gradient,) = torch.autograd.grad(objective.total, net.head.weight)
    assert precision.matches(gradient, LOSS["grad_total_W"])
    assert precision.matches(net.head.weight.detach() - inputs["eta"] * gradient, LOSS["W_after_one_sgd_step"])
    ce = configured("fedavg").loss(net, batch, {})
    assert precision.matches(torch.autograd.grad(ce, net.head.weight)[0], LOSS["grad_L_cla_W"])


def test_theorem_1(precision):
    golden, every = GOLDEN["feddw_theorem1"], torch.ones(CLASSES, dtype=torch.bool)
    eye = torch.eye(CLASSES, dtype=precision.dtype)
    assert golden["bound_2_over_C"] == 2 / CLASSES
    assert precision.matches(inconsistency(eye, eye.roll(1, 1), every), golden["L_reg_disjoint_onehot"])
    assert precision.matches(inconsistency(eye, eye, every), golden["L_reg_equal"])


# -- the convex forms --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["gram", "softmax_lin"])
@pytest.mark.parametrize("place", ["W", "W0"])
def test_linearised(precision, form, place):
    inputs = LINEAR["inputs"]
    consts = consts_of(precision, inputs["Omega"], reference=inputs["W0"])
    value, gradient = regulariser_and_gradient(precision.tensor(inputs[place]), consts, linearised=form)
    # The quadratic form reaches 17: in float32, 1e-4 of its size.
    scale = Precision(precision.dtype, precision.atol * max(1.0, LINEAR[f"{form}_value_at_{place}"]))
    assert scale.matches(value, LINEAR[f"{form}_value_at_{place}"])
    assert scale.matches(gradient, LINEAR[f"{form}_grad_at_{place}"])


def test_softmax_lin_is_exact_at_its_reference(precision):
    inputs = LINEAR["inputs"]
    consts = consts_of(precision, inputs["Omega"], reference=inputs["W0"])
    value, gradient = regulariser_and_gradient(precision.tensor(inputs["W0"]), consts)
    assert precision.matches(value, LINEAR["exact_value_at_W0"])
    assert precision.matches(gradient, LINEAR["exact_grad_at_W0"])


def test_linearised_forms_are_convex():
    inputs = LINEAR["inputs"]
    omega, every = DOUBLE.tensor(inputs["Omega"]), torch.ones(CLASSES, dtype=torch.bool)
    reference, rng = DOUBLE.tensor(inputs["W0"]), torch.Generator().manual_seed(0)
    for form, expected in zip((gram_linearised, softmax_linearised), LINEAR["midpoint_convexity_ok"], strict=True):
        for _ in range(50):
            a, b = (torch.randn(CLASSES, 3, generator=rng, dtype=torch.float64) for _ in range(2))
            ends = [inconsistency(form(w, reference), omega, every) for w in (a, b)]
            middle = inconsistency(form((a + b) / 2, reference), omega, every)
            assert bool(middle <= sum(ends) / 2 + 1e-12) is expected


def test_the_printed_gradient_of_eq_24_is_not_the_gradient():
    """Eq. 24: -2 (Omega - A^T A) A has the wrong side and factor; autograd agrees with the file's true one."""
    check = LINEAR["paper_eq24_check"]
    a, omega = (DOUBLE.tensor(check[name]) for name in ("A", "Omega_sq"))
    a.requires_grad_()
    (ours,) = torch.autograd.grad((omega - a.T @ a).square().sum(), a)
    assert DOUBLE.matches(ours, check["true_gradient"])
    assert not torch.allclose(ours, DOUBLE.tensor(check["paper_minus2_resid_A"]), atol=0.1)


# -- schedules and bytes -----------------------------------------------------------------------------------------------
def test_mu_schedule_of_the_released_code():
    golden = GOLDEN["feddw_code_mu_schedule"]
    method = configured("feddw", "authors", mu=golden["mu_start"])
    toy = world(method, [[0, 1]])
    payload = toy.job(0).payload
    for round_, mu in golden["mu_at_rounds"].items():
        consts = method.begin(payload, {}, toy.federation.client_context(0, int(round_))).consts
        assert consts["mu"] == pytest.approx(mu, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_extra_numbers_on_the_wire(classes):
    """C^2 + C up, C^2 down (not the paper's 2 (C + C^2)); beside them C bits of mask each way."""
    golden = GOLDEN["feddw_extra_comm"][str(classes)]
    toy = world(configured("feddw"), [list(range(classes)) * 2], classes=classes, net="mlp", shape=(5,))
    payload = toy.job(0).payload
    done = toy.worker.run(toy.job(0)).upload
    numbers = payload["soft_labels"].values.numel() + done["soft_labels"].values.numel() + done["class_counts"].numel()
    assert numbers == golden["actual_up_C^2+C_down_C^2"]
    assert set(done) == {"model", "samples", "soft_labels", "class_counts"}
    assert golden["paper_2(C+C^2)"] == 2 * (classes + classes**2)
