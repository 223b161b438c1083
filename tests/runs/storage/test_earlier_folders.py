"""Files of run folders that earlier versions of fedloom wrote can still be read."""

from fedloom.data import describe_input, describe_scenario
from fedloom.runs.config.run_config import parse
from fedloom.runs.storage.schemas import error_in_scenario

# All that scenario.json had at first; later versions add keys, and ask for no more of earlier ones.
KEYS = {
    *("acceptance", "class_counts", "classes", "classes_per_client", "clients", "domain_counts", "domains", "draws"),
    *("empty_classes", "empty_clients", "feature_shift", "imbalance", "input", "name", "size_ratio"),
    *("test_samples", "total_variation", "train_samples", "val_samples"),
}


def test_a_scenario_of_an_earlier_version_is_not_damaged() -> None:
    keys = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4}
    scenario = parse({"scenario": keys}).scenario.build(0)
    content = describe_scenario(scenario) | {"input": describe_input(scenario.train_set)}
    earlier = {key: value for key, value in content.items() if key in KEYS}
    assert earlier.keys() == KEYS
    assert error_in_scenario(earlier) is None
    del earlier["classes_per_client"]
    assert error_in_scenario(earlier) == "it lacks classes_per_client"
