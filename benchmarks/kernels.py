"""Speed of fedloom's own kernels and of torch's two memory orders, and which nets gain from channels last.

    python -m benchmarks kernels [convolutions | poolings | nets]

One convolution or pooling, forward and backward, in one thread; torch in both memory orders and fedloom's kernels take
turns. Medians in microseconds of processor time, which other work on the machine hardly changes. GFLOP/s are those of
fedloom's convolution, and `taken` marks those that a net with own kernels uses. `nets` compares whole steps of each net
in both memory orders: nets that gain have `channels_last = True`.
"""

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, max_pool2d

from fedloom.core.streams import Streams
from fedloom.engine.fast.kernels.operators import convolution, is_faster, max_pool2
from fedloom.engine.speedups import keep_freed_memory
from fedloom.nets import MODELS, build
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net

BATCH, SECONDS = 32, 1.0
ORDERS = {"plain": torch.contiguous_format, "channels last": torch.channels_last}
IN_OUT = "1-6 3-6 6-16 1-10 10-20 3-16 8-16 16-16 12-24 16-32 3-32 1-32 8-32 32-32 1-64 3-64 4-64 12-48"
# Side of the image, of the kernel, padding.
SIDES = [(28, 5, 0), (12, 5, 0), (32, 3, 1), (14, 3, 1), (8, 3, 1)]

SHAPES = {"digits-cnn": (1, 8, 8), "mobilenetv2-512": (3, 64, 64), "fedbn-alexnet": (3, 128, 128)}
GREY = {"lenet5", "lenet5-bn", "emnist-cnn", "feddw-mnist-cnn", "feddw-fashion-cnn"}
NO_CONVOLUTION = {"mlp", "mlp-128", "logistic", "bilstm"}

Work: TypeAlias = Callable[[], object]


def trained(function: Callable[..., Tensor], inputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> Work:
    """Return forward and backward, with a gradient of the output in its own memory order."""
    g = torch.randn_like(function(*inputs))
    return lambda: torch.autograd.grad(function(*inputs), leaves, g)


def in_turns(works: dict[str, Work]) -> dict[str, float]:
    """Return the median microseconds of each, after two turns that warm up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    turn, until = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < until or turn < 5:
        for name, work in works.items():
            began = time.thread_time()
            work()
            if turn > 1:
                times[name].append((time.thread_time() - began) * 1e6)
        turn += 1
    return {name: median(values) for name, values in times.items()}


def print_row(title: str, times: dict[str, float], chosen: bool, flops: float = 0.0) -> None:
    best = min(times[name] for name in ORDERS)
    figures = "".join(f"{microseconds:12.0f}" for microseconds in times.values())
    speed = f"{flops / times['own'] / 1e3:5.1f} GFLOP/s  " if flops else ""
    print(f"{title:34s}{figures}  {best / times['own']:5.2f} x  {speed}{'taken' if chosen else ''}", flush=True)


def convolutions() -> None:
    for side, kernel, padding in SIDES:
        for c_in, c_out in (map(int, pair.split("-")) for pair in IN_OUT.split()):
            x, weight = torch.randn(BATCH, c_in, side, side), torch.randn(c_out, c_in, kernel, kernel)
            works: dict[str, Work] = {}
            for name, order in (ORDERS | {"own": torch.contiguous_format}).items():
                leaves = [x.clone(memory_format=order), weight.clone(memory_format=order), torch.randn(c_out)]
                trainable = [leaf.requires_grad_() for leaf in leaves[c_in <= 3 :]]  # a first layer's images need none
                function: Callable[..., Tensor] = convolution if name == "own" else conv2d
                works[name] = trained(partial(function, padding=(padding, padding)), leaves, trainable)
            title = f"{c_in} -> {c_out}, {side}x{side}, {kernel}x{kernel}, padding {padding}"
            rows = side + 2 * padding - kernel + 1
            passes = 2 if c_in <= 3 else 3  # forward, gradient of the weights, and that of the input
            flops = passes * 2.0 * BATCH * c_in * c_out * kernel**2 * rows**2
            print_row(title, in_turns(works), is_faster(c_in, c_out), flops)


def poolings() -> None:
    for channels, side in ((6, 28), (16, 10), (10, 24), (32, 28), (64, 14)):
        x = torch.randn(BATCH, channels, side, side)
        ordered = {name: x.clone(memory_format=order).requires_grad_() for name, order in ORDERS.items()}
        works = {name: trained(lambda x: max_pool2d(x, 2), [image], [image]) for name, image in ordered.items()}
        image = x.clone().requires_grad_()
        works["own"] = trained(max_pool2, [image], [image])
        print_row(f"2x2 maxima, {channels} of {side}x{side}", in_turns(works), True)


def nets() -> None:
    for name in sorted(set(MODELS.names()) - NO_CONVOLUTION):
        shape = SHAPES.get(name, (1, 28, 28) if name in GREY else (3, 32, 32))
        plain = build(name, input_shape=shape, num_classes=10, streams=Streams(0)).train()
        last, chosen = copy.deepcopy(plain), plain.channels_last
        plain.channels_last, last.channels_last = False, True  # type: ignore[misc]
        x, y = torch.randn(BATCH, *shape), torch.randint(0, 10, (BATCH,))
        loaded = {"plain": LoadedNet(plain).net, "channels last": LoadedNet(last).net}  # as engines lay them out
        times = in_turns({order: partial(step, net, x, y) for order, net in loaded.items()})
        print_row(name, times | {"own": times["channels last"]}, chosen)


def step(net: Net, x: Tensor, y: Tensor) -> None:
    """Compute the gradients of one batch."""
    torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))


def main(words: Sequence[str]) -> None:
    parts = {part.__name__: part for part in (convolutions, poolings, nets)}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all unless given")
    selected = parser.parse_args(words).parts or parts
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"{f'batches of {BATCH}':34s}{'plain':>12s}{'channels last':>14s}{'own':>10s}  torch's best / own")
    for name in selected:
        parts[name]()
