"""The nets of Fed-CO2 (Cai et al., NeurIPS 2023, App. B; layers from the released code), two of them from FedBN.

Label skew: a LeNet-like ConvNet, with batch norm for FedBN and Fed-CO2, without for the others. Feature skew: FedBN's
ConvNet for Digits and its AlexNet with batch norm; their *classifier*, which Fed-CO2 sends around whole, is the block
of the last three linear layers.
"""

from typing import ClassVar, cast

from torch import Tensor, nn

from fedloom.nets.blocks import FcNorm, conv_bn, dense, image_shape
from fedloom.nets.net import MODELS, Net
from fedloom.nets.small_cnns import TwoConvNet


@MODELS.register("fedco2-cnn")
class FedCO2CNN(TwoConvNet):
    """Fed-CO2's ConvNet for label skew on CIFAR, without batch norm: 84 features.

    conv5x5 (c -> 16) ReLU pool2, conv5x5 (16 -> 32) ReLU pool2, FC 120 ReLU, FC 84 ReLU | head 84 -> C.
    At 3x32x32: 121,182 parameters with C = 10, 128,832 with C = 100.
    """

    widths = (16, 32)
    hidden = (120, 84)


@MODELS.register("fedco2-cnn-bn")
class FedCO2CNNBN(FedCO2CNN):
    """Fed-CO2's ConvNet for label skew with batch norm after every layer but the last: for FedBN and Fed-CO2.

    As fedco2-cnn with BN between each linear map and its ReLU. At 3x32x32 and C = 10: 121,686 parameters (504 of BN).
    """

    conv_norm = True
    hidden_norm = True


class BlockNet(Net):
    """A net whose paper calls its last three linear layers the classifier: `maps(x)`, then block `fc`, then `head`.
    `features(x)` is the output of `fc`."""

    classifier_block: ClassVar[tuple[str, ...]] = ("fc", "head")
    conv: nn.Sequential
    fc: nn.Sequential

    def maps(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.conv(x).flatten(1))

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.maps(x)))


@MODELS.register("fedbn-digits-cnn")
class FedBNDigitsCNN(BlockNet):
    """FedBN's ConvNet for the five digit domains (28x28 RGB), of Fed-CO2: 512 features.

    conv5x5 (c -> 64) BN ReLU pool2, conv5x5 (64 -> 64) BN ReLU pool2, conv5x5 (64 -> 128) BN ReLU = f (6272),
    FC 2048 BN ReLU, FC 512 BN ReLU | head 512 -> C. At 3x28x28 and C = 10: 14,219,210 parameters, of these
    14,213,578 outside batch norm. `fc_norm=False`: no BN in the FC block, as FedPer, FedRoD, MOON and COPA have it.
    The paper says four convolutions; the code has three.
    """

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, fc_norm: FcNorm = True) -> None:
        super().__init__()
        channels, height, width = image_shape(type(self).__name__, input_shape, min_pixels=4)
        self.conv = nn.Sequential(
            *(conv_bn(channels, 64, 5, bias=True), nn.MaxPool2d(2), nn.ReLU()),
            *(conv_bn(64, 64, 5, bias=True), nn.MaxPool2d(2), nn.ReLU()),
            *(conv_bn(64, 128, 5, bias=True), nn.ReLU()),
        )
        self.fc = dense([128 * (height // 4) * (width // 4), 2048, 512], batch_norm=fc_norm)
        self.head = nn.Linear(512, num_classes)


@MODELS.register("fedbn-alexnet")
class FedBNAlexNet(BlockNet):
    """FedBN's AlexNet with batch norm for Office-Caltech10 and DomainNet (256x256), of Fed-CO2: 4096 features.

    conv11x11 stride 4 (c -> 64) BN ReLU pool3/2, conv5x5 (192) BN ReLU pool3/2, conv3x3 (384) BN ReLU, conv3x3 (256)
    BN ReLU, conv3x3 (256) BN ReLU pool3/2, average to 6x6 = f (9216), FC 4096 BN ReLU, FC 4096 BN ReLU |
    head 4096 -> C. No dropout. At C = 10: 57,063,498 parameters at any size, of these 57,044,810 outside batch norm.
    `fc_norm=False`: no BN in the FC block, as FedPer, FedRoD and MOON have it.
    """

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, fc_norm: FcNorm = True) -> None:
        super().__init__()
        channels = image_shape(type(self).__name__, input_shape, min_pixels=63)[0]
        self.conv = nn.Sequential(
            *(conv_bn(channels, 64, 11, stride=4, padding=2, bias=True), nn.MaxPool2d(3, 2), nn.ReLU()),
            *(conv_bn(64, 192, 5, bias=True), nn.MaxPool2d(3, 2), nn.ReLU()),
            *(conv_bn(192, 384, 3, bias=True), nn.ReLU()),
            *(conv_bn(384, 256, 3, bias=True), nn.ReLU()),
            *(conv_bn(256, 256, 3, bias=True), nn.MaxPool2d(3, 2), nn.ReLU()),
            nn.AdaptiveAvgPool2d(6),
        )
        self.fc = dense([256 * 6 * 6, 4096, 4096], batch_norm=fc_norm)
        self.head = nn.Linear(4096, num_classes)
