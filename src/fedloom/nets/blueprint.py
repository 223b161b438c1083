"""The description from which a run's nets are built: models, input shape, and the changes of a method."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree, clone
from fedloom.nets.loaded_net import freeze_as_buffers
from fedloom.nets.net import EXTRA, MODELS, FunctionalNet, Net, Role, deep_copy, tag_roles, tree_of
from fedloom.nets.user_model import UserModel


class Bundle(Net):
    """Several nets under names, for methods that train several: its tree is flat ("online.conv1.weight"), and
    `bundle["online"]` is a child. The first net stands for the bundle where one net is needed."""

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
        return self[self._first_name]

    @property
    def head(self) -> nn.Linear:  # type: ignore[override]
        return self.first_net.head

    @property
    def functional(self) -> FunctionalNet:
        return self.first_net.functional

    def features(self, x: Tensor) -> Tensor:
        return self.first_net.features(x)

    def maps(self, x: Tensor) -> Tensor:
        return self.first_net.maps(x)

    def classify(self, maps: Tensor) -> Tensor:
        return self.first_net.classify(maps)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.first_net(x))

    def roles(self) -> dict[str, Role]:
        roles: dict[str, Role] = {}
        for name, child in self.named_children():
            child_roles = tag_roles(child, "") if name == EXTRA else cast(Net, child).roles()
            roles |= {f"{name}.{entry}": Role.EXTRA if name == EXTRA else role for entry, role in child_roles.items()}
        return roles


SharedParameters: TypeAlias = Literal["all", "trainable"]
ExtraFactory: TypeAlias = Callable[[Net], nn.Module | None]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model, its options, and the changes that a method makes to the net."""

    model: str  # name of a registered model, or of the user's for messages
    input_shape: tuple[int, ...]  # of one sample, without the batch
    num_classes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    head_bias: bool = True  # False removes the bias of the head
    nets: Mapping[str, str | None] = field(default_factory=dict)  # models of a `Bundle` by net, None for `model`
    extra: ExtraFactory | None = None  # makes the module that a method adds to the net
    factory: Callable[..., Net] | None = None  # makes the net instead of a registered model
    share: SharedParameters = "all"  # "trainable" leaves frozen parameters out of the net's tree

    def build(self, streams: Streams, client: int = -1) -> Net:
        """Build a net from the run's "init" stream, or from that of `client`. Nets of a bundle that have the same model
        start with the same weights. Raises `ConfigError` for an unknown model or one that does not fit."""
        with streams.isolated("init", client=client):
            changes: dict[str, Any] = {"head_bias": self.head_bias, "nets": self.nets, "extra": self.extra}
            return prepare_net(self._build_model(None), **changes, build_model=self._build_model, share=self.share)

    def _build_model(self, model: str | None) -> Net:
        options = self.options if model is None else {}
        factory = self.factory if self.factory and model is None else MODELS.get(self.model if model is None else model)
        try:
            return factory(input_shape=self.input_shape, num_classes=self.num_classes, **options)
        except RuntimeError as error:
            # Torch has no class of errors for a CPU without memory: only the text tells.
            if "can't allocate memory" not in str(error):
                raise
            raise ConfigError(f"model {self.model}: does not fit into memory; make it smaller") from None

    def initial_weights(self, streams: Streams, client: int) -> Tree:
        """Draw the first weights of one client. Raises `ConfigError` for a module, which comes with its weights."""
        if isinstance(self.factory, UserModel) and isinstance(self.factory.source, nn.Module):
            raise ConfigError(
                f"model {self.model}: every client would draw weights of its own, and a module comes with its weights; "
                "give a function that makes it"
            )
        return clone(tree_of(self.build(streams, client)))


def _refuse_other_model(model: str) -> Net:
    raise ConfigError(f"a net of the model '{model}' beside the run's own needs a registered model for the run, too")


def prepare_net(
    net: Net,
    *,
    head_bias: bool = True,
    nets: Mapping[str, str | None] | None = None,
    extra: ExtraFactory | None = None,
    build_model: Callable[[str], Net] = _refuse_other_model,
    share: SharedParameters = "all",
) -> Net:
    """Adapt a net to a method: no bias of its head unless `head_bias`; a bundle of copies (None) and of models from
    `build_model`, if there are `nets`; the module of `extra`; frozen parameters as buffers, in the tree by `share`."""
    if nets:
        members = {name: deep_copy(net) if model is None else build_model(model) for name, model in nets.items()}
        for member in members.values():
            _strip_head_bias(member, head_bias)
        net = Bundle(members)
    else:
        _strip_head_bias(net, head_bias)
    freeze_as_buffers(net, persistent=share == "all")
    added_module = extra(net) if extra else None
    if added_module is not None:
        net.extra = added_module
    return net


def _strip_head_bias(net: Net, head_bias: bool) -> None:
    head = getattr(net, "head", None)
    if not head_bias and isinstance(head, nn.Linear):
        head.register_parameter("bias", None)
