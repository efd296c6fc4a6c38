"""Rules broken one at a time, and the scenario that finds each: the check of the check."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from exploration.model import Budget, Scenario
from exploration.scenarios import ONE, TWO
from support.suite.broken_rules import break_function

from muster.state import (
    deadlines,
    liveness,
    machine,
    reconcile,
)
from muster.state.group import Group
from muster.worker import holdings as held
from muster.worker import lease
from muster.worker.session import TABLE, Rule, Session
from muster.worker.steps import Steps


class Mutant(NamedTuple):
    """A rule and how it is broken.

    Attributes:
        rule: what does not hold any more.
        function: where.
        old: what stands there, once.
        new: what is put in its place.
        scenario: what is explored.
    """

    rule: str
    function: Callable[..., object]
    old: str
    new: str
    scenario: Scenario


PLAIN = Scenario(TWO, 1)
MOVING = Scenario(TWO, 2)
CRASH = Scenario(TWO, 1, Budget(crash=1, start=1), settled=True)
ALONE = Scenario(ONE, 1, Budget(crash=1))
SILENT = Scenario(TWO, 1, Budget(late=3), settled=True)
LOST = Scenario(TWO, 1, Budget(lose=1))
FAILING = Scenario(ONE, 1, Budget(fail=1))

MUTANTS = (
    Mutant(
        "a task is granted when no member holds it",
        reconcile._grant,
        "is_free = (draft.owned.holder[lacking] == NO_MEMBER)",
        "is_free = (draft.owned.holder[lacking] == draft.owned.holder[lacking])",
        MOVING,
    ),
    Mutant(
        "a revoked task stays with its holder until it is released",
        reconcile._revoke,
        "idle = away[holder[lost]]",
        "idle = holder[lost] != NO_MEMBER",
        MOVING,
    ),
    Mutant(
        "a member expires when its session has ended, not before",
        liveness.Liveness.overdue,
        "(self.last_ms + self.timeout_ms <= self.session_ms)",
        "(self.last_ms + self.timeout_ms // 3 <= self.session_ms)",
        CRASH,
    ),
    Mutant(
        "the deadline of a session is its end",
        liveness.Liveness.earliest_ms.fget,
        "self.last_ms + self.timeout_ms",
        "self.last_ms + 2_000 * self.timeout_ms",
        CRASH,
    ),
    Mutant(
        "a heartbeat is a sign of life",
        liveness.Liveness.beat,
        "self.last_ms[slots[~muted]] = session_ms[~muted]",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a change is published",
        machine.advance,
        "records.append(done.snapshot())",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a generation has a new number",
        machine._open_generation,
        "draft.generation += 1",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a group with members asks to be woken",
        deadlines.wake_ms,
        "return min(times)",
        "return None",
        ALONE,
    ),
    Mutant(
        "the clock of the group moves with the log",
        liveness.Liveness.move_to,
        "self.clock_ms = at_ms",
        "pass",
        CRASH,
    ),
    Mutant(
        "a new coordinator without a checkpoint asks everybody",
        Group.recover,
        "frozenset(member.slot for member in record.members if not member.away)",
        "frozenset()",
        LOST,
    ),
    Mutant(
        "a member obeys a record once",
        Steps._is_news,
        "record.revision > self._seen[1]",
        "True",
        LOST,
    ),
    Mutant(
        "a lease ends before the session",
        lease.session_until_ms,
        "since_ms + session_timeout_ms * 99 // 100",
        "since_ms + 2 * session_timeout_ms",
        SILENT,
    ),
    Mutant(
        "the lease is checked before anything else",
        Session.step,
        "self._lease_is_over(now_ms)",
        "False",
        SILENT,
    ),
    Mutant(
        "a join is sent again",
        Steps._ask_again,
        "self._ask(now_ms) if now_ms >= self._retry_ms else []",
        "[]",
        FAILING,
    ),
    Mutant(
        "a lost session holds nothing",
        Steps._lose,
        "self._holdings = Holdings()",
        "pass",
        SILENT,
    ),
    Mutant(
        "a member releases what its record lacks",
        held.Holdings.release,
        "if surplus:",
        "if False:",
        MOVING,
    ),
)


def break_rule(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the rule, also in the session's table of moves."""
    function, packages = mutant.function, ("muster.", "exploration.")
    broken = break_function(function, mutant.old, mutant.new, monkeypatch, packages)
    for rules in TABLE.values():
        for kind, rule in rules.items():
            if rule.handler is function:
                monkeypatch.setitem(rules, kind, Rule(broken, rule.leads_to))
