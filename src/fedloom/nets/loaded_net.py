"""A net in memory that many clients use in turn: their weights are loaded into the same tensors. Predictors, weights
with the rule by which they predict, and plain modules that predict as a method does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree, tree_on
from fedloom.nets.net import EXTRA, Net, tree_of


def freeze_as_buffers(net: nn.Module, *, persistent: bool) -> None:
    """Turn parameters that need no gradient into buffers; `persistent` ones are still loaded, sent and stored."""
    for module in net.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter, persistent=persistent)


def unfreeze_buffers(net: nn.Module) -> None:
    """Undo `freeze_as_buffers`: the buffers are parameters again, and in the state dict."""
    for module in net.modules():
        for name, buffer in list(module._buffers.items()):
            if isinstance(buffer, nn.Parameter):
                del module._buffers[name]
                module._non_persistent_buffers_set.discard(name)
                module.register_parameter(name, buffer)


def frozen_parameters(net: nn.Module) -> dict[str, Tensor]:
    """Return by name the parameters that `freeze_as_buffers` has turned into buffers."""
    return {name: buffer for name, buffer in net.named_buffers() if isinstance(buffer, nn.Parameter)}


MODEL_GROUPS: dict[str, tuple[str, ...]] = {
    "fedssa-cnn": ("fedssa-cnn1", "fedssa-cnn2", "fedssa-cnn3", "fedssa-cnn4", "fedssa-cnn5")
}


def group_of(client_id: int, groups: Sequence[object]) -> int:
    """Return the index of the client's group: client id mod number of groups (FedSSA, Sec. 6.2.2)."""
    return client_id % len(groups)


class LoadedNet:
    """A net with its tensors by name in `tree`, into which clients' weights are copied; the tensors keep their memory.
    Where a net assigns new tensors to its buffers, `restore_buffers` copies their values into the old ones."""

    def __init__(self, net: Net) -> None:
        self.net = net
        memory_format = torch.channels_last if net.channels_last else torch.contiguous_format
        for parameter in [*net.parameters(), *frozen_parameters(net).values()]:
            if parameter.dim() == 4:  # channels last exists for two-dimensional convolutions only
                # `contiguous` would leave weights of one channel alone, and their convolutions in the plain order
                parameter.data = parameter.data.clone(memory_format=memory_format)
        self.tree = tree_of(net)
        self.parameters = dict(net.named_parameters())
        addresses = {tensor.data_ptr() for tensor in self.tree.values()}
        self._dtypes = {name: tensor.dtype for name, tensor in self.tree.items()}
        self._is_plain = len(addresses) == len(self.tree) and all(t.is_contiguous() for t in self.tree.values())
        self._device = next(iter(self.tree.values())).device if self.tree else torch.device("cpu")
        self._buffers = [
            (module, name, path, buffer)
            for prefix, module in net.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and (path := f"{prefix}.{name}".lstrip(".")) in self.tree
        ]

    def is_laid_out_as(self, tree: Tree) -> bool:
        """Whether clones of a tree's tensors lie as the net's do: in the plain order, none shared, on its device."""
        if not self._is_plain:
            return False
        for name, dtype in self._dtypes.items():  # no generator, because this is asked for every client
            value = tree[name]
            if value.dtype is not dtype or not value.is_contiguous() or value.device != self._device:
                return False
        return True

    def restore_buffers(self) -> None:
        """Copy buffers that the net has replaced into their old tensors."""
        for module, name, path, buffer in self._buffers:
            replacement = module._buffers[name]
            if replacement is not buffer:
                copy_replaced_buffer(path, buffer, replacement)
                module._buffers[name] = buffer

    def buffers(self) -> list[Tensor]:
        """Return the buffers of the tree that may change: the tensors that the net's own code reads and writes."""
        self.restore_buffers()
        return [buffer for _, _, _, buffer in self._buffers if not isinstance(buffer, nn.Parameter)]  # as frozen ones

    def load(self, tree: Tree) -> None:
        # The values of replaced buffers are dropped, because all entries are overwritten below.
        for module, name, _, buffer in self._buffers:
            module._buffers[name] = buffer
        entries = {name: tree[name] for name in self.tree}
        with torch.no_grad():
            if self._device.type != "cpu" and all(value.device.type == "cpu" for value in entries.values()):
                entries = tree_on(entries, self._device)
            torch._foreach_copy_(list(self.tree.values()), list(entries.values()))

    def copies(self) -> Tree:
        """Return copies of the net's tensors on its device."""
        self.restore_buffers()
        return {name: tensor.detach().clone() for name, tensor in self.tree.items()}

    def weights(self, allocate: Callable[[Tensor], Tensor] | None = None) -> Tree:
        """Return a copy of the net's tensors on the CPU, in the plain memory order, in memory from `allocate`."""
        self.restore_buffers()
        if self._device.type != "cpu":
            on_cpu = tree_on(self.tree, torch.device("cpu"))  # shares memory between its entries
            make = allocate or torch.empty_like
            return {name: make(tensor).copy_(tensor) for name, tensor in on_cpu.items()}
        if allocate is not None:
            return {name: allocate(tensor).copy_(tensor.detach()) for name, tensor in self.tree.items()}
        plain = torch.contiguous_format
        return {name: tensor.detach().clone(memory_format=plain) for name, tensor in self.tree.items()}


@torch.no_grad()
def copy_replaced_buffer(path: str, buffer: Tensor, replacement: Tensor | None) -> None:
    """Copy what a net has assigned to the buffer at `path`. Raises `ConfigError` for another shape or dtype."""
    if replacement is None or replacement.shape != buffer.shape or replacement.dtype != buffer.dtype:
        changed = "nothing" if replacement is None else f"{list(replacement.shape)} of {replacement.dtype}"
        raise ConfigError(
            f"buffer {path}: the model replaces {list(buffer.shape)} of {buffer.dtype} by {changed}; a buffer keeps "
            "its shape and dtype, because it is averaged and stored"
        )
    buffer.copy_(replacement)


class PredictionModule(nn.Module):
    """A module whose `forward(x)` is `logits(net, x)` [B, C], for methods that predict with several nets or an added
    module. Its entries are the net's; children of a bundle keep their names, and are their authors' modules."""

    def __init__(self, net: Net, logits: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self._net_and_logits = net, logits  # a tuple, so that the net is no child and entries keep their names
        original = net.original_module
        self._parameters, self._buffers = original._parameters, original._buffers
        self._non_persistent_buffers_set = original._non_persistent_buffers_set
        children = dict(original._modules) | ({EXTRA: net.extra} if EXTRA in net._modules else {})
        self._modules = {
            name: child.original_module if isinstance(child, Net) else child for name, child in children.items()
        }
        self.train(net.training)

    def train(self, mode: bool = True) -> "PredictionModule":
        self._net_and_logits[0].train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        net, logits = self._net_and_logits
        return logits(net, x)


def load_tree(net: Net, tree: Tree) -> None:
    """Copy `tree` into the net. The tree needs every entry of the net, and may have more."""
    net.load_state_dict({name: tree[name] for name in net.state_dict()})


def restore_head_bias(net: Net, reference: Net) -> None:
    """Add a bias of zeros to heads that a method left without one, where the author's net, `reference`, has a bias."""
    for name in reference.state_dict().keys() - net.state_dict().keys():
        head = net.get_submodule(name.rpartition(".")[0])
        if isinstance(head, nn.Linear):
            head.register_parameter("bias", nn.Parameter(torch.zeros(head.out_features)))


def plain_logits(net: Net, x: Tensor) -> Tensor:
    """Return the net's own output [B, C]."""
    return cast(Tensor, net(x))


@dataclass(frozen=True, slots=True)
class Predictor:
    """Weights and how to predict with them.

    Attributes:
        tree: the weights that the net holds.
        logits: maps (net, x) to class scores [B, C].
        consts: constants for the phases of `Method.adapt`.
        labels_only: whether the highest entry of a row names the class and nothing more, as with votes, so that no
            metric of scores is defined.
    """

    tree: Tree
    logits: Callable[[Net, Tensor], Tensor] = plain_logits
    consts: dict[str, Any] = field(default_factory=dict)
    labels_only: bool = False
