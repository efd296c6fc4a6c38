"""The simulation can fail: each rule that keeps a task from two owners, broken, is found.

A mutant is one expression of one function put differently. Lives are played, with what the rule is
for happening more often, until a law breaks. The rules as they are break none in the same lives.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import pytest
from fault_injection import placements_aside, runs, two_coordinators
from fault_injection.checker import CheckedJob
from fault_injection.faults import (
    Configures,
    Deafens,
    Deletes,
    Drains,
    FallsBehind,
    Repeats,
    Timed,
    Usurps,
)
from support.suite.broken_rules import break_function, broken_source

from muster.assignor.connect import pinned_jobs
from muster.simulation.jobs import Job
from muster.state import (
    deadlines,
    deletion,
    drains,
    fencing,
    heartbeats,
    liveness,
    lost_checkpoint,
    member_records,
    placement,
    releases,
    removed_tasks,
    reports,
    session_clock,
    session_timeouts,
)
from muster.state.group import Group
from muster.worker import lease, session

GENERATIONS_MAX = 5_000
FIRST_SEED = 500_000
THREE_COORDINATORS = 500_134
"""Three coordinators start within a second and a half.

The first publishes a snapshot of a higher generation after the second has granted tasks, and the
third recovers from that snapshot.
"""


class Mutant(NamedTuple):
    """A rule and how it is broken.

    Attributes:
        rule: what does not hold any more.
        function: where.
        old: what stands there, once.
        new: what is put in its place.
        stressed: kinds of faults that happen more often.
        lives: seed → the faults of a life; None = of all kinds.
        first_seed: where the search begins. A rule that few lives need has one just before the life
            that was found last; the search goes on from there when lives have changed.
        job: the kind of its coordinators.
    """

    rule: str
    function: Callable[..., object]
    old: str
    new: str
    stressed: tuple[type, ...] = ()
    lives: Callable[[int], list[Timed]] | None = None
    first_seed: int = FIRST_SEED
    job: type[Job] = CheckedJob


MUTANTS = (
    Mutant(
        "a release is acknowledged when the task is held no more",
        releases.release,
        "still_held = contains(active, owed_tasks)",
        "still_held = contains(active[:0], owed_tasks)",
    ),
    Mutant(
        "a release is acknowledged by who has read the demand",
        reports._compare,
        " and event.revision >= member.revoke_revision",
        "",
        (Repeats, Configures),
    ),
    Mutant(
        "what a fenced member has is its own for a session",
        fencing.fence,
        "draft.sessions.demand(slot)",
        "draft.sessions.demand(slot); draft.release([slot])",
    ),
    Mutant(
        "a fenced member's time runs from the proof that it could read it",
        liveness.Liveness.restart_demand,
        "self.response_due[slot] = -self.taken",
        "self.response_due[slot] = self.session_ms + 2_000",
        (FallsBehind,),
    ),
    Mutant(
        "a proof counts only for demands that were published before",
        deadlines.prove,
        "before = min(tick.published.taken, draft.group.sessions.taken)",
        "before = draft.sessions.taken + 1",
        (FallsBehind,),
        first_seed=500_220,
    ),
    Mutant(
        "a lease ends before the session",
        lease.session_until_ms,
        "since_ms + session_timeout_ms * 99 // 100",
        "since_ms + 2 * session_timeout_ms",
    ),
    Mutant(
        "a member that reads nothing has no lease",
        lease.Proof.since_ms.fget,
        "min(self._heard_ms, self._read_ms)",
        "self._heard_ms",
        (Deafens,),
        first_seed=500_055,
    ),
    Mutant(
        "a shorter session is used when the member knows it",
        session_timeouts.lengthen,
        "draft.settings.session_timeout_ms > draft",
        "draft.settings.session_timeout_ms != draft",
        (Configures,),
        first_seed=500_050,
    ),
    Mutant(
        "a task that left the table stays with who has it",
        removed_tasks._orphaned,
        "return orphans",
        "return []",
    ),
    Mutant(
        "a new coordinator without a checkpoint asks every member",
        Group.recover,
        "frozenset(member.slot for member in record.members if not member.away)",
        "frozenset()",
        (Usurps,),
    ),
    Mutant(
        "it asks newcomers, too, as long as the old coordinator may have let them in",
        lost_checkpoint.ask_newcomer,
        "until_ms is None or slot in",
        "True or slot in",
        lives=two_coordinators.silent,
        first_seed=0,
    ),
    Mutant(
        "an answer is one that was written after the question",
        lost_checkpoint.is_answer,
        "return event.coordinator_epoch >= draft.since_epoch",
        "return True",
        lives=two_coordinators.silent,
        first_seed=0,
    ),
    Mutant(
        "the question takes nothing back: it stands under the old revision",
        member_records.write,
        "if slot in draft.recovery.asked:",
        "if False:",
        lives=two_coordinators.silent,
        first_seed=0,
    ),
    Mutant(
        "a member obeys no coordinator older than one it has heard",
        session.Session._is_news,
        "record.coordinator_epoch < self._seen[0]",
        "False",
        (Usurps,),
        first_seed=500_130,
    ),
    Mutant(
        "a member obeys nothing that was told another incarnation",
        session.Session._is_news,
        "record.incarnation == self.incarnation and",
        "True and",
    ),
    Mutant(
        "where members heartbeat apart, only covered time counts against a silent one",
        session_clock.move_to,
        "if not sessions.is_apart:",
        "if True:",
        (FallsBehind,),
    ),
    Mutant(
        "a tick's members are heard",
        heartbeats._hear,
        "np.maximum(heard_ms, sessions.last_ms[slots])",
        "sessions.last_ms[slots]",
    ),
    Mutant(
        "a join counts from its own time, not from the cover before",
        liveness.Liveness.activity_of,
        "max(at_ms - self.covered_ms, 0) + BROKERS_DIFFER_MS",
        "min(0, at_ms) - 1_500",
    ),
    Mutant(
        "a group that was deleted goes on with its generations",
        deletion.wind_up,
        "if not draft.roster:",
        "if not draft.roster:\n        draft.generation = draft.target.generation = 0",
        (Deletes,),
    ),
    Mutant(
        "generations of a batch that is lost are not used again",
        Group.recover,
        "max(record.generation, record.floor) + 1",
        "0",
        lives=two_coordinators.lost_batch,
        first_seed=40,
    ),
    Mutant(
        "nor are those that two coordinators before may have used",
        Group.recover,
        "max(record.generation, record.floor)",
        "record.generation",
        lives=two_coordinators.taken_over_twice,
        first_seed=0,
    ),
    Mutant(
        "what a superseded coordinator may still decide is below the next generation",
        lost_checkpoint.raise_floor,
        "draft.recovery.floor += 1",
        "pass",
        lives=two_coordinators.life,
        first_seed=0,
    ),
    Mutant(
        "a drain outlives its member",
        drains.outlive,
        "if member.draining:",
        "if False:",
        (Drains,),
    ),
    Mutant(
        "a job runs on members that name it",
        pinned_jobs.Pins.astray,
        "np.where(self.pinned, ~on_naming_worker, ~on_wildcard)",
        "np.where(self.pinned, False, ~on_wildcard)",
        (Configures,),
    ),
    Mutant(
        "what a draining member names does not count",
        pinned_jobs.pins_of,
        "if takes_jobs[worker]",
        "if True",
        (Configures, Drains),
    ),
    Mutant(
        "a copy that caught up while a placement was computed aside takes over",
        placement.take_deferred,
        "lag.note_reported_since(draft, outcome.caught_up, outcome.behind)",
        "pass",
        lives=placements_aside.life,
        first_seed=170,
        job=placements_aside.AsideJob,
    ),
)


def test_each_rule_is_where_the_table_says() -> None:
    """A rule that moved within the source is seen here, before the lives break it."""
    for mutant in MUTANTS:
        broken_source(mutant.function, mutant.old, mutant.new)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_broken_rule_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives in a row, until one breaks a law; the same life breaks none when the rule is whole."""
    break_function(mutant.function, mutant.old, mutant.new, monkeypatch)
    opened = 0
    for seed in count(mutant.first_seed):
        invented = mutant.lives
        given = runs.stream(seed, mutant.stressed) if invented is None else invented(seed)
        world, _, law = runs.play(seed, given, job=mutant.job)
        opened += world.generations
        if law:
            break
        assert opened < GENERATIONS_MAX, f"{opened:,} generations, and all laws hold: {mutant.rule}"
    print(f"{opened:,} generations: {law}")
    assert not law.startswith(("NameError", "TypeError", "AttributeError", "SyntaxError"))
    monkeypatch.undo()
    assert runs.play(seed, given, job=mutant.job)[2] == ""


@pytest.mark.slow
def test_a_snapshot_of_a_superseded_coordinator_grants_nothing() -> None:
    """The third of three coordinators asks its members for what they hold, and grants nothing."""
    given = runs.stream(THREE_COORDINATORS, (Usurps,))
    assert runs.play(THREE_COORDINATORS, given)[2] == ""
