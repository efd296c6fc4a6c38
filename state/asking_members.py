"""Asking members what they hold: how it is done, and after how many heartbeats that miss.

A member that is asked gets its record again, because it may not have read it, and reports. Other
reasons to ask: a new coordinator (`recovery`), a report of an active that the member was not given
(`held_tasks`), a join that is repeated (`membership`), tasks that came back (`removed_tasks`),
copies that are to take over and have not caught up (`lag`), and changed times of sessions and
heartbeats, which it must have read (`config_events`, `session_timeouts`). `reports` takes the
answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import BoolArray
from muster.state.draft import Draft
from muster.state.liveness import ASKED

Slots = NDArray[np.intp]
_BITS = np.array([n.bit_length() for n in range(256)], dtype=np.uint8)
"""Bits of a number of misses in a row; they grow at the 2nd, 4th, 8th."""


def ask(draft: Draft, slot: int) -> None:
    """Publish the member's record again and ask for a report."""
    draft.sessions.flags[slot] |= ASKED
    draft.addressed.add(slot)


def count_misses(draft: Draft, slots: Slots, is_miss: BoolArray, agreeing: Slots) -> None:
    """Count the misses of heartbeats, and ask members that have missed too often.

    A member is asked at the second miss in a row, then at the fourth, the eighth and so on: soon
    after a loss, and rarely while the coordinator works off a backlog.

    Args:
        draft: of the group.
        slots: who wrote each heartbeat, oldest first.
        is_miss: whether it misses.
        agreeing: the members whose newest heartbeat does not miss.
    """
    misses = draft.sessions.misses
    misses_before = misses.copy()
    misses[slots[~is_miss]] = 0
    missing_slots = np.unique(slots[is_miss])
    new_misses = np.bincount(slots[is_miss], minlength=len(misses))[missing_slots]
    total_misses = np.minimum(misses[missing_slots].astype(np.int64) + new_misses, 255)
    misses[missing_slots] = total_misses.astype(np.uint8)
    misses[agreeing] = 0
    is_asked = (misses >= 2) & (_BITS[misses] > np.maximum(_BITS[misses_before], 1))
    for slot in np.flatnonzero(is_asked).tolist():
        ask(draft, slot)
