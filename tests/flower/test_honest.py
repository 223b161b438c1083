"""Nothing honest is refused, and default bounds change no bit: enough clients for all bounds to act.

The marker `matrix` has the methods beside a sample of those that send different things;
`python -m benchmarks hostile --honest` does the same for 20 rounds and four scenarios.
"""

import pytest

from fedloom.flower.in_process import run_in_process
from fedloom.methods import METHODS
from fedloom.runs.run import run
from flower_world import Notes, config_of, settings_of
from support import IN_ROUNDS, same_bits, sampled

SKEWED = {"source": "digits", "partition": "dirichlet", "alpha": 0.1, "clients": 8, "val": 0.0}
CASES = sampled(IN_ROUNDS, "copa", "fd", "feddf", "fedgen", "fedkd", "fednova", "fedproto", "scaffold")


@pytest.mark.parametrize("method", CASES)
def test_no_honest_upload_is_refused(method):
    settings = settings_of(method)
    public = {"public": 0.05} if METHODS.get(method).spec.public else {}
    settings |= {"scenario": {**SKEWED, **public}, "participation": 0.8, "rounds": 4, "batch_size": 64}
    settings["evaluation"] = {**settings["evaluation"], "every": 4}
    config, notes = config_of(method, **settings), Notes()
    here, there = run(config), run_in_process(config, callbacks=[notes])
    assert not [text for text in notes.texts if "refused" in text or "left out" in text]
    assert same_bits(here.memory.weights[4].server, there.memory.weights[4].server)
