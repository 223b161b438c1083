"""The tests of a run: which protocols the method offers, and the metric rows of a round and of its tests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import listed, lists_by_key
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, RoundReport, Worker
from fedloom.engine.jobs import EvalResult
from fedloom.evaluation import Evaluator, FewShotEvaluator, Scores
from fedloom.evaluation.fewshot import FewShotScores
from fedloom.evaluation.intervals import Tested, intervals, intervals_over_nodes
from fedloom.evaluation.metrics.basic import SampleScores
from fedloom.evaluation.metrics.calibration import at_threshold, best_threshold, scores_in
from fedloom.evaluation.own_metrics import check_own_metrics
from fedloom.evaluation.protocols import Majority, majority, no_model_error
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Predictor
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.setup import Setup
from fedloom.runs.storage.log import Row, accuracies, new_row, of_protocol, value_at_selected_round


def training_rows(report: RoundReport) -> list[Row]:
    """Return rows of a round's costs, the method's figures, its diagnostics, and the mean terms of its loss."""
    samples = {
        "held": report.samples_by_group,
        "closing": report.closing_samples_by_group,
        "opening": report.opening_samples_by_group,
    }
    values: dict[str, float] = {
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "participants": len(report.participants),
        "steps": report.steps,
        "samples": report.samples,
        **{f"samples_{kind}/{group}": count for kind, groups in samples.items() for group, count in groups.items()},
        **{f"seconds_{part}": getattr(report.seconds, part) for part in ("train", "aggregate", "move")},
        **report.figures,
    }
    values |= {f"degenerate/{f.code}": f.figure for f in report.diagnostics}
    rows = [new_row(report.round, name, value) for name, value in values.items()]
    return rows + [new_row(report.round, name, value, "train") for name, value in report.terms.items()]


def score_rows(round_: int, scores: Scores | FewShotScores, protocol: str) -> list[Row]:
    """Return the rows of one test of `protocol` after round `round_`: the scores, then the values of each client."""
    rows = [new_row(round_, name, value, scores.split, protocol) for name, value in scores.values().items()]
    return rows + [
        new_row(round_, name, value, scores.split, protocol, client)
        for name, by_client in scores.client_values().items()
        for client, value in by_client.items()
    ]


def rank_metric_notes(config: RunConfig, scenario: Scenario) -> list[str]:
    """Say on how many clients of a scenario a rank metric of the config is defined: those that test two classes."""
    names = [name for name in ("auroc", "average_precision") if name in config.evaluation.metrics]
    if not names or scenario.remote or not any(name.endswith("/local") for name in config.evaluation.tested_protocols):
        return []
    counts = scenario.test.class_counts(scenario.test_set.y.numpy(), scenario.test_set.num_classes)
    defined, clients = int(((counts > 0).sum(1) > 1).sum()), scenario.clients
    is_few = 2 * defined < clients and any(name == "global/local" for name in config.evaluation.tested_protocols)
    pooled = "; in global/local its value is therefore that of all test samples together" if is_few else ""
    return [f"`{names[0]}` is defined on {defined:,} of {clients:,} clients{pooled}"] if defined < clients else []


class ProtocolTests:
    """Tests a federation in each protocol that its method offers, the main one first. By protocol, `evaluators` has
    those, `not_offered` why others are left out, `details` and `client_details` values of the last test. Raises
    `ConfigError` if none is offered, and for tests that cannot be done."""

    def __init__(self, config: RunConfig, setup: Setup, worker: Worker, federation: Federation) -> None:
        self.config, self.federation, self.worker = config, federation, worker
        self.evaluators = {**setup.evaluators(config, worker, federation.scenario)}
        self.not_offered: dict[str, str] = {}
        self.details: dict[str, dict[str, dict[str, Any]]] = {}
        self.client_details: dict[str, dict[str, Mapping[str, list[int]]]] = {}
        self._last: dict[tuple[str, str], tuple[Scores, Tested]] = {}  # by protocol and split, where they are needed
        self._decision: dict[str, tuple[int, float]] = {}  # class and threshold, by protocol
        kinds = {evaluator.model_kind for evaluator in self.evaluators.values()}
        offered_by_kind = {kind: next(self._predictors(kind, 0))[1] for kind in kinds}
        if len(self.evaluators) > 1:
            self._leave_out_not_offered(offered_by_kind)
        for evaluator in self.evaluators.values():
            self._check_evaluation(evaluator, offered_by_kind[evaluator.model_kind])
            if isinstance(evaluator, Evaluator):
                self._check_decision(evaluator)
                check_own_metrics(config.evaluation.metrics, evaluator.example_states())

    @property
    def main(self) -> str:
        """The protocol by which the run is judged: the first that the method offers."""
        return next(iter(self.evaluators))

    @property
    def lacks_details(self) -> bool:
        """Whether no test since the start has given details, which a resumed run may need."""
        return not self.details and any(isinstance(evaluator, Evaluator) for evaluator in self.evaluators.values())

    def notes(self) -> list[str]:
        """Say once in which protocols the method is not tested, and how many clients have no test samples."""
        reasons = lists_by_key((reason, protocol) for protocol, reason in self.not_offered.items())
        notes = [f"{reason}, so it is not tested in {listed(protocols)}" for reason, protocols in reasons.items()]
        scenario = self.federation.scenario
        without_tests = 0 if scenario.remote else int((scenario.test.sizes == 0).sum())
        if without_tests and any(protocol.endswith("/local") for protocol in self.evaluators):
            count = f"{without_tests:,} of {scenario.clients:,}"
            notes.append(f"clients without test samples: {count}; means over clients leave them out")
        return notes + rank_metric_notes(self.config, scenario)

    def rows(self, round_: int) -> list[Row]:
        """Return the rows of the tests after a round, in all protocols and on all splits."""
        rows = list[Row]()
        for protocol, evaluator in self.evaluators.items():
            rows += [row for split in evaluator.splits for row in self._rows_of_split(round_, protocol, split)]
            rows += self._decision_rows(round_, protocol)
        return rows

    def _decision_rows(self, round_: int, protocol: str) -> list[Row]:
        """Choose the threshold of a global model on the validation samples of a round, and test it."""
        decision = self.config.evaluation.decision
        if decision is None or not protocol.startswith("global"):
            return []
        label = self.federation.scenario.class_names.index(decision.label)
        test, val = (self._last[protocol, split][0] for split in ("test", "val"))
        chosen = best_threshold(val.pooled, label, *decision.rule_parts())
        rows = [new_row(round_, f"decision_{name}", value, "val", protocol) for name, value in chosen.items()]
        if "threshold" in chosen:
            self._decision[protocol] = label, chosen["threshold"]
        tested = at_threshold(test.pooled, label, chosen.get("threshold"))
        return [*rows, *(new_row(round_, name, value, "test", protocol) for name, value in tested.items())]

    def intervals(self, protocol: str) -> dict[str, Any]:
        """Return the intervals of the last test under the key "intervals"; empty where none were asked for."""
        evaluator, settings = self.evaluators[protocol], self.config.evaluation.intervals
        if settings is None or not isinstance(evaluator, Evaluator):
            return {}
        (scores, tested), decision = self._last[protocol, "test"], self._decision.get(protocol)
        samples = [of[evaluator.names[0]].states.get(SampleScores.key) for of in tested.values()]
        if any(isinstance(of, SampleScores) and not len(of.logits) for of in samples):  # they are kept by nodes
            again: dict[int, EvalResult] = {}
            if evaluator.data_kind == "local":
                pooled = evaluator.scores("test", tested).pooled.portable()
                again = self._tested(evaluator, protocol, "test", pooled=pooled, decision=decision)
            sent = {client: result.tested for client, result in again.items()}
            sent = sent if sent.keys() == tested.keys() else {}  # else a node has gone meanwhile
            return {"intervals": intervals_over_nodes(evaluator, scores, sent, decision, settings.level)}
        rng = self.federation.tasks[0].streams.numpy("intervals")

        def decided(scores: Scores) -> dict[str, float]:
            return {} if decision is None else at_threshold(scores.pooled, *decision)

        return {"intervals": intervals(evaluator, tested, decided, rng, **settings.model_dump())}

    def predictions(self) -> Iterator[tuple[int, SampleScores]]:
        """Return the scores in the last test of the main protocol, by client or slice."""
        kind = self.main.partition("/")[0]
        tests = self._last[self.main, "test"][1]
        states = ((client, tests[client][kind].states.get(SampleScores.key)) for client in sorted(tests, key=abs))
        return ((client, samples) for client, samples in states if isinstance(samples, SampleScores))

    def own_metrics(self, protocol: str) -> tuple[str, ...]:
        """Name the metrics that only this protocol computes."""
        evaluator = self.evaluators[protocol]
        return evaluator.own_metrics if isinstance(evaluator, Evaluator) else ()

    def baselines(self) -> dict[str, Majority | None]:
        """Return the majority baseline of each protocol."""
        scenario = self.federation.scenario
        return {protocol: majority(scenario, protocol.partition("/")[2]) for protocol in self.evaluators}

    def not_above_majority(self, rows: Sequence[Row]) -> list[Diagnostic]:
        """Return a diagnostic for each protocol in which the accuracy is not above that of the majority class."""
        baselines = ((name, baseline) for name, baseline in self.baselines().items() if baseline)
        diagnostics = [self._not_above(baseline, name, of_protocol(rows, name)) for name, baseline in baselines]
        return [diagnostic for diagnostic in diagnostics if diagnostic]

    def _not_above(self, baseline: Majority, protocol: str, rows: Sequence[Row]) -> Diagnostic | None:
        """Return a diagnostic if the accuracy is not above the baseline; it names classes that were never found."""
        evaluation, details = self.config.evaluation, self.details.get(protocol, {})
        accuracy = accuracies(rows, evaluation.last_k, evaluation.criterion())[evaluation.select]
        kind, classes = protocol.partition("/")[0], self.federation.scenario.test_set.classes
        to_beat = baseline.to_beat(kind)
        # Equal shares may differ in their last bits, as they are computed in different ways.
        if accuracy is None or not accuracy <= to_beat + 1e-9:
            return None
        own = kind == "personal" and to_beat == baseline.own
        guess = "the most frequent class" + (" of each client" if own else f", {classes[baseline.label]},")
        text = f"accuracy {100 * accuracy:.1f} % is not above the {100 * to_beat:.1f} % that always "
        text += f"predicting {guess} gives"
        rule = evaluation.select, evaluation.last_k, evaluation.criterion()
        balanced = value_at_selected_round(rows, "balanced_accuracy", *rule)
        chance = details.get("balanced_accuracy", {}).get("chance")
        if balanced is not None and chance is not None:
            pooled = protocol == "global/global"  # the chance of a client's test depends on its classes
            means = f"chance {chance:.3f}" if pooled else "mean over clients"
            text += f" (balanced accuracy {balanced:.3f}, {means})"
        recall = details.get("recall", {}).get("by_class", [])
        if missed := [name for name, value in zip(classes, recall, strict=False) if value == 0]:
            named = ", ".join(missed[:5]) + (", ..." if len(missed) > 5 else "")
            text += f"; no test sample of {len(missed)} of {len(recall)} classes is found ({named})"
        code = "not_above_majority"
        if evaluation.protocols:
            code, text = f"{code}/{protocol}", f"{protocol}: {text}"
        return Diagnostic(code, text[:2000], accuracy - to_beat)

    def _check_evaluation(self, evaluator: Evaluator | FewShotEvaluator, offered: dict[str, Predictor]) -> None:
        config, method = self.config, self.federation.method
        if isinstance(evaluator, Evaluator) and evaluator.model_kind not in offered:
            raise no_model_error(method.name(), f"{evaluator.model_kind}/{evaluator.data_kind}")
        evaluator.check(offered)
        val_key, select = config.scenario.val_key, config.evaluation.select
        if select == "best_val" and "val" not in evaluator.splits:
            raise ConfigError(f"evaluation.select = 'best_val': there is no validation data; set {val_key} above 0")
        if isinstance(evaluator, Evaluator) and select in ("best_val", "best_test"):
            evaluator.check_selects(config.evaluation.select_by, "val" if select == "best_val" else "test")
        if config.early_stopping is not None and "val" not in evaluator.splits:
            raise ConfigError(f"early_stopping: there is no validation data; set {val_key} above 0, or leave it out")
        if config.early_stopping is not None and method.closing() is not None:
            raise ConfigError(f"early_stopping: {config.method} trains once more after its last round; leave it out")

    def _check_decision(self, evaluator: Evaluator) -> None:
        """Raise `ConfigError` for an unknown class, and without validation samples of both kinds."""
        decision, scenario = self.config.evaluation.decision, self.federation.scenario
        if decision is None or evaluator.model_kind != "global":
            return
        if decision.label not in scenario.class_names:
            why = suggest_name(decision.label, scenario.class_names)
            raise ConfigError(f"evaluation.decision.class = {short_repr(decision.label)}: {why}")
        y, label = scenario.train_set.y.cpu().numpy()[scenario.val.order], scenario.class_names.index(decision.label)
        labels = y[y[:, label] >= 0, label] == 1 if y.ndim == 2 else y == label
        positives = int(labels.sum())
        if "val" not in evaluator.splits or (not scenario.remote and positives in (0, len(labels))):
            raise ConfigError(
                f"evaluation.decision: {positives:,} of {len(labels):,} validation samples are of class "
                f"{decision.label}; a threshold needs samples of both kinds: raise {self.config.scenario.val_key}"
            )

    def _leave_out_not_offered(self, offered_by_kind: Mapping[str, Mapping[str, Predictor]]) -> None:
        """Leave out protocols whose model the method lacks, and predictors that another protocol tests."""
        method, also = self.federation.method.name(), self.config.evaluation.also
        # a comparison may test personal and global methods side by side, each in its own protocols
        for protocol, evaluator in list(self.evaluators.items()):
            if evaluator.model_kind not in offered_by_kind[evaluator.model_kind]:
                self.not_offered[protocol] = f"{method} has no {evaluator.model_kind} model"
                del self.evaluators[protocol]
                self.worker.evaluators.pop(protocol, None)
        if not self.evaluators:
            asked = ", ".join(self.not_offered)
            reasons = listed(dict.fromkeys(self.not_offered.values()))
            problem = f"{reasons}; `fedloom methods {method}` lists the models it has"
            raise ConfigError(f"evaluation.protocols = [{asked}]: {problem}")
        tested = [offered_by_kind[evaluator.model_kind] for evaluator in self.evaluators.values()]
        unknown = next((name for name in also if not any(name in offered for offered in tested)), None)
        if unknown is not None:
            names = sorted({name for offered in tested for name in offered})
            raise ConfigError(f"evaluation.also = '{unknown}': the method offers {', '.join(names)}")
        for evaluator in self.evaluators.values():
            if isinstance(evaluator, Evaluator):
                evaluator.leave_to_others(offered_by_kind[evaluator.model_kind])

    def _rows_of_split(self, round_: int, protocol: str, split: str) -> list[Row]:
        evaluator, federation = self.evaluators[protocol], self.federation
        if not isinstance(evaluator, Evaluator):
            with federation.tasks[0].streams.isolated("test", round_, device=self.worker.device):
                predictors = self._predictors(evaluator.model_kind, round_)
                return score_rows(round_, evaluator.scores(split, predictors), protocol)
        results = self._tested(evaluator, protocol, split)
        tested = {client: result.tested for client, result in results.items()}
        adapted = sum(result.samples for result in results.values())
        scores = evaluator.scores(split, tested)
        if bins := self._bins_for_second_test(round_, scores, evaluator):
            refined = self._tested(evaluator, protocol, split, bins=bins)
            again = {client: result.tested for client, result in refined.items()}
            if again.keys() == tested.keys():  # else a node has gone meanwhile
                scores = scores.with_pooled(evaluator.scores(split, again))
        if self.config.evaluation.decision is not None or self.config.keeps_scores:
            self._last[protocol, split] = scores, tested
        if split == "test":
            self.details[protocol] = scores.details()
            self.client_details[protocol] = {str(client): of for client, of in scores.client_details.items()}
        rows = score_rows(round_, scores, protocol)
        return [*rows, new_row(round_, "samples_adapted", adapted)] if adapted else rows

    def _tested(self, evaluator: Evaluator, protocol: str, split: str, **keys: Any) -> dict[int, EvalResult]:
        """Return the results of the tests of a split, by client; `keys` are further ones of their `EvalJob`."""
        tests = self.federation.server_tests(split, evaluator.slices(split), protocol)
        tests = self.federation.tests(split, protocol) if evaluator.tests_on_clients(split) else tests
        return {r.client: r for r in self.federation.engine.test(replace(test, **keys) for test in tests)}

    def _bins_for_second_test(self, round_: int, scores: Scores, evaluator: Evaluator) -> dict[str, Tensor]:
        """Return scores' counts by predictor, to be counted in finer bins; nodes do so after the last round alone."""
        if evaluator.model_kind != "global" or (self.federation.scenario.remote and round_ != self.config.rounds):
            return {}
        by_predictor = {evaluator.model_kind: scores, **scores.also}
        states = {name: state for name, of in by_predictor.items() if (state := scores_in(of.pooled)) is not None}
        return {name: state.bins for name, state in states.items() if state.needs_second_test}

    def _predictors(self, kind: str, round_: int) -> Iterator[tuple[int, dict[str, Predictor]]]:
        federation = self.federation
        if kind == "global":
            yield -1, federation.predictors(None)
            return
        for client in range(federation.scenario.clients):
            yield client, federation.predictors(federation.state_of(federation.client_context(client, round_)), client)
