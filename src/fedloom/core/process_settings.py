"""The settings of the process in which a run computes: the same everywhere, whatever the caller has set.

The caller's settings come back after the run. Modes that only the caller can leave are refused by name.
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
Before: TypeAlias = list[tuple[Setting, Any]]


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Within the block, every setting has the value of a fresh process, with one thread and with gradients.

    One thread, because more would change the order of sums, and so the bits. Afterwards all is as it was before, also
    after an exception; what threads share comes back when the last thread leaves. Raises `ConfigError` for a caller's
    mode that cannot be left for a while.
    """
    with _without_default_device():
        if in_the_way := _in_the_way():
            raise ConfigError(f"{in_the_way} is active here and would act on every step of the run; leave it before")
        errors = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
        with torch.inference_mode(False), torch.enable_grad(), errors, _SHARED.fixed():
            before = _fix([setting for setting in SETTINGS if setting.by_thread])
            try:
                yield
            finally:
                _restore(before)


class _Shared:
    """The settings that all threads of the process share: fixed by the first that comes, restored by the last."""

    def __init__(self) -> None:
        self._lock, self._threads, self._before = threading.Lock(), 0, Before()

    @contextlib.contextmanager
    def fixed(self) -> Iterator[None]:
        with self._lock:
            if not self._threads:
                self._before = _fix([setting for setting in SETTINGS if not setting.by_thread])
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    _restore(self._before)

    def unlock(self) -> None:
        """In a forked process, where the thread that had the lock does not exist."""
        self._lock = threading.Lock()


_SHARED = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHARED.unlock)


def _fix(settings: Sequence[Setting]) -> Before:
    """Give settings their value; what they were before."""
    before = [(setting, setting.read()) for setting in settings]
    for setting, value in before:
        if value != setting.value:
            setting.write(setting.value)
    return before


def _restore(before: Before) -> None:
    """Write back what was read before. In that order: parents first."""
    for setting, value in before:
        if setting.read() != value:
            setting.write(value)


@contextlib.contextmanager
def _without_default_device() -> Iterator[None]:
    """Take off the default devices that the caller has set, and the tensor type, if that stands for one."""
    modes = []
    while (stack := _OVERRIDES._get_current_function_mode_stack()) and isinstance(stack[-1], DeviceContext):
        modes.append(_OVERRIDES._pop_mode())
    kind = "" if stack else torch.empty(0).type()  # under a mode of the caller's, which is refused, nothing is tried
    kind = kind if kind.startswith("torch.cuda") else ""
    try:
        if kind:
            _set_default_type("torch.FloatTensor")
        yield
    finally:
        if kind:
            _set_default_type(kind)
        for mode in reversed(modes):
            _OVERRIDES._push_mode(mode)


def _set_default_type(kind: str) -> None:
    """The only way to take back a default device that was set as a type of tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and says so
        torch.set_default_tensor_type(kind)


def _in_the_way() -> str | None:
    """What the caller has entered that acts on every operator, and that only the caller can leave."""
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
    every = [name for name in vars(hooks) if name.startswith("_global_") and name.endswith("_hooks")]
    registered = [name.removeprefix("_global_") for name in every if getattr(hooks, name)]
    return f"a hook of all modules ({registered[0]})" if registered else None
