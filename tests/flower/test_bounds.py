"""Bounds on uploads: what is measured, what is compared with what, and the figures by hand."""

import math

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.flower.bounds import NormBounds, UploadNorm, upload_norms
from fedloom.methods import METHODS
from fedloom.methods.contract.spec import Sent
from fedloom.nets.net import Role

SENDS = {"model": Sent(), "step": Sent(form="change"), "prototypes": Sent(per_client=True), "wide": Sent(spread=3.0)}
ROLES = {"w": Role.BODY, "head.w": Role.HEAD}


def norms(upload, sent=None):
    return {item.label: item.norm for item in upload_norms(upload, sent or {}, SENDS, ROLES)}


def test_a_tree_is_measured_by_its_change_body_and_head_apart():
    upload = {"model": {"w": torch.tensor([4.0, 1.0]), "head.w": torch.tensor([[2.0]]), "count": torch.tensor(7)}}
    sent = {"model": {"w": torch.tensor([1.0, -3.0]), "head.w": torch.tensor([[5.0]]), "count": torch.tensor(1)}}
    assert norms(upload, sent) == {"the change of the body of model": 5.0, "the change of the head of model": 3.0}


def test_what_is_a_change_already_is_measured_as_it_is():
    entry = {"w": torch.tensor([3.0, 4.0])}
    assert norms({"step": entry}, {"step": {"w": torch.tensor([3.0, 4.0])}}) == {"the body of step": 5.0}


def test_held_rows_tensors_and_numbers_are_measured_one_by_one():
    table = ClassTable(torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]), torch.tensor([True, False, True]))
    upload = {"prototypes": table, "scale": torch.tensor([6.0, 8.0]), "loss": -0.5, "samples": 9, "name": "x"}
    assert norms(upload) == {"row 0 of prototypes": 5.0, "row 2 of prototypes": 2.0, "scale": 10.0, "loss": 0.5}


@pytest.mark.parametrize(
    ("method", "refused"), [("fedsc", {3}), ("fedsc+dp", set()), ("fedsc+servermomentum+dp", set())]
)
def test_private_uploads_are_not_compared(method, refused):
    """Before the noise, one client's size would decide whether another one counts."""
    sends = METHODS.get(method).configured("sound", {}).spec.sends
    sizes = {client: 1.0 if client < 3 else 1000.0 for client in range(4)}
    keys = ("model/body/change", "model/head/change", "prototypes/rows")
    norms = {client: [UploadNorm(key, key, size) for key in keys] for client, size in sizes.items()}
    assert NormBounds(5.0, {}).judge(norms, dict.fromkeys(sizes, 10), sends).keys() == refused


def test_an_upload_is_refused_by_its_ratio_to_the_median():
    """Lengths 1, 2, 3, 4 and 16: the median is 3, five times that 15."""
    items = {client: [UploadNorm("model", "model", norm)] for client, norm in enumerate([1.0, 2.0, 3.0, 4.0, 16.0])}
    excesses = NormBounds(5.0, {}).judge(items, dict.fromkeys(items, 10), SENDS)
    assert list(excesses) == [4]
    assert str(excesses[4]) == (
        "model is 5.33 times as large as the median client's, and at most 5 times is allowed (flower.max_ratio)"
    )


@pytest.mark.parametrize(("samples", "refused"), [(10, True), (20, False)])
def test_a_client_with_more_samples_may_be_larger_in_proportion(samples, refused):
    items = {client: [UploadNorm("model", "model", norm)] for client, norm in enumerate([1.0, 2.0, 3.0, 4.0, 16.0])}
    counts = dict.fromkeys(items, 10) | {4: samples}
    assert bool(NormBounds(5.0, {}).judge(items, counts, SENDS)) == refused


def test_the_reference_is_the_largest_median_so_far():
    ratios, samples = NormBounds(5.0, {}), dict.fromkeys(range(4), 10)
    assert not ratios.judge({k: [UploadNorm("model", "model", 10.0)] for k in range(4)}, samples, SENDS)
    late = {k: [UploadNorm("model", "model", 0.1)] for k in range(3)} | {3: [UploadNorm("model", "model", 40.0)]}
    assert not ratios.judge(late, samples, SENDS)  # 400 times the others, 4 times what was usual
    assert ratios.references == {"model": 10.0}
    assert ratios.judge({0: [UploadNorm("model", "model", 51.0)]}, samples, SENDS)  # alone, against what was usual


def test_three_uploads_bound_nobody():
    items = {client: [UploadNorm("model", "model", norm)] for client, norm in enumerate([1.0, 1.0, 1e9])}
    assert not NormBounds(5.0, {}).judge(items, dict.fromkeys(items, 10), SENDS)


def test_a_method_may_say_that_honest_uploads_lie_further_apart():
    items = {client: [UploadNorm("wide", "wide", norm)] for client, norm in enumerate([1.0, 1.0, 1.0, 1.0, 14.0])}
    samples = dict.fromkeys(items, 10)
    assert not NormBounds(5.0, {}).judge(items, samples, SENDS)
    assert NormBounds(4.0, {}).judge(items, samples, SENDS)


def test_a_client_that_claims_all_rows_does_not_move_the_median():
    """Rows are compared with the median over clients of each client's own median, not over rows."""
    honest = {k: [UploadNorm("prototypes/rows", f"row {k} of prototypes", 1.0)] for k in range(4)}
    hostile = [UploadNorm("prototypes/rows", f"row {k} of prototypes", 100.0) for k in range(10)]
    excesses = NormBounds(5.0, {}).judge(honest | {4: hostile}, dict.fromkeys(range(5), 10), SENDS)
    assert list(excesses) == [4]


def test_values_that_are_not_finite_are_too_large():
    items = {k: [UploadNorm("model", "model", 1.0)] for k in range(4)} | {4: [UploadNorm("model", "model", math.inf)]}
    assert list(NormBounds(5.0, {}).judge(items, dict.fromkeys(items, 1), SENDS)) == [4]
