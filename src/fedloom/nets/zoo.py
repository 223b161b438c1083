"""The models that are sizes of a net of this package: `zoo.toml` holds their sizes, layers and sources."""

from pathlib import Path

from fedloom.core.files import package_table
from fedloom.nets.deep_cnns import MobileNetV2, ResNet
from fedloom.nets.net import MODELS
from fedloom.nets.small_nets import MLP, BlockNet, LeNet5, TwoConvNet

_BASES = {kind.__name__: kind for kind in (BlockNet, LeNet5, MLP, MobileNetV2, ResNet, TwoConvNet)}

for _name, _sizes in package_table(Path(__file__).with_suffix(".toml")).items():
    _base, _class_name = _BASES[_sizes.pop("base")], _sizes.pop("class")  # the name enters digests of users' models
    _attributes = {"__module__": __name__, "__doc__": _sizes.pop("description"), **_sizes}
    MODELS.register(_name)(type(_class_name, (_base,), _attributes))
