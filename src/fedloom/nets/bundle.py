"""Several nets of one client as one module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn

from fedloom.nets.functional_net import FunctionalNet
from fedloom.nets.net import Net
from fedloom.nets.roles import EXTRA, Role, tag_roles


class Bundle(Net):
    """Nets under names: a method that trains an online and an offline net gets both as one module.

    A tree of it is flat: "online.conv1.weight", "offline.conv1.weight". `bundle["online"]` is a child. Where one net is
    expected (features, head, logits, functional) the first child answers. The nets may differ.
    """

    def __init__(self, nets: Mapping[str, Net]) -> None:
        super().__init__()
        self._first = next(iter(nets))
        first = nets[self._first]
        self.classifier_block = first.classifier_block  # type: ignore[misc]  # as the net's, not this class's
        self.channels_last = first.channels_last
        for name, net in nets.items():
            self.add_module(name, net)

    def __getitem__(self, name: str) -> Net:
        return cast(Net, self._modules[name])

    @property
    def answering(self) -> Net:
        """The net that answers where one is expected."""
        return self[self._first]

    @property
    def head(self) -> nn.Linear:  # type: ignore[override]
        """The first net's head."""
        return self[self._first].head

    @property
    def functional(self) -> FunctionalNet:
        """The first net's."""
        return self[self._first].functional

    def features(self, x: Tensor) -> Tensor:
        return self[self._first].features(x)

    def maps(self, x: Tensor) -> Tensor:
        return self[self._first].maps(x)

    def classify(self, maps: Tensor) -> Tensor:
        return self[self._first].classify(maps)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self[self._first](x)
        return logits

    def roles(self) -> dict[str, Role]:
        found: dict[str, Role] = {}
        for name, child in self.named_children():
            own = tag_roles(child, "") if name == EXTRA else cast(Net, child).roles()
            found |= {f"{name}.{entry}": Role.EXTRA if name == EXTRA else role for entry, role in own.items()}
        return found
