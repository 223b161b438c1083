"""Plain JAX, FedAvg: `python -m benchmarks.contestants.with_jax WORKLOAD PLATFORM` runs a round for each line it reads.

As an expert would write it: a `vmap` over clients of a `scan` over steps, with masks for unequal sizes. The net is
traced from ours, so that all layers are the same. Clients are sorted by size and train in groups, because a group
takes as many steps as its largest client. On a GPU, JAX rounds the factors of products to TF32. PLATFORM: cuda or cpu.
"""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import fx, nn

from benchmarks.workloads import LR, ON_GPU, Workload

GROUPS = {"mlp": 100}  # clients of a group; else:
GROUP = 25


def convolution(layer: nn.Conv2d, p: dict, name: str, x: Any) -> Any:
    padding = [(size, size) for size in layer.padding]
    y = jax.lax.conv_general_dilated(x, p[f"{name}.weight"], layer.stride, padding, feature_group_count=layer.groups)
    return y if layer.bias is None else y + p[f"{name}.bias"][:, None, None]


def batch_norm(layer: nn.BatchNorm2d, p: dict, name: str, x: Any, mask: Any) -> Any:
    """Normalise by the statistics of the samples in the mask. Running statistics are left out."""
    weight, count = mask[:, None, None, None], jnp.maximum(mask.sum(), 1) * x.shape[2] * x.shape[3]
    mean = (x * weight).sum((0, 2, 3), keepdims=True) / count
    variance = (jnp.square(x - mean) * weight).sum((0, 2, 3), keepdims=True) / count
    scale, shift = (p[f"{name}.{part}"][:, None, None] for part in ("weight", "bias"))
    return (x - mean) * jax.lax.rsqrt(variance + layer.eps) * scale + shift


def max_pool(x: Any, size: int, **_: Any) -> Any:
    window = (1, 1, size, size)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")


METHODS = {
    "relu": jax.nn.relu,
    "flatten": lambda x, start: x.reshape(*x.shape[:start], -1),
    "mean": lambda x, axes: x.mean(axes),
}


def logits_of(net: nn.Module) -> Callable[[dict, Any, Any], Any]:
    """Return the net as a function of parameters by name, inputs [B, ...] and their mask [B]."""
    traced = fx.symbolic_trace(net.train())
    layers = dict(traced.named_modules())

    def layer_output(name: str, p: dict, x: Any, mask: Any) -> Any:
        match layers[name]:
            case nn.Linear() as layer:
                y = x @ p[f"{name}.weight"].T
                return y if layer.bias is None else y + p[f"{name}.bias"]
            case nn.Conv2d() as layer:
                return convolution(layer, p, name, x)
            case nn.BatchNorm2d() as layer:
                return batch_norm(layer, p, name, x, mask)
            case nn.ReLU():
                return jax.nn.relu(x)
            case nn.Identity():
                return x
        raise ValueError(f"no JAX for {layers[name]}")

    def logits(p: dict, x: Any, mask: Any) -> Any:
        values: dict[fx.Node, Any] = {}
        for node in traced.graph.nodes:
            arguments = fx.node.map_arg(node.args, values.__getitem__)
            if node.op == "placeholder":
                values[node] = x
            elif node.op == "call_module":
                values[node] = layer_output(node.target, p, arguments[0], mask)
            elif node.op == "output":
                return arguments[0]
            elif node.op == "call_method":
                values[node] = METHODS[node.target](*arguments)
            else:
                function = max_pool if "boolean_dispatch" in str(node.target) else node.target
                values[node] = function(*arguments, **node.kwargs)
        raise ValueError("the net has no output")

    return logits


def rounds(workload: Workload) -> Callable[[], None]:
    """Return a function that runs one round."""
    scenario, batch, width = workload.scenario(), workload.batch, GROUPS.get(workload.name, GROUP)
    net = workload.net(scenario)
    data, logits, rng = scenario.train_set, logits_of(net), np.random.default_rng(0)
    x, y = jnp.asarray(data.gather(torch.arange(len(data))).numpy()), jnp.asarray(data.y.numpy())
    state = {"params": {name: jnp.asarray(value.detach().numpy()) for name, value in net.named_parameters()}}

    def loss(p: dict, indices: Any, mask: Any) -> Any:
        chosen = jax.nn.log_softmax(logits(p, x[indices], mask))
        losses = -jnp.take_along_axis(chosen, y[indices][:, None], 1)[:, 0]
        return (losses * mask).sum() / jnp.maximum(mask.sum(), 1)

    def step(carried: tuple, batch: tuple) -> tuple:
        (p, moments), (indices, mask) = carried, batch
        gradients, takes = jax.grad(loss)(p, indices, mask), mask.any()
        decayed = jax.tree.map(lambda g, w: g + workload.weight_decay * w, gradients, p)
        moments = jax.tree.map(lambda m, g: workload.momentum * m + g, moments, decayed)
        return (jax.tree.map(lambda w, m: w - LR * takes * m, p, moments), moments), None

    def client(p: dict, indices: Any, mask: Any) -> dict:
        return jax.lax.scan(step, (p, jax.tree.map(jnp.zeros_like, p)), (indices, mask))[0][0]

    @jax.jit
    def group(p: dict, indices: Any, mask: Any, shares: Any) -> dict:
        trained = jax.vmap(client, (None, 0, 0))(p, indices, mask)
        return jax.tree.map(lambda w: jnp.einsum("k,k...->...", shares, w), trained)

    def one_round() -> None:
        chosen = rng.permutation(scenario.clients)[: workload.sampled]
        chosen = sorted(chosen, key=lambda client: -len(scenario.train[client]))
        total, sums = sum(len(scenario.train[client]) for client in chosen), []
        for first in range(0, len(chosen), width):
            views = [scenario.train[client] for client in chosen[first : first + width]]
            steps = -(-max(map(len, views)) // batch)
            indices = np.zeros((len(views), steps * batch), np.int32)
            mask = np.zeros(indices.shape, np.float32)
            for row, view in enumerate(views):
                indices[row, : len(view)], mask[row, : len(view)] = rng.permutation(view), 1
            parts = (array.reshape(len(views), steps, batch) for array in (indices, mask))
            sums.append(group(state["params"], *parts, np.array([len(view) / total for view in views], np.float32)))
        state["params"] = jax.block_until_ready(jax.tree.map(lambda *parts: sum(parts), *sums))

    return one_round


def main(name: str, platform: str) -> None:
    jax.config.update("jax_platforms", platform)
    one_round = rounds(ON_GPU[name])
    for _ in sys.stdin:
        began = time.perf_counter()
        one_round()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
