"""Settings of the process and of torch that silently change results: fixed while a run computes, then restored."""

import contextlib
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.overrides
from torch.nn.modules import module as hooks
from torch.nn.utils import parametrize
from torch.utils import deterministic
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fedloom.core.errors import ConfigError


class Setting(NamedTuple):
    """A setting of PyTorch."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    value: Any  # in a run: that of a fresh process
    by_thread: bool = False  # every thread has its own


_ATTENTION_KERNELS = ("flash", "mem_efficient", "math", "cudnn")
_FLOAT32_PRECISIONS = [  # parents first, because setting a parent sets its children
    ("generic", "all", "none"),
    *((backend, "all", "none") for backend in ("mkldnn", "cuda")),
    *(("mkldnn", operator, "none") for operator in ("matmul", "conv", "rnn")),
    *(("cuda", operator, "none") for operator in ("matmul", "conv", "rnn")),
]


def _readable(read: Callable[[], Any]) -> Callable[[], Any]:
    """Let an older setting read None if the caller chose precisions by `fp32_precision` that it cannot express."""

    def value() -> Any:
        with contextlib.suppress(RuntimeError):
            return read()
        return None

    return value


def _set_matmul_precision(precision: str | None) -> None:
    if precision is not None:
        torch.set_float32_matmul_precision(precision)


def _set_cudnn_tf32(allowed: bool | None) -> None:
    if allowed is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and torch refuses to export while the two disagree
            torch._C._set_cudnn_allow_tf32(allowed)


def _deterministic_mode() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(mode: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])


def _flushes_denormals() -> bool:
    # Torch has no function to ask, but the flag of the processor acts on NumPy as well.
    return bool((np.full(1, 5e-324) * np.ones(1))[0] == 0)


def _attribute(owner: Any, path: str, name: str, value: Any) -> Setting:
    return Setting(f"{path}.{name}", partial(getattr, owner, name), partial(setattr, owner, name), value)


def _flag(name: str, value: Any, functions: str) -> list[Setting]:
    """Return a flag by the names of its functions in `torch._C`; empty if this version of PyTorch lacks it."""
    read, write = f"_get_{functions}", f"_set_{functions}"
    if not (hasattr(torch._C, read) and hasattr(torch._C, write)):
        return []
    return [Setting(f"torch.backends.{name}", getattr(torch._C, read), getattr(torch._C, write), value)]


def _float32_precisions() -> Iterator[Setting]:
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        for backend, operator, value in _FLOAT32_PRECISIONS:
            read = partial(torch._C._get_fp32_precision_getter, backend, operator)
            write = partial(torch._C._set_fp32_precision_setter, backend, operator)
            yield Setting(f"fp32_precision of {backend} {operator}", read, write, value)


def _all_settings() -> Iterator[Setting]:
    backends: Any = torch.backends
    anomaly = (torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled)
    yield Setting("torch.set_default_dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float32)
    yield Setting("torch.set_num_threads", torch.get_num_threads, torch.set_num_threads, 1, True)
    yield Setting("torch.set_flush_denormal", _flushes_denormals, torch.set_flush_denormal, False, True)
    precision, tf32 = map(_readable, (torch.get_float32_matmul_precision, torch._C._get_cudnn_allow_tf32))
    yield Setting("torch.set_float32_matmul_precision", precision, _set_matmul_precision, "highest")
    yield Setting("torch.backends.cudnn.allow_tf32", tf32, _set_cudnn_tf32, False)
    yield from _float32_precisions()
    yield Setting("torch.use_deterministic_algorithms", _deterministic_mode, _set_deterministic, (False, False))
    yield _attribute(deterministic, "torch.utils.deterministic", "fill_uninitialized_memory", True)
    yield Setting(
        "torch.autograd.set_detect_anomaly",
        lambda: tuple(read() for read in anomaly),
        lambda mode: torch.autograd.set_detect_anomaly(*mode),
        (False, True),
    )
    for device in ("cpu", "cuda"):
        read, write = partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)
        yield Setting(f"torch.set_autocast_enabled('{device}')", read, write, False, True)
    for kernel in _ATTENTION_KERNELS:
        read, write = (getattr(backends.cuda, name) for name in (f"{kernel}_sdp_enabled", f"enable_{kernel}_sdp"))
        yield Setting(f"torch.backends.cuda.enable_{kernel}_sdp", read, write, True)
    mha = backends.mha
    yield Setting("torch.backends.mha.set_fastpath_enabled", mha.get_fastpath_enabled, mha.set_fastpath_enabled, True)
    yield from _flag("mkldnn.enabled", True, "mkldnn_enabled")
    yield from _flag("mkldnn.deterministic", False, "mkldnn_deterministic")
    yield from _flag("nnpack", True, "nnpack_enabled")
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        yield _attribute(backends.cuda.matmul, "torch.backends.cuda.matmul", name, True)
    yield from _flag("cudnn.enabled", True, "cudnn_enabled")
    yield from _flag("cudnn.benchmark", False, "cudnn_benchmark")
    yield from _flag("cudnn.deterministic", False, "cudnn_deterministic")
    if (einsum := backends.opt_einsum).is_available():
        yield Setting("torch.backends.opt_einsum.enabled", einsum._get_enabled, einsum._set_enabled, True)
        yield Setting("torch.backends.opt_einsum.strategy", einsum._get_strategy, einsum._set_strategy, "auto")


SETTINGS = list(_all_settings())
_OVERRIDES: Any = torch.overrides  # without types
SavedValues: TypeAlias = list[tuple[Setting, Any]]


@contextlib.contextmanager
def reproducible_settings() -> Iterator[None]:
    """Give every setting the value of a fresh process within the block, with one thread (more change the order of sums)
    and with gradients. Raises `ConfigError` for a mode that only the caller can leave."""
    with _without_default_device():
        if mode := _interfering_mode():
            raise ConfigError(f"{mode} is active here and would act on every step of the run; leave it before")
        errors = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
        shared = [setting for setting in SETTINGS if not setting.by_thread]
        with torch.inference_mode(False), torch.enable_grad(), errors, _SHARED.fixed(shared):
            saved_values = _fix([setting for setting in SETTINGS if setting.by_thread])
            try:
                yield
            finally:
                _restore(saved_values)


class _SharedSettings:
    """Settings that all threads of the process share: the first thread fixes them, the last one restores them."""

    def __init__(self) -> None:
        self._lock, self._threads = threading.Lock(), 0
        self._fixed: list[Setting] = []
        self._saved_values = SavedValues()

    @contextlib.contextmanager
    def fixed(self, settings: Sequence[Setting]) -> Iterator[None]:
        """Fix the settings within the block. Raises `ConfigError` if another thread has fixed other values."""
        with self._lock:
            # Only the first thread may save: later ones would save the values of a run.
            if not self._threads:
                self._fixed, self._saved_values = list(settings), _fix(settings)
            values, others = ({setting.name: setting.value for setting in each} for each in (settings, self._fixed))
            if unlike := [name for name in values.keys() | others.keys() if values.get(name) != others.get(name)]:
                raise ConfigError(
                    f"another run of this process computes with another {min(unlike)}: the setting is one for all "
                    "threads; give both runs one precision and engine.deterministic, or run them one after the other"
                )
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    _restore(self._saved_values)

    def unlock(self) -> None:
        self._lock = threading.Lock()


_SHARED, _OF_GPU = _SharedSettings(), _SharedSettings()
if hasattr(os, "register_at_fork"):
    for _shared in (_SHARED, _OF_GPU):
        os.register_at_fork(after_in_child=_shared.unlock)


_WORKSPACE, _FIXED_WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")


@contextlib.contextmanager
def gpu_settings(*, tf32: bool, deterministic: bool) -> Iterator[None]:
    """Set for all threads in the block whether a GPU may round factors to TF32, and whether numbers must repeat. Raises
    `ConfigError` for an operator without a deterministic form, and for other settings elsewhere."""
    settings = [setting._replace(value=value) for setting, value in _gpu_values(tf32, deterministic)]
    if deterministic and os.environ.setdefault(_WORKSPACE, _FIXED_WORKSPACES[0]) not in _FIXED_WORKSPACES:
        problem = "with it, products differ from run to run; unset it, or set engine.deterministic: false"
        raise ConfigError(f"${_WORKSPACE} = {os.environ[_WORKSPACE]!r}: {problem}")
    with _OF_GPU.fixed(settings):
        try:
            yield
        except Exception as error:
            if (operator := _operator_without_order(error)) is None:
                raise
            raise ConfigError(
                f"{operator} has no deterministic form on a GPU, so its numbers differ from run to run; train on the "
                "CPU, or set engine.deterministic: false"
            ) from error


def _gpu_values(tf32: bool, deterministic: bool) -> Iterator[tuple[Setting, Any]]:
    values: dict[str, Any] = {"torch.use_deterministic_algorithms": (deterministic, False)}
    values["torch.backends.cudnn.deterministic"] = deterministic
    if tf32:
        values |= {"torch.set_float32_matmul_precision": "high", "torch.backends.cudnn.allow_tf32": True}
        values |= {f"fp32_precision of cuda {operator}": "tf32" for operator in ("matmul", "conv", "rnn")}
        values["fp32_precision of mkldnn matmul"] = "none"  # which "high" sets for the CPU as well
    yield from ((setting, values[setting.name]) for setting in SETTINGS if setting.name in values)


def _operator_without_order(error: BaseException | None) -> str | None:
    """The operator that torch refused in `error` or in one of its causes; None if it refused none."""
    while error is not None:
        if refused := re.search(r"([\w.:]+) does not have a deterministic implementation", str(error)):
            return refused[1]
        error = error.__cause__ or error.__context__
    return None


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
