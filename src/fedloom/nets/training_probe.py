"""What a model does in training, tried on two samples before a run: what cannot work is refused, what is seldom meant
is named."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.records import DTYPES
from fedloom.core.streams import Streams
from fedloom.nets.bundle import Bundle
from fedloom.nets.copies import copied
from fedloom.nets.given import one_line
from fedloom.nets.net import Net
from fedloom.nets.python_state import attributes_of, unregistered
from fedloom.nets.roles import EXTRA, has_batch_norm
from fedloom.nets.wrap import Whole, Wrapped

_PASSES = 3  # in training mode: the first may fill caches


class Remark(NamedTuple):
    """What a user should know about a model: a stable code, and one line."""

    code: str
    text: str


def check_entries(module: nn.Module, name: str) -> None:
    """Raise `ConfigError` for a model that cannot be sent, copied or stored as it is.

    That is one with complex or other unusual numbers, with hooks on its parameters, or one that cannot be copied.
    """
    for path, entry in [*module.named_parameters(), *module.named_buffers()]:
        if entry.dtype not in DTYPES:
            kind = str(entry.dtype).removeprefix("torch.")
            raise ConfigError(
                f"model {name}: {_plain_path(path)} is {kind}, which is neither averaged nor stored; use real numbers "
                "(torch.view_as_real for complex ones)"
            )
        if entry._backward_hooks or getattr(entry, "_post_accumulate_grad_hooks", None):
            raise ConfigError(
                f"model {name}: {_plain_path(path)} has a hook, which is lost in every copy, and so with other "
                "engines; hook the module, or change gradients in a method (grad_map)"
            )
    if any(type(part).__name__ == "OptimizedModule" for part in module.modules()):
        raise ConfigError(f"model {name}: it is compiled, and each process needs a copy; give it without torch.compile")
    try:
        copied(module)
    except Exception as error:
        raise ConfigError(
            f"model {name}: it cannot be copied, and each process needs a copy: {one_line(error)}"
        ) from error


def check_trains(net: Net, x: Tensor, num_classes: int, batch_size: int, name: str) -> list[Remark]:
    """What to say about how `net` trains on samples x [n, *input_shape], n of 1 or 2; it is left as it is.

    Of a bundle it is the first net. Nets of this library are only tried where `batch_size` is 1.

    Raises `ConfigError` if it gives no logits in training mode, writes into its input, gives logits that depend on
    nothing that trains, or cannot train on batches of one where `batch_size` is 1.
    """
    if isinstance(net, Bundle):
        net = net.answering
    if batch_size == 1 and has_batch_norm(net):
        _check_single(copied(net), x[:1], name)
    if len(x) < 2 or not is_foreign(net):
        return []
    twin = copied(net)
    outputs, snapshots = list[Tensor](), list[dict[str, object]]()
    entries = {path: value.detach().clone() for path, value in twin.state_dict().items()}
    twin.train()
    inputs = x.clone()
    for _ in range(_PASSES):
        with Streams(0).isolated("probe"):
            try:
                out = twin(inputs)
            except Exception:  # whatever is wrong with two samples, a client's batch tells better
                return []
        _check_output(out, inputs, x, num_classes, name)
        outputs.append(out.detach())
        snapshots.append(dict(attributes_of(twin)))
        missing = _without_gradient(twin, out)
        _restore(twin, entries)
    return [
        *_state(outputs, snapshots, name),
        *_unused(missing, name),
        *_not_registered(net, name),
        *_in_evaluation(twin, x, name),
    ]


def _check_output(out: object, inputs: Tensor, x: Tensor, num_classes: int, name: str) -> None:
    if not isinstance(out, Tensor) or out.shape != (len(x), num_classes):
        got = f"{list(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(
            f"model {name} gives {got} in training mode: it must give logits {[len(x), num_classes]} in training, too"
        )
    if not torch.equal(inputs, x):
        raise ConfigError(
            f"model {name} changes its input in place, which losses with several passes would see; write into a copy, "
            "or give its first layer inplace=False"
        )
    if not out.requires_grad:
        raise ConfigError(
            f"model {name}: its logits depend on nothing that trains; take away no_grad, detach or .data in its forward"
        )


def _check_single(twin: Net, x: Tensor, name: str) -> None:
    """One sample is too few for batch norm without places: every batch of the run would be."""
    twin.train()
    try:
        with torch.no_grad(), Streams(0).isolated("probe"):
            twin(x)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            return
        raise ConfigError(
            f"batch_size = 1: model {name} has batch norm, which needs at least two samples in a batch; set batch_size "
            "to 2 or more, or use group norm or layer norm"
        ) from error
    except Exception:  # a client tells better
        return


def _without_gradient(twin: Net, out: Tensor) -> list[str]:
    """Parameters of the model that its logits do not depend on."""
    named = {path: value for path, value in twin.named_parameters() if path.partition(".")[0] != EXTRA}
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)
    try:
        gradients = torch.autograd.grad((out * weights).sum(), list(named.values()), allow_unused=True)
    except RuntimeError:  # of an operator without a derivative, say: a client tells better
        return []
    return [path for path, gradient in zip(named, gradients, strict=True) if gradient is None]


@torch.no_grad()
def _restore(twin: Net, entries: dict[str, Tensor]) -> None:
    """The parameters and buffers of before a pass, also where the net has put other tensors in their place."""
    for prefix, module in twin.named_modules():
        for name, buffer in module._buffers.items():
            saved = entries.get(f"{prefix}.{name}".lstrip("."))
            if buffer is not None and saved is not None:
                module._buffers[name] = saved.clone()
    for path, parameter in twin.named_parameters():
        parameter.copy_(entries[path])


def _state(outputs: list[Tensor], snapshots: list[dict[str, object]], name: str) -> list[Remark]:
    """Whether a pass leaves anything in Python that the next one may read. All passes had the same weights, buffers,
    samples and random numbers."""
    paths = [
        path
        for path in snapshots[-1]
        if any(before.get(path) != after[path] for before, after in itertools.pairwise(snapshots))
    ]
    consequence = "so numbers depend on the engine, on the number of processes, and on a resume"
    if paths:
        return [
            Remark(
                "model.python_state",
                f"model {name} keeps state in Python: {_listed(paths)} changed from pass to pass; that is not sent, "
                f"stored or reset, {consequence}; make it a buffer (register_buffer)",
            )
        ]
    if all(torch.equal(outputs[-1].nan_to_num(), out.nan_to_num()) for out in outputs[1:]):
        return []
    return [
        Remark(
            "model.hidden_state",
            f"model {name} gives other outputs for the same weights, buffers, samples and random numbers: it keeps "
            f"state outside its modules, {consequence}",
        )
    ]


def _unused(paths: list[str], name: str) -> list[Remark]:
    if not paths:
        return []
    text = f"model {name}: its logits do not depend on {_listed(paths)}: no gradient, only weight decay moves that"
    return [Remark("model.unused_parameters", text)]


def _not_registered(net: Net, name: str) -> list[Remark]:
    paths = unregistered(net)
    if not paths:
        return []
    text = (
        f"model {name}: {_listed(paths)} holds weights that are not registered: they are not trained, sent or stored; "
        "use nn.Parameter, nn.ModuleList or nn.ModuleDict"
    )
    return [Remark("model.unregistered", text)]


def _in_evaluation(twin: Net, x: Tensor, name: str) -> list[Remark]:
    """Whether tests draw random numbers, and whether logits are probabilities."""
    twin.eval()
    outputs = []
    with torch.no_grad():
        for client in range(2):
            with Streams(0).isolated("probe", client=client):
                outputs.append(twin(x.clone()))
    remarks = []
    if not torch.equal(outputs[0].nan_to_num(), outputs[1].nan_to_num()):
        text = (
            f"model {name} draws random numbers in evaluation mode, so tests are noisy; "
            "functional.dropout needs training=self.training"
        )
        remarks.append(Remark("model.random_tests", text))
    rows = outputs[0].double()
    if isinstance(twin, Whole) and bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-3).all()):
        text = (
            f"model {name} gives probabilities: losses take logits and apply softmax themselves; leave its softmax "
            "out, or name the layer before it with fedloom.wrap"
        )
        remarks.append(Remark("model.probabilities", text))
    return remarks


def _listed(paths: list[str]) -> str:
    shown = ", ".join(map(_plain_path, paths[:3]))
    return shown + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _plain_path(path: str) -> str:
    """A path as the author of a wrapped module knows it."""
    return path.removeprefix("body.")


def is_foreign(net: Net) -> bool:
    """Whether a net, or one in a bundle, is a user's: those of this library were tried when they were written."""
    nets = [part for part in net.modules() if isinstance(part, Net)]
    return any(isinstance(part, Wrapped | Whole) or not type(part).__module__.startswith("fedloom.") for part in nets)
