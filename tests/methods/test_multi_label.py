"""Methods on samples with several labels: each trains or refuses in one line, with equal bits on all engines."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.core.trees import clone
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.flower.in_process import run_in_process
from fedloom.methods import METHODS, ClassMeans, cross_entropy, kl_divergence
from fedloom.methods.catalogue import abilities
from fedloom.methods.contract.phases import PADDING, Batch, padded_labels
from fedloom.methods.fedclassavg import supervised_contrast
from fedloom.methods.fedrcl import relaxed_contrast
from fedloom.methods.parts.contrast import Cosines, prototype_contrast, prototypes_of_table
from fedloom.runs.config.run_config import parse
from fedloom.runs.export.trained import of_result
from fedloom.runs.run import run

LABELS = ("cough", "fever", "rash")


def samples(count, rng):
    x = rng.normal(size=(count, 1, 8, 8)).astype(np.float32)
    y = (x.reshape(count, -1)[:, :3] > 0.5).astype(np.int64)
    y[rng.random(y.shape) < 0.1] = -1
    return Dataset(torch.from_numpy(x), torch.from_numpy(y), LABELS)


def equal_parts(rows):
    return Views(rows, np.linspace(0, len(rows), 4).astype(np.int64))


@pytest.fixture(scope="module")
def scenario():
    rng = np.random.default_rng(0)
    train, test = samples(111, rng), samples(60, rng)
    rows = np.arange(111, dtype=np.int64)
    views = equal_parts(rows[:81]), equal_parts(rows[81:]), equal_parts(np.arange(60, dtype=np.int64))
    return Scenario("symptoms", train, test, *views, public=samples(20, rng))


@pytest.fixture(scope="module")
def sites(scenario):
    """Only client 0 records rash, client 1 not always fever, and nobody smell."""
    owners = np.repeat(range(3), 27)
    y = torch.cat([scenario.train_set.y.abs(), torch.full((111, 1), -1)], 1)
    y[torch.from_numpy(np.flatnonzero(owners > 0)), 2] = -1
    y[40:50, 1] = -1
    parts = [Dataset(scenario.train_set.x, y, (*LABELS, "smell"))]
    test = scenario.test_set
    parts += [Dataset(of.x, torch.cat([of.y, of.y[:, :1]], 1), (*LABELS, "smell")) for of in (test, scenario.public)]
    views = scenario.train, scenario.val, scenario.test
    return Scenario("sites", *parts[:2], *views, public=parts[2])


def config_of(method, **keys):
    kind = METHODS.get(method)
    protocol = "global/local" if "global" in abilities(kind).predicts else "personal/local"
    views = {"augment": {"flip": True}} if kind.spec.views == 2 else {}
    evaluation = {"protocol": protocol, "metrics": ["auroc", "average_precision", "exact_match"]}
    fixed = {"rounds": 2, "local_epochs": 1, "batch_size": 8, "model": "mlp", "engine": "serial"}
    return parse(
        {
            "method": method,
            **fixed,
            "evaluation": evaluation,
            "scenario": {"partition": "iid", "clients": 3},
            **views,
            **keys,
        }
    )


@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_trains_or_refuses(method, scenario):
    config = config_of(method)
    if config.build_method().spec.labels == "single":
        with pytest.raises(ConfigError, match=f"'{method}' cannot train on samples with several labels: [^\n]+; take "):
            run(config, scenario=scenario)
        return
    result = run(config, scenario=scenario)
    assert 0 < result.numbers["test_loss"] < 10
    assert 0 <= result.numbers["metrics"]["auroc"] <= 1
    client = None if config.evaluation.protocol == "global/local" else 0
    one_round = run(config_of(method, rounds=1), scenario=scenario)
    one_round, trained = (of_result(of, client).module.state_dict() for of in (one_round, result))
    assert any(not torch.equal(one_round[name], value) for name, value in trained.items())


def test_what_the_specification_names_is_refused():
    refused = {name for name in METHODS.names() if config_of(name).build_method().spec.labels == "single"}
    named = "fedlc fedrs fedrod feddisco ccvr feddw feddistill fd fedntd fedgen pfedfda"
    assert refused >= {*named.split()}
    named = "fedavg scaffold fedrep fedala fedskc fedsc fedssa fed3r fedpcl fedgh fedpac gpfl fedproto feddf fedco2"
    assert not refused & {*named.split()}
    assert not any("yet" in config_of(name).build_method().spec.single_because for name in METHODS.names())


@pytest.mark.parametrize("method", ["fedavg", "fedskc", "fedsc", "fedproc", "scaffold", "fed3r", "feddecorr"])
def test_engines_agree(method, scenario):
    config = config_of(method, local_epochs=2)
    plain = run(config_of(method, local_epochs=2, engine={"name": "serial", "fast": False}), scenario=scenario)
    stacked = config_of(method, local_epochs=2, engine={"name": "batched", "same_bits": False})
    for result, tolerance in (
        (run(config, scenario=scenario), 0),
        (run_in_process(config, scenario=scenario), 0),
        (run(stacked, scenario=scenario), 1e-4),
    ):
        ours, theirs = (of.memory.weights[2].server for of in (plain, result))
        trees = [(a, theirs[name]) for name, a in ours.items() if isinstance(a, dict)]
        apart = max(float((a[key] - b[key]).abs().max()) for a, b in trees for key in a)
        assert apart <= tolerance
        assert result.numbers["metrics"] == pytest.approx(plain.numbers["metrics"], abs=0.02 if tolerance else 0)


NEW = "fedpac copa fedco2 feddf heterofl fedgh fedcda fedrcl fedplvm fedclassavg fedcgs fedavg+median"


@pytest.mark.parametrize("method", NEW.split())
def test_sites_that_record_different_labels(method, sites):
    config = config_of(method)
    plain = run(config, scenario=sites)
    nodes = run_in_process(config, scenario=sites)
    for name, ours in plain.memory.weights[2].server.items():
        theirs = nodes.memory.weights[2].server[name]
        if isinstance(ours, dict):
            assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
    assert 0 < plain.numbers["test_loss"] < 20


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedadam", "feddyn", "heterofl", "fedavg+topk", "fedavg+krum"])
def test_a_label_that_nobody_records_keeps_its_row(method, sites):
    options = {method: {"krum_faulty": 0}} if "krum" in method else {}
    optimizer = {"lr": 0.1, "weight_decay": 0.1}
    runs = (run(config_of(method, rounds=n, optimizer=optimizer, **options), scenario=sites) for n in (1, 2))
    first, last = (result.memory.weights[n].server["model"] for n, result in enumerate(runs, 1))
    for name in ("head.weight", "head.bias"):
        assert torch.equal(last[name][3], first[name][3])
    assert not torch.equal(last["head.weight"][2], first["head.weight"][2])


def test_rows_of_a_head_are_weighted_by_recorded_samples():
    trees = [{"body.weight": torch.full((2,), v), "head.weight": torch.full((2, 1), v)} for v in (1.0, 2.0)]
    counts = [(10, [10, 0]), (30, [15, 30])]
    uploads = {
        client: {"model": tree, "samples": samples, "recorded": torch.tensor(recorded)}
        for client, (tree, (samples, recorded)) in enumerate(zip(trees, counts, strict=True))
    }
    before = {client: {"model": clone(upload["model"])} for client, upload in uploads.items()}
    method = METHODS.get("fedavg")()
    by_samples, equal = method.mean(uploads), method.mean(uploads, weights="uniform")
    assert by_samples["body.weight"].tolist() == [1.75, 1.75]
    assert by_samples["head.weight"].flatten().tolist() == pytest.approx([(10 + 15 * 2) / 25, 2.0])
    assert equal["head.weight"].flatten().tolist() == pytest.approx([(1 + 0.5 * 2) / 1.5, 2.0])
    assert all(torch.equal(value, before[0]["model"][name]) for name, value in uploads[0]["model"].items())
    median = METHODS.get("fedavg+median")()
    assert median.mean(uploads)["head.weight"].flatten().tolist() == [1.5, 2.0]


def one_label(y):
    return torch.stack([y, 1 - y], 1)


@pytest.mark.parametrize(
    ("method", "options"), [("fedncm", {}), ("fedcgs", {}), ("fedcgs", {"covariance": "within"}), ("fedcof", {})]
)
def test_a_label_is_a_problem_of_two_classes(method, options, scenario):
    """The head of a label and its opposite has the difference of the rows that the two classes have."""
    heads = []
    for several in (False, True):
        parts = []
        for of in (scenario.train_set, scenario.test_set):
            y = of.y[:, 0].abs()
            parts.append(Dataset(of.x, one_label(y) if several else y, ("no", "yes")))
        split = Scenario("two", *parts, scenario.train, scenario.val, scenario.test)
        config = config_of(method, **{method: {"body": "first", **options}})
        heads.append(run(config, scenario=split).memory.weights[2].server["head"])
    two, labels = heads
    for name, rows in two.items():
        expected = rows[1] - rows[0]
        assert torch.allclose(labels[name][0], expected, atol=1e-4)
        assert torch.allclose(labels[name][1], -expected, atol=1e-4)


def test_contrasts_of_one_hot_labels_are_those_of_classes():
    rng = torch.Generator().manual_seed(0)
    z, second, y = torch.randn(9, 4, generator=rng), torch.randn(9, 4, generator=rng), torch.arange(9) % 3
    one, several = Batch(z, y), Batch(z, torch.nn.functional.one_hot(y, 3))
    for contrast in (
        lambda batch: torch.stack(relaxed_contrast(z, batch, 0.5, 0.2), 1),
        lambda batch: supervised_contrast([z, second], batch, 0.5),
    ):
        assert torch.allclose(several.by_label(z)[1].mean(contrast(several)), one.mean(contrast(one)))
    rows = torch.randn(2, 3, 4, generator=rng)
    consts = {
        "rows": rows.flatten(0, 1),
        "classes": torch.arange(3).repeat(2),
        "centres": rows.mean(0),
        "known": torch.tensor([True, True, False]),
        "start_means": ClassTable(rows[0], torch.ones(3) > 0),
    }
    net = SimpleNamespace(features=lambda x: x, head=lambda z: z[:, :3], extra=SimpleNamespace(guiding=rows[0, :, :3]))
    for name in ("fedplvm", "fedl2g"):
        method = METHODS.get(name).configured("sound", {})
        ours, theirs = (method.loss(net, batch, consts).terms for batch in (several, one))
        for term in ours.keys() - {"ce"}:
            assert torch.allclose(ours[term], theirs[term]), term


def test_losses_of_several_heads_are_those_of_each():
    rng = torch.Generator().manual_seed(0)
    logits, y = (
        torch.randn(5, 3, 2, generator=rng),
        torch.tensor([[1, 0, -1], [0, 0, 1], [-1, 1, 1], [1, 1, 0], [0, 1, -1]]),
    )
    labels = torch.stack([y, torch.where(torch.tensor([True, False, True]), y, y.clamp(max=-1))], 2)
    together = cross_entropy(logits, labels)
    for head in (0, 1):
        assert torch.allclose(together[:, head], cross_entropy(logits[..., head], labels[..., head]))


def test_padded_rows_do_not_count():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, generator=rng)
    labels = torch.tensor([[1, 0, -1], [0, 0, 1], [-1, -1, -1], [1, 1, 0], [0, 1, 1]])
    mask = torch.tensor([True, True, True, False, False])
    whole = Batch(logits[:3], labels[:3]).mean(cross_entropy(logits[:3], labels[:3]))
    padded = padded_labels(labels, mask)
    assert padded[3:].eq(PADDING).all()
    assert torch.allclose(Batch(logits, padded, mask).mean(cross_entropy(logits, padded)), whole)


def test_prototypes_are_of_recorded_positives():
    z, labels = torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[1, 0], [1, 1], [-1, 1]])
    means = ClassMeans("z")
    table = means.result(means.add({}, z, Batch(z, labels), 2))
    assert table.values.flatten().tolist() == [2.0, 4.0]


def test_only_labels_recorded_as_absent_repel():
    """A sample of the labels 0 and 1 that does not record 2 is contrasted with label 3 alone, by either positive."""
    rows = torch.eye(4)
    means = ClassMeans("z")
    table = means.result(means.add({}, rows, Batch(rows, torch.arange(4)), 4))
    z = torch.tensor([[1.0, 2.0, 5.0, 0.5]])
    values, pairs = Batch(z, torch.tensor([[1, 1, -1, 0]])).by_label(z)
    losses, _ = prototype_contrast(values, pairs, {"prototypes": prototypes_of_table(table)}, Cosines(1.0))
    cosines = z[0] / z.norm()
    expected = [-torch.log_softmax(cosines[[label, 3]], 0)[0] for label in (0, 1)]
    assert torch.allclose(pairs.mean(losses), torch.stack(expected).mean())


def test_distillation_is_of_bernoulli_distributions():
    teacher, student, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[1, 0]])
    kinds = [torch.distributions.Bernoulli(logits=logits) for logits in (teacher, student)]
    expected = torch.distributions.kl_divergence(*kinds).mean(1)
    assert torch.allclose(kl_divergence(teacher, student, labels), expected)
