"""Several nets of one client as one module, and nets that compute with weights handed to them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.nets.net import Net
from fedloom.nets.roles import Role


class Bundle(Net):
    """Copies of one net under names: a method that trains an online and an offline net gets both as one module.

    A tree of it is flat: "online.conv1.weight", "offline.conv1.weight". `bundle["online"]` is a child. Where one net is
    expected (features, head, logits) the first child answers. `frozen` computes with weights that are handed to it.
    """

    def __init__(self, net: Net, names: Sequence[str]) -> None:
        super().__init__()
        self.frozen = Frozen(net)
        self._first = names[0]
        self.classifier_block = net.classifier_block  # type: ignore[misc]  # as the net's, not this class's
        self.channels_last = net.channels_last  # type: ignore[misc]
        for name in names:
            self.add_module(name, net if name == self._first else copy.deepcopy(net))

    def __getitem__(self, name: str) -> Net:
        return cast(Net, self._modules[name])

    @property
    def head(self) -> nn.Linear:  # type: ignore[override]
        """The first net's head."""
        return self[self._first].head

    def features(self, x: Tensor) -> Tensor:
        return self[self._first].features(x)

    def maps(self, x: Tensor) -> Tensor:
        return self[self._first].maps(x)

    def classify(self, maps: Tensor) -> Tensor:
        return self[self._first].classify(maps)

    def roles(self) -> dict[str, Role]:
        children = {name: cast(Net, child).roles() for name, child in self.named_children()}
        return {f"{child}.{name}": role for child, roles in children.items() for name, role in roles.items()}


class Frozen:
    """What a net computes, without its weights: in evaluation mode, with a tree that comes as an argument.

    For teachers and foreign classifiers. It has no memory of its own, and gradients reach only what is given to it:
    pass detached trees.
    """

    def __init__(self, net: Net) -> None:
        self._net = copy.deepcopy(net).eval()
        for module in self._net.modules():  # what a tree carries needs no memory here; other buffers stay
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
            for name in module._buffers.keys() - module._non_persistent_buffers_set:
                buffer = module._buffers[name]
                module._buffers[name] = None if buffer is None else buffer.to("meta")
        self._classifier = _Classifier(self._net)

    def logits(self, tree: Tree, x: Tensor) -> Tensor:
        """The net with the weights `tree`: x [B, *input_shape] -> [B, C]."""
        return cast(Tensor, functional_call(self._net, tree, (x,)))

    def classify(self, tree: Tree, maps: Tensor) -> Tensor:
        """The net's classifier block with the weights `tree` ("head.weight", ...): maps [B, f] -> [B, C]."""
        return cast(Tensor, functional_call(self._classifier, tree, (maps,)))


class _Classifier(nn.Module):
    """A net's classifier block as a module, its submodules under their own names."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self._order = net.classifier_block
        for name in self._order:
            self.add_module(name, net.get_submodule(name))
        self.eval()

    def forward(self, maps: Tensor) -> Tensor:
        h = maps
        for name in self._order:
            h = self._modules[name](h)  # type: ignore[misc]
        return h
