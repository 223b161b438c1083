"""Attacks: what bad clients do to their data or to their uploads."""

from fedloom.data.attacks.attack import ATTACKS, Attack, UploadAttack, attack

__all__ = ["ATTACKS", "Attack", "UploadAttack", "attack"]
