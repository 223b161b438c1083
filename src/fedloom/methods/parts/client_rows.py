"""Rows that a server keeps of each client."""

from __future__ import annotations

from torch import Tensor

from fedloom.core.records import Record, get_tensor


def client_row(server: Record, name: str, client: int) -> Tensor:
    """Return a client's row of a server's tensor [N, ...]; zeros for a newcomer, of which the server knows nothing.

    Example:
        >>> import torch
        >>> client_row({"seen": torch.tensor([3, 5])}, "seen", 1), client_row({"seen": torch.tensor([3, 5])}, "seen", 7)
        (tensor(5), tensor(0))
    """
    rows = get_tensor(server, name)
    return rows[client] if client < len(rows) else rows.new_zeros(rows.shape[1:])
