"""Small CNNs of the papers. Most are two 5x5 convolutions, then linear layers."""

from typing import ClassVar, cast

from torch import Tensor, nn

from fedloom.nets.blocks import FcNorm, HeadBias, conv_bn, dense, image_shape
from fedloom.nets.net import MODELS, Net


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


@MODELS.register("emnist-cnn")
class EmnistCNN(TwoConvNet):
    """FedSKC's CNN for EMNIST: two 5x5 convolutions, 512 features, no batch norm.

    conv5x5 (c -> 32) ReLU pool2, conv5x5 (32 -> 64) ReLU pool2, FC 512 ReLU | head 512 -> C.
    At 1x28x28 and C = 47: 601,007 parameters. The paper (Sec. IV-A) says only "multi-layers CNN" and the released
    code has none: layers and widths, without padding, are our choice."""

    widths, hidden = (32, 64), (512,)


MAPPING = (256, 128)


# FedDW (Liu et al. 2024, arXiv 2412.04521, Sec. V-A; layers from the released models.py). All end in the paper's
# "mapping layers" FC 256 ReLU, FC 128 *without* ReLU, so that features may be negative (d = 128), and the
# "classification layer", bias-free under FedDW (`head_bias=False`) and an ordinary one for its baselines.


@MODELS.register("feddw-mnist-cnn")
class FedDWMnistCNN(TwoConvNet):
    """FedDW's CNN for MNIST: two 5x5 convolutions, dropout, 128 features without a last ReLU.

    conv5x5 (c -> 10) pool2 ReLU, conv5x5 (10 -> 20) dropout 0.5 pool2 ReLU, FC 256 ReLU, FC 128 | head 128 -> C.
    At 1x28x28 and C = 10: 121,632 parameters with the bias-free head, 121,642 with a bias.
    The paper names neither the pooling nor the dropout: both are the released code's."""

    widths, hidden, last_relu = (10, 20), MAPPING, False
    dropout = 0.5


@MODELS.register("feddw-cifar-cnn")
class FedDWCifarCNN(TwoConvNet):
    """FedDW's CNN for CIFAR-10: two 5x5 convolutions, 128 features without a last ReLU.

    conv5x5 (c -> 6) ReLU pool2, conv5x5 (6 -> 16) ReLU pool2, FC 256 ReLU, FC 128 | head 128 -> C.
    At 3x32x32 and C = 10: 139,704 parameters with the bias-free head, 139,714 with a bias."""

    widths, hidden, last_relu = (6, 16), MAPPING, False


@MODELS.register("feddw-fashion-cnn")
class FedDWFashionCNN(TwoConvNet):
    """FedDW's CNN for Fashion-MNIST (its Fig. 4 only): two 5x5 convolutions with batch norm, 128 features.

    conv5x5 (c -> 16, padded) BN ReLU pool2, conv5x5 (16 -> 32, padded) BN ReLU pool2, FC 256 ReLU, FC 128 |
    head 128 -> C. At 1x28x28 and C = 10: 449,184 parameters with the bias-free head, 449,194 with a bias.
    Layers from the released code; the paper does not describe this net."""

    widths, hidden, last_relu = (16, 32), MAPPING, False
    padding, conv_norm = 2, True


# The five heterogeneous CNNs of FedSSA (Yi et al., IJCAI 2024, Table 3), also used by FedProto-style comparisons:
# conv5x5 (c -> 16) ReLU pool2, conv5x5 (16 -> m) ReLU pool2, FC w ReLU, FC 500 ReLU | head 500 -> C. All share d = 500,
# so that header rows of different clients can be averaged; only m and w differ. The paper assigns CNN-(k mod 5 + 1) to
# client k (`loaded_net.py`). Sizes in the docstrings are parameters x 4 bytes / 2^20 at C = 10.


@MODELS.register("fedssa-cnn1")
class FedSSACNN1(TwoConvNet):
    """CNN-1 of FedSSA, and the net of its homogeneous runs: m = 32 maps, FC 2000, FC 500.

    At 3x32x32: 2,621,558 parameters with C = 10 (10.00 MiB, as printed), 2,666,648 with C = 100."""

    widths, hidden = (16, 32), (2000, 500)


@MODELS.register("fedssa-cnn2")
class FedSSACNN2(TwoConvNet):
    """CNN-2 of FedSSA: m = 16 maps, FC 2000, FC 500.

    At 3x32x32: 1,815,142 parameters with C = 10 (6.92 MiB, as printed), 1,860,232 with C = 100."""

    widths, hidden = (16, 16), (2000, 500)


@MODELS.register("fedssa-cnn3")
class FedSSACNN3(TwoConvNet):
    """CNN-3 of FedSSA: m = 32 maps, FC 1000, FC 500.

    At 3x32x32: 1,320,558 parameters with C = 10 (5.04 MiB, as printed), 1,365,648 with C = 100."""

    widths, hidden = (16, 32), (1000, 500)


@MODELS.register("fedssa-cnn4")
class FedSSACNN4(TwoConvNet):
    """CNN-4 of FedSSA: m = 32 maps, FC 800, FC 500.

    At 3x32x32: 1,060,358 parameters with C = 10 (4.04 MiB, printed as 3.81), 1,105,448 with C = 100."""

    widths, hidden = (16, 32), (800, 500)


@MODELS.register("fedssa-cnn5")
class FedSSACNN5(TwoConvNet):
    """CNN-5 of FedSSA, and the small model of FML and FedKD there: m = 32 maps, FC 500, FC 500.

    At 3x32x32: 670,058 parameters with C = 10 (2.56 MiB, printed as 2.55), 715,148 with C = 100."""

    widths, hidden = (16, 32), (500, 500)


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


@MODELS.register("lenet5-bn")
class LeNet5BN(LeNet5):
    """LeNet-5 with batch norm after both convolutions (before the ReLU): 61,750 parameters at 1x28x28, C = 10."""

    batch_norm = True
    channels_last = False  # which is 3 % slower here: batch norm of 6 channels


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


# Fed-CO2 (Cai et al., NeurIPS 2023, App. B; layers from the released code), two of the nets from FedBN. Label skew: a
# LeNet-like ConvNet, with batch norm for FedBN and Fed-CO2, without for the others. Feature skew: FedBN's ConvNet for
# Digits and its AlexNet with batch norm; their *classifier*, which Fed-CO2 sends around whole, is the block of the last
# three linear layers.


@MODELS.register("fedco2-cnn")
class FedCO2CNN(TwoConvNet):
    """Fed-CO2's ConvNet for label skew on CIFAR, without batch norm: 84 features.

    conv5x5 (c -> 16) ReLU pool2, conv5x5 (16 -> 32) ReLU pool2, FC 120 ReLU, FC 84 ReLU | head 84 -> C.
    At 3x32x32: 121,182 parameters with C = 10, 128,832 with C = 100."""

    widths, hidden = (16, 32), (120, 84)


@MODELS.register("fedco2-cnn-bn")
class FedCO2CNNBN(FedCO2CNN):
    """Fed-CO2's ConvNet for label skew with batch norm after every layer but the last: for FedBN and Fed-CO2.

    As fedco2-cnn with BN between each linear map and its ReLU. At 3x32x32 and C = 10: 121,686 parameters (504 of BN).
    """

    conv_norm = hidden_norm = True


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
    The paper says four convolutions; the code has three."""

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
    `fc_norm=False`: no BN in the FC block, as FedPer, FedRoD and MOON have it."""

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
