"""Export a module with its computation, as ONNX or as a program of torch.export, for machines without fedloom."""

import contextlib
import importlib.util
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fedloom.core.console import quiet_logger
from fedloom.core.errors import ConfigError
from fedloom.core.process_settings import reproducible_settings
from fedloom.nets.user_model import error_line
from fedloom.runs.export.modules import ExportMetadata, Graph, Input

GraphFormat: TypeAlias = Literal["onnx", "torch-export"]
INPUT, OUTPUT = "x", "scores"
TOLERANCE = 1e-5  # of class scores, times their largest absolute value where that is above 1
_TRACED_BATCH = 3  # a batch of one would be taken for a dimension that cannot change
_CHECKED_BATCHES = (1, _TRACED_BATCH, 8)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def graph_bytes(module: nn.Module, metadata: ExportMetadata, graph_format: GraphFormat) -> tuple[bytes, Graph]:
    """Return the bytes of a file with a module's computation and weights, and how the graph is called. The graph takes
    x [B, *metadata.input.shape] as the module does, normalised or as token ids, with any B, and returns class scores
    [B, C]. The bytes are read again, and their scores of random samples compared with the module's. Raises
    `ConfigError` for a module that the exporter cannot export, for scores that differ by more than `TOLERANCE`, and if
    a package is missing."""
    name = metadata.architecture.model
    missing = [package for package in ("onnx", "onnxscript") if importlib.util.find_spec(package) is None]
    if graph_format == "onnx" and missing:
        raise ConfigError(f"format = onnx: {' and '.join(missing)} not installed; pip install 'fedloom[onnx]'")
    with reproducible_settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn of deprecations within torch
        with _refusing(f"model {name} has no graph: torch.export says ", _without_graph(metadata)):
            batch = ({0: torch.export.Dim("batch")},)
            samples = next(_random_batches(metadata.input, [_TRACED_BATCH]))
            program = torch.export.export(module, (samples,), dynamic_shapes=batch, strict=False)
        for subgraph in program.graph_module.modules():
            for node in subgraph.graph.nodes if isinstance(subgraph, GraphModule) else ():
                node.meta.pop("stack_trace", None)  # names files of this machine
        if graph_format == "onnx":
            raw, opset = _onnx_bytes(program, metadata, name)
            checked_with, scores = _onnx_runtime(raw)
        else:
            buffer = io.BytesIO()
            with _refusing(f"model {name}: torch.export cannot write its graph: ", "onnx or safetensors may do"):
                torch.export.save(program, buffer)
            raw, opset = buffer.getvalue(), None
            checked_with, scores = f"torch {torch.__version__}", torch.export.load(io.BytesIO(raw)).module()
        difference = _difference(module, scores, metadata, f"{name} as {graph_format}")
    outputs = (OUTPUT,) if graph_format == "onnx" else ()
    checked: Any = {"checked_with": checked_with, "batches": _CHECKED_BATCHES, "difference": difference}
    return raw, Graph(inputs=(INPUT,), outputs=outputs, opset=opset, torch=torch.__version__, **checked)


@contextlib.contextmanager
def _refusing(why: str, advice: str) -> Iterator[None]:
    """Raise `ConfigError` for any error of an exporter, a runtime or the module's own code."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{why}{_first_line(error)}; {advice}") from error


def _onnx_bytes(program: ExportedProgram, metadata: ExportMetadata, name: str) -> tuple[bytes, int]:
    # an operator that ONNX lacks, or a model of more than 2 GB
    with _refusing(f"model {name} cannot be written as onnx: ", "torch-export needs none of ONNX's operators"):
        with quiet_logger("torch.onnx"):  # says that it skips operators of torchvision
            exported: Any = torch.onnx.export(
                program, (), dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT]
            )
        model = exported.model_proto
        for node in model.graph.node:
            del node.metadata_props[:]  # names of Python code, for debugging
        model.doc_string = ""
        # The exporter calls the first dimension "s77" or the like.
        symbol = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
            for dimension in value.type.tensor_type.shape.dim:
                if dimension.dim_param == symbol:
                    dimension.dim_param = "batch"
        entry = model.metadata_props.add()
        entry.key, entry.value = "fedloom", metadata.model_dump_json(exclude={"weights", "sha256", "graph", "format"})
        opset = next(entry.version for entry in model.opset_import if not entry.domain)
        return model.SerializeToString(), int(opset)


def _onnx_runtime(raw: bytes) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return name and version of a package that runs ONNX, and a function that runs the model in `raw` with it."""
    session: Any
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime as package

        options = package.SessionOptions()
        options.log_severity_level = 3  # errors
        session = package.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
    else:
        import onnx as package
        from onnx.reference import ReferenceEvaluator

        session = ReferenceEvaluator(package.load_from_string(raw))

    def scores(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0])

    return f"{package.__name__} {package.__version__}", scores


def _difference(module: nn.Module, scores: Callable[[Tensor], Tensor], metadata: ExportMetadata, title: str) -> float:
    """Return the largest difference of class scores over random batches; `ConfigError` for more than `TOLERANCE`."""
    largest = 0.0
    for samples in _random_batches(metadata.input, _CHECKED_BATCHES):
        failure = f"model {title}: a batch of {len(samples)} fails: "
        with _refusing(failure, _without_graph(metadata)), torch.no_grad():
            reference, computed = module(samples), scores(samples)
        bound = TOLERANCE * max(1.0, float(reference.abs().max()))
        difference = float((computed - reference).abs().max()) if computed.shape == reference.shape else float("inf")
        if not difference <= bound:  # NaN is refused as well
            raise ConfigError(
                f"model {title}: scores of a batch of {len(samples)} differ by {difference:.1e} from the module's, "
                f"allowed are {bound:.1e}; nothing was written, {_without_graph(metadata)}"
            )
        largest = max(largest, difference)
    return largest


def _random_batches(expected: Input, sizes: Sequence[int]) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for size in sizes:
        shape = (size, *expected.shape)
        if expected.ids is None:
            yield torch.randn(shape, generator=generator)
        else:
            ids = torch.randint(min(1, expected.ids - 1), expected.ids, shape, generator=generator)
            ids[:, 2 * shape[1] // 3 + 1 :] = 0  # padding behind the end of a text
            yield ids


def _without_graph(metadata: ExportMetadata) -> str:
    return f"{'fedloom predict' if metadata.architecture.forward == 'method' else 'safetensors'} needs no graph"


def _first_line(error: BaseException) -> str:
    line = _COLOURS.sub("", error_line(error)).partition(" For more information")[0]
    if "Constraints violated (batch)" in line:
        return "that its computation depends on the size of the batch"
    return line if len(line) <= 160 else f"{line[:157]}..."
