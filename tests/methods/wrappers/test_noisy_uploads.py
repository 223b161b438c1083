"""Class tables and counts that a server reads client by client, under `+dp`: what it sees, and what that costs."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld, rdp

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods import METHODS, ServerContext
from fedloom.methods.contract.spec import Sent
from fedloom.methods.wrappers import privacy
from fedloom.methods.wrappers.noisy_uploads import NoisyUploads
from fedloom.methods.wrappers.privacy import Options
from fedloom.runs.config.run_config import parse
from support import Recording, after, configured, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
EVERY = [0, 1, 2, 3, 0, 1, 2, 3]  # two samples of each class
OWN = {"rows": Sent(per_client=True, labels=True, dp="noise")}


def noisy(tables, options, *, drawn=(0,), ctx=None):
    toy = world(configured("fedavg+dp"), [[0, 1]] * 3)
    uploads = {client: {"rows": table, "samples": 9} for client, table in enumerate(tables)}
    ctx = ctx or ServerContext(toy.task, 1)
    return NoisyUploads(options, OWN, uploads, {}, ctx, set(drawn), len(uploads))


def table_of(values, held=None):
    return ClassTable(values, torch.ones(len(values), dtype=torch.bool) if held is None else held)


# -- the mechanism -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "std"), [({"table_clip": 0.5}, 1.5), ({"row_clip": 0.1, "table_clip": 9.0}, 3.0)])
def test_the_noise_has_the_stated_deviation(options, std):
    """z R for rows cut together; for rows cut one by one, z times the length of a client with all C = 100 classes."""
    seen = noisy([table_of(torch.zeros(100, 50))] * 2, Options(noise=3.0, **options))
    first, second = (seen[client]["rows"].values.double() for client in (0, 1))
    for values in (first, second, (first - second) / math.sqrt(2)):  # of each client its own
        assert float(values.mean()) == pytest.approx(0, abs=4 * std / math.sqrt(5000))
        assert float(values.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * 5000))
    assert torch.equal(seen[0]["rows"].values, seen[0]["rows"].values)  # whenever it is read


BAD = {
    "large": torch.full((4, 3), 1e30),
    "one row": torch.tensor([[1e6, 0, 0], [0.1, 0, 0], [0, 0, 0.2], [0.3, 0, 0]]),
    "inf": torch.full((4, 3), math.inf),
    "nan": torch.full((4, 3), math.nan),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("row_clip", "longest"), [(None, 0.7), (0.25, 0.5), (10.0, 0.7)])
def test_no_upload_is_longer_than_the_clip(bad, row_clip, longest):
    """Rows cut to 0.25 of 4 classes are together no longer than 0.5."""
    options = Options(table_clip=0.7, row_clip=row_clip, noise=1.0)
    zero = table_of(torch.zeros(4, 3, dtype=torch.float64))
    cut, noise = (noisy([table], options)[0]["rows"].values for table in (table_of(BAD[bad].double(), zero.held), zero))
    moved = cut - noise
    assert moved.isfinite().all()
    assert float(moved.norm()) <= longest + 1e-9
    assert float(moved.norm(dim=1).max()) <= (row_clip or longest) + 1e-9
    if bad == "one row" and row_clip == 0.25:  # the other rows stay as they are, or are cut alone
        assert moved[1:].norm(dim=1).tolist() == pytest.approx([0.1, 0.2, 0.25], abs=1e-7)


def test_rows_are_cut_and_get_the_noise_of_the_round_and_the_client():
    values = torch.tensor([[3.0, 0, 0], [0, 4.0, 0]], dtype=torch.float64)
    seen = noisy([table_of(values)], Options(table_clip=1.0, noise=0.5))[0]["rows"]
    task = world(configured("fedavg+dp"), [[0, 1]] * 3).task
    drawn = task.streams.numpy("dp.rows", 1, 0).standard_normal((2, 3))
    assert np.allclose(seen.values.numpy(), values.numpy() / 5 + 0.5 * drawn, rtol=0, atol=1e-12)


def test_tables_of_a_fixed_number_of_clients_stand_in_random_order():
    """Replacing one of the drawn clients changes one table, not all those after it in the order of ids."""
    task = world(configured("fedavg+dp"), [[0, 1]] * 3).task
    tables = [table_of(torch.full((2, 3), float(client))) for client in range(6)]
    options, orders = Options(sampling="fixed", table_clip=15.0, noise=0.01), []
    for round_ in (1, 1, 2, 3):
        seen = noisy(tables, options, drawn=range(6), ctx=ServerContext(task, round_))
        orders.append([round(float(seen[client]["rows"].values.mean())) for client in range(6)])
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert orders[0] == orders[1]  # whenever it is read
    assert len({tuple(order) for order in orders}) > 1


# -- what the method sees of clients -------------------------------------------------------------------------
def seen_by(name, monkeypatch, participation=0.6, **options):
    """The uploads of round 1 as the method's `aggregate` gets them, and who took part."""
    toy = world(configured(f"{name}+dp", **options), LABELS, participation=participation)
    base, views = METHODS.get(name), []
    whole = base.aggregate

    def looking(self, server, uploads, ctx):
        views.append({client: dict(upload) for client, upload in uploads.items()})
        return whole(self, server, uploads, ctx)

    monkeypatch.setattr(base, "aggregate", looking)
    after(toy, 1)
    return views[0], toy.reports[0].participants


@pytest.mark.parametrize(("name", "key"), [("fedsc", "prototypes"), ("fedskc", "knowledge")])
def test_the_method_sees_neither_counts_nor_masks_nor_who_came(name, key, monkeypatch):
    seen, came = seen_by(name, monkeypatch)
    assert sorted(seen) == [0, 1, 2, 3, 4] != sorted(came)
    for upload in seen.values():
        assert upload["samples"] == 1
        assert upload[key].held.all()
        assert upload["model"]["head.bias"].count_nonzero() == 0
        assert "class_counts" not in upload or upload["class_counts"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("sampling", "said"), [("poisson", []), ("fixed", ["neighbours = 2: with 1 participant a round"])]
)
def test_neighbours_are_those_among_all_tables_that_it_sees(sampling, said):
    toy = world(configured("fedsc+dp", dp_sampling=sampling), LABELS, participation=0.2)
    notes = [note.message for note in toy.federation.initial_diagnostics if note.code == "fedsc.neighbours_clamped"]
    assert [note.partition(",")[0] for note in notes] == said


def test_a_method_that_counts_its_participants_still_counts_those_asked_for():
    """FedDyn's h moves by alpha m / N, also where DW around it gets an upload of every client."""
    h, model = {}, {}
    for name in ("feddyn+dp", "feddyn+dw+dp"):
        options = {"dw_mu": 0.0, "dw_head_bias": True} if "dw" in name else {}
        server = after(world(configured(name, alpha=0.5, **options), LABELS, participation=0.6), 1).federation.server
        h[name], model[name] = server["h"]["fc.weight"], server["model"]["fc.weight"]
    assert torch.allclose(h["feddyn+dp"], h["feddyn+dw+dp"], atol=1e-6)
    assert torch.allclose(model["feddyn+dp"], model["feddyn+dw+dp"], atol=1e-6)


def test_a_class_that_nobody_holds_adds_nothing_to_sums_over_rounds():
    """FedDW sums uploads by their counts, which are ones here, also of a class without a holder."""
    options = {"sl_cumulative": True, "absent_row": "mask", "dp_noise": 0.01}
    toy = after(world(configured("feddw+dp", **options), [[0, 1], [1, 0], [0]]), 2)
    assert toy.federation.server["soft_labels"].held.tolist() == [True, True, False, False]


# -- epsilon -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "options", "releases"),
    [
        ("fedsc+dp", {}, 2),
        ("fedskc+dp", {}, 2),
        ("fedskc+dp", {"neighbours": 0}, 3),
        ("feddw+dp", {}, 3),
        pytest.param("fednh+dp", {}, 3, marks=pytest.mark.matrix),
    ],
)
def test_epsilon_is_that_of_the_accountant_for_all_releases_of_a_round(name, options, releases):
    """Trees once, tables of clients once, averaged tables twice: together as one Gaussian with less noise a round."""
    toy = world(configured(name, dp_noise=2.5, dp_delta=1e-3, **options), LABELS, participation=0.6)
    after(toy, 2)
    event = dp_accounting.PoissonSampledDpEvent(0.6, dp_accounting.GaussianDpEvent(2.5 / releases**0.5))
    expected = pld.PLDAccountant(value_discretization_interval=1e-4).compose(event, 2).get_epsilon(1e-3)
    assert toy.reports[-1].figures["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert toy.federation.server["dp.releases"] == releases


def test_with_fixed_sampling_a_client_that_is_another_moves_twice_as_far():
    toy = world(configured("fedsc+dp", dp_noise=2.5, dp_delta=1e-3, dp_sampling="fixed"), LABELS, participation=0.6)
    after(toy, 1)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        5, 3, dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(1.25)] * 2)
    )
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    expected = rdp.RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-3)
    assert toy.reports[0].figures["epsilon"] == pytest.approx(expected, rel=1e-12)


# -- without noise -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fedsc", "fedskc", "feddw", "fednh"])
def test_without_noise_and_cuts_it_is_the_plain_method(name, monkeypatch):
    """Clients of equal size that hold all classes alike: nothing that is left out or replaced differs."""
    toys = [world(configured(word), [EVERY] * 3) for word in (name, f"{name}+dp")]
    monkeypatch.setattr(privacy, "epsilon", lambda *_: math.inf)
    limits = {"clip": 1e9, "table_clip": 1e9, "noise": 0.0}
    toys[1].method.dp = toys[1].method.dp.model_copy(update=limits)  # options refuse no noise
    plain, private = (after(toy, 3).federation.server for toy in toys)
    for key, value in plain.items():
        if isinstance(value, ClassTable):
            assert torch.equal(value.held, private[key].held)
            assert torch.allclose(value.values, private[key].values, rtol=1e-4, atol=1e-5)
        elif isinstance(value, dict):
            assert all(torch.allclose(tensor, private[key][n], rtol=1e-4, atol=1e-5) for n, tensor in value.items())


def test_fedskc_without_neighbours_needs_means_alone():
    """The mean over holders, Eq. 1 with M = 0, by hand, from what clients sent."""
    toy = after(world(configured("fedskc", neighbours=0), LABELS, engine=Recording), 1)
    assert not toy.method.spec.sends["knowledge"].per_client
    tables = [done.upload["knowledge"] for done in toy.federation.engine.done]
    sums: Tree = {"": sum(table.values.double() for table in tables)}
    holders = sum(table.held.double() for table in tables)
    found = toy.federation.server["knowledge"]
    assert torch.allclose(found.values.double(), sums[""] / holders.clamp(min=1)[:, None], rtol=0, atol=1e-6)
    assert configured("fedskc", "paper", neighbours=0).spec.sends["knowledge"].per_client  # GDA's distances


# -- engines -------------------------------------------------------------------------------------------------


# -- refusals ------------------------------------------------------------------------------------------------
def test_heads_that_go_to_other_clients_are_refused():
    with pytest.raises(ConfigError, match=r"fedco2\+dp: the server needs each client's own head"):
        configured("fedco2+dp")
    assert configured("fedco2+dp", algorithm="label_skew").spec.sends.keys() == {"model"}


def test_runs_of_before_keep_their_fingerprint():
    config = {"method": "fedavg+dp", "model": "mlp", "scenario": {"source": "digits", "partition": "iid", "clients": 4}}
    assert "dp_row_clip" not in parse(config).resolved()["fedavg+dp"]
    private = parse(config | {"fedavg+dp": {"dp_row_clip": 0.5}})
    assert private.resolved()["fedavg+dp"]["dp_row_clip"] == 0.5
    assert private.fingerprint() != parse(config).fingerprint()
