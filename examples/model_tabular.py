"""A multi-layer perceptron for a table: 30 measurements of a tumour, benign or malignant (scikit-learn's data)."""

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import fedloom as fl
from fedloom.data import from_arrays


def perceptron(input_shape, num_classes):
    """Two hidden layers, with layer norm because the clients' patients differ."""
    return nn.Sequential(
        nn.Linear(input_shape[0], 32),
        nn.LayerNorm(32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, num_classes),
    )


def main(rounds=20, hospitals=5):
    table = load_breast_cancer()
    train, test, y_train, y_test = train_test_split(table.data, table.target, random_state=0, stratify=table.target)
    scaler = StandardScaler().fit(train)
    parts = scaler.transform(train), y_train, scaler.transform(test), y_test
    data = from_arrays(*parts, classes=[str(name) for name in table.target_names])
    scenario = fl.scenario(data, partition="dirichlet", alpha=0.5, clients=hospitals)
    return fl.run("fedavg", scenario=scenario, model=perceptron, rounds=rounds)


if __name__ == "__main__":
    print(main().summary())
