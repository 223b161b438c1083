"""The example scripts with models of one's own run, at small size."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SMALL = {
    "model_own_cnn": {"rounds": 1, "clients": 3},
    "model_resnet_group_norm": {"rounds": 1, "clients": 40, "participation": 0.05, "blocks": (1, 1, 1, 1)},
    "model_vit_lora": {"rounds": 1, "clients": 20, "participation": 0.1, "epochs": 1},
    "model_text": {"rounds": 1, "clients": 3, "samples": 300},
    "model_tabular": {"rounds": 1, "hospitals": 3},
}
NEEDS = {"model_resnet_group_norm": "torchvision"}


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], exc_type=Exception)  # one built for another torch fails as it likes
    returned = runpy.run_path(str(FOLDER / f"{name}.py"))["main"](**SMALL[name])
    results = returned if isinstance(returned, list | tuple) else [returned]
    assert all(result.numbers["rounds"] == 1 and 0 <= result.numbers["accuracy"] <= 1 for result in results)
    if name == "model_vit_lora":
        lean, whole = results
        assert lean.numbers["bytes_up"] < 0.2 * whole.numbers["bytes_up"]
        assert lean.numbers["accuracy"] == whole.numbers["accuracy"]


def test_every_example_with_a_model_is_run():
    assert {path.stem for path in FOLDER.glob("model_*.py")} == set(SMALL)
