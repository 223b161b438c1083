"""LeNet-5, with and without batch norm."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.nets.blocks import image_shape
from fedloom.nets.net import MODELS, Net


@MODELS.register("lenet5")
class LeNet5(Net):
    """LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, for 28x28 or 32x32 images.

    conv5x5 (c -> 6, padded to keep 28) ReLU pool2, conv5x5 (6 -> 16) ReLU pool2, FC 120 ReLU, FC 84 ReLU |
    head 84 -> C. At 1x28x28 and C = 10: 61,706 parameters.
    """

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
        z: Tensor = self.fc2(x).relu()
        return z


@MODELS.register("lenet5-bn")
class LeNet5BN(LeNet5):
    """LeNet-5 with batch norm after both convolutions (before the ReLU): 61,750 parameters at 1x28x28, C = 10."""

    batch_norm = True
    channels_last = False  # which is 3 % slower here: batch norm of 6 channels
