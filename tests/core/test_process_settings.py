"""Settings of the process: fixed within a run, as they were afterwards, and refused where they cannot be."""

import contextlib
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from fedloom.core.errors import ConfigError
from fedloom.core.process_settings import SETTINGS, reproducible_settings

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
