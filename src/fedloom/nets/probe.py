"""Checks by one forward pass: does a module classify the samples of a run, and which layer is its head?"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.nets.user_model import error_line
from fedloom.nets.wrap import wrap


def find_head(module: nn.Module, x: Tensor) -> str | None:
    """Return the name of the linear layer whose output is the output of `module` for x [B, *input_shape], or None.

    The pass must call the layer once, and `module` cut there (`wrap`) must compute the same numbers.
    """
    calls: list[tuple[str, Any]] = []

    def record_calls(name: str, layer: nn.Module) -> Any:
        return layer.register_forward_hook(lambda _layer, _inputs, output: calls.append((name, output)))

    linear_layers = [(name, layer) for name, layer in module.named_modules() if name and isinstance(layer, nn.Linear)]
    hooks = [record_calls(name, layer) for name, layer in linear_layers]
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
    """Raise `ConfigError` unless `module` has trainable parameters and gives logits [B, C] for x [B, *input_shape].

    Args:
        module: the model.
        x: a batch of samples [B, *input_shape].
        num_classes: C.
        name: the model's name in messages.
    """
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
        raise ConfigError(
            f"model {name} gives {kind}: a classifier gives logits, a floating tensor of shape {expected}"
        )
    if list(output.shape) == expected:
        return
    reason = "one label for each sample, not for its parts"
    if output.dim() < 2 or output.shape[1:] == (1,):
        reason = "a single number for each sample is regression, and is not trained here"
    elif output.dim() == 2:
        reason = f"it has {output.shape[1]} outputs, the scenario {num_classes} classes"
    raise ConfigError(
        f"model {name} is no classifier of these data: its output is {list(output.shape)}, "
        f"expected {expected}: {reason}"
    )


def _evaluate(module: nn.Module, x: Tensor) -> Any:
    """The output of `module` in evaluation mode; its modes and torch's generator are restored."""
    modes = {child: child.training for child in module.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return module.eval()(x)
    finally:
        for child, training in modes.items():
            child.training = training
