"""Pseudo-random numbers computed from a seed: incarnations, and pauses between joins."""

from __future__ import annotations

from typing import Final

from muster.protocol.digest import MASK

JOIN_PAUSE_MS: Final = 1_000
JOIN_PAUSE_MAX_MS: Final = 5_000
"""Shorter than a usual session timeout: a member that is not admitted yet stays known by asking."""


def mixed63(value: int) -> int:
    """SplitMix64's finaliser: spreads a counter over 63 bits. Never 0, which means any member."""
    x = (value * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return ((x ^ (x >> 31)) & (MASK >> 1)) or 1


def join_pause_ms(attempt: int, seed: int) -> int:
    """How long to wait for an answer to a join: 1 s, doubling up to 5 s.

    Plus or minus a quarter, so that members that wait for a coordinator do not all ask at once.
    """
    plain = min(JOIN_PAUSE_MS << min(attempt - 1, 8), JOIN_PAUSE_MAX_MS)
    return plain * (75 + mixed63(seed + attempt) % 51) // 100
