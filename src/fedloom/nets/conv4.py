"""Conv-4, the usual small backbone of few-shot learning."""

from __future__ import annotations

from torch import Tensor, nn

from fedloom.nets.blocks import conv_bn, image_shape
from fedloom.nets.net import MODELS, Net


@MODELS.register("conv4")
class Conv4(Net):
    """Conv-4 (Snell et al. 2017, ProtoNet), for the FC100 runs of FedSKC and FedSC: four 3x3 convolutions of 64 maps.

    4 x [conv3x3 (-> 64) BN ReLU pool2], flattened | head -> C. At 3x32x32: d = 256 and 113,088 parameters before
    the head; with C = 60 (FC100's training classes) 128,508. Neither paper names ProtoNet's backbone, and
    FedSC's d = 512 is not Conv-4's: there each paper's own ResNet is the default and this net the alternative.
    """

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape(type(self).__name__, input_shape, min_pixels=16)
        blocks = [conv_bn(in_channels, 64, 3, bias=True) for in_channels in (channels, 64, 64, 64)]
        self.body = nn.Sequential(*(nn.Sequential(block, nn.MaxPool2d(2), nn.ReLU()) for block in blocks))
        self.head = nn.Linear(64 * (height // 16) * (width // 16), num_classes)

    def features(self, x: Tensor) -> Tensor:
        z: Tensor = self.body(x).flatten(1)
        return z
