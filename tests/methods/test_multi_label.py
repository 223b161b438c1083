"""Methods on samples with several labels: each trains or refuses in one line, with equal bits on all engines."""

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.flower.in_process import run_in_process
from fedloom.methods import METHODS, ClassMeans, cross_entropy, kl_divergence
from fedloom.methods.catalogue import abilities
from fedloom.methods.contract.phases import PADDING, Batch, padded_labels
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
    assert not refused & {"fedavg", "scaffold", "fedrep", "fedala", "fedskc", "fedsc", "fedssa", "fed3r"}


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
