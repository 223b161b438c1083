"""Attacks: what bad clients do to their data or to their uploads."""

from fedloom.data.attacks.attack import ATTACKS, Attack, attack
from fedloom.data.attacks.upload_attacks import UploadAttack

__all__ = ["ATTACKS", "Attack", "UploadAttack", "attack"]
