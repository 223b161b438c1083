"""Deep CNNs for small images: ResNet-8 (FedSKC), ResNet-10 (FedSC), ResNet-18 (FedDW), MobileNetV2 at half width
(FedDW) and with 512 features (FedSC), and the ShuffleNet V1 of FedDW."""

from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from fedloom.nets.blocks import HeadBias, conv_bn, dense, image_shape
from fedloom.nets.net import MODELS, Net


class BasicBlock(nn.Module):
    """conv3x3 BN ReLU conv3x3 BN, plus the input (through conv1x1 BN where the shape changes), then ReLU."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, bias: bool) -> None:
        super().__init__()
        self.conv1 = conv_bn(in_channels, out_channels, 3, stride=stride, bias=bias)
        self.conv2 = conv_bn(out_channels, out_channels, 3, bias=bias)
        keeps_shape, sizes = stride == 1 and in_channels == out_channels, (in_channels, out_channels, 1)
        self.shortcut = nn.Identity() if keeps_shape else conv_bn(*sizes, stride=stride, bias=bias)

    def before_relu(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv2(self.conv1(x).relu()) + self.shortcut(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.before_relu(x).relu()


class ResNet(Net):
    """conv3x3 (c -> 64) BN ReLU, stages of basic blocks (the first at full size), global average [FC ...] | head.
    `widths`, `blocks`: of the stages. `conv_bias`. `kaiming_normal`: convolutions are drawn from N(0, sqrt(2 / (k^2
    out))) in place of torch's default. `mapping`: the linear layers before the head."""

    widths: ClassVar[tuple[int, ...]]
    blocks: ClassVar[int] = 1
    conv_bias: ClassVar[bool] = False
    kaiming_normal: ClassVar[bool] = False
    mapping: ClassVar[tuple[int, ...]] = ()

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, head_bias: HeadBias = True) -> None:
        super().__init__()
        min_pixels = 2 ** (len(self.widths) - 1)
        channels = image_shape(type(self).__name__, input_shape, min_pixels=min_pixels)[0]
        self.stem = conv_bn(channels, self.widths[0], 3, bias=self.conv_bias)
        in_channels = self.widths[0]
        stages = []
        for stage_index, width in enumerate(self.widths):
            stage = nn.Sequential()
            for block_index in range(self.blocks):
                stride = 2 if stage_index > 0 and block_index == 0 else 1
                stage.append(BasicBlock(in_channels, width, stride=stride, bias=self.conv_bias))
                in_channels = width
            stages.append(stage)
        self.stages = nn.Sequential(*stages)
        widths = [in_channels, *self.mapping]
        self.fc = dense(widths, last_relu=False)
        self.head = nn.Linear(widths[-1], num_classes, bias=head_bias)
        for module in self.modules() if self.kaiming_normal else ():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x).relu())
        return cast(Tensor, self.fc(x.mean((2, 3))))

    def levels(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        activations: list[Tensor] = [self.stem(x)]
        for stage in self.stages.children():
            *blocks, last_block = stage.children()
            # Without other blocks the Sequential is empty, and hands its input on.
            x = nn.Sequential(*blocks)(activations[-1].relu())
            activations.append(cast(BasicBlock, last_block).before_relu(x))
        z: Tensor = self.fc(activations[-1].relu().mean((2, 3)))
        return tuple(activations), z


class InvertedResidual(nn.Module):
    """conv1x1 BN act, depthwise conv3x3 BN act, conv1x1 BN, plus the input. `original` (Sandler et al. 2018): ReLU6, no
    first convolution at expansion 1, the input only where the shape is kept. Otherwise (FedDW's code): ReLU, three
    convolutions, and at stride 1 the input always, through conv1x1 BN where widths differ."""

    def __init__(self, in_channels: int, out_channels: int, *, expansion: int, stride: int, original: bool) -> None:
        super().__init__()
        hidden = in_channels * expansion
        activation = nn.ReLU6 if original else nn.ReLU
        widen = [] if original and expansion == 1 else [conv_bn(in_channels, hidden, 1), activation()]
        self.branch = nn.Sequential(
            *widen,
            conv_bn(hidden, hidden, 3, stride=stride, groups=hidden),
            activation(),
            conv_bn(hidden, out_channels, 1),
        )
        self.is_residual = stride == 1 and (in_channels == out_channels or not original)
        project = self.is_residual and in_channels != out_channels
        self.shortcut = conv_bn(in_channels, out_channels, 1) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return y + self.shortcut(x) if self.is_residual else y


class MobileNetV2(Net):
    """conv3x3 (c -> 32, stride 1) BN act, inverted residuals, conv1x1 BN act, global average [FC ...] | head. `stages`:
    expansion, width, number of blocks, stride of the first. `last_width`. `mapping`: as for `ResNet`."""

    stages: ClassVar[tuple[tuple[int, int, int, int], ...]]
    last_width: ClassVar[int]
    original: ClassVar[bool]
    mapping: ClassVar[tuple[int, ...]] = ()

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, head_bias: HeadBias = True) -> None:
        super().__init__()
        channels = image_shape(type(self).__name__, input_shape, min_pixels=8)[0]
        activation = nn.ReLU6 if self.original else nn.ReLU
        in_channels = 32
        layers: list[nn.Module] = [conv_bn(channels, in_channels, 3), activation()]
        for expansion, width, blocks, first_stride in self.stages:
            for stride in (first_stride, *[1] * (blocks - 1)):
                block = InvertedResidual(in_channels, width, expansion=expansion, stride=stride, original=self.original)
                layers.append(block)
                in_channels = width
        self.body = nn.Sequential(*layers, conv_bn(in_channels, self.last_width, 1), activation())
        widths = [self.last_width, *self.mapping]
        self.fc = dense(widths, last_relu=False)
        self.head = nn.Linear(widths[-1], num_classes, bias=head_bias)

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.body(x).mean((2, 3))))


MAPPING = (256, 128)  # of FedDW
GROUPS, STEM, STAGES = 2, 24, ((200, 4), (400, 8), (800, 4))


class ShuffleUnit(nn.Module):
    """Grouped conv1x1 BN ReLU, channel shuffle, depthwise conv3x3 BN ReLU, grouped conv1x1 BN; then ReLU. The input is
    added at stride 1; at stride 2 its 3x3 average pooling is concatenated."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        # The paper groups no channels in the first layer of stage 2, whose input is narrow.
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
    without pooling, and a ReLU after the depthwise convolution. Its 4x4 pooling is global here (equal at 32x32)."""

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
        return cast(Tensor, self.fc(x.mean((2, 3))))
