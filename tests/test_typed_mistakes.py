"""A hundred mistakes that users of other libraries type, at the three doors: Python, the command line and a config.

They were written before the table of synonyms was read. The answer must be one line that holds the right word."""

import contextlib
import io
import re
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import fedloom as fl
from fedloom.cli.app import main
from fedloom.core.errors import FedloomError
from fedloom.runs.config.run_config import parse

# What is typed, and a pattern that a helpful answer matches.
PYTHON = {
    # Keras and scikit-learn
    "fl.run('fedavg', s, n_epochs=5)": "local_epochs",
    "fl.run('fedavg', s, validation_split=0.2)": r"scenario\.val\b",
    "fl.run('fedavg', s, random_state=0)": r"\bseed\b",
    "fl.run('fedavg', s, n_jobs=4)": r"engine\.workers",
    "fl.run('fedavg', s, max_iter=100)": r"\brounds\b",
    "fl.run('fedavg', s, optimizer='adamw')": r"'adam'",
    "fl.run('fedavg', s, optimizer='SGD')": r"'sgd'",
    "fl.run('fedavg', s, optimizer={'learning_rate': 0.1})": r"\blr\b",
    "fl.run('fedavg', s, optimizer=torch.optim.SGD)": r"sgd",
    "fl.run('fedavg', s, weight_decay=1e-4)": r"optimizer\.weight_decay",
    "fl.run('fedavg', s, verbose=1)": r"\bprogress\b",
    "fl.run('fedavg', s, patience=3)": r"early_stopping\.patience",
    "fl.run('fedavg', s, hidden_layer_sizes=(100,))": r"\bmodel\b",
    "fl.scenario('digits', test_size=0.2)": r"split|test_share",
    "fl.scenario('digits', n_clients=5)": r"\bclients\b",
    "fl.scenario('digits', random_state=1)": r"\bseed\b",
    "fl.run('fedavg', s, evaluation={'metrics': ['f1']})": "macro_f1",
    "fl.run('fedavg', s, evaluation={'metrics': ['roc_auc']})": "auroc",
    "fl.run('fedavg', s, evaluation={'metrics': ['log_loss']})": r"\bnll\b|\bloss\b",
    "fl.run('fedavg', s, evaluation={'metrics': ['balanced_acc']})": "balanced_accuracy",
    "fl.run('fedavg', s, evaluation={'metrics': 'auroc'})": r"\[",
    "fl.run('fedavg', s, evaluation={'metric': ['auroc']})": r"\bmetrics\b",
    # Hugging Face
    "fl.run('fedavg', s, num_train_epochs=3)": "local_epochs",
    "fl.run('fedavg', s, per_device_train_batch_size=16)": "batch_size",
    "fl.run('fedavg', s, output_dir='runs/x')": r"\bout\b",
    "fl.run('fedavg', s, resume_from_checkpoint=True)": r"\bexisting\b",
    "fl.run('fedavg', s, fp16=True)": r"\bprecision\b",
    "fl.run('fedavg', s, eval_steps=5)": r"evaluation\.every",
    "fl.run('fedavg', s, load_best_model_at_end=True)": r"best_val",
    "fl.run('fedavg', s, lr_scheduler_type='cosine')": r"optimizer\.(decay|lr)",
    # Flower, PFLlib, FL-bench
    "fl.run('fedavg', s, num_rounds=5)": r"\brounds\b",
    "fl.run('fedavg', s, fraction_fit=0.5)": "participation",
    "fl.run('fedavg', s, global_rounds=5)": r"\brounds\b",
    "fl.run('fedavg', s, join_ratio=0.5)": "participation",
    "fl.run('fedavg', s, local_learning_rate=0.01)": r"optimizer\.lr",
    "fl.run('fedavg', s, num_clients=10)": r"scenario\.clients",
    "fl.run('fedavg', s, strategy='fedprox')": r"\bmethod\b",
    "fl.run('fedprox', s, proximal_mu=0.1)": r"fedprox",
    "fl.run('fedprox', s, mu=0.1)": r"fedprox",
    "fl.run('fedprox', s, fedprox={'lambda': 0.1})": r"\bmu\b",
    "fl.run('fedopt', s)": r"fedadam|fedyogi",
    "fl.run('krum', s)": r"fedavg\+krum",
    "fl.run('dp-fedavg', s)": r"fedavg\+dp",
    "fl.run('per-fedavg', s)": "perfedavg",
    "fl.run('q-ffl', s)": "qfedavg",
    "fl.run('centralized', s)": r"'central'",
    "fl.run('standalone', s)": r"'local'",
    "fl.scenario('digits', partition='pathological')": r"shards|classes",
    "fl.scenario('digits', partition='dir')": "'dirichlet'",
    "fl.scenario('digits', partition='quantity_skew')": r"quantity",
    "fl.scenario('digits', beta=0.1)": r"\balpha\b",
    "fl.scenario('digits', num_partitions=5)": r"\bclients\b",
    "fl.scenario('fmnist')": "fashion-mnist",
    "fl.scenario('medmnist')": r"npz|medmnist",
    # names of parts
    "fl.run('fedavg', s, model='resnet18')": "resnet18-cifar",
    "fl.run('fedavg', s, model='cnn')": "fedloom models",
    "fl.run('fedavg', s, model=torch.nn.Linear)": r"model Linear",
    "fl.run('fedavg', s, engine='multiprocessing')": "processes",
    "fl.run('fedavg', s, engine='cuda')": r"engine\.device|device",
    "fl.run('fedavg', s, engine={'num_workers': 2})": r"\bworkers\b",
    "fl.run('fedavg', s, evaluation={'protocol': 'personal'})": r"personal/local",
    "fl.run('fedavg', s, evaluation='auroc')": r"metrics|section|mapping",
    # values of the wrong kind
    "fl.run('fedavg', s, rounds='ten')": r"rounds.*whole|rounds.*integer",
    "fl.run('fedavg', s, participation=50)": r"participation.*1",
    "fl.run('fedavg', s, seed=[0, 1])": r"fl\.compare|compare",
    "fl.run(['fedavg', 'fedsc'], s)": r"fl\.compare",
    "fl.run(s)": r"fl\.run\('fedavg', scenario\)",
    "fl.run('fedavg', s, callbacks=[print])": r"Callback",
    "fl.compare(['fedavg', 'fedsc'], s, n_seeds=2)": r"\bseeds\b",
    "fl.compare(['fedavg', 'fedsc'], s, n_jobs=2)": r"\bjobs\b",
    "fl.compare(fedavg=1)": r"scenario is missing",
    # results
    "result.curve('acuracy')": "accuracy",
    "result.plot('val_loss')": r"loss",
    "result.model(at='best')": r"best_val",
    "result.history": r"curve|rows",
    "result.score": r"accuracy|numbers",
    "fl.train('fedavg', s)": r"fl\.run|\brun\b",
    "fl.Trainer": r"fl\.run|\brun\b",
    "fl.load('nowhere')": r"no such|nowhere",
}
COMMANDS = {
    "train configs/demo.yaml": r"\brun\b",
    "eval runs/mine": r"\bevaluate\b",
    "tune configs/demo.yaml": r"\bstudy\b",
    "plot runs/mine": r"\bfigure\b",
    "server configs/demo.yaml": r"\bflower\b",
    "run configs/demo.yaml --epochs 3": r"local_epochs=",
    "run configs/demo.yaml --lr 0.1": r"optimizer\.lr=",
    "run configs/demo.yaml --output x": r"--out\b",
    "run configs/demo.yaml --method fedsc": r"method=",
    "run configs/demo.yaml --gpu 0": r"engine\.device=",
    "run demo rounds:3": r"rounds=3|key=value",
    "run fedsc": r"method=fedsc",
    "compare demo fedavg fedsc": r"--methods",
}
CONFIGS = {
    "epochs: 3": "local_epochs",
    "lr: 0.1": r"optimizer\.lr",
    "dataset: digits": r"scenario\.source",
    "scenario: {name: digits}": r"\bsource\b",
    "seeds: [0, 1]": r"\bseed\b",
    "optimizer: {type: sgd}": r"\bname\b",
    "evaluation: {freq: 5}": r"\bevery\b",
    "gpu: true": r"engine\.device",
}
DOORS = {"python": PYTHON, "command": COMMANDS, "config": CONFIGS}
MISTAKES = [(door, typed, helps) for door, mistakes in DOORS.items() for typed, helps in mistakes.items()]


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    x, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
    scenario = fl.scenario((x, y), clients=2, partition="iid")
    return {
        "fl": fl,
        "torch": torch,
        "s": scenario,
        "x": x,
        "y": y,
        "result": fl.run("fedavg", scenario, rounds=1, progress=False),
    }


def answer(door: str, typed: str, names: dict[str, Any]) -> str:
    """Return what the user reads; "" if nothing is said."""
    said = io.StringIO()
    try:
        if door == "python":
            eval(typed, dict(names))  # noqa: S307 - the mistakes above
        elif door == "config":
            parse({"scenario": {"source": "digits", "partition": "iid"}, **yaml.safe_load(typed)})
        else:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                main(typed.split())
    except (FedloomError, AttributeError) as error:
        return str(error)
    except SystemExit as end:
        return said.getvalue().strip() if end.code == 2 else f"RAW exit {end.code}: {said.getvalue()}"
    except Exception as error:
        return f"RAW {error!r}"
    return ""


def test_there_are_a_hundred() -> None:
    assert len(MISTAKES) == 100


@pytest.mark.parametrize(("door", "typed", "helps"), MISTAKES)
def test_one_line_helps(door: str, typed: str, helps: str, names: dict[str, Any]) -> None:
    said = answer(door, typed, names)
    assert not said.startswith("RAW")
    assert re.search(helps, said)
    assert "\n" not in said
    assert len(said) < 400
