"""pfl (Apple), FedAvg in one process, as one JSON object: `python -m benchmarks.contestants.with_pfl WORKLOAD ROUNDS`.

It averages trainable parameters alone, no batch-norm statistics, and evaluates nothing here.
"""

import sys
import time

BEGAN = time.time()

import itertools
import json

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.workloads import LR, WORKLOADS, tensors


class Clock(TrainingProcessCallback):
    """Notes when each round ends, and how many samples it took."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.samples: list[int] = []
        self.taken = 0

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append(time.time())
        self.samples.append(self.taken)
        self.taken = 0
        return False, Metrics()


def main(name: str, rounds: int) -> None:
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    scenario = workload.scenario()
    x, y, clients = tensors(scenario)
    net, criterion = workload.net(scenario), torch.nn.CrossEntropyLoss()

    def loss(inputs, labels, is_eval=False):
        net.train(not is_eval)
        return criterion(net(inputs), labels)

    net.loss, net.metrics = loss, lambda inputs, labels: {}
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))

    def user(client: int) -> Dataset:
        indices = clients[client]
        clock.taken += len(indices)
        return Dataset([x[indices], y[indices]])

    clock = Clock()
    users = FederatedDataset(user, get_user_sampler("random", list(range(len(clients)))))
    sampled = workload.sampled
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, 10**9, sampled, 0),
        backend=SimulatedBackend(training_data=users, val_data=None, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=workload.batch
        ),
        model_eval_params=None,
        callbacks=[clock],
    )
    ends = clock.ends
    print(
        json.dumps(
            {
                "rounds": [b - a for a, b in itertools.pairwise(ends)],
                "samples": clock.samples[1:],
                "to_first_round": ends[0] - BEGAN,
                "total": time.time() - BEGAN,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
