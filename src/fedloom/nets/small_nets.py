"""Perceptrons for inputs of any shape, FedDW's text net, and the small CNNs of the papers, of which most are two 5x5
convolutions and linear layers."""

from collections.abc import Sequence
from math import prod
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.nets.blocks import FcNorm, HeadBias, conv_bn, dense, image_shape
from fedloom.nets.net import MODELS, Net

_MAX_WIDTH = 1_000_000  # one wider layer would not fit into memory
HiddenWidths = Annotated[
    Sequence[int] | None,
    Field(
        description="Widths of the hidden layers in units, from input to head; null takes the model's own: 200 for "
        "mlp, 128 for mlp-128, and no hidden layer for logistic.",
        examples=[[128, 64]],
    ),
]


@MODELS.register("mlp")
class MLP(Net):
    """Multi-layer perceptron on the flattened input, by default with one hidden layer of 200 units.

    FC h1 ReLU, FC h2 ReLU ... | head -> C, with `hidden=(h1, h2, ...)`. At 1x28x28, C = 10 and hidden (200,): 159,010
    parameters. The net of FedDW's Fig. 5 (784-128-64-10) is `hidden=(128, 64), head_bias=False`: 108,992."""

    default_hidden: ClassVar[tuple[int, ...]] = (200,)

    def __init__(
        self, *, input_shape: tuple[int, ...], num_classes: int, hidden: HiddenWidths = None, head_bias: HeadBias = True
    ) -> None:
        super().__init__()
        hidden = self.default_hidden if hidden is None else tuple(hidden)
        if not all(1 <= width <= _MAX_WIDTH for width in hidden):
            raise ConfigError(f"{type(self).__name__}: hidden widths must be 1 to {_MAX_WIDTH:,}, got {hidden}")
        widths = [prod(input_shape), *hidden]
        self.fc = dense(widths)
        self.head = nn.Linear(widths[-1], num_classes, bias=head_bias)

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(x.flatten(1)))


Vocabulary = Annotated[int, Field(description="Number of token ids, from 0 on.", examples=[20_000])]


@MODELS.register("bilstm")
class BiLSTM(Net):
    """BiLSTM of FedDW for IMDB: token ids [B, L] (int64) in, 128 features without a last ReLU.

    Embedding (10,000 words, 128) dropout 0.2, LSTM 128 in both directions, dropout 0.2, FC 128 ReLU per token, mean
    over all L positions, FC 128 | head 128 -> C. At C = 2: 1,593,856 parameters with FedDW's bias-free head
    (`head_bias=False`), 1,593,858 with a bias. Layers as in the released code, also for padding: the padding id has an
    ordinary embedding, and padded positions count in the mean. The batched engine cannot stack LSTMs, because
    `torch.vmap` has no rule for them."""

    def __init__(
        self,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        vocabulary: Vocabulary = 10_000,
        head_bias: HeadBias = True,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1 or input_shape[0] < 1:
            raise ConfigError(f"BiLSTM needs token ids of shape [length], got {tuple(input_shape)}")
        if vocabulary < 1:
            raise ConfigError(f"BiLSTM: vocabulary must be 1 or more, got {vocabulary}")
        self.embedding = nn.Embedding(vocabulary, 128)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(128, 128, batch_first=True, bidirectional=True)
        self.fc1 = nn.Linear(256, 128)
        self.fc2 = nn.Linear(128, 128)
        self.head = nn.Linear(128, num_classes, bias=head_bias)

    def features(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # CPUs without AVX-512 have no LSTM in bfloat16
            states, _ = self.lstm(self.drop(self.embedding(x)))
        tokens = self.fc1(self.drop(states)).relu()
        return cast(Tensor, self.fc2(tokens.mean(1)))


class TwoConvNet(Net):
    """conv5x5 [BN] ReLU pool2, conv5x5 [BN] [dropout] ReLU pool2, FC [BN] ReLU ... | head, as class attributes say.
    Pooling comes before the ReLU: values and gradients are the same, and the ReLU has a quarter of the work."""

    widths: ClassVar[tuple[int, int]]
    hidden: ClassVar[tuple[int, ...]]
    padding: ClassVar[int] = 0
    conv_norm: ClassVar[bool] = False
    hidden_norm: ClassVar[bool] = False
    dropout: ClassVar[float] = 0.0
    last_relu: ClassVar[bool] = True

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, head_bias: HeadBias = True) -> None:
        super().__init__()
        min_pixels = 4 if self.padding else 16
        channels, height, width = image_shape(type(self).__name__, input_shape, min_pixels=min_pixels)
        width1, width2 = self.widths
        self.conv1 = nn.Conv2d(channels, width1, 5, padding=self.padding)
        self.norm1 = nn.BatchNorm2d(width1) if self.conv_norm else nn.Identity()
        self.conv2 = nn.Conv2d(width1, width2, 5, padding=self.padding)
        self.norm2 = nn.BatchNorm2d(width2) if self.conv_norm else nn.Identity()
        self.drop = nn.Dropout(self.dropout) if self.dropout else nn.Identity()
        flat = width2 * self._pooled_side(height) * self._pooled_side(width)
        self.fc = dense([flat, *self.hidden], batch_norm=self.hidden_norm, last_relu=self.last_relu)
        self.head = nn.Linear(self.hidden[-1], num_classes, bias=head_bias)

    def _pooled_side(self, pixels: int) -> int:
        for _ in self.widths:
            pixels = (pixels + 2 * self.padding - 4) // 2
        return pixels

    def features(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.norm1(self.conv1(x)), 2).relu()
        x = nn.functional.max_pool2d(self.drop(self.norm2(self.conv2(x))), 2).relu()
        return cast(Tensor, self.fc(x.flatten(1)))


@MODELS.register("digits-cnn")
class DigitsCNN(Net):
    """Small CNN for 8x8 images: two 3x3 convolutions, one pooling, 64 features.

    conv3x3 (c -> 16) ReLU pool2, conv3x3 (16 -> 32) ReLU, FC 64 ReLU | head 64 -> C.
    At 1x8x8 and C = 10: 38,282 parameters. No batch norm."""

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("model digits-cnn", input_shape, min_pixels=4)
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * (height // 2) * (width // 2), 64)
        self.head = nn.Linear(64, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.conv1(x), 2).relu()  # equal to ReLU first, with less work
        x = self.conv2(x).relu()
        return cast(Tensor, self.fc(x.flatten(1)).relu())


@MODELS.register("lenet5")
class LeNet5(Net):
    """LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, for 28x28 or 32x32 images.

    conv5x5 (c -> 6, padded to keep 28) ReLU pool2, conv5x5 (6 -> 16) ReLU pool2, FC 120 ReLU, FC 84 ReLU |
    head 84 -> C. At 1x28x28 and C = 10: 61,706 parameters."""

    batch_norm = False

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("model lenet5", input_shape, min_pixels=16)
        padding = 2 if height == 28 else 0

        def pooled_side(pixels: int) -> int:
            return ((pixels + 2 * padding - 4) // 2 - 4) // 2

        self.conv1 = nn.Conv2d(channels, 6, 5, padding=padding)
        self.norm1 = nn.BatchNorm2d(6) if self.batch_norm else nn.Identity()
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.norm2 = nn.BatchNorm2d(16) if self.batch_norm else nn.Identity()
        self.fc1 = nn.Linear(16 * pooled_side(height) * pooled_side(width), 120)
        self.fc2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.norm1(self.conv1(x)), 2).relu()  # equal to ReLU first, with less work
        x = nn.functional.max_pool2d(self.norm2(self.conv2(x)), 2).relu()
        x = self.fc1(x.flatten(1)).relu()
        return cast(Tensor, self.fc2(x).relu())


@MODELS.register("conv4")
class Conv4(Net):
    """Conv-4 (Snell et al. 2017, ProtoNet), for the FC100 runs of FedSKC and FedSC: four 3x3 convolutions of 64 maps.

    4 x [conv3x3 (-> 64) BN ReLU pool2], flattened | head -> C. At 3x32x32: d = 256 and 113,088 parameters before
    the head; with C = 60 (FC100's training classes) 128,508. Neither paper names ProtoNet's backbone, and
    FedSC's d = 512 is not Conv-4's: there each paper's own ResNet is the default and this net the alternative."""

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape(type(self).__name__, input_shape, min_pixels=16)
        blocks = [conv_bn(in_channels, 64, 3, bias=True) for in_channels in (channels, 64, 64, 64)]
        self.body = nn.Sequential(*(nn.Sequential(block, nn.MaxPool2d(2), nn.ReLU()) for block in blocks))
        self.head = nn.Linear(64 * (height // 16) * (width // 16), num_classes)

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.body(x).flatten(1))


class BlockNet(Net):
    """Convolutions with batch norm, as (width, kernel, stride, padding, pooling), an average if asked for, and linear
    layers with batch norm (if `fc_norm`). The paper calls the last three linear layers the classifier: `maps(x)`, then
    block `fc`, then `head`. `features(x)` is the output of `fc`."""

    classifier_block: ClassVar[tuple[str, ...]] = ("fc", "head")
    convolutions: ClassVar[tuple[tuple[int, int, int, int, tuple[int, ...]], ...]]
    average: ClassVar[int] = 0
    hidden: ClassVar[tuple[int, ...]]
    min_pixels: ClassVar[int]

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, fc_norm: FcNorm = True) -> None:
        super().__init__()
        channels, *sides = image_shape(type(self).__name__, input_shape, min_pixels=self.min_pixels)
        layers: list[nn.Module] = []
        for width, kernel, stride, padding, pooling in self.convolutions:
            layers.append(conv_bn(channels, width, kernel, stride=stride, padding=padding, bias=True))
            layers += [*([nn.MaxPool2d(pooling[0], pooling[-1])] if pooling else []), nn.ReLU()]
            channels, sides = width, [side // 2 if pooling else side for side in sides]
        sides = [self.average] * 2 if self.average else sides
        self.conv = nn.Sequential(*layers, *([nn.AdaptiveAvgPool2d(self.average)] if self.average else []))
        self.fc = dense([channels * sides[0] * sides[1], *self.hidden], batch_norm=fc_norm)
        self.head = nn.Linear(self.hidden[-1], num_classes)

    def maps(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv(x).flatten(1))

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.maps(x)))
