"""A text classifier: a small transformer over token ids, on sentences that this file makes up."""

import numpy as np
import torch
from torch import nn

import fedloom as fl
from fedloom.data import from_arrays

TOPICS = {
    "weather": "rain wind cloud storm sun snow fog frost",
    "kitchen": "bread soup oven salt knife butter onion pan",
    "travel": "train ticket harbour map bridge luggage road hotel",
}
FILLERS = "the a near of and with then some we they saw took left after before again"
VOCABULARY = ["<pad>", *" ".join([FILLERS, *TOPICS.values()]).split()]
LENGTH = 12


def sentences(count, rng):
    """Return token ids [count, LENGTH], padded by 0, and topics [count]: a third of the words belong to the topic."""
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    x, y = np.zeros((count, LENGTH), np.int64), rng.integers(0, len(TOPICS), count)
    own, fillers = [topic.split() for topic in TOPICS.values()], FILLERS.split()
    for row, label in zip(x, y, strict=True):
        for place in range(rng.integers(5, LENGTH + 1)):
            row[place] = ids[rng.choice(own[label] if rng.random() < 0.33 else fillers)]
    return x, y


class TextTransformer(nn.Module):
    """Embedding, transformer layers that do not see the padding, the mean of the words, a linear head."""

    def __init__(self, num_classes, width=32, layers=1):
        super().__init__()
        self.words, self.places = nn.Embedding(len(VOCABULARY), width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, ids):
        words = (ids != 0).unsqueeze(2)
        h = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        h = self.layers(h, src_key_padding_mask=~words.squeeze(2))
        return self.head((h * words).sum(1) / words.sum(1))


def main(rounds=10, clients=10, samples=3000):
    rng = np.random.default_rng(0)
    texts = from_arrays(*sentences(samples, rng), *sentences(500, rng), tokens=True, classes=list(TOPICS))
    scenario = fl.scenario(texts, partition="dirichlet", alpha=0.3, clients=clients)
    return fl.run(
        "fedavg", scenario=scenario, model=TextTransformer, rounds=rounds, optimizer={"name": "adam", "lr": 2e-3}
    )


if __name__ == "__main__":
    print(main().summary())
