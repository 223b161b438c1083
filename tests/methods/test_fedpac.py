"""FedPAC against golden numbers of three rounds; its head weights; who keeps which head."""

import pytest
import torch

from fedloom.core.records import get_table, get_tree
from fedloom.methods import METHODS, ClassTable
from fedloom.methods.fedpac import head_weights, minimum_on_simplex, weighted_means
from golden_world import CLASS_KNOWLEDGE, golden_run, matches, mistakes, noting_uploads, personal, probe
from support import TinyBN, configured, furthest, same_tree, world

GOLD = CLASS_KNOWLEDGE["fedpac"]
OPTIONS = GOLD["options"]
FEDPAC = METHODS.get("fedpac")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
RUN = {"weight": OPTIONS["weight"], "head_lr": OPTIONS["head_lr"], "drawn": OPTIONS["rounds"], "cut": OPTIONS["cut"]}
INIT = CLASS_KNOWLEDGE["world"]["init"]


def told(server):
    """What the golden probes cover: body, rows, and the heads of all clients."""
    first = {name: torch.tensor(INIT[name], dtype=torch.float64) for name in ("head.weight", "head.bias")}
    tree = dict(get_tree(server, "model")) | {"rows": get_table(server, "prototypes").values}
    for client in range(3):
        head = get_tree(server, f"head.{client}") if f"head.{client}" in server else first
        tree |= {f"{client}/{name}": head[name] for name in first}
    return tree


def probe_of(**options):
    _, servers = golden_run(FEDPAC, **{**RUN, **options})
    tree = told(servers[-1])
    return probe(tree, tree)


def test_golden_rounds():
    kind, uploads = noting_uploads(FEDPAC)
    federation, servers = golden_run(kind, **RUN)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        assert matches({"": get_table(server, "prototypes").values}, {"": wanted["rows"]}, tolerance=2e-6)
        assert get_table(server, "prototypes").held.tolist() == wanted["held"]
        weights = torch.tensor(list(wanted["head_weights"].values())).double()
        assert torch.allclose(server["head_weights"].double(), weights, rtol=0, atol=2e-6)
        sent = uploads[f"round{number}"]
        assert [float(upload["variance"]) for upload in sent.values()] == pytest.approx(wanted["variance"], abs=2e-6)
        for client, h in wanted.get("h", {}).items():
            means, counts = ClassTable.stack([sent[client]["start_means"]]), sent[client]["class_counts"]
            assert matches({"": weighted_means(means, counts.unsqueeze(0), [counts.sum()])[0]}, {"": h}, tolerance=2e-6)
        tree = told(server)
        for client, head in wanted["heads"].items():
            assert matches(tree, {f"{client}/{name}": value for name, value in head.items()}, tolerance=2e-6)
        assert abs(probe(tree, tree) - wanted["probe"]) < 2e-5
    for client, head in GOLD["out"]["round3"]["heads"].items():
        assert matches(personal(federation, int(client)), head | GOLD["out"]["round3"]["server"], tolerance=2e-6)


def test_golden_variants_and_mistakes():
    found = probe_of()
    assert all(abs(found - value) > 1e-4 for value in mistakes(GOLD))
    assert abs(probe_of(weights="uniform") - GOLD["uniform_rows_probe"]) < 2e-5
    assert abs(probe_of(unknown="none") - GOLD["no_pull_for_unknown_probe"]) < 2e-5
    both = probe_of(weights="uniform", unknown="none")
    assert abs(both - GOLD["uniform_rows_no_pull_for_unknown_probe"]) < 2e-5


def statistics():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 2, 4, generator=generator).double()
    held = torch.ones(3, 2, dtype=torch.bool)
    return (ClassTable(values, held), torch.tensor([[3, 1], [2, 2], [1, 4]]), torch.tensor([0.4, 0.9, 0.3]).double())


def h_of(means, counts):
    return weighted_means(means, counts, counts.sum(1).tolist())


def test_equal_statistics_give_equal_weights():
    means, counts, _ = statistics()
    alike = ClassTable(means.values[[0, 0, 0]], means.held)
    weights = head_weights(h_of(alike, counts[[0, 0, 0]]), torch.full((3,), 0.5).double(), 1e-3)
    assert torch.allclose(weights, torch.full((3, 3), 1 / 3).double())


def test_noisy_and_distant_heads_have_no_weight():
    means, counts, variances = statistics()
    noisy = head_weights(h_of(means, counts), variances + torch.tensor([0.0, 1e9, 0.0]), 1e-3)
    assert float(noisy[[0, 2], 1].max()) == 0
    far = head_weights(1e4 * h_of(means, counts), variances, 1e-3)
    assert torch.allclose(far, torch.eye(3).double(), atol=1e-6)


def test_without_its_term_and_mixes_it_is_fedrep():
    """In round 1, after which a client has its own head still and the server has mixed it."""
    pac, rep = (
        world(configured(name, **o), LABELS, net="mlp", shape=(1, 3, 3), participation=1.0)
        for name, o in (("fedpac", {"weight": 0, "head_lr": 0.1}), ("fedrep", {"head_epochs": 1, "body_epochs": 1}))
    )
    for toy in (pac, rep):
        toy.federation.step()
    assert furthest(pac.federation.server["model"], rep.federation.server["model"]) == 0
    for client in range(len(LABELS)):
        assert same_tree(pac.federation.states[client]["model"], rep.federation.states[client]["model"])


def test_a_client_is_tested_with_the_servers_head_and_keeps_it_while_it_sits_out():
    toy = world(configured("fedpac"), LABELS, net=TinyBN, participation=0.5)
    toy.federation.step()
    heads = {name: value for name, value in toy.federation.server.items() if name.startswith("head.")}
    assert len(heads) == 2
    drawn = int(next(iter(heads)).partition(".")[2])
    tree = personal(toy.federation, drawn)
    assert torch.equal(tree["head.weight"], heads[f"head.{drawn}"]["head.weight"])
    other = next(client for client in range(4) if f"head.{client}" not in heads)
    assert torch.equal(personal(toy.federation, other)["head.weight"], toy.task.init["head.weight"])
    report = toy.federation.step()
    resting = [name for name in heads if int(name.partition(".")[2]) not in report.participants]
    assert all(toy.federation.server[name] is heads[name] for name in resting)


def test_a_client_of_one_sample_keeps_its_own_head():
    toy = world(configured("fedpac"), LABELS)
    toy.federation.step()
    assert toy.federation.server["head_weights"][3].tolist() == [0, 0, 0, 1]


def test_mixes_that_are_none_are_reported():
    toy = world(configured("fedpac"), LABELS)
    context = toy.federation.server_context()
    codes = [
        [found.code for found in toy.method.diagnostics({"head_weights": weights}, {}, context)]
        for weights in (torch.eye(2), torch.full((2, 2), 0.5), torch.tensor([[0.6, 0.4], [0.3, 0.7]]), torch.eye(1))
    ]
    assert codes == [["fedpac.own_heads"], ["fedpac.mean_heads"], [], []]


def test_statistics_that_are_not_finite_leave_every_client_its_own_head() -> None:
    means = ClassTable(torch.full((3, 2, 4), torch.nan), torch.ones(3, 2, dtype=torch.bool))
    weights = head_weights(h_of(means, torch.ones(3, 2)), torch.ones(3, dtype=torch.float64), cut=0.0)
    assert torch.equal(weights, torch.eye(3, dtype=torch.float64))


def test_a_class_that_nobody_holds_this_round_keeps_its_mean():
    class_ = CLASS_KNOWLEDGE["world"]["held_by_one_client"]["E"]
    holder = next(k for k, y in enumerate(CLASS_KNOWLEDGE["world"]["y"]) if class_ in y)
    others = [k for k in range(3) if k != holder]
    _, servers = golden_run(FEDPAC, **{**RUN, "drawn": [[holder, others[0]], others]})
    first, second = (get_table(server, "prototypes") for server in servers)
    assert first.held[class_]
    assert second.held[class_]
    assert torch.equal(second.values[class_], first.values[class_])
    assert float(first.values[class_].abs().max()) > 0


def conditions_hold(matrix, weights):
    """Whether weights are on the simplex, and every slope is that of the value, or above it outside the support."""
    slopes = matrix @ weights
    value, scale = weights @ slopes, float(matrix.abs().max())
    gaps = slopes - value
    return (
        abs(float(weights.sum()) - 1) < 1e-12
        and bool((weights >= 0).all())
        and bool((gaps >= -1e-9 * scale).all())
        and bool((gaps[weights > 0].abs() < 1e-9 * scale).all())
    )


def test_golden_weights():
    found = minimum_on_simplex(torch.tensor(GOLD["quadratic"]["p"]))
    assert torch.allclose(found, torch.tensor(GOLD["quadratic"]["argmin"]).double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("count", [2, 5, 20])
@pytest.mark.parametrize("rank", [1, 3, 30])
def test_conditions_of_an_optimum(count, rank):
    generator = torch.Generator().manual_seed(count * 100 + rank)
    for scale in (1e-6, 1.0, 1e6):
        factors = torch.randn(count, rank, generator=generator).double() + 0.5
        matrix = scale * (factors @ factors.T + torch.rand(count, generator=generator).double().diag())
        weights = minimum_on_simplex(matrix)
        assert conditions_hold(matrix, weights)
        order = torch.randperm(count, generator=generator)
        assert torch.allclose(minimum_on_simplex(matrix[order][:, order]), weights[order], rtol=0, atol=1e-9)


def test_singular_matrices():
    assert float(minimum_on_simplex(torch.zeros(3, 3)).sum()) == pytest.approx(1.0)
    weights = minimum_on_simplex(torch.ones(3, 3))
    assert conditions_hold(torch.ones(3, 3).double(), weights)
    alone = torch.diag(torch.tensor([0.0, 1.0, 1.0]))
    assert minimum_on_simplex(alone).tolist() == [1.0, 0.0, 0.0]
