"""A small CNN for images of about 8x8 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.nets.blocks import suited
from fedloom.nets.net import MODELS, Net


@MODELS.register("digits-cnn")
class DigitsCNN(Net):
    """Small CNN for 8x8 images: two 3x3 convolutions, one pooling, 64 features.

    conv3x3 (c -> 16) ReLU pool2, conv3x3 (16 -> 32) ReLU, FC 64 ReLU | head 64 -> C.
    At 1x8x8 and C = 10: 38,282 parameters. No batch norm.
    """

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise ConfigError(
                f"model digits-cnn needs images of at least 4x4 pixels [c, h, w], got {input_shape}"
                + suited(input_shape)
            )
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * (height // 2) * (width // 2), 64)
        self.head = nn.Linear(64, num_classes)

    def features(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.conv1(x), 2).relu()  # the same as ReLU first, on a quarter of the values
        x = self.conv2(x).relu()
        z: Tensor = self.fc(x.flatten(1)).relu()
        return z
