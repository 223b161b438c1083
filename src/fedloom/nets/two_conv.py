"""The shape that most small CNNs of the papers share: two 5x5 convolutions, then linear layers."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fedloom.nets.blocks import dense, image_shape
from fedloom.nets.net import Net


class TwoConvNet(Net):
    """conv5x5 [BN] ReLU pool2, conv5x5 [BN] [dropout] ReLU pool2, FC [BN] ReLU ... | head.

    Subclasses set the class attributes. Pooling is computed before the ReLU: both orders give the same values and
    the same gradients, this one touches a quarter of the numbers. `head_bias=False` is what FedDW asks for.
    """

    widths: ClassVar[tuple[int, int]]
    hidden: ClassVar[tuple[int, ...]]
    padding: ClassVar[int] = 0
    conv_norm: ClassVar[bool] = False
    hidden_norm: ClassVar[bool] = False
    dropout: ClassVar[float] = 0.0
    last_relu: ClassVar[bool] = True

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, head_bias: bool = True) -> None:
        super().__init__()
        smallest = 4 if self.padding else 16
        channels, height, width = image_shape(type(self).__name__, input_shape, at_least=smallest)
        first, second = self.widths
        self.conv1 = nn.Conv2d(channels, first, 5, padding=self.padding)
        self.norm1 = nn.BatchNorm2d(first) if self.conv_norm else nn.Identity()
        self.conv2 = nn.Conv2d(first, second, 5, padding=self.padding)
        self.norm2 = nn.BatchNorm2d(second) if self.conv_norm else nn.Identity()
        self.drop = nn.Dropout(self.dropout) if self.dropout else nn.Identity()
        flat = second * self._side(height) * self._side(width)
        self.fc = dense([flat, *self.hidden], batch_norm=self.hidden_norm, last_relu=self.last_relu)
        self.head = nn.Linear(self.hidden[-1], num_classes, bias=head_bias)

    def _side(self, pixels: int) -> int:
        for _ in self.widths:
            pixels = (pixels + 2 * self.padding - 4) // 2
        return pixels

    def features(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.norm1(self.conv1(x)), 2).relu()
        x = nn.functional.max_pool2d(self.drop(self.norm2(self.conv2(x))), 2).relu()
        z: Tensor = self.fc(x.flatten(1))
        return z
