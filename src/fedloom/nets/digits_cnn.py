"""A small CNN for images of about 8x8 pixels."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.nets.blocks import image_shape
from fedloom.nets.net import MODELS, Net


@MODELS.register("digits-cnn")
class DigitsCNN(Net):
    """Small CNN for 8x8 images: two 3x3 convolutions, one pooling, 64 features.

    conv3x3 (c -> 16) ReLU pool2, conv3x3 (16 -> 32) ReLU, FC 64 ReLU | head 64 -> C.
    At 1x8x8 and C = 10: 38,282 parameters. No batch norm.
    """

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
        z: Tensor = self.fc(x.flatten(1)).relu()
        return z
