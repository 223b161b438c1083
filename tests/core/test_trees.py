"""Tree arithmetic: the one weighted mean that every method uses, and its small relatives."""

import math
import weakref
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core import trees as device_copies
from fedloom.core.trees import clone, combine, nbytes, select, sent_to, squared_distance, tree_on, weighted_mean

finite = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(finite, st.integers(0, 10_000)), min_size=1, max_size=12))
def test_mean_equals_exact_rational_arithmetic(pairs):
    total = sum(weight for _, weight in pairs)
    if total == 0:
        return
    exact = sum(Fraction(value) * weight for value, weight in pairs) / total
    mean = weighted_mean([{"w": torch.tensor([value])} for value, _ in pairs], [weight for _, weight in pairs])
    largest = max(abs(value) for value, _ in pairs)
    # one rounding to float32 (half of 2^-149 where it is subnormal), and the sum's own in float64
    assert abs(mean["w"].item() - float(exact)) <= 2**-24 * abs(float(exact)) + 2**-150 + 1e-13 * largest


def test_entries_of_all_sizes_and_dtypes_are_summed_as_one_by_one():
    """Small entries are summed together, large ones in blocks: neither may be seen in the result."""
    rng = torch.Generator().manual_seed(0)
    shapes = {"a": (3,), "large": (300, 700), "b": (5, 2), "none": (0,), "scalar": ()}
    trees = [
        {n: torch.randn(s, generator=rng) for n, s in shapes.items()}
        | {"half": torch.randn(4, generator=rng).double(), "steps": torch.tensor(k)}
        for k in range(5)
    ]
    weights = [3, 1, 4, 1, 5]
    mean = weighted_mean(trees, weights)
    assert list(mean) == list(trees[0])
    for name, value in mean.items():
        if name == "steps":
            assert value == 0
            continue
        total = torch.zeros(value.shape, dtype=torch.float64)
        for tree, weight in zip(trees, weights, strict=True):
            total.add_(tree[name].double(), alpha=weight)
        assert torch.equal(value, (total / 14).to(value.dtype))


def test_a_sum_leaves_the_trees_as_they_were():
    trees = [{"w": torch.ones(4), "v": torch.ones(70_000)}, {"w": torch.zeros(4), "v": torch.zeros(70_000)}]
    mean = combine(trees, [0.5, 2.0])
    assert all(bool((value == 1).all()) for value in trees[0].values())
    assert all(bool((value == 0.5).all()) for value in mean.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_entries_keep_their_dtype(dtype):
    trees = [{"w": torch.ones(2, dtype=dtype)}, {"w": torch.full((2,), 3.0, dtype=dtype)}]
    mean = weighted_mean(trees, [1, 1])["w"]
    assert mean.dtype == dtype
    assert mean.tolist() == [2.0, 2.0]


def test_integer_buffers_come_from_the_first_tree_and_are_never_averaged():
    trees = [
        {"count": torch.tensor(7), "flag": torch.tensor([True]), "w": torch.tensor(0.0)},
        {"count": torch.tensor(100), "flag": torch.tensor([False]), "w": torch.tensor(1.0)},
    ]
    mean = weighted_mean(trees, [1, 99])
    assert mean["count"].item() == 7
    assert mean["count"].dtype == torch.int64
    assert mean["flag"].tolist() == [True]


def test_a_client_of_weight_zero_does_not_count_even_if_it_diverged():
    trees = [{"w": torch.tensor([2.0])}, {"w": torch.tensor([float("nan")])}, {"w": torch.tensor([4.0])}]
    assert weighted_mean(trees, [1, 0, 1])["w"].item() == 3.0


def test_a_nan_of_a_client_that_counts_is_not_hidden():
    trees = [{"w": torch.tensor([2.0])}, {"w": torch.tensor([float("nan")])}]
    assert math.isnan(weighted_mean(trees, [1, 1])["w"].item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_mean_of_one_tree_shares_no_memory_with_it(dtype):
    tree = {"w": torch.ones(3, dtype=dtype)}
    mean = weighted_mean([tree], [5])
    mean["w"].fill_(9)
    assert tree["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "weights", [[0, 0], [1, -1], [2, -1], [1], [1, 1, 1], [float("nan"), 1.0]], ids=lambda weights: str(weights)
)
def test_unusable_weights_are_refused(weights):
    with pytest.raises(ValueError, match="positive sum"):
        weighted_mean([{"w": torch.ones(1)}, {"w": torch.ones(1)}], weights)


def test_trees_are_summed_as_they_come():
    """What comes first is summed while the last is not there yet: as many trees at a time as a pass takes."""
    asked = []

    def arriving():
        for value in range(40):
            asked.append(value)
            yield {"w": torch.full((2,), float(value))}

    def weights():
        for _ in range(40):
            yield 1.0 if len(asked) <= 40 else 0.0

    assert weighted_mean(arriving(), weights())["w"].tolist() == [19.5, 19.5]
    assert len(asked) == 40


@pytest.mark.parametrize("count", [1, 16, 17, 33])
def test_few_trees_need_the_sum_of_one_entry_at_a_time(count, monkeypatch):
    trees = [{f"w{entry}": torch.full((20_000,), k + entry / 8) for entry in range(3)} for k in range(count)]
    sums, alive = [], []

    def add(total, tensors, weights):
        sums.append(weakref.ref(total))
        alive.append(len({id(reference()) for reference in sums if reference() is not None}))
        return False

    monkeypatch.setattr(device_copies, "_compiled_add", add)
    means = weighted_mean(trees, [1.0] * count)
    assert max(alive) == (1 if count <= 16 else 3)
    assert all(bool((means[f"w{entry}"] == (count - 1) / 2 + entry / 8).all()) for entry in range(3))


def test_no_trees_are_refused():
    with pytest.raises(ValueError, match="no trees"):
        weighted_mean([], [])


def test_trees_of_other_names_are_refused_and_the_name_is_said():
    with pytest.raises(ValueError, match="extra"):
        weighted_mean([{"w": torch.ones(1)}, {"w": torch.ones(1), "extra": torch.ones(1)}], [1, 1])


@pytest.mark.parametrize("shapes", [[(2, 3), (3, 2)], [(3,), (1,)], [(1,), (3,)]], ids=str)
def test_trees_of_other_shapes_are_refused_and_never_broadcast(shapes):
    with pytest.raises(ValueError, match="trees differ in shape: w"):
        weighted_mean([{"w": torch.ones(shape)} for shape in shapes], [1, 1])


@pytest.mark.parametrize("size", [32_767, 32_768, 32_769, 70_000])
def test_large_entries_are_averaged_to_their_last_element(size):
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(3, size, generator=generator)
    mean = weighted_mean([{"w": row.view(1, -1)} for row in values], [1, 2, 5])["w"]
    expected = (values.double() * torch.tensor([[1.0], [2.0], [5.0]], dtype=torch.float64)).sum(0) / 8
    torch.testing.assert_close(mean.view(-1), expected.float(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "trees", [[{}, {}], [{"n": torch.tensor(1)}, {"n": torch.tensor(2)}]], ids=["empty", "integer"]
)
def test_trees_without_floating_entries_have_a_mean(trees):
    assert weighted_mean(trees, [1, 3]) == trees[0]


def test_entries_of_any_layout_and_of_no_elements_are_averaged_in_place_of_their_names():
    crooked = torch.arange(6.0).view(2, 3).T
    mean = weighted_mean(
        [{"w": crooked, "e": torch.zeros(0, 3)}, {"w": torch.zeros(3, 2), "e": torch.zeros(0, 3)}], [1, 1]
    )
    assert mean["w"].tolist() == [[0.0, 1.5], [0.5, 2.0], [1.0, 2.5]]
    assert mean["e"].shape == (0, 3)


def test_select_keeps_the_trees_order_ignores_unknown_names_and_does_not_copy():
    tree = {"c": torch.zeros(1), "a": torch.zeros(1), "b": torch.zeros(1)}
    chosen = select(tree, ["b", "c", "unknown"])
    assert list(chosen) == ["c", "b"]
    assert chosen["c"] is tree["c"]


def test_clone_is_detached_and_shares_no_memory():
    weight = torch.nn.Parameter(torch.ones(2))
    copy = clone({"w": weight})
    assert not copy["w"].requires_grad
    copy["w"].fill_(5)
    assert weight.tolist() == [1.0, 1.0]


def test_squared_distance_and_its_gradients_by_hand():
    a = {"u": torch.tensor([1.0, 2.0], requires_grad=True), "v": torch.tensor(3.0, requires_grad=True)}
    b = {"u": torch.tensor([0.0, 4.0], requires_grad=True), "v": torch.tensor(-1.0, requires_grad=True)}
    distance = squared_distance(a, b)
    distance.backward()
    assert distance.item() == 1 + 4 + 16
    assert a["u"].grad.tolist() == [2.0, -4.0]  # 2 (a - b)
    assert b["u"].grad.tolist() == [-2.0, 4.0]
    assert (a["v"].grad.item(), b["v"].grad.item()) == (8.0, -8.0)


def test_combine_takes_any_signs_and_leaves_integers_of_the_first():
    a = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    b = {"w": torch.tensor([10.0, -4.0]), "n": torch.tensor(9)}
    mixed = combine([a, b], [1.5, -0.5])
    assert mixed["w"].tolist() == [-3.5, 5.0]
    assert mixed["n"].item() == 3
    assert mixed["n"] is not a["n"]


def test_nbytes_counts_values_by_dtype():
    tree = {"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.float16), "c": torch.tensor(1)}
    assert nbytes(tree) == 3 * 2 * 4 + 5 * 2 + 8


CPU = torch.device("cpu")


def test_a_tree_arrives_as_it_was_in_the_plain_order():
    weights = torch.randn(3, 2, 4, 4).to(memory_format=torch.channels_last)
    tree = {"w": weights, "steps": torch.tensor(7), "b": torch.randn(5).double(), "empty": torch.zeros(0, 2)}
    copied = tree_on(tree, CPU)
    assert list(copied) == list(tree)
    assert all(torch.equal(copied[name], tree[name]) and copied[name].dtype == tree[name].dtype for name in tree)
    assert copied["w"].is_contiguous()
    assert copied["w"].data_ptr() != weights.data_ptr()


def test_one_copy_for_each_dtype(monkeypatch):
    copies = []
    monkeypatch.setattr(device_copies, "sent_to", lambda tensor, device: copies.append(tensor.numel()) or tensor)
    tree_on({"a": torch.ones(2), "n": torch.tensor(1), "b": torch.ones(3)}, torch.device("meta"))
    assert copies == [5, 1]


def test_a_tensor_that_is_there_is_not_copied():
    tensor = torch.ones(2)
    assert sent_to(tensor, CPU) is tensor
