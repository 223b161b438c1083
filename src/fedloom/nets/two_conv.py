"""The architecture of most small CNNs in the papers: two 5x5 convolutions, then linear layers."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from fedloom.nets.blocks import dense, image_shape
from fedloom.nets.net import Net
from fedloom.nets.options import HeadBias


class TwoConvNet(Net):
    """conv5x5 [BN] ReLU pool2, conv5x5 [BN] [dropout] ReLU pool2, FC [BN] ReLU ... | head.

    Subclasses set the class attributes. Pooling is computed before the ReLU: the values and gradients are the same as
    in the other order, and the ReLU then has a quarter of the work.
    """

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
        z: Tensor = self.fc(x.flatten(1))
        return z
