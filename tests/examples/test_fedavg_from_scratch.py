"""`examples/fedavg_from_scratch.py` ends at the weights of the library's own FedAvg, bit by bit."""

import runpy
from pathlib import Path

import fedloom as fl
from support import same_tree

PATH = Path(__file__).parents[2] / "examples" / "fedavg_from_scratch.py"


def test_the_bits_are_those_of_the_library(capsys) -> None:
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=10).build(run_seed=0)
    weights = runpy.run_path(str(PATH))["federate"](scenario, rounds=3)
    result = fl.run("fedavg", scenario=scenario, model="mlp", rounds=3, participation=0.5, engine="serial")
    assert same_tree(weights, result.memory.weights[3].server["model"])
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last.endswith(f"accuracy {100 * result.numbers['accuracy']:.1f} %")
