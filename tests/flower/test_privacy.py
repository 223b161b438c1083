"""The tables of the page on privacy are made from the declarations of methods and messages."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch import Tensor

from docs import privacy_tables as tables
from docs.privacy_tables import REPORTED_FACTS
from fedloom.core.tables import ClassTable
from fedloom.flower.node_data import node_source
from fedloom.flower.wire import ErrorReply, EvalReply, JoinReply, ProgressReply, ServeReply, TrainReply
from fedloom.methods import METHODS
from fedloom.methods.catalogue import abilities, reveals
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import _Run
from fedloom.runs.storage.run_data import RunData
from flower_world import DEALT, config_of
from support import FEDERATED, ROW_METHODS, handmade, world

PAGES = Path(__file__).parents[2] / "docs" / "deployment"


def test_the_page_has_a_place_for_both_tables():
    page = (PAGES / "privacy.md").read_text(encoding="utf-8")
    assert "{{ reported facts }}" in page
    assert "{{ uploads }}" in page


def test_the_table_of_reported_facts_covers_all_fields_of_messages():
    replies = JoinReply, TrainReply, EvalReply, ServeReply, ErrorReply, ProgressReply
    carrier = {"wire_version", "run", "kind", "client", "round", "parts", "part"}
    for facts, message in zip(REPORTED_FACTS.values(), replies, strict=True):
        assert facts.keys() == message.model_fields.keys() - carrier


def test_the_pages_federation_of_three_machines_is_one():
    """The config of the page, and the file of its first node."""
    config, node = re.findall(r"```yaml\n(.*?)```", (PAGES / "tutorial.md").read_text(encoding="utf-8"), re.DOTALL)[:2]
    parsed = parse(yaml.safe_load(config))
    assert node_source(parsed).numeric_features == (0, 1)
    assert {"source", "path", "label"} == yaml.safe_load(node).keys()


def test_every_method_is_in_it():
    assert all(f"\n| {name} |" in tables.methods_table() for name in FEDERATED)


def test_secure_sums_are_for_methods_that_need_no_single_client():
    """FedSC relates the prototypes of single clients to each other (Eq. 5-9): a sum hides what it needs."""
    assert abilities(METHODS.get("fedavg")).secure_sum
    assert abilities(METHODS.get("fedsc")).per_client == {"prototypes", "class_counts"}


LAST_LAYER = "the label mix indirectly, by changes of the last layer"


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (("fedavg", "lgfedavg", "fedavg+topk"), LAST_LAYER),
        (("fedper", "fedbabu"), "perhaps the label mix, by the body's weights"),
        (("local",), "nothing"),
        (("central",), "everything: the data are in one place"),
        (("fedproto",), "prototypes and class counts"),
        (("fedsc",), f"prototypes and class counts; {LAST_LAYER}"),
        (("fedprox+dw",), f"class means of outputs and class counts; {LAST_LAYER}"),
        (("fedncm", "fedcof"), f"{LAST_LAYER}; after the last round class means of features and class counts"),
        (("feddbe",), f"{LAST_LAYER}; before the first round mean of features"),
        (("fedmd",), "the label mix indirectly, by outputs that favour frequent classes"),
    ],
)
def test_what_uploads_reveal_in_all_rounds(methods, words):
    assert {reveals(METHODS.get(name)) for name in methods} == {words}


def test_every_class_table_and_count_in_an_upload_is_said_to_reveal_labels():
    """By the uploads themselves: no method may send counts or rows by class that its declaration leaves out."""
    for name in set(ROW_METHODS) & set(FEDERATED):
        toy = world(handmade(name), [[0, 1, 2, 0], [1, 3, 3, 2]])
        for stage, method in toy.federation.methods.items():
            round_ = {"opening": 0, "round": 1, "closing": toy.federation.tasks[0].rounds + 1}[stage]
            upload = toy.worker.run(toy.federation.job(0, round_)).upload
            by_class = {key for key, value in upload.items() if isinstance(value, ClassTable)}
            by_class |= {key for key, value in upload.items() if isinstance(value, Tensor) and value.shape == (4,)}
            declared = {key for key, sent in method.spec.sends.items() if sent.labels}
            assert by_class <= declared, (name, stage)


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
