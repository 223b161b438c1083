"""The tables of the page on privacy are made from the declarations of methods and messages."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from docs import privacy_tables as tables
from docs.privacy_tables import BODY, INDIRECTLY, REPORTED_FACTS, privacy_of
from fedloom.flower.node_data import node_source
from fedloom.flower.wire import ErrorReply, EvalReply, JoinReply, ServeReply, TrainReply
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import _Run
from fedloom.runs.storage.run_data import RunData
from flower_world import DEALT, config_of
from support import FEDERATED

PAGES = Path(__file__).parents[2] / "docs" / "deployment"


def test_the_page_has_a_place_for_both_tables():
    page = (PAGES / "privacy.md").read_text(encoding="utf-8")
    assert "{{ reported facts }}" in page
    assert "{{ uploads }}" in page


def test_the_table_of_reported_facts_covers_all_fields_of_messages():
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
    assert all(f"\n| {name} |" in tables.methods_table() for name in FEDERATED)


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
    assert not any(row.split(" | ")[2] == "no" for row in tables.methods_table().splitlines()[2:])
    told = {name: privacy_of(name).label_disclosure for name in FEDERATED}
    assert told["local"] == "nothing is sent"
    assert told["fedavg"] == told["lgfedavg"] == INDIRECTLY
    assert told["fedper"] == told["fedbabu"] == BODY
    assert told["fedsc"] == f"directly: prototypes, class_counts; {INDIRECTLY}"
    assert told["fedproto"] == "directly: prototypes, class_counts"


def test_the_change_of_the_last_layer_follows_the_class_counts():
    """As the page says: what FedAvg's clients send after one round, beside how often they have each class."""
    running = _Run(config_of("fedavg", scenario={**DEALT, "alpha": 0.5, "clients": 10}), None, None, (), None, RunData)
    correlations = []
    for client in range(10):
        job = running.federation.job(client, 1)
        sent = running.worker.run(job).upload["model"]["head.bias"] - job.payload["model"]["head.bias"]
        correlations.append(float(np.corrcoef(sent.double(), job.ctx.class_counts.double())[0, 1]))
    assert min(correlations) > 0.5
    assert sorted(correlations)[5] > 0.8
