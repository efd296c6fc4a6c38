"""Incarnations: random-looking numbers of sessions, computed from a process' random seed."""

from __future__ import annotations

from muster.protocol.digest import MASK


def mixed63(value: int) -> int:
    """SplitMix64's finaliser: spreads a counter over 63 bits. Never 0, which means any member."""
    x = (value * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return ((x ^ (x >> 31)) & (MASK >> 1)) or 1
