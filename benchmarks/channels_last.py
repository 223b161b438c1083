"""Which nets train faster with channels last: `python benchmarks/channels_last.py [names]`.

One step (forward, backward), one thread, both memory orders in turn; medians. Nets that gain have
`channels_last = True`.
"""

from __future__ import annotations

import copy
import sys
import time
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedloom.core.streams import Streams
from fedloom.nets import MODELS, build
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net

BATCH, SECONDS = 32, 3.0
SHAPES = {"digits-cnn": (1, 8, 8), "mobilenetv2-512": (3, 64, 64), "fedbn-alexnet": (3, 128, 128)}
GREY = {"lenet5", "lenet5-bn", "emnist-cnn", "feddw-mnist-cnn", "feddw-fashion-cnn"}
NO_CONVOLUTION = {"mlp", "mlp-128", "logistic", "bilstm"}


def milliseconds(net: Net, x: Tensor, y: Tensor) -> float:
    began = time.perf_counter()
    torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or sorted(set(MODELS.names()) - NO_CONVOLUTION):
        shape = SHAPES.get(name, (1, 28, 28) if name in GREY else (3, 32, 32))
        plain = build(name, input_shape=shape, num_classes=10, streams=Streams(0)).train()
        last, chosen = copy.deepcopy(plain), plain.channels_last
        plain.channels_last, last.channels_last = False, True  # type: ignore[misc]
        plain, last = LoadedNet(plain).net, LoadedNet(last).net  # as engines lay them out
        x, y = torch.randn(BATCH, *shape), torch.randint(0, 10, (BATCH,))
        times: dict[str, list[float]] = {"plain": [], "last": []}
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until or len(times["plain"]) < 3:
            times["plain"].append(milliseconds(plain, x, y))
            times["last"].append(milliseconds(last, x, y))
        before, after = median(times["plain"]), median(times["last"])
        words = "channels last" if chosen else ""
        print(f"{name:18s} {before:9.2f} ms  {after:9.2f} ms  {before / after:5.2f} x  {words}", flush=True)


if __name__ == "__main__":
    main()
