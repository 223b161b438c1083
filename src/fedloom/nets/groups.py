"""Named lists of models for clients with different architectures."""

from __future__ import annotations

from collections.abc import Sequence

MODEL_GROUPS: dict[str, tuple[str, ...]] = {
    "fedssa-cnn": ("fedssa-cnn1", "fedssa-cnn2", "fedssa-cnn3", "fedssa-cnn4", "fedssa-cnn5"),
}


def group_of(client_id: int, groups: Sequence[object]) -> int:
    """Return the index of the client's group: client id mod number of groups (FedSSA, Sec. 6.2.2)."""
    return client_id % len(groups)
