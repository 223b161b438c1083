"""FedJAX, FedAvg in one process, as one JSON object: `python -m benchmarks.contestants.with_fedjax WORKLOAD ROUNDS`.

Nets of linear layers alone (mlp, logistic), written in JAX with the same widths. The first round compiles, once
for each size of a last batch. `cores`: CPU time over wall time of the other rounds.
"""

import sys
import time

BEGAN = time.time()

import json

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads import LR, WORKLOADS, tensors


def logits(params, x):
    *hidden, last = params
    for weight, bias in hidden:
        x = jax.nn.relu(x @ weight + bias)
    return x @ last[0] + last[1]


def loss(params, batch, rng):
    chosen = jax.nn.log_softmax(logits(params, batch["x"]))
    return -jnp.mean(jnp.take_along_axis(chosen, batch["y"][:, None], axis=1))


def main(name: str, rounds: int) -> None:
    workload = WORKLOADS[name]
    scenario = workload.scenario()
    x, y, clients = tensors(scenario)
    images, labels = x.flatten(1).numpy(), y.numpy().astype(np.int32)
    layers = [module for module in workload.net(scenario).modules() if hasattr(module, "in_features")]
    params = [(jnp.asarray(m.weight.detach().numpy().T), jnp.asarray(m.bias.detach().numpy())) for m in layers]
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=workload.batch, num_epochs=1, drop_remainder=False),
    )
    data = [fedjax.ClientDataset({"x": images[indices.numpy()], "y": labels[indices.numpy()]}) for indices in clients]
    state, rng, first = algorithm.init(params), np.random.default_rng(0), 0.0
    seconds: list[float] = []
    samples: list[int] = []
    cpu_seconds: list[float] = []
    for number in range(rounds):
        began, cpu_began = time.time(), time.process_time()
        chosen = rng.choice(len(clients), workload.sampled, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(number), len(chosen))
        state, _ = algorithm.apply(state, [(int(c), data[c], key) for c, key in zip(chosen, keys, strict=True)])
        jax.block_until_ready(state.params)
        seconds.append(time.time() - began)
        cpu_seconds.append(time.process_time() - cpu_began)
        samples.append(sum(len(clients[c]) for c in chosen))
        first = first or time.time() - BEGAN
    counts = {"rounds": seconds[1:], "samples": samples[1:], "cores": sum(cpu_seconds[1:]) / sum(seconds[1:])}
    print(json.dumps(counts | {"to_first_round": first, "total": time.time() - BEGAN}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
