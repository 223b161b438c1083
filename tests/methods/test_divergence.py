"""A run that diverges ends, with every method, and says so: a study does not lose its row for it.

`make test` tries methods that differ in what trains and where; the marker `matrix` has the others.
"""

import pytest

import fedloom as fl
from fedloom.methods.catalogue import entries
from support import sampled

FAR = {"name": "sgd", "lr": 1e8}
NORMED = {"fednh", "fedpcl"}  # unit features, and no head that trains: their losses stay finite
ENTRIES = {entry.name: entry for entry in entries()}


# A loss that stays finite, state that diverges too, training on the server, and tables in place of weights.
@pytest.mark.parametrize("name", sampled(ENTRIES, "fednh", "scaffold", "feddf", "fedgen", "fedproto"))
def test_a_run_that_diverges_ends_and_says_so(name: str) -> None:
    entry = ENTRIES[name]
    protocol = "personal/local" if "personal" in entry.yields else "global/global"
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=3, seed=0, public=0.05)
    result = fl.run(
        entry.name,
        scenario=scenario,
        rounds=2,
        local_epochs=1,
        model="digits-cnn",
        optimizer=FAR,
        engine="serial",
        augment={"crop": 1},
        evaluation={"protocol": protocol},
    )
    assert len(result.curve()[0]) == 2
    assert entry.name in NORMED or any("diverged" in message for message in result.numbers["degenerate"])
