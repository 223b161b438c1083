"""Whether a module classifies the samples of a run, and where its head is: found by one forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.nets.given import one_line
from fedloom.nets.wrap import wrap


def head_of(module: nn.Module, x: Tensor) -> str | None:
    """The name of the linear layer whose output is what `module` gives for x [B, *input_shape]; None if there is none.

    The layer must be called once, and `module` cut there (`wrap`) must give the same numbers.
    """
    calls: list[tuple[str, Any]] = []

    def listen(name: str, layer: nn.Module) -> Any:
        return layer.register_forward_hook(lambda _layer, _given, out: calls.append((name, out)))

    hooks = [listen(name, layer) for name, layer in module.named_modules() if name and isinstance(layer, nn.Linear)]
    try:
        out = _answer(module, x)
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, given in calls if given is out]
    if len(names) != 1 or [name for name, _ in calls].count(names[0]) != 1:
        return None
    try:
        return names[0] if torch.equal(_answer(wrap(module, names[0]), x), out) else None
    except ConfigError:  # something on the way to the layer catches all errors, the one that ends the pass there too
        return None


def check_classifies(module: nn.Module, x: Tensor, num_classes: int, name: str) -> None:
    """Raise `ConfigError` unless `module` gives logits [B, C] for samples x [B, *input_shape], and something trains."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(f"model {name}: nothing in it trains, no parameter has requires_grad = True")
    try:
        out = _answer(module, x)
    except ConfigError:
        raise
    except Exception as error:
        taken = f"samples of shape {tuple(x.shape[1:])} ({str(x.dtype).removeprefix('torch.')})"
        raise ConfigError(f"model {name} does not take the scenario's {taken}: {one_line(error)}") from error
    wanted = [len(x), num_classes]
    if not isinstance(out, Tensor) or not out.is_floating_point():
        got = out.dtype if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(f"model {name} gives {got}: a classifier gives logits, a floating tensor of shape {wanted}")
    if list(out.shape) == wanted:
        return
    why = "one label for each sample, not for its parts"
    if out.dim() < 2 or out.shape[1:] == (1,):
        why = "a single number for each sample is regression, and is not trained here"
    elif out.dim() == 2:
        why = f"it has {out.shape[1]} outputs, the scenario {num_classes} classes"
    raise ConfigError(f"model {name} is no classifier of these data: {list(out.shape)} in place of {wanted}: {why}")


def _answer(module: nn.Module, x: Tensor) -> Any:
    """What `module` gives in evaluation mode; its mode, and torch's generator, are as before."""
    modes = {child: child.training for child in module.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return module.eval()(x)
    finally:
        for child, training in modes.items():
            child.training = training
