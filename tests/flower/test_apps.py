"""What a run over Flower says while it runs."""

import json
from pathlib import Path

from fedloom.flower.apps import Spoken
from fedloom.study.run import run
from flower_world import config_of


def test_the_accuracy_of_a_round_is_that_of_all_clients(capsys):
    """Where clients are tested, each has an accuracy of its own."""
    config = config_of("fedper", rounds=1, evaluation={"protocol": "personal/local"})
    result = run(config, callbacks=[Spoken(Path("runs/here"))])
    (told,) = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["event"] == "round"]
    assert told["accuracy"] == result.numbers["accuracy"]
