"""Multi-layer perceptrons and logistic regression, for inputs of any shape."""

from collections.abc import Sequence
from math import prod
from typing import Annotated, ClassVar, cast

from pydantic import Field
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.nets.blocks import HeadBias, dense
from fedloom.nets.net import MODELS, Net

_MAX_WIDTH = 1_000_000  # one wider layer would not fit into memory
HiddenWidths = Annotated[
    Sequence[int] | None,
    Field(
        description="Widths of the hidden layers in units, from input to head; null takes the model's own: 200 for "
        "mlp, 128 for mlp-128, and no hidden layer for logistic.",
        examples=[[128, 64]],
    ),
]


@MODELS.register("mlp")
class MLP(Net):
    """Multi-layer perceptron on the flattened input, by default with one hidden layer of 200 units.

    FC h1 ReLU, FC h2 ReLU ... | head -> C, with `hidden=(h1, h2, ...)`. At 1x28x28, C = 10 and hidden (200,): 159,010
    parameters. The net of FedDW's Fig. 5 (784-128-64-10) is `hidden=(128, 64), head_bias=False`: 108,992.
    """

    default_hidden: ClassVar[tuple[int, ...]] = (200,)

    def __init__(
        self, *, input_shape: tuple[int, ...], num_classes: int, hidden: HiddenWidths = None, head_bias: HeadBias = True
    ) -> None:
        super().__init__()
        hidden = self.default_hidden if hidden is None else tuple(hidden)
        if not all(1 <= width <= _MAX_WIDTH for width in hidden):
            raise ConfigError(f"{type(self).__name__}: hidden widths must be 1 to {_MAX_WIDTH:,}, got {hidden}")
        widths = [prod(input_shape), *hidden]
        self.fc = dense(widths)
        self.head = nn.Linear(widths[-1], num_classes, bias=head_bias)

    def features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(x.flatten(1)))


@MODELS.register("mlp-128")
class MLP128(MLP):
    """Multi-layer perceptron 784-128-10: one hidden layer of 128. At 1x28x28 and C = 10: 101,770 parameters."""

    default_hidden = (128,)


@MODELS.register("logistic")
class Logistic(MLP):
    """Logistic regression: the head alone, features are the flattened input. At 1x28x28, C = 10: 7,850 parameters."""

    default_hidden = ()
