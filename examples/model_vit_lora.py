"""A vision transformer with low-rank adapters: the backbone is frozen, clients train and send the adapters alone."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import fedloom as fl


class Block(nn.Module):
    """Attention, then a small MLP, both with residual connections: [B, L, d] -> [B, L, d]."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind()
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A vision transformer for images [B, 1, 8, 8]: 16 patches of 2x2, the mean of all tokens, a linear head."""

    def __init__(self, num_classes, width=32, depth=2, heads=4):
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, stride=2)
        self.places = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class LoRA(nn.Module):
    """A frozen linear layer plus a product of two thin ones (Hu et al., ICLR 2022, arXiv 2106.09685, Eq. 3)."""

    def __init__(self, linear, rank, alpha=8):
        super().__init__()
        self.linear, self.scale = linear, alpha / rank
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # the layer starts unchanged

    def forward(self, x):
        return self.linear(x) + self.scale * self.up(self.down(x))


def with_lora(model, rank=4):
    """Freeze all of `model` except its head, and add an adapter to every attention."""
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    for block in model.blocks:
        block.qkv = LoRA(block.qkv, rank)
    return model


def pretrained(data, epochs):
    """A vision transformer that the server has pretrained."""
    model = ViT(data.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(data)).split(32):
            optimizer.zero_grad()
            cross_entropy(model(data.gather(rows)), data.y[rows]).backward()
            optimizer.step()
    return model


def main(rounds=20, clients=10, participation=1.0, epochs=20):
    torch.manual_seed(0)
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=clients, public=0.3)
    model = with_lora(pretrained(scenario.build(0).public, epochs))
    # A module keeps its weights: they are the first ones of every run. Only what trains travels.
    keys = {"scenario": scenario, "model": model, "rounds": rounds, "participation": participation}
    keys["optimizer"] = {"name": "adam", "lr": 2e-3}
    return fl.run("fedavg", share="trainable", **keys), fl.run("fedavg", share="all", **keys)


if __name__ == "__main__":
    for result in main():
        print(result.summary(), f"{result.numbers['bytes_up']:,} bytes up")
