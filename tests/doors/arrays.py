"""Doors: arrays."""

from __future__ import annotations

from doors.door import Door

DOORS: list[Door] = []
