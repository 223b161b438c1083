"""Settings of the process: fixed within a run, as they were afterwards, and refused where they cannot be."""

import contextlib
import os
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from fedloom.core.errors import ClientError, ConfigError
from fedloom.core.process_settings import SETTINGS, gpu_settings, reproducible_settings

# Another value for each kind of value; a name where it is neither a switch nor a number.
OTHER = {"highest": "medium", torch.float32: torch.float64, "auto": "greedy", (False, False): (True, True)}
OTHER |= {(False, True): (True, False), "none": "ieee", "tf32": "ieee", True: False, False: True}


def values():
    return [setting.read() for setting in SETTINGS]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_setting_is_fixed_within_the_block_and_comes_back_after_an_exception(setting):
    before = values()
    other = 3 if setting.name == "torch.set_num_threads" else OTHER[setting.value]
    try:
        setting.write(other)
        changed = values()
        if setting.read() == before[SETTINGS.index(setting)]:
            pytest.skip("this processor, or this build of PyTorch, does not have it")
        with contextlib.suppress(ZeroDivisionError), reproducible_settings():
            assert setting.read() in (setting.value, "ieee")  # in which full precision is said in two ways
            raise ZeroDivisionError
        assert values() == changed
    finally:
        for known, value in zip(SETTINGS, before, strict=True):
            known.write(value)
    assert values() == before


def test_gradients_and_errors_of_numpy_are_those_of_a_fresh_process():
    with torch.inference_mode(), np.errstate(all="raise"), reproducible_settings():
        weight = torch.ones(2, requires_grad=True)
        (weight * 2).sum().backward()
        assert weight.grad.tolist() == [2, 2]
        assert np.float64(1e-300) * np.float64(1e-300) == 0
    with torch.no_grad(), reproducible_settings():
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("nested", [False, True])
def test_default_devices_are_taken_off_and_put_back(nested):
    torch.set_default_device("meta")
    try:
        with torch.device("meta") if nested else contextlib.nullcontext():
            with reproducible_settings():
                assert torch.zeros(2).tolist() == [0, 0]
            assert torch.zeros(2).is_meta
        assert torch.zeros(2).is_meta
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).tolist() == [0, 0]


def test_two_threads_leave_what_they_share_as_the_first_has_met_it():
    torch.set_default_dtype(torch.float64)
    inside, go_on = threading.Event(), threading.Event()

    def other():
        with reproducible_settings():
            inside.set()
            go_on.wait()

    thread = threading.Thread(target=other)
    try:
        with reproducible_settings():
            thread.start()
            inside.wait()
        assert torch.get_default_dtype() == torch.float32  # the other thread still computes
        go_on.set()
        thread.join()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


class Watches(TorchFunctionMode):
    """A mode of somebody else."""


@contextlib.contextmanager
def hook_of_all_modules():
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output * 2)
    try:
        yield
    finally:
        handle.remove()


MODES = {
    "the mode Watches": Watches,
    "the mode FlopCounterMode": lambda: FlopCounterMode(display=False),
    "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "parametrize.cached": parametrize.cached,
    "a hook of all modules": hook_of_all_modules,
}


@pytest.mark.parametrize("words", MODES)
def test_a_mode_that_only_the_caller_can_leave_is_refused(words):
    with (
        MODES[words](),
        pytest.raises(ConfigError, match=f"{words}.* is active here .*leave it before"),
        reproducible_settings(),
    ):
        pass
    with reproducible_settings():
        pass


def test_a_run_within_a_transform_is_refused():
    def refused(x):
        with pytest.raises(ConfigError, match="a transform of torch"), reproducible_settings():
            pass
        return x.sum()

    torch.func.grad(refused)(torch.ones(2))
    torch.vmap(refused)(torch.ones(2, 2))


def gpu_values():
    """Whether algorithms are deterministic, and the precision of products of matrices."""
    return torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.fp32_precision


@pytest.fixture
def no_workspace(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # restored after the test
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("tf32", [True, False])
def test_settings_of_a_gpu_hold_within_the_block(no_workspace, tf32, deterministic):
    with reproducible_settings():
        before = values()
        with gpu_settings(tf32=tf32, deterministic=deterministic):
            assert gpu_values() == (deterministic, "tf32" if tf32 else "none")
            assert torch.backends.cudnn.deterministic is deterministic
            assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if deterministic else None)
        assert values() == before


def test_an_operator_without_a_fixed_order_is_named(no_workspace):
    refusal = "histc_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algorit"
    with (
        pytest.raises(ConfigError, match=r"^histc_cuda has no deterministic form .*engine.deterministic: false$"),
        gpu_settings(tf32=False, deterministic=True),
    ):
        raise ClientError(3, 1, "phase 0", RuntimeError(refusal))


def test_a_workspace_that_the_user_chose_is_kept_or_refused(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with gpu_settings(tf32=False, deterministic=True):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pytest.raises(ConfigError, match=r"^\$CUBLAS_WORKSPACE_CONFIG = ':0:0': .*; unset it, or set"):
        gpu_settings(tf32=False, deterministic=True).__enter__()
    with gpu_settings(tf32=False, deterministic=False):
        pass


def test_threads_with_other_settings_of_a_gpu_are_refused(no_workspace):
    errors = []

    def other():
        try:
            with gpu_settings(tf32=True, deterministic=True):
                pass
        except ConfigError as error:
            errors.append(str(error))

    with gpu_settings(tf32=False, deterministic=True):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert gpu_values() == (True, "none")
    assert errors
    assert "give both runs one precision" in errors[0]
