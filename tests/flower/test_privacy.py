"""The privacy table is made from what methods declare, and the page shows it."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedloom.flower.node_data import node_source
from fedloom.flower.privacy import BODY, INDIRECTLY, REPORTED_FACTS, privacy_of
from fedloom.flower.wire import ErrorReply, EvalReply, JoinReply, ServeReply, TrainReply
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import _Run
from flower_world import DEALT, config_of
from support import FEDERATED

PAGES = Path(__file__).parents[2] / "docs" / "deployment"


def test_the_page_shows_the_table():
    assert methods_table() in (PAGES / "privacy.md").read_text(encoding="utf-8")


def test_the_page_shows_what_messages_tell():
    assert reported_facts_table() in (PAGES / "privacy.md").read_text(encoding="utf-8")
    replies = JoinReply, TrainReply, EvalReply, ServeReply, ErrorReply
    for facts, message in zip(REPORTED_FACTS.values(), replies, strict=True):
        assert facts.keys() == message.model_fields.keys() - {"wire_version", "run", "kind", "client", "round"}


def test_the_pages_federation_of_three_machines_is_one():
    """The config of the page, and the file of its first node."""
    config, node = re.findall(r"```yaml\n(.*?)```", (PAGES / "tutorial.md").read_text(encoding="utf-8"), re.DOTALL)[:2]
    parsed = parse(yaml.safe_load(config))
    assert node_source(parsed).numeric_features == (0, 1)
    assert {"source", "path", "label"} == yaml.safe_load(node).keys()


def test_every_method_is_in_it():
    assert all(f"\n| {name} |" in methods_table() for name in FEDERATED)


@pytest.mark.parametrize(
    ("method", "sums", "labels"),
    [("fedavg", True, ()), ("fedsc", False, ("prototypes", "class_counts")), ("local", False, ())],
)
def test_known_methods_are_told_rightly(method, sums, labels):
    """FedSC relates the prototypes of single clients to each other (Eq. 5-9): a sum hides what it needs."""
    found = privacy_of(method)
    assert (found.secure_sums, found.labels) == (sums, labels)


def test_methods_without_class_tables_tell_of_labels_indirectly_or_say_nothing():
    """No row promises that labels stay hidden: that is not measured for any method."""
    assert not any(row.split(" | ")[2] == "no" for row in methods_table().splitlines()[2:])
    told = {name: privacy_of(name).label_disclosure for name in FEDERATED}
    assert told["local"] == "nothing is sent"
    assert told["fedavg"] == told["lgfedavg"] == INDIRECTLY
    assert told["fedper"] == told["fedbabu"] == BODY
    assert told["fedsc"] == f"directly: prototypes, class_counts; {INDIRECTLY}"
    assert told["fedproto"] == "directly: prototypes, class_counts"


def test_the_change_of_the_last_layer_follows_the_class_counts():
    """As the page says: what FedAvg's clients send after one round, beside how often they have each class."""
    running = _Run(config_of("fedavg", scenario={**DEALT, "alpha": 0.5, "clients": 10}), None, None, ())
    correlations = []
    for client in range(10):
        job = running.federation.job(client, 1)
        sent = running.worker.run(job).upload["model"]["head.bias"] - job.payload["model"]["head.bias"]
        correlations.append(float(np.corrcoef(sent.double(), job.ctx.class_counts.double())[0, 1]))
    assert min(correlations) > 0.5
    assert sorted(correlations)[5] > 0.8


def reported_facts_table() -> str:
    """Return the Markdown table of the facts that nodes report, for the page on privacy."""
    rows = ["| a node tells | key | what it is |", "|" + "---|" * 3]
    rows += [
        f"| {when} | {key} | {meaning} |" for when, facts in REPORTED_FACTS.items() for key, meaning in facts.items()
    ]
    return "\n".join(rows) + "\n"


def methods_table() -> str:
    """Return the Markdown table of all methods, for the page on privacy."""
    rows = ["| method | leaves a client | tells of its labels | a secure sum would do |", "|" + "---|" * 4]
    for name in FEDERATED:
        privacy = privacy_of(name)
        sums = (
            "yes"
            if privacy.secure_sums
            else f"no: {', '.join(privacy.per_client)}"
            if privacy.per_client
            else "nothing is sent"
        )
        cells = [name, ", ".join(privacy.sends) or "nothing", privacy.label_disclosure, sums]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
