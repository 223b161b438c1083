"""ShuffleNet V1 for small images, as FedDW uses it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedloom.nets.blocks import conv_bn, dense, image_shape
from fedloom.nets.feddw_cnns import MAPPING
from fedloom.nets.net import MODELS, Net
from fedloom.nets.options import HeadBias

GROUPS = 2
STEM = 24
STAGES = ((200, 4), (400, 8), (800, 4))


class ShuffleUnit(nn.Module):
    """Grouped conv1x1 BN ReLU, channel shuffle, depthwise conv3x3 BN ReLU, grouped conv1x1 BN; then ReLU.

    At stride 1 the input is added. At stride 2 its 3x3 average pooling is concatenated to the branch's channels.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.groups = 1 if in_channels == STEM else GROUPS
        branch = out_channels - in_channels if stride == 2 else out_channels
        bottleneck = branch // 4
        self.reduce = conv_bn(in_channels, bottleneck, 1, groups=self.groups)
        self.depthwise = conv_bn(bottleneck, bottleneck, 3, stride=stride, groups=bottleneck)
        self.expand = conv_bn(bottleneck, branch, 1, groups=GROUPS)

    def forward(self, x: Tensor) -> Tensor:
        y = self.reduce(x).relu()
        y = y.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        y = self.expand(self.depthwise(y).relu())
        if self.stride == 2:
            x = nn.functional.avg_pool2d(x, 3, stride=2, padding=1)
            return torch.cat([y, x], 1).relu()
        z: Tensor = x + y
        return z.relu()


@MODELS.register("shufflenet-cifar")
class ShuffleNetCifar(Net):
    """ShuffleNet V1 with 2 groups (Zhang et al. 2018), of FedDW's Table II (CIFAR-100): 128 features.

    conv1x1 (c -> 24) BN ReLU, three stages of shuffle units (200 x 4, 400 x 8, 800 x 4, each starting at stride 2),
    global average, FC 256 ReLU, FC 128 | head 128 -> C. At 3x32x32 and C = 100: 1,130,324 parameters with FedDW's
    bias-free head (`head_bias=False`), 1,130,424 with a bias. From the released code: unlike the original, a 1x1 stem
    without pooling, and a ReLU after the depthwise convolution. Its 4x4 average pooling is a global one here (equal
    at 32x32).
    """

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, head_bias: HeadBias = True) -> None:
        super().__init__()
        channels = image_shape(type(self).__name__, input_shape, min_pixels=8)[0]
        self.stem = conv_bn(channels, STEM, 1)
        in_channels, units = STEM, []
        for out_channels, unit_count in STAGES:
            for index in range(unit_count):
                units.append(ShuffleUnit(in_channels, out_channels, stride=1 if index else 2))
                in_channels = out_channels
        self.units = nn.Sequential(*units)
        self.fc = dense([in_channels, *MAPPING], last_relu=False)
        self.head = nn.Linear(MAPPING[-1], num_classes, bias=head_bias)

    def features(self, x: Tensor) -> Tensor:
        x = self.units(self.stem(x).relu())
        z: Tensor = self.fc(x.mean((2, 3)))
        return z
