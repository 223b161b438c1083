"""How clients misbehave, one file per kind: what bad clients do to their data, or to what they send."""

from fedloom.data.attacks.attack import ATTACKS, Attack, attack
from fedloom.data.attacks.upload_attacks import UploadAttack

__all__ = ["ATTACKS", "Attack", "UploadAttack", "attack"]
