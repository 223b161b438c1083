"""Every mean of what clients send goes through `Method.reduce`; what is sent is what the declaration says."""

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.methods.contract.means import Slices, mean_of
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role
from support import (
    FEDERATED,
    ROW_METHODS,
    Recording,
    TinyBN,
    after,
    configured,
    each_preset,
    handmade,
    same_bits,
    world,
)

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0]]
NAMES = [*(name for name in ROW_METHODS if name in FEDERATED), "fedprox+dw", "fedsc+dw", "fedskc+dw"]

# What the server needs of each client and averages too; FedNova takes the mean of changes and that of buffers.
ALSO_REDUCED = {name: {"model"} for name in ("cfl", "fedcda", "feddf", "fedgen", "fedkd")} | {"fedpcl": {"prototypes"}}
MEANS_A_ROUND = {"fednova": 2}


# -- declarations ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "preset"), each_preset(NAMES))
def test_clients_send_what_the_method_declares(name, preset):
    toy = after(world(handmade(name, preset), LABELS, net=TinyBN, engine=Recording), 2)
    for job, done in zip(toy.federation.engine.jobs, toy.federation.engine.done, strict=True):
        assert done.upload.keys() - {"samples"} == set(toy.federation.methods[job.stage].spec.sends)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedco2", {"algorithm": "label_skew"}),
        ("fedco2", {"inter_online": False, "inter_offline": False}),
        ("fedssa", {"weights": "count"}),
        ("fedssa", {"pool": "all_known"}),
        ("fedbn", {"bn_stats": "shared"}),
        ("feddw", {"sl_cumulative": True}),
    ],
    ids=str,
)
def test_options_that_change_what_is_sent_change_the_declaration(name, options):
    toy = after(world(configured(name, **options), LABELS, net=TinyBN, engine=Recording), 2)
    for done in toy.federation.engine.done:
        assert done.upload.keys() - {"samples"} == set(toy.method.spec.sends)


def noting(name, preset="sound", **options):
    """A method that notes each mean: what of, and the kind of its values."""
    plain, seen = handmade(name, preset, **options), []

    class Noting(type(plain)):
        def reduce(self, key, values, weights):
            values = list(values)
            seen.append((key, {type(value) for value in values}, len(values)))
            return super().reduce(key, values, weights)

    return Noting(plain.options), seen


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in NAMES),
        ("fedssa", {"weights": "count"}),
        ("fedbn", {"weights": "samples"}),
        ("fedco2", {"weights": "samples"}),
        ("fedco2", {"algorithm": "label_skew"}),
        ("feddw", {"sl_cumulative": True}),
    ],
    ids=str,
)
def test_all_that_the_server_needs_only_the_mean_of_is_reduced(name, options):
    method, seen = noting(name, **options)
    toy = after(world(method, LABELS, net=TinyBN), 3)
    declared = {key for key, sent in method.spec.sends.items() if not sent.per_client}
    assert {key for key, *_ in seen} - ALSO_REDUCED.get(name, set()) == declared
    assert len([key for key, *_ in seen if key in declared]) == 3 * len(declared) * MEANS_A_ROUND.get(name, 1)
    assert {count for *_, count in seen} <= {len(report.participants) for report in toy.reports}
    plain = after(world(handmade(name, **options), LABELS, net=TinyBN), 3)
    assert same_bits(toy.federation.server, plain.federation.server)


def test_a_method_may_replace_the_mean():
    class First(Method):
        def reduce(self, key, values, weights):
            return next(iter(values))

    toy = after(world(First(), LABELS, engine=Recording), 1)
    (first,) = (done for done in toy.federation.engine.done if done.client == 0)
    assert same_bits({"model": toy.federation.server["model"]}, {"model": first.upload["model"]})


# -- means -------------------------------------------------------------------------------------------------------------
METHOD = Method()
ROWS = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0]), torch.tensor([5.0, 0.0])]


def uploads(values, samples=(1, 2, 5)):
    return {7 + k: {"it": value, "samples": n} for k, (value, n) in enumerate(zip(values, samples, strict=True))}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("samples", [(1 + 6 + 25) / 8, (2 - 4) / 8]),
        ("uniform", [3.0, 0.0]),
        ([1.0, 0.0, 3.0], [4.0, 0.5]),
        (torch.tensor([0.0, 0.5, 0.5]), [4.0, -1.0]),
    ],
    ids=str,
)
def test_means_of_tensors_and_trees(weights, expected):
    expected = torch.tensor(expected, dtype=torch.float64)
    tensor = METHOD.mean(uploads(ROWS), "it", weights)
    assert tensor.dtype == torch.float64
    assert torch.allclose(tensor, expected, rtol=0, atol=1e-12)
    tree = METHOD.mean(uploads([{"w": row, "n": torch.tensor(4)} for row in ROWS]), "it", weights)
    assert tree["w"].dtype == torch.float32
    assert torch.allclose(tree["w"].double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(tree["n"], torch.tensor(4))


def test_means_of_class_tables_are_those_of_the_holders():
    values = torch.arange(12.0).view(3, 4, 1)
    held = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
    tables = [ClassTable(v, h).keep_classes(h) for v, h in zip(values, held, strict=True)]
    by_class = torch.tensor([[1.0, 0, 9, 9], [2, 9, 4, 9], [1, 2, 9, 9]])
    for weights, rows in (
        ("uniform", [(0 + 4 + 8) / 3, (1 + 9) / 2, 6.0]),
        ("samples", [(0 + 2 * 4 + 5 * 8) / 8, (1 + 5 * 9) / 6, 6.0]),
        ([1.0, 1.0, 2.0], [(0 + 4 + 16) / 4, (1 + 18) / 3, 6.0]),
        (by_class, [(0 + 8 + 8) / 4, 9.0, 6.0]),
    ):
        mean = METHOD.mean(uploads(tables), "it", weights)
        assert mean.held.tolist() == [True, True, True, False]
        assert mean.values.dtype == torch.float64
        assert mean.values[:3, 0].tolist() == pytest.approx(rows)
        assert not mean.values[3].any()


def test_the_order_of_sums_is_that_of_the_uploads():
    big = [torch.tensor([value]) for value in (1e16, 1.0, -1e16)]
    assert float(METHOD.mean(uploads(big), "it", "uniform")) == 0.0
    assert float(METHOD.mean(uploads([big[0], big[2], big[1]]), "it", "uniform")) == pytest.approx(1 / 3)


def test_values_come_one_by_one():
    """While some clients still train, the first are summed."""
    asked = []

    def coming():
        for k in range(40):
            asked.append(k)
            yield {"w": torch.full((3,), float(k))}

    def weights():
        for k in range(40):
            assert len(asked) <= k + 17
            yield 1.0

    assert mean_of(coming(), weights())["w"].tolist() == [19.5] * 3


def test_what_has_no_mean_is_refused():
    with pytest.raises(ValueError, match="mean of nothing"):
        mean_of([], [])
    with pytest.raises(TypeError, match="mean of str"):
        mean_of(["a", "b"], [1.0, 1.0])
    for weights in ([1.0, -1.0], [0.0, 0.0], [1.0]):
        with pytest.raises(ValueError, match="weights"):
            mean_of(ROWS[:2], weights)


# -- slices ------------------------------------------------------------------------------------------------------------
WITHIN = {"w": torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]), "count": torch.tensor(4)}
WIDE = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "count": torch.tensor(1)}
SMALL = {"w": torch.tensor([[7.0]]), "count": torch.tensor(2)}


def mean_within(trees, weights, within=WITHIN):
    slices = Slices(within)
    return slices.filled(mean_of(*slices.whole(trees, weights)))


def test_each_number_is_averaged_over_its_holders_and_stays_without_any():
    found = mean_within([WIDE, SMALL], [1.0, 3.0])
    assert found["w"].tolist() == [[5.5, 2.0, 30.0], [3.0, 4.0, 60.0]]  # (1 + 3 * 7) / 4
    assert found["count"] == 1  # the first one's


def test_weights_may_differ_by_number():
    rows = torch.tensor([[0.0], [1.0]])  # of the wide one, the second row alone
    found = mean_within([WIDE, SMALL], [{"w": rows}, {}])
    assert found["w"].tolist() == [[7.0, 20.0, 30.0], [3.0, 4.0, 60.0]]


def test_whole_trees_have_the_bits_of_the_plain_mean():
    trees = [{"w": torch.randn(40, 30)} for _ in range(3)]
    assert same_bits(mean_within(trees, [1.0] * 3, {"w": torch.zeros(40, 30)}), mean_of(trees, [1.0] * 3))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"w": torch.zeros(3, 1)}, "trees? with the entries"),
        ({"w": torch.zeros(3, 1), "count": torch.tensor(1)}, r"w \(3, 1\) is no slice of \(2, 3\)"),
        ({"w": torch.zeros(2), "count": torch.tensor(1)}, r"w \(2,\) is no slice of"),
    ],
)
def test_what_is_no_slice_is_refused(tree, message):
    with pytest.raises(ValueError, match=message):
        mean_within([tree], [1.0])


def test_what_is_tested_may_be_other_weights_than_the_next_start():
    """An average of iterates: tests see it, clients do not."""

    class Averaged(Method):
        def tested(self, server, ctx):
            return server | {"model": {name: value + 1 for name, value in server["model"].items()}}

    toy = world(Averaged(), LABELS)
    server, ctx = toy.federation.server, toy.federation.server_context()
    tree = toy.method.predictors(server, None, ctx)["global"].tree
    assert same_bits(tree, {name: value + 1 for name, value in server["model"].items()})
    assert same_bits(toy.method.down(server, 0, ctx)["model"], server["model"])


def test_personal_models_take_the_shared_part_that_is_tested():
    class AveragedHeads(Method):
        spec = Spec(private=frozenset({Role.HEAD}))

        def tested(self, server, ctx):
            return server | {"model": {name: value + 1 for name, value in server["model"].items()}}

    toy = world(AveragedHeads(), LABELS)
    server, state = toy.federation.server, toy.method.client_init(toy.federation.client_context(0, 1))
    tree = toy.method.predictors(server, state, toy.federation.server_context(0))["personal"].tree
    assert torch.equal(tree["fc.weight"], server["model"]["fc.weight"] + 1)
    assert torch.equal(tree["head.weight"], state["model"]["head.weight"])
