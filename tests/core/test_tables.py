"""Class tables: masks are respected, and the vectorised formulas equal plain loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.prototypes import (
    client_distances,
    cosine,
    label_discrepancy,
    merge_neighbours,
    nearest_holders,
    shares,
    sigmoid_weights,
)

PROPERTY = settings(max_examples=80, deadline=None)


# --- ClassTable ------------------------------------------------------------------------------------------------------


def test_from_sums_divides_by_counts_and_masks_empty_classes():
    table = ClassTable.from_sums(torch.tensor([[2.0, 4.0], [0.0, 0.0], [9.0, -3.0]]), torch.tensor([2, 0, 3]))
    assert table.held.tolist() == [True, False, True]
    assert table.values.tolist() == [[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]]


def test_a_masked_class_is_zero_even_where_its_sum_is_nan():
    sums = torch.tensor([[float("nan")], [float("inf")], [1.0]])
    table = ClassTable.from_sums(sums, torch.tensor([0, 0, 1]))
    assert table.values.tolist() == [[0.0], [0.0], [1.0]]


def test_from_sums_takes_leading_client_dimensions():
    sums, counts = torch.tensor([[[6.0], [0.0]], [[0.0], [8.0]]]), torch.tensor([[3, 0], [0, 2]])
    table = ClassTable.from_sums(sums, counts)
    assert table.values.tolist() == [[[2.0], [0.0]], [[0.0], [4.0]]]
    assert table.held.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("values", "held"),
    [
        (torch.zeros(3, 2), torch.zeros(3)),  # a float mask
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.bool)),  # another number of classes
        (torch.zeros(3), torch.zeros(3, dtype=torch.bool)),  # no row dimension
    ],
)
def test_a_table_of_wrong_shape_or_mask_is_refused(values, held):
    with pytest.raises(ValueError, match="class table needs"):
        ClassTable(values, held)


def table_of(rows):
    """A table [C, 1] from one number per class, None where the class is not held."""
    held = torch.tensor([row is not None for row in rows])
    return ClassTable(torch.tensor([[row or 0.0] for row in rows], dtype=torch.float64), held)


def test_to_changes_the_dtype_and_keeps_the_mask():
    table = table_of([1.5, None]).to(torch.float16)
    assert table.values.dtype == torch.float16
    assert table.values.flatten().tolist() == [1.5, 0.0]
    assert table.held.tolist() == [True, False]


@pytest.mark.parametrize("weights", [None, [2.0, 1.0, 4.0], [[2.0, 9.0, 3.0], [1.0, 5.0, 9.0], [4.0, 9.0, 9.0]]])
def test_a_class_is_averaged_over_its_holders_alone(weights):
    """Client 0 holds classes 0 and 2, client 1 classes 0 and 1, client 2 class 0, and nobody holds class 3."""
    rows = [[2.0, None, 8.0, None], [5.0, 6.0, None, None], [-1.0, None, None, None]]
    tensors = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    if tensors is not None and tensors.dim() == 2:
        tensors = torch.cat([tensors, torch.full((3, 1), 7.0)], 1)
    mean = ClassTable.stack([table_of(row) for row in rows]).mean_over_clients(tensors)
    first = 2.0 if weights is None else (2 * 2.0 + 1 * 5.0 + 4 * -1.0) / 7
    assert mean.held.tolist() == [True, True, True, False]
    assert mean.values.flatten().tolist() == pytest.approx([first, 6.0, 8.0, 0.0], abs=1e-15)


# --- nearest_holders and merge_neighbours ----------------------------------------------------------------------------


def nearest_by_loops(distance, held, neighbours):
    """nearest_holders, written as its definition reads. `distance` [C][m][m] and `held` [m][C] are lists."""
    clients, classes = len(held), len(held[0])
    merged = [[[False] * clients for _ in range(clients)] for _ in range(classes)]
    for j in range(classes):
        holders = [k for k in range(clients) if held[k][j]]
        for k in holders:
            others = sorted((distance[j][k][q], q) for q in holders if q != k)
            for q in [k, *(q for _, q in others[:neighbours])]:
                merged[j][k][q] = True
    return merged


@st.composite
def neighbourhoods(draw):
    """Distances on a coarse grid (many ties, some zero, not symmetric), masks of any kind, any neighbour count."""
    clients, classes = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    grid = st.sampled_from([0.0, 0.1, 0.2, 0.7, 1.0, 2.0])
    row = st.lists(grid, min_size=clients, max_size=clients)
    square = st.lists(row, min_size=clients, max_size=clients)
    distance = draw(st.lists(square, min_size=classes, max_size=classes))
    mask = st.lists(st.booleans(), min_size=classes, max_size=classes)
    held = draw(st.lists(mask, min_size=clients, max_size=clients))
    return distance, held, draw(st.integers(0, 6))


@PROPERTY
@given(neighbourhoods())
def test_nearest_holders_equals_its_definition(case):
    distance, held, neighbours = case
    fast = nearest_holders(torch.tensor(distance), torch.tensor(held), neighbours)
    assert fast.tolist() == nearest_by_loops(distance, held, neighbours)


def test_ties_go_to_the_smaller_client():
    distance, held = torch.full((1, 4, 4), 0.5), torch.ones(4, 1, dtype=torch.bool)
    merged = nearest_holders(distance, held, 1)[0]
    partners = [[q for q in range(4) if merged[k, q] and q != k] for k in range(4)]
    assert partners == [[1], [0], [0], [0]]


def test_differences_of_rounding_size_are_ties():
    distance, held = torch.zeros(1, 3, 3, dtype=torch.float64), torch.ones(3, 1, dtype=torch.bool)
    distance[0, 0] = torch.tensor([0.0, 0.3 + 4e-16, 0.3], dtype=torch.float64)
    assert nearest_holders(distance, held, 1)[0, 0].tolist() == [True, True, False]


def test_a_client_is_merged_with_itself_even_where_another_is_nearer():
    distance, held = torch.zeros(1, 2, 2), torch.ones(2, 1, dtype=torch.bool)
    distance[0, 1] = torch.tensor([-5.0, 3.0])
    assert nearest_holders(distance, held, 0)[0].tolist() == [[True, False], [False, True]]
    assert nearest_holders(distance, held, 1)[0, 1].tolist() == [True, True]


@PROPERTY
@given(neighbourhoods(), st.integers(0, 2**32 - 1))
def test_merge_neighbours_equals_plain_loops(case, seed):
    distance, held, neighbours = case
    clients, classes = len(held), len(held[0])
    values = torch.randn(clients, classes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    values = values * torch.tensor(held).unsqueeze(-1)
    merged_with = nearest_by_loops(distance, held, neighbours)
    merged = merge_neighbours(ClassTable(values, torch.tensor(held)), torch.tensor(merged_with))
    assert merged.held.tolist() == held
    for k in range(clients):
        for j in range(classes):
            rows = [values[q, j] for q in range(clients) if merged_with[j][k][q]]
            expected = sum(rows) / len(rows) if rows else torch.zeros(2, dtype=torch.float64)
            torch.testing.assert_close(merged.values[k, j], expected, rtol=1e-12, atol=1e-12)


# --- weights, similarities, discrepancies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("u", "expected"),
    [
        ([-1e4, -1e4], [0.5, 0.5]),  # sigmoid underflows to 0 in both: 0 / 0 in the naive formula
        ([-1e4, -1e4 + math.log(3)], [0.25, 0.75]),  # far left, sigmoid(u) = exp(u)
        ([-1e4, 0.0], [0.0, 1.0]),
        ([1e4, 1e4, -1e4], [0.5, 0.5, 0.0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sigmoid_weights_of_extreme_values_are_finite_and_sum_to_one(u, expected, dtype):
    weights = sigmoid_weights(torch.tensor(u, dtype=dtype))
    assert torch.isfinite(weights).all()
    assert weights.sum().item() == pytest.approx(1, abs=1e-6)
    # float32 has steps of 1e-3 near 1e4
    assert weights.tolist() == pytest.approx(expected, abs=1e-3 if dtype == torch.float32 else 1e-9)


def test_cosine_by_hand_and_with_broadcasting():
    a, b = torch.tensor([[3.0, 4.0], [0.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, -5.0]])
    similarity = cosine(a.unsqueeze(1), b.unsqueeze(0))
    torch.testing.assert_close(similarity, torch.tensor([[0.6, -0.8], [0.0, -1.0]]))


def test_cosine_with_a_zero_vector_is_zero_and_not_nan():
    assert cosine(torch.zeros(3), torch.ones(3)).item() == 0.0
    assert cosine(torch.zeros(3), torch.zeros(3)).item() == 0.0


@PROPERTY
@given(st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=4))
def test_label_discrepancy_equals_plain_loops_and_stays_below_one(counts):
    result = label_discrepancy(torch.tensor(counts)).tolist()
    for row, value in zip(counts, result, strict=True):
        if sum(row) > 0:
            expected = math.sqrt(0.5 * math.fsum((n / sum(row) - 1 / 3) ** 2 for n in row))
            assert value == pytest.approx(expected, abs=1e-12)
        assert 0 <= value < 1


def test_or_else_fills_what_is_not_held():
    first = ClassTable(torch.tensor([[1.0], [0.0], [0.0]]), torch.tensor([True, False, False]))
    second = ClassTable(torch.tensor([[7.0], [8.0], [0.0]]), torch.tensor([True, True, False]))
    both = first.fill_missing(second)
    assert both.values.tolist() == [[1], [8], [0]]
    assert both.held.tolist() == [True, True, False]


def test_shares_by_hand():
    assert shares(torch.tensor([1, 3])).tolist() == [0.25, 0.75]
    assert shares(torch.zeros(4)).tolist() == [0.25] * 4


@pytest.mark.parametrize(("p", "expected"), [(1.0, 7.0), (2.0, 5.0)])
def test_client_distances_by_hand(p, expected):
    table = ClassTable(torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]]]), torch.ones(2, 1, dtype=torch.bool))
    assert client_distances(table, p).tolist() == [[[0.0, expected], [expected, 0.0]]]
