"""Payloads as bytes: what several clients of a round get is written once."""

from __future__ import annotations

from fedloom.core.records import Record, to_bytes


class Payloads:
    """Remembers the last payload that was written."""

    def __init__(self) -> None:
        self._payload: Record = {}
        self._bytes = to_bytes({})

    def bytes_of(self, payload: Record) -> bytes:
        """A payload's bytes."""
        known = self._payload
        if payload.keys() != known.keys() or any(payload[name] is not known[name] for name in known):
            self._payload, self._bytes = payload, to_bytes(payload)
        return self._bytes

    def forget(self) -> None:
        """Let go of the last payload, which may be large."""
        self._payload, self._bytes = {}, to_bytes({})
