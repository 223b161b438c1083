"""Several nets of one client as one module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn

from fedloom.nets.functional_net import FunctionalNet
from fedloom.nets.net import Net
from fedloom.nets.roles import EXTRA, Role, tag_roles


class Bundle(Net):
    """Several nets under names: a method that trains an online and an offline net gets both as one module.

    Its tree is flat ("online.conv1.weight", "offline.conv1.weight"), and `bundle["online"]` is a child. The nets may
    differ. The first net stands for the bundle where one net is needed: its head, features, logits, and so on.
    """

    def __init__(self, nets: Mapping[str, Net]) -> None:
        super().__init__()
        self._first_name = next(iter(nets))
        first_net = nets[self._first_name]
        self.classifier_block = first_net.classifier_block  # type: ignore[misc]  # the net's, not this class's
        self.channels_last = first_net.channels_last
        for name, net in nets.items():
            self.add_module(name, net)

    def __getitem__(self, name: str) -> Net:
        return cast(Net, self._modules[name])

    @property
    def first_net(self) -> Net:
        """The net that stands for the bundle where one net is needed."""
        return self[self._first_name]

    @property
    def head(self) -> nn.Linear:  # type: ignore[override]
        """The first net's head."""
        return self.first_net.head

    @property
    def functional(self) -> FunctionalNet:
        """The first net as a function of its weights."""
        return self.first_net.functional

    def features(self, x: Tensor) -> Tensor:
        return self.first_net.features(x)

    def maps(self, x: Tensor) -> Tensor:
        return self.first_net.maps(x)

    def classify(self, maps: Tensor) -> Tensor:
        return self.first_net.classify(maps)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.first_net(x)
        return logits

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {}
        for name, child in self.named_children():
            child_roles = tag_roles(child, "") if name == EXTRA else cast(Net, child).roles()
            roles |= {f"{name}.{entry}": Role.EXTRA if name == EXTRA else role for entry, role in child_roles.items()}
        return roles
