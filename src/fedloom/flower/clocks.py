"""How far a node's clock may be from the server's, and what is said of one that is further away."""

from __future__ import annotations

from fedloom.core.text import seconds_text

AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 300.0  # beyond which Flower refuses a node's signatures


def clock_difference(node_time: float, earliest: float, latest: float) -> str:
    """Say in one line how far a node's clock is from the server's; nothing if it may be right to five seconds.

    Args:
        node_time: what the node's clock said, in seconds since 1970 as the others.
        earliest: a time of the server's clock before that.
        latest: a time of the server's clock after that.

    >>> clock_difference(1000.0, 570.0, 580.0)[:54]
    "its node's clock is 7.00 min ahead of the server's; se"
    >>> clock_difference(1000.0, 990.0, 999.0)
    ''
    """
    ahead = node_time - latest if node_time > latest else min(0.0, node_time - earliest)
    if abs(ahead) <= AHEAD_SECONDS:
        return ""
    return f"its node's clock is {clock_advice(ahead)}"


def clock_advice(ahead: float) -> str:
    """Say how far a clock is ahead of the server's (below 0: behind), in seconds, and what to do."""
    direction = "ahead of" if ahead > 0 else "behind"
    return (
        f"{seconds_text(abs(ahead))} {direction} the server's; set it by NTP (e.g. `timedatectl set-ntp true`), "
        f"because Flower refuses a node that is {AHEAD_SECONDS:g} s ahead or {BEHIND_SECONDS:g} s behind"
    )
