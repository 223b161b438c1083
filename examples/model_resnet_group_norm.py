"""A ResNet of torchvision with group norm, because skewed clients spoil the statistics of batch norm.

Needs torchvision (`pip install "fedloom[examples]"`).
"""

from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

import fedloom as fl


def group_norm(channels):
    """Groups of 16 channels."""
    return nn.GroupNorm(channels // 16, channels)


def resnet(input_shape, num_classes, blocks):
    """A ResNet for small images: the first convolution is 3x3 with stride 1, without pooling."""
    model = ResNet(BasicBlock, blocks, num_classes=num_classes, norm_layer=group_norm)
    model.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def main(rounds=10, clients=10, participation=1.0, blocks=(2, 2, 2, 2)):  # ResNet-18
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=clients)
    model = partial(resnet, blocks=blocks)
    return fl.run("fedprox", scenario=scenario, model=model, rounds=rounds, participation=participation)


if __name__ == "__main__":
    print(main().summary())
