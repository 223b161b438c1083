"""The CNNs of FedDW (Liu et al. 2024, arXiv 2412.04521, Sec. V-A; layers from the released models.py).

All end in the paper's "mapping layers" FC 256 ReLU, FC 128 *without* ReLU, so that features may be negative (d = 128),
and the "classification layer", bias-free under FedDW (`head_bias=False`) and an ordinary one for its baselines.
"""

from __future__ import annotations

from fedloom.nets.net import MODELS
from fedloom.nets.two_conv import TwoConvNet

MAPPING = (256, 128)


@MODELS.register("feddw-mnist-cnn")
class FedDWMnistCNN(TwoConvNet):
    """FedDW's CNN for MNIST: two 5x5 convolutions, dropout, 128 features without a last ReLU.

    conv5x5 (c -> 10) pool2 ReLU, conv5x5 (10 -> 20) dropout 0.5 pool2 ReLU, FC 256 ReLU, FC 128 | head 128 -> C.
    At 1x28x28 and C = 10: 121,632 parameters with the bias-free head, 121,642 with a bias.
    The paper names neither the pooling nor the dropout: both are the released code's.
    """

    widths = (10, 20)
    hidden = MAPPING
    dropout = 0.5
    last_relu = False


@MODELS.register("feddw-cifar-cnn")
class FedDWCifarCNN(TwoConvNet):
    """FedDW's CNN for CIFAR-10: two 5x5 convolutions, 128 features without a last ReLU.

    conv5x5 (c -> 6) ReLU pool2, conv5x5 (6 -> 16) ReLU pool2, FC 256 ReLU, FC 128 | head 128 -> C.
    At 3x32x32 and C = 10: 139,704 parameters with the bias-free head, 139,714 with a bias.
    """

    widths = (6, 16)
    hidden = MAPPING
    last_relu = False


@MODELS.register("feddw-fashion-cnn")
class FedDWFashionCNN(TwoConvNet):
    """FedDW's CNN for Fashion-MNIST (its Fig. 4 only): two 5x5 convolutions with batch norm, 128 features.

    conv5x5 (c -> 16, padded) BN ReLU pool2, conv5x5 (16 -> 32, padded) BN ReLU pool2, FC 256 ReLU, FC 128 |
    head 128 -> C. At 1x28x28 and C = 10: 449,184 parameters with the bias-free head, 449,194 with a bias.
    Layers from the released code; the paper does not describe this net.
    """

    widths = (16, 32)
    hidden = MAPPING
    padding = 2
    conv_norm = True
    last_relu = False
