"""Fix the settings of the process while a run computes, so that the caller's settings do not change its results.

The caller's settings are restored after the run. Modes that only the caller can leave are refused by name.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.overrides
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrize
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fedloom.core.errors import ConfigError
from fedloom.core.torch_settings import SETTINGS, Setting

_OVERRIDES: Any = torch.overrides  # without types
SavedValues: TypeAlias = list[tuple[Setting, Any]]


@contextlib.contextmanager
def reproducible_settings() -> Iterator[None]:
    """Give every setting the value of a fresh process within the block, with one thread and with gradients.

    More threads would change the order of sums, and thus the bits. Settings that threads share are restored when the
    last thread leaves its block. Raises `ConfigError` for a mode that only the caller can leave.
    """
    with _without_default_device():
        if mode := _interfering_mode():
            raise ConfigError(f"{mode} is active here and would act on every step of the run; leave it before")
        errors = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
        with torch.inference_mode(False), torch.enable_grad(), errors, _SHARED.fixed():
            saved_values = _fix([setting for setting in SETTINGS if setting.by_thread])
            try:
                yield
            finally:
                _restore(saved_values)


class _SharedSettings:
    """The settings that all threads of the process share: the first thread fixes them, the last one restores them."""

    def __init__(self) -> None:
        self._lock, self._threads, self._saved_values = threading.Lock(), 0, SavedValues()

    @contextlib.contextmanager
    def fixed(self) -> Iterator[None]:
        with self._lock:
            if not self._threads:
                self._saved_values = _fix([setting for setting in SETTINGS if not setting.by_thread])
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    _restore(self._saved_values)

    def unlock(self) -> None:
        """Replace the lock in a forked process, where the thread that held it does not exist."""
        self._lock = threading.Lock()


_SHARED = _SharedSettings()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHARED.unlock)


def _fix(settings: Sequence[Setting]) -> SavedValues:
    """Give settings the value of a run, and return the values that they had."""
    saved_values = [(setting, setting.read()) for setting in settings]
    for setting, value in saved_values:
        if value != setting.value:
            setting.write(setting.value)
    return saved_values


def _restore(saved_values: SavedValues) -> None:
    """Write the saved values back, in the same order, because parents overwrite their children."""
    for setting, value in saved_values:
        if setting.read() != value:
            setting.write(value)


@contextlib.contextmanager
def _without_default_device() -> Iterator[None]:
    """Remove the default devices that the caller has set, also one that was set as a default tensor type."""
    modes = []
    while (stack := _OVERRIDES._get_current_function_mode_stack()) and isinstance(stack[-1], DeviceContext):
        modes.append(_OVERRIDES._pop_mode())
    # a mode that is left on the stack is refused later, and must not see this probe
    tensor_type = "" if stack else torch.empty(0).type()
    tensor_type = tensor_type if tensor_type.startswith("torch.cuda") else ""
    try:
        if tensor_type:
            _set_default_type("torch.FloatTensor")
        yield
    finally:
        if tensor_type:
            _set_default_type(tensor_type)
        for mode in reversed(modes):
            _OVERRIDES._push_mode(mode)


def _set_default_type(tensor_type: str) -> None:
    """Set the default tensor type, the only way to undo a default device that was set as a tensor type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function is deprecated
        torch.set_default_tensor_type(tensor_type)


def _interfering_mode() -> str | None:
    """Return the name of a mode that acts on every operator and that only the caller can leave, or None."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    modes = [*_OVERRIDES._get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    if modes:
        return f"the mode {type(modes[-1]).__name__.lstrip('_')}"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "torch.autograd.graph.saved_tensors_hooks"
    if parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached"
    hook_lists = [name for name in vars(hooks) if name.startswith("_global_") and name.endswith("_hooks")]
    registered = [name.removeprefix("_global_") for name in hook_lists if getattr(hooks, name)]
    return f"a hook of all modules ({registered[0]})" if registered else None
