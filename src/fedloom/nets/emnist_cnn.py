"""The CNN of FedSKC for EMNIST."""

from __future__ import annotations

from fedloom.nets.net import MODELS
from fedloom.nets.two_conv import TwoConvNet


@MODELS.register("emnist-cnn")
class EmnistCNN(TwoConvNet):
    """FedSKC's CNN for EMNIST: two 5x5 convolutions, 512 features, no batch norm.

    conv5x5 (c -> 32) ReLU pool2, conv5x5 (32 -> 64) ReLU pool2, FC 512 ReLU | head 512 -> C.
    At 1x28x28 and C = 47: 601,007 parameters. The paper (Sec. IV-A) says only "multi-layers CNN" and the released
    code has none: layers and widths, without padding, are our choice.
    """

    widths = (32, 64)
    hidden = (512,)
