"""How long a worker waits before it tries something again."""

from __future__ import annotations

from typing import Final

from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_base

from muster.worker.incarnations import mixed63

JOIN_PAUSE_MS: Final = 1_000
JOIN_PAUSE_MAX_MS: Final = 5_000
"""Shorter than a usual session timeout: a member that is not admitted yet stays known by asking."""


def join_pause_ms(attempt: int, seed: int) -> int:
    """How long to wait for an answer to a join: 1 s, doubling up to 5 s.

    Plus or minus a quarter, so that members that wait for a coordinator do not all ask at once.
    """
    plain = min(JOIN_PAUSE_MS << min(attempt - 1, 8), JOIN_PAUSE_MAX_MS)
    return plain * (75 + mixed63(seed + attempt) % 51) // 100


def pause_s_of(rule: wait_base, attempt: int) -> float:
    """The pause that a rule of tenacity gives after this many failed attempts, in seconds."""
    state = RetryCallState(retry_object=Retrying(), fn=None, args=(), kwargs={})
    state.attempt_number = attempt
    return float(rule(state))
