"""Rules broken one at a time, and the scenario that finds each: the check of the check."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from exploration import plugin
from exploration.model import Budget, Scenario
from exploration.scenarios import COPIES, ONE, TWO
from exploration.stories import DRAINED, READ_AGAIN
from support.suite.broken_rules import break_function

from muster.assignor.high_availability_assignor import HighAvailability
from muster.state import (
    deadlines,
    drains,
    heartbeats,
    lag,
    liveness,
    machine,
    membership,
    new_generation,
    placement,
    reconcile,
    session_clock,
    wake_ups,
)
from muster.state.group import Group
from muster.worker import holdings as held
from muster.worker import lease
from muster.worker.session import TABLE, Rule, Session
from muster.worker.session_steps import Steps


class Mutant(NamedTuple):
    """A rule and how it is broken.

    Attributes:
        rule: what does not hold any more.
        function: where.
        old: what stands there, once.
        new: what is put in its place.
        scenario: what is explored.
        states: at which the search stops.
        walks: random walks that are taken instead of the search, where the law breaks far from
            the beginning; 0 = search.
    """

    rule: str
    function: Callable[..., object]
    old: str
    new: str
    scenario: Scenario
    states: int = 12_000
    walks: int = 0


PLAIN = Scenario(TWO, 1)
MOVING = Scenario(TWO, 2)
CRASH = Scenario(TWO, 1, Budget(crash=1, start=1), settled=True)
ALONE = Scenario(ONE, 1, Budget(crash=1))
SILENT = Scenario(TWO, 1, Budget(late=3), settled=True)
LOST = Scenario(TWO, 1, Budget(lose=1))
FAILING = Scenario(ONE, 1, Budget(fail=1))
PLUG_IN = Scenario(TWO, 2, assignor=plugin.NAME)
DRAIN = Scenario(TWO, 1, Budget(drain=1), settled=True)
LEAVE = Scenario(TWO, 1, Budget(leave=1), settled=True)
REPEATED = Scenario(ONE, 1, Budget(leave=1, start=1, repeat=1), settled=True)
STANDBYS = Scenario(TWO, 2, settings=COPIES, assignor="high-availability")
LEARNER = Scenario(TWO, 2, settings=COPIES[1:], assignor="learner")
LAGS = LEARNER._replace(lags=True, budget=Budget(behind=1))

FENCED = Mutant(
    "a join that is read again frees nothing of a fenced member",
    membership._rejoin,
    "draft.addressed.add(slot)\n        return",
    """draft.release([slot])
        draft.sessions.flags[slot] = 0
        draft.update(slot, epoch=0, previous_epoch=0)
        draft.causes.member(causes.REJOINED, member.id)""",
    Scenario(
        TWO,
        1,
        Budget(repeat=1, drain=1, late=4),
        settings=(("rebalance.timeout.ms", "1000"), ("session.timeout.ms", "6000")),
        after=READ_AGAIN[:DRAINED],
    ),
    states=40_000,
)

MUTANTS = (
    FENCED,
    Mutant(
        "a task is granted when no member holds it",
        reconcile._grant,
        "is_free = (draft.owned.holder[lacking_tasks] == NO_MEMBER)",
        "is_free = (draft.owned.holder[lacking_tasks] == draft.owned.holder[lacking_tasks])",
        MOVING,
    ),
    Mutant(
        "a revoked task stays with its holder until it is released",
        reconcile._revoke,
        "holder_is_away = is_away[holder[lost_tasks]]",
        "holder_is_away = holder[lost_tasks] != NO_MEMBER",
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
        heartbeats.beat,
        "sessions.last_ms[slots[~muted]] = session_ms[~muted]",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a change is published",
        machine.advance,
        "records.append(next_group.snapshot())",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a generation has a new number",
        new_generation.begin,
        "draft.generation += 1",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a group with members asks to be woken",
        wake_ups.wake_ms,
        "return min(wake_times_ms)",
        "return None",
        ALONE,
    ),
    Mutant(
        "the session clock moves with the log",
        session_clock.move_to,
        "sessions.session_ms += min(at_ms - sessions.covered_ms, step_ms)",
        "pass",
        CRASH,
    ),
    Mutant(
        "a new coordinator without a checkpoint asks every member",
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
    Mutant(
        "a follow-up waits until the answer before it is carried out",
        deadlines.follow_up_is_due,
        " and not draft.applied_answer",
        "",
        PLUG_IN,
    ),
    Mutant(
        "a follow-up is asked for only while something is unfinished",
        HighAvailability.assign,
        " if unfinished else None",
        "",
        STANDBYS,
        states=2_000,
    ),
    Mutant(
        "a plug-in's answer is carried out",
        placement.take_deferred,
        "_apply(draft, outcome)",
        "pass",
        PLUG_IN,
    ),
    Mutant(
        "a drain opens a generation",
        drains.order,
        "draft.causes.member(causes.DRAINING if event.on else causes.UNDRAINED, event.member)",
        "pass",
        DRAIN,
    ),
    Mutant(
        "a drain is kept",
        drains.order,
        "draft.update(slot, draining=event.on)",
        "pass",
        DRAIN,
    ),
    Mutant(
        "a process that has left is no member",
        membership.leave,
        "remove(draft, slot, causes.LEFT)",
        "draft.sessions.hear(slot)",
        LEAVE,
    ),
    Mutant(
        "a leave counts for its incarnation only",
        membership.leave,
        "slot is None or draft.member(slot).incarnation != event.incarnation",
        "slot is None",
        REPEATED,
    ),
    Mutant(
        "a tombstone tells that a member is gone",
        membership.remove,
        "draft.tombstone(member.id)",
        "pass",
        CRASH,
    ),
    Mutant(
        "a member that joins opens a generation",
        membership._admit,
        "draft.causes.member(causes.JOINED, member.id)",
        "pass",
        PLAIN,
    ),
    Mutant(
        "a join is answered",
        membership._answer_join,
        "draft.addressed.add(slot)",
        "pass",
        PLAIN,
        states=3_000,
    ),
    Mutant(
        "a learner that is ready takes over",
        lag.absorb_ready,
        "_note_causes(draft, newly_caught_up, newly_caught_up[:0])",
        "pass",
        LEARNER,
    ),
    Mutant(
        "a learner whose lag is small takes over",
        lag._merge,
        "_note_causes(draft, newly_caught_up, newly_behind)",
        "pass",
        LAGS,
    ),
    Mutant(
        "a copy with a large lag has not caught up",
        lag._are_caught_up,
        "(is_believed & (offsets <= lag_limit))",
        "(is_believed & (offsets >= 0))",
        LAGS,
    ),
    Mutant(
        "a member reports that a copy has caught up",
        Steps._mark_ready,
        "if not newly_ready:",
        "if True:",
        LEARNER,
    ),
    Mutant(
        "a member reports the lags of its copies",
        Steps._report_lags,
        "for report in reports",
        "for report in []",
        LAGS,
    ),
    Mutant(
        "a member answers the question of a new coordinator",
        Steps._answer,
        "self._report(now_ms) if record.report else []",
        "[]",
        LOST,
        states=3_000,
    ),
    Mutant(
        "nothing is granted while a new coordinator asks",
        reconcile.settle,
        "if lost_checkpoint.is_halted(draft):",
        "if False:",
        LOST,
    ),
    Mutant(
        "a copy ends when its member runs the task",
        reconcile._leave_role,
        "minus(kept, granted)",
        "kept",
        LEARNER,
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
