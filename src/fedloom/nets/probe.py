"""Checks of a user's model before a run: by one forward pass, and by training it on two samples."""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.records import SAFETENSORS_DTYPES
from fedloom.core.streams import Streams
from fedloom.nets.blueprint import Bundle
from fedloom.nets.net import EXTRA, Net, deep_copy, has_batch_norm, plain_attributes, unregistered_weights
from fedloom.nets.user_model import HeadlessNet, Wrapped, error_line, wrap


def find_head(module: nn.Module, x: Tensor) -> str | None:
    """Return the name of the linear layer whose output is that of `module` for x [B, *input_shape], or None. It must be
    called once, and `module` cut there (`wrap`) must compute the same numbers."""
    calls: list[tuple[str, Any]] = []
    linear_layers = [(name, layer) for name, layer in module.named_modules() if name and isinstance(layer, nn.Linear)]
    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output, name=name: calls.append((name, output)))
        for name, layer in linear_layers
    ]
    try:
        logits = _evaluate(module, x)
    finally:
        for hook in hooks:
            hook.remove()
    heads = [name for name, output in calls if output is logits]
    if len(heads) != 1 or [name for name, _ in calls].count(heads[0]) != 1:
        return None
    try:
        return heads[0] if torch.equal(_evaluate(wrap(module, heads[0]), x), logits) else None
    except ConfigError:  # the module catches all errors on the way to the layer, also the one that ends the pass
        return None


def check_classifies(module: nn.Module, x: Tensor, num_classes: int, name: str) -> None:
    """Raise `ConfigError` unless `module` has trainable parameters and gives logits [B, num_classes] for x."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"model {name}: nothing in it trains, no parameter has requires_grad = True")
    try:
        output = _evaluate(module, x)
    except ConfigError:
        raise
    except Exception as error:
        samples = f"samples of shape {tuple(x.shape[1:])} ({str(x.dtype).removeprefix('torch.')})"
        raise ConfigError(f"model {name} does not take the scenario's {samples}: {error_line(error)}") from error
    expected = [len(x), num_classes]
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = output.dtype if isinstance(output, Tensor) else f"a {type(output).__name__}"
        problem = f"a classifier gives logits, a floating tensor of shape {expected}"
        raise ConfigError(f"model {name} gives {kind}: {problem}")
    if list(output.shape) == expected:
        return
    reason = "one label for each sample, not for its parts"
    if output.dim() < 2 or output.shape[1:] == (1,):
        reason = "a single number for each sample is regression, and is not trained here"
    elif output.dim() == 2:
        reason = f"it has {output.shape[1]} outputs, the scenario {num_classes} classes"
    problem = f"its output is {list(output.shape)}, expected {expected}: {reason}"
    raise ConfigError(f"model {name} is no classifier of these data: {problem}")


def _evaluate(module: nn.Module, x: Tensor) -> Any:
    """The output of `module` in evaluation mode; its modes and torch's generator are restored."""
    modes = {child: child.training for child in module.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return module.eval()(x)
    finally:
        for child, training in modes.items():
            child.training = training


_PASSES = 3  # in training mode: the first may fill caches


class ModelNote(NamedTuple):
    """A note on a model for its user: a stable code, and one line of text."""

    code: str
    text: str


def check_entries(module: nn.Module, name: str) -> None:
    """Raise `ConfigError` for a model that cannot be sent, copied or stored."""
    for path, entry in [*module.named_parameters(), *module.named_buffers()]:
        if entry.dtype not in SAFETENSORS_DTYPES:
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
    if any(type(submodule).__name__ == "OptimizedModule" for submodule in module.modules()):
        raise ConfigError(f"model {name}: it is compiled, and each process needs a copy; give it without torch.compile")
    try:
        deep_copy(module)
    except Exception as error:
        problem = f"it cannot be copied, and each process needs a copy: {error_line(error)}"
        raise ConfigError(f"model {name}: {problem}") from error


def check_trains(net: Net, x: Tensor, num_classes: int, batch_size: int, name: str) -> list[ModelNote]:
    """Return notes on how a copy of `net` (of a bundle the first) trains on x [n, *input_shape], n of 1 or 2. Raises
    `ConfigError` if in training mode it gives no logits, changes its input, depends on no parameter, or cannot train on
    the single samples of a `batch_size` of 1."""
    if isinstance(net, Bundle):
        net = net.first_net
    if batch_size == 1 and has_batch_norm(net):
        _check_single(deep_copy(net), x[:1], name)
    if len(x) < 2 or not is_foreign(net):
        return []
    twin = deep_copy(net)
    outputs, snapshots = list[Tensor](), list[dict[str, object]]()
    entries = {path: tensor.detach().clone() for path, tensor in twin.state_dict().items()}
    twin.train()
    inputs = x.clone()
    for _ in range(_PASSES):
        with Streams(0).isolated("probe"):
            try:
                output = twin(inputs)
            except Exception:  # training on a client's batch will raise a clearer error
                return []
        _check_output(output, inputs, x, num_classes, name)
        outputs.append(output.detach())
        snapshots.append(dict(plain_attributes(twin)))
        unused = _without_gradient(twin, output)
        _restore(twin, entries)
    notes = _state_notes(outputs, snapshots) | _weight_notes(unused, unregistered_weights(net))
    notes |= _evaluation_notes(twin, x)
    return [ModelNote(code, f"model {name}{text}") for code, text in notes.items()]


def _check_output(output: object, inputs: Tensor, x: Tensor, num_classes: int, name: str) -> None:
    if not isinstance(output, Tensor) or output.shape != (len(x), num_classes):
        kind = f"{list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        problem = f"it must give logits {[len(x), num_classes]} in training, too"
        raise ConfigError(f"model {name} gives {kind} in training mode: {problem}")
    if not torch.equal(inputs, x):
        raise ConfigError(
            f"model {name} changes its input in place, which losses with several passes would see; write into a copy, "
            "or give its first layer inplace=False"
        )
    if not output.requires_grad:
        remedy = "take away no_grad, detach or .data in its forward"
        raise ConfigError(f"model {name}: its logits depend on nothing that trains; {remedy}")


def _check_single(twin: Net, x: Tensor, name: str) -> None:
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
    except Exception:  # training on a client's batch will raise a clearer error
        return


def _without_gradient(twin: Net, output: Tensor) -> list[str]:
    """Paths of the model's parameters that its logits do not depend on."""
    parameters = {path: tensor for path, tensor in twin.named_parameters() if path.partition(".")[0] != EXTRA}
    # unequal weights, because a sum of probabilities has no gradient
    weights = torch.linspace(0.5, 1.5, output.numel(), dtype=torch.float64).view(output.shape).to(output.dtype)
    try:
        gradients = torch.autograd.grad((output * weights).sum(), list(parameters.values()), allow_unused=True)
    except RuntimeError:  # e.g. an operator without a derivative: training will raise a clearer error
        return []
    # None and not zero: the parameter took no part, whatever the samples are
    return [path for path, gradient in zip(parameters, gradients, strict=True) if gradient is None]


@torch.no_grad()
def _restore(twin: Net, entries: dict[str, Tensor]) -> None:
    for prefix, module in twin.named_modules():
        for name, buffer in module._buffers.items():
            saved = entries.get(f"{prefix}.{name}".lstrip("."))
            if buffer is not None and saved is not None:
                module._buffers[name] = saved.clone()
    for path, parameter in twin.named_parameters():
        parameter.copy_(entries[path])


def _state_notes(outputs: list[Tensor], snapshots: list[dict[str, object]]) -> dict[str, str]:
    """Note state in Python: passes with equal weights, buffers, samples and random numbers gave other results."""
    pairs = list(itertools.pairwise(snapshots))
    paths = [path for path in snapshots[-1] if any(before.get(path) != after[path] for before, after in pairs)]
    consequence = "so numbers depend on the engine, on the number of processes, and on a resume"
    if paths:
        text = (
            f" keeps state in Python: {_listed(paths)} changed from pass to pass; that is not sent, stored or reset, "
        )
        return {"model.python_state": f"{text}{consequence}; make it a buffer (register_buffer)"}
    if all(torch.equal(outputs[-1].nan_to_num(), output.nan_to_num()) for output in outputs[1:]):
        return {}
    text = " gives other outputs for the same weights, buffers, samples and random numbers: it keeps state outside its "
    return {"model.hidden_state": f"{text}modules, {consequence}"}


def _weight_notes(unused: list[str], unregistered: list[str]) -> dict[str, str]:
    notes = {}
    if unused:
        notes["model.unused_parameters"] = (
            f": its logits do not depend on {_listed(unused)}: no gradient, only weight decay moves that"
        )
    if unregistered:
        notes["model.unregistered"] = (
            f": {_listed(unregistered)} holds weights that are not registered: they are not trained, sent or stored; "
            "use nn.Parameter, nn.ModuleList or nn.ModuleDict"
        )
    return notes


def _evaluation_notes(twin: Net, x: Tensor) -> dict[str, str]:
    """Note random numbers in evaluation mode, and probabilities where logits are expected."""
    twin.eval()
    outputs, notes = [], {}
    with torch.no_grad():
        for client in range(2):
            with Streams(0).isolated("probe", client=client):
                outputs.append(twin(x.clone()))
    if not torch.equal(outputs[0].nan_to_num(), outputs[1].nan_to_num()):
        notes["model.random_tests"] = (
            " draws random numbers in evaluation mode, so tests are noisy; functional.dropout needs "
            "training=self.training"
        )
    scores = outputs[0].double()
    if isinstance(twin, HeadlessNet) and bool((scores >= 0).all()) and bool(((scores.sum(1) - 1).abs() < 1e-3).all()):
        notes["model.probabilities"] = (
            " gives probabilities: losses take logits and apply softmax themselves; leave its softmax out, or name the "
            "layer before it with fedloom.wrap"
        )
    return notes


def _listed(paths: list[str]) -> str:
    shown = ", ".join(map(_plain_path, paths[:3]))
    return shown + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")


def _plain_path(path: str) -> str:
    """A path in the user's module, which is the child `body` of a wrapped net."""
    return path.removeprefix("body.")


def is_foreign(net: Net) -> bool:
    """Return whether a net, or one in a bundle, is a user's. This library's own nets need no check."""
    members = [module for module in net.modules() if isinstance(module, Net)]
    is_own = [type(member).__module__.startswith("fedloom.") for member in members]
    return not all(is_own) or any(isinstance(member, Wrapped | HeadlessNet) for member in members)
