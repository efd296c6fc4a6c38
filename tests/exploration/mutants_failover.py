"""Broken rules of a coordinator that takes over from another, and the scenario that finds each."""

from __future__ import annotations

from exploration.model import Budget, Scenario
from exploration.mutants import Mutant
from exploration.scenarios import ONE, TWO

from muster.state import machine, superseded

CLAIM = Scenario(TWO, 1, Budget(standby=1))
ALONE = Scenario(ONE, 1, Budget(standby=1))

FAILOVER = (
    Mutant(
        "a coordinator decides nothing behind a tick that names a later one",
        machine.advance,
        "if later_epoch is not None:",
        "if False:",
        ALONE,
    ),
    Mutant(
        "a coordinator does not return to a group that it has left",
        superseded.later_epoch,
        "if group.recovery.successor is not None:",
        "if False:",
        CLAIM,
    ),
)
