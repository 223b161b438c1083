"""Your CNN: fedloom needs only the class, and finds its last layer."""

from torch import nn

import fedloom as fl


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers, for images [B, channels, height, width]."""

    def __init__(self, input_shape, num_classes, width=16):
        super().__init__()
        channels, height, width_ = input_shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.hidden = nn.Linear(2 * width * (height // 2) * (width_ // 2), 64)
        self.classifier = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.classifier(self.hidden(self.convolutions(x).flatten(1)).relu())


def main(rounds=20, clients=10):
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=clients)
    # The class is a function that makes a model: every seed draws different first weights.
    return [fl.run(method, scenario=scenario, model=SmallCNN, rounds=rounds) for method in ("fedavg", "fedsc")]


if __name__ == "__main__":
    for result in main():
        print(result.summary())
