"""The four protocols on six samples and a net whose answers can be worked out by hand.

Two classes; x is 0 or 1. A tree {"answer": [a0, a1]} predicts class a0 for x = 0 and a1 for x = 1, with logits
(ln 3, 0) or (0, ln 3): probability 3/4 for the predicted class, so a hit costs ln 4/3 and a miss ln 4.
"""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedloom
from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.evaluation import PROTOCOLS, Evaluator
from fedloom.methods import METHODS
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net
from fedloom.runs.protocol_tests import score_rows
from support import scores_of

LN3, HIT, MISS = math.log(3), math.log(4 / 3), math.log(4)
IDENTITY, ZEROS, ONES = ([0.0, 1.0], [0.0, 0.0], [1.0, 1.0])


class Lookup(Net):
    """logits = ln 3 for the class that `answer` names, 0 for the other. Refuses to be tested in training mode."""

    def __init__(self):
        super().__init__()
        self.answer = torch.nn.Parameter(torch.full((2,), float("nan")))
        self.batches = []

    def forward(self, x):
        assert not self.training
        self.batches.append(len(x))
        predicted = self.answer[x.flatten().long()]
        return LN3 * torch.stack([1 - predicted, predicted], dim=1)


def views_of(*lists):
    return Views.from_lists([np.array(part, dtype=np.int64) for part in lists])


@pytest.fixture
def scenario():
    """Three clients. Test samples: client 0 holds one, client 1 five, client 2 none."""
    test_x, test_y = torch.tensor([[0.0], [0.0], [0.0], [1.0], [1.0], [1.0]]), torch.tensor([0, 0, 1, 1, 0, 0])
    train_x, train_y = torch.tensor([[0.0], [1.0], [1.0], [0.0]]), torch.tensor([0, 1, 0, 0])
    classes = ("zero", "one")
    return Scenario(
        "toy",
        Dataset(train_x, train_y, classes),
        Dataset(test_x, test_y, classes),
        train=views_of([0], [3], []),
        val=views_of([1], [], [2]),
        test=views_of([0], [1, 2, 3, 4, 5], []),
    )


def evaluate(scenario, protocol, predictors, *, split="test", batch=4, also=()):
    live = LoadedNet(Lookup().train())
    evaluator = Evaluator(scenario, protocol, batch=batch, also=also)
    return scores_of(evaluator, predictors, lambda client: live, split)


def predictor(answer, **options):
    return Predictor({"answer": torch.tensor(answer)}, **options)


SERVER = [(-1, {"global": predictor(IDENTITY)})]
CLIENTS = [(k, {"personal": predictor(answer)}) for k, answer in enumerate([ONES, ZEROS, ZEROS])]


def test_global_on_global_is_correct_over_total(scenario):
    scores = evaluate(scenario, "global/global", SERVER)
    # x = 0 0 0 1 1 1 answered 0 0 0 1 1 1, right where y = 0 0 1 1 0 0 agrees: the first, second, fourth
    assert scores.value("accuracy") == pytest.approx(3 / 6)
    assert scores.value("loss") == pytest.approx((3 * HIT + 3 * MISS) / 6, rel=1e-6)
    assert scores.clients == {}
    assert (scores.split, scores.pooled.total) == ("test", 6)


def test_global_on_local_is_the_mean_over_clients_not_over_samples(scenario):
    scores = evaluate(scenario, "global/local", SERVER)
    # client 0: 1 of 1; client 1: 2 of 5; client 2: nothing to test
    assert scores.value("accuracy") == pytest.approx((1 + 2 / 5) / 2)
    assert scores.value("loss") == pytest.approx((HIT + (2 * HIT + 3 * MISS) / 5) / 2, rel=1e-6)
    assert scores.pooled.value("accuracy") == pytest.approx(3 / 6)


def test_personal_on_global_tests_every_client_on_everything(scenario):
    scores = evaluate(scenario, "personal/global", CLIENTS)
    # always 1: 2 of 6; always 0: 4 of 6; client 2 is tested although it has no samples of its own
    assert [scores.clients[k].states["accuracy"].correct for k in range(3)] == [2, 4, 4]
    assert scores.value("accuracy") == pytest.approx((2 + 4 + 4) / 18)
    assert scores.value("loss") == pytest.approx((10 * HIT + 8 * MISS) / 18, rel=1e-6)


def test_personal_on_local_is_the_mean_over_clients_with_samples(scenario):
    scores = evaluate(scenario, "personal/local", CLIENTS)
    # client 0 always answers 1: 0 of 1; client 1 always 0: 3 of 5
    assert scores.value("accuracy") == pytest.approx((0 + 3 / 5) / 2)
    assert scores.value("loss") == pytest.approx((MISS + (3 * HIT + 2 * MISS) / 5) / 2, rel=1e-6)
    assert scores.pooled.value("accuracy") == pytest.approx(3 / 6)
    assert scores.clients[2].total == 0


@pytest.mark.parametrize(("protocol", "expected"), [("global/global", 2 / 2), ("global/local", (1 + 1) / 2)])
def test_the_val_split_is_the_clients_held_out_training_samples(scenario, protocol, expected):
    always_right = [(-1, {"global": predictor(ONES)})]
    scenario.train_set.y[2] = 1  # held out are samples 1 and 2, both now of class 1; the kept ones are of class 0
    scores = evaluate(scenario, protocol, always_right, split="val")
    assert scores.value("accuracy") == pytest.approx(expected)
    assert (scores.split, scores.pooled.total) == ("val", 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("batch", [1, 2, 5, 100])
def test_the_batch_size_of_testing_changes_nothing(scenario, protocol, batch):
    predictors = SERVER if protocol.startswith("global") else CLIENTS
    reference = evaluate(scenario, protocol, predictors, batch=6)
    scores = evaluate(scenario, protocol, predictors, batch=batch)
    assert scores.value("accuracy") == reference.value("accuracy")
    assert scores.value("loss") == pytest.approx(reference.value("loss"), rel=1e-6)
    assert scores.pooled.total == reference.pooled.total


@pytest.mark.parametrize("protocol", PROTOCOLS[:4])
def test_copying_several_batches_at_once_from_a_device_changes_nothing(scenario, protocol):
    states = []
    for copied in (1, 2, 64):
        evaluator = Evaluator(scenario, protocol, batch=2, metrics=("auroc",))
        evaluator.batches_per_copy = copied
        states.append(repr(evaluator.states(LoadedNet(Lookup()), predictor(IDENTITY), 1, "test")))
    assert states[0] == states[1] == states[2]


def test_at_most_batch_samples_pass_at_once(scenario):
    live = LoadedNet(Lookup())
    scores_of(Evaluator(scenario, "global/global", batch=4), SERVER, lambda client: live)
    assert live.net.batches == [4, 2]


def test_a_predictors_own_logits_function_is_used(scenario):
    inverted = Predictor({"answer": torch.tensor(ZEROS)}, logits=lambda net, x: -net(x))
    scores = evaluate(scenario, "global/global", [(-1, {"global": inverted})])
    assert scores.value("accuracy") == pytest.approx(2 / 6)  # as if it always answered 1


def test_the_protocols_own_kind_is_picked_among_several(scenario):
    offered = {"personal": predictor(ZEROS), "global": predictor(IDENTITY), "ensemble": predictor(ONES)}
    assert evaluate(scenario, "global/global", [(-1, offered)]).value("accuracy") == pytest.approx(3 / 6)
    assert evaluate(scenario, "personal/global", [(0, offered)]).value("accuracy") == pytest.approx(4 / 6)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_method_without_the_protocols_model_is_refused_with_a_way_out(scenario, protocol):
    kind, where = protocol.split("/")
    other = "personal" if kind == "global" else "global"
    with pytest.raises(ConfigError, match=rf"'{kind}/{where}': the method has no {kind} model; use {other}/global"):
        evaluate(scenario, protocol, [(-1, {other: predictor(ZEROS)})])


def test_nobody_with_samples_gives_nan_and_not_zero(scenario):
    empty = Scenario("toy", scenario.train_set, scenario.test_set, scenario.train, scenario.val, views_of([], [], []))
    scores = evaluate(empty, "global/local", SERVER)
    assert math.isnan(scores.value("accuracy"))
    assert math.isnan(scores.value("loss"))


@pytest.mark.parametrize("protocol", ["global/local", "global/global"])
def test_a_run_that_could_test_nobody_is_refused_before_training(scenario, protocol):
    nobody = views_of([], [], [])
    empty = Scenario("toy", scenario.train_set, scenario.test_set.head(0), scenario.train, scenario.val, nobody)
    with pytest.raises(ConfigError, match=rf"evaluation.protocol = '{protocol}': toy has no test samples; raise"):
        Evaluator(empty, protocol, batch=4).check({"global": predictor(ONES)})


def test_a_metric_that_no_validation_defines_selects_no_round(scenario):
    """Each client has validation samples of one class; together they have both."""
    apart = Evaluator(scenario, "global/local", batch=4, metrics=("auroc",))
    with pytest.raises(ConfigError, match="select_by = 'auroc': not defined on each client's validation samples"):
        apart.check_selects("auroc", "val")
    apart.check_selects("accuracy", "val")
    Evaluator(scenario, "global/global", batch=4, metrics=("auroc",)).check_selects("auroc", "val")
    tests = dataclasses.replace(scenario, test_set=scenario.train_set, test=scenario.val)
    with pytest.raises(ConfigError, match="select_by = 'auroc': not defined on each client's test samples"):
        Evaluator(tests, "global/local", batch=4, metrics=("auroc",)).check_selects("auroc", "test")


def test_normalised_samples_are_what_the_net_sees(scenario):
    shifted = Dataset(
        scenario.test_set.x * 8 + 3, scenario.test_set.y, ("zero", "one"), torch.tensor([3.0]), torch.tensor([8.0])
    )
    moved = Scenario("toy", scenario.train_set, shifted, scenario.train, scenario.val, scenario.test)
    assert evaluate(moved, "global/local", SERVER).value("accuracy") == pytest.approx(0.7)


# -- other predictors beside the protocol's own ------------------------------------------------------------------------
SEVERAL = [
    (k, {"personal": predictor(own), "online": predictor(IDENTITY), "offline": predictor(ZEROS)})
    for k, own in enumerate([ONES, ZEROS, ZEROS])
]


def test_other_predictors_are_tested_in_the_same_way(scenario):
    plain = evaluate(scenario, "personal/local", CLIENTS)
    scores = evaluate(scenario, "personal/local", SEVERAL, also=("offline", "online"))
    # client 0: x = 0, y = 0; client 1: x = 0 0 1 1 1, y = 0 1 1 0 0; client 2: nothing
    accuracies = {name: other.value("accuracy") for name, other in scores.also.items()}
    assert accuracies == {"offline": pytest.approx((1 + 3 / 5) / 2), "online": pytest.approx((1 + 2 / 5) / 2)}
    assert list(scores.also) == ["offline", "online"]
    assert [tested.value("accuracy") for tested in scores.also["online"].clients.values() if tested.total] == [
        1.0,
        2 / 5,
    ]
    assert (scores.value("accuracy"), scores.value("loss"), scores.clients) == (
        plain.value("accuracy"),
        plain.value("loss"),
        plain.clients,
    )
    values = scores.values()
    assert values.items() >= plain.values().items()
    assert {name: values[f"accuracy/{name}"] for name in accuracies} == accuracies
    others = {name.partition("/")[0] for name in values.keys() - plain.values().keys()}
    assert others == {"accuracy", "balanced_accuracy", "macro_f1"}
    rows = score_rows(1, scores, "personal/local")
    own = {
        row["client"]: row["value"] for row in rows if row["name"] == "accuracy/online" and row["client"] is not None
    }
    assert own == {0: 1.0, 1: 2 / 5}


def test_other_predictors_of_the_server_are_tested_once_on_everything(scenario):
    offered = [(-1, {"global": predictor(ONES), "other": predictor(IDENTITY)})]
    scores = evaluate(scenario, "global/global", offered, also=("other",))
    assert (scores.value("accuracy"), scores.also["other"].value("accuracy")) == (
        pytest.approx(2 / 6),
        pytest.approx(3 / 6),
    )


def test_a_predictor_that_the_method_does_not_offer_is_refused_by_name(scenario):
    live = LoadedNet(Lookup())
    evaluator = Evaluator(scenario, "personal/local", batch=4, also=("ofline",))
    says = "evaluation.also = 'ofline': the method offers offline, online, personal"
    with pytest.raises(ConfigError, match=says):
        evaluator.check(SEVERAL[0][1])
    with pytest.raises(ConfigError, match=says):
        scores_of(evaluator, SEVERAL, lambda client: live)
    good = Evaluator(scenario, "personal/local", batch=4, also=("offline",))
    good.check(SEVERAL[0][1])
    assert good.pick(SEVERAL[0][1], "offline") is SEVERAL[0][1]["offline"]


def test_every_client_is_tested_on_the_live_net_of_its_own(scenario):
    loaded_nets, asked = [LoadedNet(Lookup()), LoadedNet(Lookup())], []

    def net_of_client(client):
        asked.append(client)
        return loaded_nets[client % 2]

    scores = scores_of(Evaluator(scenario, "personal/global", batch=4), CLIENTS, net_of_client)
    assert set(asked) == {0, 1, 2}
    assert [sum(live.net.batches) for live in loaded_nets] == [12, 6]
    assert scores.value("accuracy") == pytest.approx((2 + 4 + 4) / 18)


def federated(**evaluation):
    digits = fedloom.scenario("digits", partition="iid", clients=2)
    return fedloom.run(scenario=digits, rounds=2, local_epochs=1, method="fedavg", evaluation=evaluation)


def test_a_run_has_a_row_for_each_of_the_other_accuracies(monkeypatch):
    fedavg = METHODS.get("fedavg")

    def predictors(self, server, state, ctx, real=fedavg.predictors):
        trained = real(self, server, state, ctx)
        return trained | {"first": Predictor(ctx.task.init)}

    monkeypatch.setattr(fedavg, "predictors", predictors)
    result, plain = federated(also=["first"]), federated()
    rows = {(row["round"], row["split"]): row["value"] for row in result.rows if row["name"] == "accuracy/first"}
    assert set(rows) == {(1, "test"), (2, "test"), (1, "val"), (2, "val")}
    assert rows[1, "test"] == rows[2, "test"] < result.numbers["accuracy"]
    assert result.numbers["accuracy"] == plain.numbers["accuracy"]


def test_a_run_refuses_predictors_that_it_cannot_test():
    with pytest.raises(ConfigError, match=r"evaluation\.also = 'offline': the method offers global"):
        federated(also=["offline"])
    with pytest.raises(
        ConfigError, match=r"evaluation\.also = \['global'\]: few-shot tests the server's features alone"
    ):
        federated(also=["global"], protocol="few-shot")


def test_a_metric_that_is_not_defined_for_a_client_is_averaged_over_the_others(scenario):
    live = LoadedNet(Lookup().train())
    evaluator = Evaluator(scenario, "personal/local", batch=4, metrics=["auroc"])
    scores = scores_of(evaluator, CLIENTS, lambda client: live, "test")
    values = scores.values()
    # client 0 has one class; client 1 predicts the same scores for all; client 2 has no samples
    assert (values["auroc"], values["auroc_clients"], values["clients"]) == (0.5, 1, 2)
    assert "auroc_pooled" not in values  # personal models share no scale
    assert scores.client_values()["auroc"] == {1: 0.5}
    assert "balanced_accuracy_clients" not in values
    assert (values["balanced_accuracy"], values["balanced_accuracy_pooled"]) == (0.25, 0.375)


def test_a_metric_that_is_defined_for_less_than_half_of_the_clients_has_the_pooled_value(scenario):
    live = LoadedNet(Lookup().train())
    one_class = replace(scenario, test=views_of([0, 1], [2], []))
    evaluator = Evaluator(one_class, "global/local", batch=4, metrics=["auroc"])
    scores = scores_of(evaluator, SERVER, lambda client: live, "test")
    assert [int(label) for label in one_class.test_set.y[:3]] == [0, 0, 1]
    values = scores.values()
    assert values["auroc_clients"] == 0
    assert 0 <= scores.value("auroc") == values["auroc"] == values["auroc_pooled"] <= 1
    assert scores.client_values()["auroc"] == {}


def test_a_metric_of_scores_is_refused_for_a_predictor_of_classes(scenario):
    votes = {"global": predictor(IDENTITY, labels_only=True)}
    Evaluator(scenario, "global/global", batch=4, metrics=["macro_f1"]).check(votes)
    evaluator = Evaluator(scenario, "global/global", batch=4, metrics=["recall", "auroc"])
    with pytest.raises(ConfigError, match=r"evaluation.metrics = \['auroc'\]: need scores, and the method's global"):
        evaluator.check(votes)
