"""Residual nets with the CIFAR stem: ResNet-8 (FedSKC), ResNet-10 (FedSC), ResNet-18 (FedDW)."""

from typing import ClassVar, cast

from torch import Tensor, nn

from fedloom.nets.blocks import HeadBias, conv_bn, dense, image_shape
from fedloom.nets.net import MODELS, Net
from fedloom.nets.small_cnns import MAPPING


class BasicBlock(nn.Module):
    """conv3x3 BN ReLU conv3x3 BN, plus the input (through conv1x1 BN where the shape changes), then ReLU."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, bias: bool) -> None:
        super().__init__()
        self.conv1 = conv_bn(in_channels, out_channels, 3, stride=stride, bias=bias)
        self.conv2 = conv_bn(out_channels, out_channels, 3, bias=bias)
        keeps_shape = stride == 1 and in_channels == out_channels
        self.shortcut = (
            nn.Identity() if keeps_shape else conv_bn(in_channels, out_channels, 1, stride=stride, bias=bias)
        )

    def before_relu(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv2(self.conv1(x).relu()) + self.shortcut(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.before_relu(x).relu()


class ResNet(Net):
    """conv3x3 (c -> 64) BN ReLU, stages of basic blocks (the first at full size), global average [FC ...] | head.
    Subclasses set widths and number of blocks of the stages, `conv_bias`, and `mapping`, the linear layers before the
    head."""

    widths: ClassVar[tuple[int, ...]]
    blocks: ClassVar[int] = 1
    conv_bias: ClassVar[bool] = False
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

    def features(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x).relu())
        return cast(Tensor, self.fc(x.mean((2, 3))))

    def levels(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        activations: list[Tensor] = [self.stem(x)]
        for stage in self.stages.children():
            *blocks, last_block = stage.children()
            x = nn.Sequential(*blocks)(activations[-1].relu())
            activations.append(cast(BasicBlock, last_block).before_relu(x))
        z: Tensor = self.fc(activations[-1].relu().mean((2, 3)))
        return tuple(activations), z


@MODELS.register("resnet8")
class ResNet8(ResNet):
    """ResNet-8 of FedSKC for CIFAR: three stages of one basic block (64, 128, 256), 256 features (non-negative).

    At 3x32x32 and C = 10: 1,227,594 parameters. Layers and initialisation (convolutions N(0, sqrt(2 / (k^2 out))))
    from the released code. Its 8x8 average pooling is a global one here: equal at 32x32, and any size works.
    """

    widths = (64, 128, 256)

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, head_bias: HeadBias = True) -> None:
        super().__init__(input_shape=input_shape, num_classes=num_classes, head_bias=head_bias)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@MODELS.register("resnet10")
class ResNet10(ResNet):
    """ResNet-10 of FedSC for CIFAR: four stages of one basic block (64 to 512), 512 features (non-negative).

    At 3x32x32 and C = 10: 4,903,242 parameters. Layers from the released code, torch's default initialisation.
    """

    widths = (64, 128, 256, 512)


@MODELS.register("resnet18-cifar")
class ResNet18Cifar(ResNet):
    """ResNet-18 of FedDW for CIFAR-100: four stages of two basic blocks (64 to 512), then FC 256 ReLU, FC 128.

    128 features without a last ReLU. At 3x32x32 and C = 100: 11,350,656 parameters with FedDW's bias-free head
    (`head_bias=False`), 11,350,756 with a bias. Convolutions have biases, as in the released code. The common
    ResNet-18 for CIFAR (11,173,962 parameters at C = 10) has neither these biases nor the two linear layers.
    """

    widths = (64, 128, 256, 512)
    blocks = 2
    conv_bias = True
    mapping = MAPPING
