"""Partitions, which deal samples to clients; one file for each."""

from fedloom.data.partitions.natural import export_indices
from fedloom.data.partitions.partition import (
    PARTITIONS,
    Dealt,
    Partition,
    deal_by_counts,
    deal_by_shares,
    labels_only,
    partition,
)

__all__ = [
    "PARTITIONS",
    "Dealt",
    "Partition",
    "deal_by_counts",
    "deal_by_shares",
    "export_indices",
    "labels_only",
    "partition",
]
