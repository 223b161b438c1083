"""The plain loop that a researcher writes, and one centralised epoch of the same net, the limit of all contestants."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.workloads import LR, SMOKE, Workload, tensors


def rounds(
    workload: Workload, device: str = "cpu", *, bfloat16: bool = False, compiled: bool = False
) -> Callable[[], int]:
    """A function that runs one round and returns the number of samples: tensors in memory, batches by indexing.

    bfloat16: autocast and channels last. compiled: whole batches run by `torch.compile`, to which each size is new.
    """
    scenario = workload.scenario()
    memory_format = torch.channels_last if bfloat16 else torch.preserve_format
    x, y, clients = tensors(scenario)
    x, y = x.to(device, memory_format=memory_format), y.to(device)
    net: nn.Module = workload.net(scenario).to(device, memory_format=memory_format)
    criterion = nn.CrossEntropyLoss()
    # a smoke test only asks whether the function can be traced
    fast_net = torch.compile(net, dynamic=False, backend="eager" if SMOKE else "inductor") if compiled else net
    state = {"weights": copy.deepcopy(net.state_dict()), "rng": torch.Generator().manual_seed(0)}

    def one_round() -> int:
        chosen = torch.randperm(len(clients), generator=state["rng"])[: workload.sampled].tolist()
        total = sum(len(clients[client]) for client in chosen)
        mean: dict[str, torch.Tensor] = {}
        for client in chosen:
            net.load_state_dict(state["weights"])
            net.train()
            optimizer = torch.optim.SGD(net.parameters(), LR, workload.momentum, weight_decay=workload.weight_decay)
            order = clients[client][torch.randperm(len(clients[client]), generator=state["rng"])].to(device)
            for part in order.split(workload.batch):
                optimizer.zero_grad()
                with torch.autocast(x.device.type, torch.bfloat16, enabled=bfloat16):
                    loss = criterion((fast_net if len(part) == workload.batch else net)(x[part]), y[part])
                loss.backward()
                optimizer.step()
            share = len(order) / total
            for name, value in net.state_dict().items():
                mean[name] = mean.get(name, 0) + value.to(torch.float64) * share
        state["weights"] = {name: mean[name].to(value.dtype) for name, value in state["weights"].items()}
        return total

    return one_round


def centralised(workload: Workload, samples: int) -> Callable[[], int]:
    """A function that trains one net on `samples` samples with a DataLoader-free SGD loop, and returns their number."""
    scenario = workload.scenario()
    x, y, _ = tensors(scenario)
    net, criterion = workload.net(scenario), nn.CrossEntropyLoss()
    optimizer, rng = torch.optim.SGD(net.parameters(), lr=LR), torch.Generator().manual_seed(0)

    def epoch() -> int:
        for part in torch.randperm(len(x), generator=rng)[:samples].split(workload.batch):
            optimizer.zero_grad()
            criterion(net(x[part]), y[part]).backward()
            optimizer.step()
        return samples

    return epoch


def with_loaders(workload: Workload) -> Callable[[int, dict[str, torch.Tensor]], tuple[dict[str, torch.Tensor], int]]:
    """One client's round as tutorials write it, with a DataLoader: (client, weights) -> (weights, samples)."""
    if workload.model == "weights":
        return lambda client, weights: (weights, 1)
    scenario = workload.scenario()
    x, y, clients = tensors(scenario)
    net, criterion = workload.net(scenario), nn.CrossEntropyLoss()

    def train(client: int, weights: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], int]:
        net.load_state_dict(weights)
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=LR)
        samples = TensorDataset(x[clients[client]], y[clients[client]])
        for inputs, labels in DataLoader(samples, batch_size=workload.batch, shuffle=True):
            optimizer.zero_grad()
            criterion(net(inputs), labels).backward()
            optimizer.step()
        return net.state_dict(), len(samples)

    return train
