"""Flower's simulation (Ray), FedAvg: `python -m benchmarks.contestants.with_flower WORKLOAD ROUNDS`, one JSON object on
standard output.

Given its best here: two actors of one core on two cores, tensors in memory loaded once per actor, no transforms, no
evaluation.
"""

import os
import sys
import time

BEGAN = time.time()
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_ENABLE_UAGS", "0")
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import functools
import json
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.plain_loop import with_loaders
from benchmarks.workloads import NO_OP, WORKLOADS


@functools.cache
def trainer(name: str):
    torch.set_num_threads(1)
    return with_loaders((WORKLOADS | NO_OP)[name])


def client_app(workload: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks.contestants import with_flower  # the actor's own module: its cache outlives a message

        client = int(context.node_config["partition-id"])
        received = message.content["arrays"].to_torch_state_dict()
        weights, samples = with_flower.trainer(workload)(client, received)
        content = RecordDict({"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": samples})})
        return Message(content=content, reply_to=message)

    return app


class Timed(FedAvg):
    """FedAvg that notes when each round begins and ends."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.times: list[tuple[float, float]] = []
        self.samples: list[int] = []

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid):
        self._began = time.time()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        replies = list(replies)
        if failed := [reply.error for reply in replies if reply.has_error()]:
            raise SystemExit(f"{len(failed)} clients failed: {failed[0]}")  # Flower would continue without them
        result = super().aggregate_train(server_round, replies)
        self.times.append((self._began, time.time()))
        self.samples.append(sum(int(reply.content["metrics"]["num-examples"]) for reply in replies))
        return result


def main(name: str, rounds: int) -> None:
    workload = (WORKLOADS | NO_OP)[name]
    scenario = workload.scenario()
    net = workload.net(scenario)
    share = workload.sampled / scenario.clients
    strategy = Timed(
        fraction_train=share, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=scenario.clients
    )
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=rounds)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client_app(name), num_supernodes=scenario.clients, backend_config=resources)
    seconds = [end - begin for begin, end in strategy.times]
    first = strategy.times[0][1] - BEGAN
    counts = {"rounds": seconds, "samples": strategy.samples}
    print(json.dumps(counts | {"to_first_round": first, "total": time.time() - BEGAN}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
