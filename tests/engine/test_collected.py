"""Rows and moments of a client's samples: right, within their bound, and the same on every engine."""

import numpy as np
import pytest
import torch

from fedloom.core.errors import ClientError
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Batch, Collect, Objective, Train, cross_entropy
from fedloom.methods.contract.sample_statistics import Moments, Rows
from support import EVERY_ENGINE, Tiny, TinyBN, after, same_on, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0, 1, 1, 2, 3], [1]]


def inputs(net, batch, consts):
    return batch.x


def features(net, batch, consts):
    return net.features(batch.x)


class Kept(Method):
    """FedAvg with a `Collect` before and behind its training; clients keep the features of both and of all epochs."""

    max_mib, before = 1.0, True

    def loss(self, net, batch, consts):
        z = net.features(batch.x)
        return Objective(batch.mean(cross_entropy(net.head(z), batch.y)), taps={"z": z})

    def phases(self, start, ctx):
        rows = Rows(features, self.max_mib)
        train = Train(self.loss, 2, collect={"all": Rows("z"), "sums": Moments("z")}, throughout=True)
        before = [Collect({"first": rows})] if self.before else []
        return [*before, train, Collect({"rows": rows, "moments": Moments(features)})]

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        rows = {name: work.collected[name] for name in ("first", "rows", "all") if name in work.collected}
        kept = {f"{name}.{part}": getattr(value, part) for name, value in rows.items() for part in ("values", "labels")}
        return payload, kept | work.collected["moments"] | {f"all.{n}": v for n, v in work.collected["sums"].items()}


class KeptAfter(Kept):
    """`Kept` without the first pass: its clients fit one stack."""

    before = False


@pytest.mark.parametrize("kind", [Kept, KeptAfter])
@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
def test_rows_are_the_same_on_every_engine(kind, engine):
    same_on(engine, kind(), LABELS, net=TinyBN, batch_size=3)


def test_a_pass_keeps_the_stored_order_and_a_training_phase_that_of_its_steps():
    toy = after(world(Kept(), LABELS, batch_size=3), 1)
    for client in range(4):
        kept, (x, y) = toy.federation.states[client], toy.samples(client)
        with torch.no_grad():
            toy.net.load_state_dict(toy.task.init)
            first = toy.net.features(x)
        assert torch.equal(kept["first.labels"], y)
        assert torch.allclose(kept["first.values"], first, rtol=0, atol=1e-6)
        assert torch.equal(kept["rows.labels"], y)
        assert len(kept["all.values"]) == len(kept["all.labels"]) == 2 * len(y)
        assert sorted(kept["all.labels"].tolist()) == sorted([*y.tolist(), *y.tolist()])
        order = toy.task.streams.numpy("shuffle", 1, client)
        stepped = [y[torch.from_numpy(order.permutation(len(y)))] for _ in range(2)]
        assert torch.equal(kept["all.labels"], torch.cat(stepped))


def test_moments_are_those_of_numpy_in_float64():
    toy = after(world(Kept(), LABELS, batch_size=3), 1)
    for client in range(4):
        kept = toy.federation.states[client]
        for rows, prefix in (("rows", ""), ("all", "all.")):
            z = kept[f"{rows}.values"].double().numpy()
            assert kept[f"{prefix}outer"].dtype == torch.float64
            assert float(kept[f"{prefix}count"]) == len(z)
            np.testing.assert_allclose(kept[f"{prefix}sum"], z.sum(0), rtol=0, atol=1e-12)
            np.testing.assert_allclose(kept[f"{prefix}outer"], np.einsum("ni,nj->ij", z, z), rtol=0, atol=1e-12)


def test_second_moments_far_from_zero_keep_their_spread():
    z = torch.tensor([[4096.0], [4097.0], [4098.0]])
    sums = Moments("z").add({}, z, Batch(z, torch.zeros(3, dtype=torch.int64)), 1)
    scatter = sums["outer"] - sums["sum"].outer(sums["sum"]) / sums["count"]
    assert float(scatter) == 2.0  # in single precision the squares lose it


def test_padded_rows_are_left_out():
    z, y = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([2, 0, 1])
    batch = Batch(z, y, torch.tensor([True, False, True]))
    kept = Rows("z").result(Rows("z").add(Rows("z").add({}, z, batch, 3), z, batch._replace(mask=None), 3))
    assert kept.labels.tolist() == [2, 1, 2, 0, 1]
    assert kept.values.tolist() == [[1, 2], [5, 6], [1, 2], [3, 4], [5, 6]]
    moments = Moments("z").result(Moments("z").add({}, z, batch, 3))
    assert [float(moments["count"]), moments["sum"].tolist()] == [2.0, [6.0, 8.0]]
    assert moments["outer"].tolist() == [[26.0, 32.0], [32.0, 40.0]]


def test_rows_above_the_bound_are_refused_in_one_line():
    method = Kept()
    method.max_mib = 1e-4  # 104 bytes: four rows of six numbers and their labels are 128
    toy = world(method, [[0, 1, 2], [0, 1, 2, 3]], net=Tiny)
    with pytest.raises(
        ClientError, match=r"client 1 failed in round 1 .*Rows\(max_mib=0.0001\): .* raise max_mib, or"
    ) as error:
        after(toy, 1)
    assert "\n" not in str(error.value)


def test_a_copy_is_kept_not_the_nets_own_memory():
    z, y = torch.ones(2, 1), torch.zeros(2, dtype=torch.int64)
    kept = Rows(inputs).add({}, z, Batch(z, y), 1)
    z.zero_()
    assert Rows(inputs).result(kept).values.tolist() == [[1.0], [1.0]]
