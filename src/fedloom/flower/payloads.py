"""Payloads as bytes; a payload that several clients of a round get is serialised once."""

from __future__ import annotations

from fedloom.core.records import Record, to_bytes


class Payloads:
    """Caches the bytes of the last payload."""

    def __init__(self) -> None:
        self._payload: Record = {}
        self._bytes = to_bytes({})

    def bytes_of(self, payload: Record) -> bytes:
        """Return a payload's bytes."""
        cached = self._payload
        if payload.keys() != cached.keys() or any(payload[name] is not cached[name] for name in cached):
            self._payload, self._bytes = payload, to_bytes(payload)
        return self._bytes

    def forget(self) -> None:
        """Release the last payload, which may be large."""
        self._payload, self._bytes = {}, to_bytes({})
