"""Floor 2: the model zoo and the role of every tensor. Knows nothing of data or methods."""

from fedloom.nets import (
    bilstm,
    conv4,
    digits_cnn,
    emnist_cnn,
    fedco2_nets,
    feddw_cnns,
    fedssa_cnns,
    lenet5,
    mlp,
    mobilenet,
    resnet,
    shufflenet,
)
from fedloom.nets.net import MODELS, Net, build
from fedloom.nets.wrap import wrap

__all__ = [
    "MODELS",
    "Net",
    "bilstm",
    "build",
    "conv4",
    "digits_cnn",
    "emnist_cnn",
    "fedco2_nets",
    "feddw_cnns",
    "fedssa_cnns",
    "lenet5",
    "mlp",
    "mobilenet",
    "resnet",
    "shufflenet",
    "wrap",
]
