"""Graphs of trained models, as ONNX and as programs of torch.export: the scores of the module, without fedloom."""

import importlib.util
import json
import logging
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.nets import MODELS
from fedloom.runs.export import graphs
from fedloom.runs.export.trained import Trained, of_result

EXAMPLES = Path(__file__).parents[3] / "examples"
ONNX = importlib.util.find_spec("onnxscript") is not None and importlib.util.find_spec("onnx") is not None
needs_onnx = pytest.mark.skipif(not ONNX, reason="needs the extra onnx")
SUFFIXES = [".pt2", pytest.param(".onnx", marks=needs_onnx)]
WITHOUT_FEDLOOM = """
import sys
sys.modules["fedloom"] = None  # its import fails
import torch
samples, scores = torch.load(sys.argv[2], weights_only=True)
module = torch.export.load(sys.argv[1]).module()
assert all(torch.allclose(module(part), expected, rtol=0, atol=1e-5) for part, expected in zip(samples, scores))
"""


def digits(clients: int = 3) -> Any:
    return fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=clients)


@pytest.fixture(scope="module")
def finished() -> Trained:
    """The CNN after one round."""
    return of_result(fl.run("fedavg", scenario=digits(), rounds=1, engine="serial"))


@pytest.fixture
def trained(request: pytest.FixtureRequest, finished: Trained) -> Trained:
    """A model of the name that the test asks for; but for the CNN with the weights that it begins with."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if request.param == "text":
            text = runpy.run_path(str(EXAMPLES / "model_text.py"))
            ids = {"shape": (text["LENGTH"],), "dtype": "int64", "ids": len(text["VOCABULARY"])}
            metadata = finished.metadata.model_copy(update={"input": finished.metadata.input.model_copy(update=ids)})
            return Trained(text["TextTransformer"](3).eval(), metadata)
        if request.param == "vit-lora":
            vit = runpy.run_path(str(EXAMPLES / "model_vit_lora.py"))
            module = vit["with_lora"](vit["ViT"](10)).eval()
            for block in module.blocks:
                nn.init.normal_(block.qkv.up.weight)  # zero at first
            return Trained(module, finished.metadata)
        if request.param == "resnet8":
            resnet = MODELS.get("resnet8")(input_shape=(1, 8, 8), num_classes=10)
            return Trained(resnet.eval(), finished.metadata)
    return finished


def batches(trained: Trained) -> list[torch.Tensor]:
    """A batch of one and a batch of 17 samples, as the module takes them."""
    expected, generator = trained.metadata.input, torch.Generator().manual_seed(7)
    shapes = [(size, *expected.shape) for size in (1, 17)]
    if expected.ids is not None:
        return [torch.randint(1, expected.ids, shape, generator=generator) for shape in shapes]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def scores_of(path: Path, x: torch.Tensor) -> torch.Tensor:
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(x)
    import onnx
    from onnx.reference import ReferenceEvaluator

    session: Any = ReferenceEvaluator(onnx.load(path))
    return torch.from_numpy(session.run(["scores"], {"x": x.numpy()})[0])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "trained", ["cnn", pytest.param("resnet8", marks=pytest.mark.matrix), "vit-lora", "text"], indirect=True
)
def test_a_graph_has_the_scores_of_the_module(tmp_path: Path, trained: Trained, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    metadata = json.loads(trained.save(path).read_text())
    samples = batches(trained)
    with torch.no_grad():
        expected = [trained.module(x) for x in samples]
        for x, scores in zip(samples, expected, strict=True):
            assert torch.allclose(scores_of(path, x), scores, rtol=0, atol=1e-5)
    assert metadata["format"] == ("onnx" if suffix == ".onnx" else "torch-export")
    assert metadata["graph"]["batches"] == [1, 3, 8]
    assert metadata["graph"]["difference"] <= 1e-5
    assert str(EXAMPLES).encode() not in path.read_bytes()  # no files of this machine


@pytest.mark.parametrize("trained", ["vit-lora"], indirect=True)
def test_a_program_is_loaded_without_fedloom(tmp_path: Path, trained: Trained) -> None:
    trained.save(tmp_path / "m.pt2")
    samples = batches(trained)
    with torch.no_grad():
        torch.save((samples, [trained.module(x) for x in samples]), tmp_path / "expected.pt")
    command = [sys.executable, "-c", WITHOUT_FEDLOOM, str(tmp_path / "m.pt2"), str(tmp_path / "expected.pt")]
    subprocess.run(command, check=True, timeout=300)


class Nested(nn.Module):
    """A module that returns the scores of an inner one, as a user would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1))


class DataDependent(Nested):
    """The number of computed layers depends on the samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if float(x.sum()) > 0 else -x)


class Noisy(Nested):
    """Adds noise when it predicts, so that no two calls agree."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        return scores + torch.rand_like(scores)


class FixedBatch(Nested):
    """Knows batches of one size alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (torch.zeros(3, 10) if len(x) == 3 else torch.ones(len(x), 10))


def of_module(module: nn.Module, finished: Trained) -> Trained:
    return Trained(module.eval(), finished.metadata)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (DataDependent(), r"model digits-cnn has no graph: torch\.export says .*; safetensors needs no graph"),
        (FixedBatch(), r"says that its computation depends on the size of the batch; safetensors needs no graph"),
        (Noisy(), r"scores of a batch of 1 differ by .*; nothing was written"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_module_without_a_faithful_graph_is_refused_in_one_line(
    tmp_path: Path, finished: Trained, module: nn.Module, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        of_module(module, finished).save(tmp_path / "m.pt2")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not list(tmp_path.iterdir())


def test_a_graph_is_for_other_programs(tmp_path: Path, finished: Trained) -> None:
    of_module(Nested(), finished).save(tmp_path / "m.pt2")
    with pytest.raises(ConfigError, match="a graph for other programs; fedloom reads run folders"):
        fl.load(tmp_path / "m.pt2")


def test_onnx_without_its_packages_names_the_extra(
    tmp_path: Path, finished: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"onnx and onnxscript not installed; pip install 'fedloom\[onnx\]'"):
        of_module(Nested(), finished).save(tmp_path / "m.onnx")


@needs_onnx
def test_the_exporter_warns_of_nothing_that_a_user_could_change(
    tmp_path: Path, finished: Trained, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without torchvision torch says of each of its operators that it is skipped."""
    export, logger = torch.onnx.export, logging.getLogger("torch.onnx._internal.exporter._registration")

    def warns(*args: Any, **options: Any) -> Any:
        logger.warning("torchvision is not installed. Skipping torchvision::roi_align")
        return export(*args, **options)

    monkeypatch.setattr(torch.onnx, "export", warns)
    finished.save(tmp_path / "m.onnx")
    assert "torchvision" not in caplog.text
    logger.warning("another program's own export")
    assert "another" in caplog.text


@needs_onnx
def test_an_onnx_file_says_what_it_is(tmp_path: Path, finished: Trained) -> None:
    import onnx

    of_module(Nested(), finished).save(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    described = json.loads(next(entry.value for entry in model.metadata_props if entry.key == "fedloom"))
    assert described["classes"] == [*"0123456789"]
    assert described["input"]["mean"] == pytest.approx([4.9])
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@needs_onnx
def test_onnx_is_checked_without_its_runtime(
    tmp_path: Path, finished: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        graphs.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find_spec(name)
    )
    metadata = json.loads(of_module(Nested(), finished).save(tmp_path / "m.onnx").read_text())
    assert metadata["graph"]["checked_with"].startswith("onnx 1.")


def test_an_operator_that_onnx_lacks_is_one_line(
    tmp_path: Path, finished: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("\x1b[96mNo conversion for aten.lu\x1b[0m\n## Summary\nmany lines")

    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: find_spec(name, *rest) or name)
    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(ConfigError) as caught:
        of_module(Nested(), finished).save(tmp_path / "m.onnx")
    assert str(caught.value) == (
        "model digits-cnn cannot be written as onnx: RuntimeError: No conversion for aten.lu; torch-export needs none "
        "of ONNX's operators"
    )
    assert not list(tmp_path.iterdir())
