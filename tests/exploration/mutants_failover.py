"""Broken rules of a coordinator that takes over from another, and the scenario that finds each."""

from __future__ import annotations

from exploration.model import Budget, Scenario
from exploration.mutants import Mutant
from exploration.scenarios import ONE, TWO

from muster.state import machine, recovery
from muster.state.group import Group

CLAIM = Scenario(TWO, 1, Budget(standby=1))
ALONE = Scenario(ONE, 1, Budget(standby=1))
RETURN = Scenario(TWO, 1, Budget(standby=1, crash=1, start=1))

FAILOVER = (
    Mutant(
        "a coordinator decides nothing behind a tick that names a later one",
        machine.advance,
        "if later is not None:",
        "if False:",
        ALONE,
    ),
    Mutant(
        "a coordinator does not return to a group that it has left",
        recovery.successor,
        "if group.recovery.successor is not None:",
        "if False:",
        CLAIM,
    ),
    Mutant(
        "a group that a standby claims is verified behind its own tick, not before",
        recovery.end_behind_fence,
        "if draft.fence_is_read:",
        "if True:",
        CLAIM,
    ),
    Mutant(
        "only a tick shows what the coordinator before it has read",
        recovery.prove,
        "draft.fence_is_read |= by_tick",
        "draft.fence_is_read = True",
        CLAIM,
    ),
    Mutant(
        "a standby that has claimed asks those that join, too, until its tick is read",
        recovery.ask_newcomer,
        "if until is None or slot in draft.recovery.asked:",
        "if True:",
        CLAIM,
    ),
    Mutant(
        "a group that was read back without members waits as if its claim were not obeyed",
        Group.recover,
        "is_fenced=fenced and unverified and bool(record.members)",
        "is_fenced=fenced and unverified",
        CLAIM,
    ),
)
