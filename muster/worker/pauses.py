"""Pauses between attempts that are not calls of tenacity's own, by its rules."""

from __future__ import annotations

from tenacity import RetryCallState, Retrying
from tenacity.wait import wait_base


def pause_s_of(rule: wait_base, attempt: int) -> float:
    """The pause after this many failed attempts, in seconds."""
    state = RetryCallState(retry_object=Retrying(), fn=None, args=(), kwargs={})
    state.attempt_number = attempt
    return float(rule(state))
