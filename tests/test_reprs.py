"""The repr of every object that a notebook may show takes at most three lines."""

from collections.abc import Iterator

import numpy as np
import pytest

import fedloom as fl
from fedloom.data import from_arrays, from_clients

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(120, 5)), np.arange(120) % 3


def objects() -> Iterator[tuple[str, object]]:
    described = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=10)
    built = described.build(0)
    attacked = {"attack": {"name": "label-flip", "share": 0.2}, "held_out": {"share": 0.2}, "public": 0.05}
    yield "description", described
    yield "images", built
    yield "features", fl.scenario((X, Y), clients=4)
    yield "attacked", fl.scenario("digits", clients=10, **attacked).build(0)
    yield "samples", built.train_set
    yield "views", built.train
    yield "splits", from_arrays(X, Y)
    yield "owners", from_clients([(X, Y)] * 40)
    result = fl.run(scenario=described, rounds=1, local_epochs=1)
    yield "result", result
    yield "memory", result.memory
    yield "comparison", fl.Comparison([result] * 3)
    yield "evaluation", result.evaluate((built.test_set.x, built.test_set.y))


@pytest.fixture(scope="module")
def reprs() -> dict[str, str]:
    return {name: repr(value) for name, value in objects()}


def test_the_repr_of_a_result_says_its_accuracy_and_what_it_is_of() -> None:
    protocols = ["global/global", "global/local"]
    described = fl.scenario((X, Y), clients=4)
    result = fl.run(scenario=described, rounds=2, model="logistic", evaluation={"protocols": protocols})
    accuracies = [f"{result.in_protocol(protocol).numbers['accuracy']:.2%}"[:-1] for protocol in protocols]
    assert repr(result) == (
        f"Result(fedavg (sound) on given: {accuracies[0]} % accuracy, global/global, last, 2 rounds, seed 0; "
        f"{accuracies[1]} % global/local)"
    )


def test_a_repr_has_at_most_three_lines(reprs) -> None:
    assert {name: text for name, text in reprs.items() if len(text.splitlines()) > 3} == {}


def test_a_repr_of_data_says_how_much_there_is(reprs) -> None:
    assert reprs["samples"] == "Dataset(1442 samples of shape (1, 8, 8), uint8, 10 classes)"
    assert reprs["images"].splitlines()[0] == "Scenario('digits': 10 clients, 10 classes, samples of shape (1, 8, 8);"
    assert "attack label-flip by 1 of 8 clients" in reprs["attacked"]
    assert "2 newcomers" in reprs["attacked"]
    assert "40 owners" in reprs["owners"]
    assert reprs["views"] == "Views(10 clients, 1301 samples)"
