"""One client's round as Flower's PyTorch quickstart has it: Flower Datasets, images that are turned into tensors and
normalised one by one as they are asked for, a new net for every message, the loss read after every step.

The quickstart's own net is LeNet5 on 32x32x3. Its torchvision transforms are two lines of torch here; four fifths of a
partition are trained on there, all of it here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image
from flwr_datasets.partitioner import IidPartitioner
from PIL import Image as PIL
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from contestants.workloads import LR, Workload


class Net(nn.Module):
    """The quickstart's, which is that of PyTorch's own tutorial: as many weights as `lenet5` on 32x32x3."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


def _transformed(batch: dict) -> dict:
    batch["img"] = [_tensor(image) for image in batch["img"]]
    return batch


def _tensor(image: PIL.Image) -> Tensor:
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(torch.float32).div(255)
    return x.sub(0.5).div(0.5)


def quickstart(workload: Workload) -> Callable[[int, dict[str, Tensor]], tuple[dict[str, Tensor], int]]:
    """(client, weights) -> (weights, samples), of a workload of images 32x32x3."""
    scenario = workload.scenario()
    pixels = scenario.train_set.x.permute(0, 2, 3, 1).numpy()
    labels = scenario.train_set.y.tolist()
    features = Features({"img": Image(), "label": ClassLabel(num_classes=scenario.num_classes)})
    images = [PIL.fromarray(array) for array in pixels]
    partitioner = IidPartitioner(num_partitions=scenario.clients)
    partitioner.dataset = Dataset.from_dict({"img": images, "label": labels}, features=features)

    def train(client: int, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
        net, criterion = Net(), nn.CrossEntropyLoss()
        net.load_state_dict(weights)
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        samples = partitioner.load_partition(client).with_transform(_transformed)
        running = 0.0
        for batch in DataLoader(samples, batch_size=workload.batch, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(net(batch["img"]), batch["label"])
            loss.backward()
            optimizer.step()
            running += loss.item()
        return net.state_dict(), len(samples)

    return train
