"""What every net computes, against a forward pass written here by hand from the papers' lists of layers.

`forward(p, x, train)`: p are the net's entries by name; x [B, ...]; train: batch norm by the batch's own statistics.
"""

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, linear, max_pool2d

from fedloom.core.streams import Streams
from fedloom.nets import MODELS, build
from fedloom.nets.net import BN_ROLES, Net, Role

Entries = Mapping[str, Tensor]
IMAGE, TOKENS = (3, 32, 32), (6,)


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0)


def norm(p: Entries, name: str, x: Tensor, train: bool) -> Tensor:
    """Batch norm of x [B, c, ...]: statistics of the batch (biased), or the running ones."""
    shape = (1, -1, *(1,) * (x.dim() - 2))
    over = [d for d in range(x.dim()) if d != 1]
    mean = x.mean(over) if train else p[f"{name}.running_mean"]
    var = (x - mean.view(shape)).square().mean(over) if train else p[f"{name}.running_var"]
    scaled = (x - mean.view(shape)) / (var.view(shape) + 1e-5).sqrt()
    return scaled * p[f"{name}.weight"].view(shape) + p[f"{name}.bias"].view(shape)


def conv(p: Entries, name: str, x: Tensor, train: bool, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
    """A convolution `name.0`, then batch norm `name.1`."""
    weight, bias = p[f"{name}.0.weight"], p.get(f"{name}.0.bias")
    return norm(p, f"{name}.1", conv2d(x, weight, bias, stride=stride, padding=padding, groups=groups), train)


def dense(p: Entries, name: str, x: Tensor) -> Tensor:
    return linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def two_convolutions(
    p: Entries, x: Tensor, train: bool, *, padding: int = 0, bn: str = "", last: bool = True
) -> Tensor:
    """bn: "" none, "conv" after the convolutions, "all" also in the linear layers. last: a ReLU after the last one."""
    for number in (1, 2):
        x = conv2d(x, p[f"conv{number}.weight"], p[f"conv{number}.bias"], padding=padding)
        x = norm(p, f"norm{number}", x, train) if bn else x
        x = max_pool2d(relu(x), 2)
    x = x.flatten(1)
    layers = sorted({name.split(".")[1] for name in p if name.startswith("fc.") and p[name].dim() == 2})
    for layer in layers:
        x = dense(p, f"fc.{layer}", x)
        x = norm(p, f"fc.{int(layer) + 1}", x, train) if bn == "all" else x
        x = x if layer == layers[-1] and not last else relu(x)
    return dense(p, "head", x)


def mapping(p: Entries, x: Tensor) -> Tensor:
    """FedDW's end of every deep net: FC 256 ReLU, FC 128, head."""
    return dense(p, "head", dense(p, "fc.2", relu(dense(p, "fc.0", x))))


def residual(p: Entries, name: str, x: Tensor, train: bool, stride: int) -> Tensor:
    y = relu(conv(p, f"{name}.conv1", x, train, stride, 1))
    y = conv(p, f"{name}.conv2", y, train, 1, 1)
    changed = f"{name}.shortcut.0.weight" in p
    return relu(y + (conv(p, f"{name}.shortcut", x, train, stride) if changed else x))


def resnet(p: Entries, x: Tensor, train: bool, *, stages: int, blocks: int = 1, mapped: bool = False) -> Tensor:
    x = relu(conv(p, "stem", x, train, 1, 1))
    for stage in range(stages):
        for block in range(blocks):
            x = residual(p, f"stages.{stage}.{block}", x, train, 2 if stage and not block else 1)
    x = x.mean(3).mean(2)
    return mapping(p, x) if mapped else dense(p, "head", x)


def shuffled(x: Tensor, groups: int) -> Tensor:
    """Channels 0, n/g, 2 n/g, ..., then 1, n/g + 1, ...: the first of every group, then the second."""
    each = x.shape[1] // groups
    return x[:, [group * each + place for place in range(each) for group in range(groups)]]


def shufflenet(p: Entries, x: Tensor, train: bool) -> Tensor:
    x = relu(conv(p, "stem", x, train))
    first_units = {0: 1, 4: 2, 12: 2}  # those at stride 2, and the groups of their first convolution
    for unit in range(16):
        name, groups = f"units.{unit}", first_units.get(unit, 2)
        stride = 2 if unit in first_units else 1
        y = shuffled(relu(conv(p, f"{name}.reduce", x, train, groups=groups)), groups)
        y = relu(conv(p, f"{name}.depthwise", y, train, stride, 1, groups=y.shape[1]))
        y = conv(p, f"{name}.expand", y, train, groups=2)
        x = relu(torch.cat([y, avg_pool2d(x, 3, stride=2, padding=1)], 1) if stride == 2 else x + y)
    return mapping(p, x.mean(3).mean(2))


HALF = ((1, 8, 1, 1), (6, 12, 2, 1), (6, 16, 3, 2), (6, 32, 4, 2), (6, 48, 3, 1), (6, 80, 3, 2), (6, 160, 1, 1))
FULL = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet(p: Entries, x: Tensor, train: bool, *, half: bool) -> Tensor:
    """half: FedDW's, with ReLU, three convolutions in every block and projected shortcuts; else the original."""
    act = relu if half else lambda x: x.clamp(0, 6)
    x, place = act(conv(p, "body.0", x, train, 1, 1)), 2
    for expansion, width, blocks, first in HALF if half else FULL:
        for block in range(blocks):
            stride, name, y, layer = 1 if block else first, f"body.{place}.branch", x, 0
            if half or expansion > 1:
                y, layer = act(conv(p, f"{name}.0", y, train)), 2
            y = act(conv(p, f"{name}.{layer}", y, train, stride, 1, groups=y.shape[1]))
            y = conv(p, f"{name}.{layer + 2}", y, train)
            if stride == 1 and x.shape[1] == width:
                y = y + x
            elif stride == 1 and half:
                y = y + conv(p, f"body.{place}.shortcut", x, train)
            x, place = y, place + 1
    x = act(conv(p, f"body.{place}", x, train)).mean(3).mean(2)
    return mapping(p, x) if half else dense(p, "head", x)


def lstm(p: Entries, x: Tensor, end: str) -> Tensor:
    """x [B, L, 128] -> [B, L, 128], one direction; gates in torch's order: input, forget, cell, output."""
    h = c = torch.zeros(len(x), 128)
    out = []
    for token in x.unbind(1):
        gates = linear(token, p[f"lstm.weight_ih_l0{end}"], p[f"lstm.bias_ih_l0{end}"])
        gates = gates + linear(h, p[f"lstm.weight_hh_l0{end}"], p[f"lstm.bias_hh_l0{end}"])
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out, 1)


def bilstm(p: Entries, x: Tensor, train: bool) -> Tensor:
    words = p["embedding.weight"][x]
    states = torch.cat([lstm(p, words, ""), lstm(p, words.flip(1), "_reverse").flip(1)], 2)
    tokens = [relu(dense(p, "fc1", state)) for state in states.unbind(1)]
    return dense(p, "head", dense(p, "fc2", sum(tokens[1:], tokens[0]) / len(tokens)))


def classifier(p: Entries, x: Tensor, train: bool, fc_norm: bool) -> Tensor:
    """FedBN's three linear layers, with batch norm after the first two or without."""
    for layer in (0, 3) if fc_norm else (0, 2):
        x = dense(p, f"fc.{layer}", x)
        x = relu(norm(p, f"fc.{layer + 1}", x, train) if fc_norm else x)
    return dense(p, "head", x)


def digits(p: Entries, x: Tensor, train: bool, fc_norm: bool = True) -> Tensor:
    x = max_pool2d(relu(conv(p, "conv.0", x, train, 1, 2)), 2)
    x = max_pool2d(relu(conv(p, "conv.3", x, train, 1, 2)), 2)
    return classifier(p, relu(conv(p, "conv.6", x, train, 1, 2)).flatten(1), train, fc_norm)


def alexnet(p: Entries, x: Tensor, train: bool) -> Tensor:
    x = max_pool2d(relu(conv(p, "conv.0", x, train, 4, 2)), 3, 2)
    x = max_pool2d(relu(conv(p, "conv.3", x, train, 1, 2)), 3, 2)
    x = relu(conv(p, "conv.6", x, train, 1, 1))
    x = relu(conv(p, "conv.8", x, train, 1, 1))
    x = max_pool2d(relu(conv(p, "conv.10", x, train, 1, 1)), 3, 2)
    assert x.shape[2:] == (1, 1)  # the average to 6 x 6 then repeats the one value
    return classifier(p, x.expand(-1, -1, 6, 6).flatten(1), train, True)


def conv4(p: Entries, x: Tensor, train: bool) -> Tensor:
    for block in range(4):
        x = max_pool2d(relu(conv(p, f"body.{block}.0", x, train, 1, 1)), 2)
    return dense(p, "head", x.flatten(1))


def lenet5(p: Entries, x: Tensor, train: bool, *, bn: bool) -> Tensor:
    for number in (1, 2):
        x = conv2d(x, p[f"conv{number}.weight"], p[f"conv{number}.bias"])
        x = max_pool2d(relu(norm(p, f"norm{number}", x, train) if bn else x), 2)
    return dense(p, "head", relu(dense(p, "fc2", relu(dense(p, "fc1", x.flatten(1))))))


def digits_cnn(p: Entries, x: Tensor, train: bool) -> Tensor:
    x = max_pool2d(relu(conv2d(x, p["conv1.weight"], p["conv1.bias"], padding=1)), 2)
    x = relu(conv2d(x, p["conv2.weight"], p["conv2.bias"], padding=1))
    return dense(p, "head", relu(dense(p, "fc", x.flatten(1))))


def perceptron(p: Entries, x: Tensor, train: bool, *, hidden: int) -> Tensor:
    x = x.flatten(1)
    for layer in range(hidden):
        x = relu(dense(p, f"fc.{2 * layer}", x))
    return dense(p, "head", x)


FORWARD: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "feddw-mnist-cnn": (partial(two_convolutions, last=False), (1, 28, 28)),
    "feddw-cifar-cnn": (partial(two_convolutions, last=False), IMAGE),
    "feddw-fashion-cnn": (partial(two_convolutions, padding=2, bn="conv", last=False), (1, 28, 28)),
    "fedco2-cnn": (two_convolutions, IMAGE),
    "fedco2-cnn-bn": (partial(two_convolutions, bn="all"), IMAGE),
    "emnist-cnn": (two_convolutions, (1, 28, 28)),
    **{f"fedssa-cnn{number}": (two_convolutions, IMAGE) for number in range(1, 6)},
    "resnet8": (partial(resnet, stages=3), (3, 8, 8)),
    "resnet10": (partial(resnet, stages=4), (3, 8, 8)),
    "resnet18-cifar": (partial(resnet, stages=4, blocks=2, mapped=True), (3, 8, 8)),
    "shufflenet-cifar": (shufflenet, (3, 8, 8)),
    "mobilenetv2-half": (partial(mobilenet, half=True), (3, 8, 8)),
    "mobilenetv2-512": (partial(mobilenet, half=False), (3, 16, 16)),
    "bilstm": (bilstm, TOKENS),
    "fedbn-digits-cnn": (digits, (3, 8, 8)),
    "fedbn-alexnet": (alexnet, (3, 63, 63)),
    "conv4": (conv4, (3, 16, 16)),
    "lenet5": (partial(lenet5, bn=False), IMAGE),
    "lenet5-bn": (partial(lenet5, bn=True), IMAGE),
    "digits-cnn": (digits_cnn, (1, 8, 8)),
    "mlp": (partial(perceptron, hidden=1), (1, 8, 8)),
    "mlp-128": (partial(perceptron, hidden=1), (1, 8, 8)),
    "logistic": (partial(perceptron, hidden=0), (1, 8, 8)),
}
DROPOUT = {"feddw-mnist-cnn", "bilstm"}  # their training mode draws


def made(name: str, shape: tuple[int, ...], **options: bool) -> tuple[Net, Tensor]:
    """A net whose batch norms do something, and a batch of four."""
    net = build(name, input_shape=shape, num_classes=5, streams=Streams(0), **options)
    rng = torch.Generator().manual_seed(3)
    entries, roles = net.state_dict(), net.roles()
    for entry in (entry for entry, role in roles.items() if role in BN_ROLES and role is not Role.COUNTER):
        entries[entry].copy_(torch.rand(entries[entry].shape, generator=rng) + 0.5)
    if len(shape) == 1:
        return net, torch.randint(0, 10_000, (4, *shape), generator=rng)
    return net, torch.randn(4, *shape, generator=rng)


def assert_values(net: Net, forward: Callable[..., Tensor], x: Tensor, train: bool) -> None:
    entries = {name: value.clone() for name, value in net.state_dict().items()}
    with torch.no_grad():
        ours, expected = net.train(train)(x), forward(entries, x, train)
    assert ours.std() > 1e-3
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_every_model_of_the_library_has_a_forward_pass_here() -> None:
    assert {name for name in MODELS.names() if MODELS.get(name).__module__.startswith("fedloom.")} == set(FORWARD)


@pytest.mark.parametrize("name", FORWARD)
def test_logits_are_those_of_the_papers_layers(name: str) -> None:
    forward, shape = FORWARD[name]
    net, x = made(name, shape)
    assert_values(net, forward, x, train=False)
    if name not in DROPOUT:
        assert_values(net, forward, x, train=True)


def test_logits_without_batch_norm_in_the_linear_layers() -> None:
    net, x = made("fedbn-digits-cnn", (3, 8, 8), fc_norm=False)
    assert_values(net, partial(digits, fc_norm=False), x, train=False)
