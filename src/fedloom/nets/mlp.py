"""Nets without convolutions: perceptrons and logistic regression for inputs of any shape, and FedDW's text net."""

from collections.abc import Sequence
from math import prod
from typing import Annotated, ClassVar, cast

import torch
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
    parameters. The net of FedDW's Fig. 5 (784-128-64-10) is `hidden=(128, 64), head_bias=False`: 108,992."""

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


Vocabulary = Annotated[int, Field(description="Number of token ids, from 0 on.", examples=[20_000])]


@MODELS.register("bilstm")
class BiLSTM(Net):
    """BiLSTM of FedDW for IMDB: token ids [B, L] (int64) in, 128 features without a last ReLU.

    Embedding (10,000 words, 128) dropout 0.2, LSTM 128 in both directions, dropout 0.2, FC 128 ReLU per token, mean
    over all L positions, FC 128 | head 128 -> C. At C = 2: 1,593,856 parameters with FedDW's bias-free head
    (`head_bias=False`), 1,593,858 with a bias. Layers as in the released code, also for padding: the padding id has an
    ordinary embedding, and padded positions count in the mean. The batched engine cannot stack LSTMs, because
    `torch.vmap` has no rule for them."""

    def __init__(
        self,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        vocabulary: Vocabulary = 10_000,
        head_bias: HeadBias = True,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1 or input_shape[0] < 1:
            raise ConfigError(f"BiLSTM needs token ids of shape [length], got {tuple(input_shape)}")
        if vocabulary < 1:
            raise ConfigError(f"BiLSTM: vocabulary must be 1 or more, got {vocabulary}")
        self.embedding = nn.Embedding(vocabulary, 128)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(128, 128, batch_first=True, bidirectional=True)
        self.fc1 = nn.Linear(256, 128)
        self.fc2 = nn.Linear(128, 128)
        self.head = nn.Linear(128, num_classes, bias=head_bias)

    def features(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # CPUs without AVX-512 have no LSTM in bfloat16
            states, _ = self.lstm(self.drop(self.embedding(x)))
        tokens = self.fc1(self.drop(states)).relu()
        return cast(Tensor, self.fc2(tokens.mean(1)))
