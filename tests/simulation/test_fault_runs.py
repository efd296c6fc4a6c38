"""A group under many faults: no task has two owners, and afterwards the group settles.

=============================  ===========================================================
MUSTER_FAULT_GENERATIONS       how many the long run opens, in all (`make lives`: a million)
MUSTER_FAULT_SEED              of its first run; the others follow
MUSTER_FAULT_PROCESSES         how many processes of this machine it takes
=============================  ===========================================================

A law that is broken is printed with its seed, the fewest faults that break it, and the trace.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
from fault_injection import (
    fault_run,
    faults,
    placements_aside,
    runs,
    two_coordinators,
    usual_days,
)
from fault_injection.checker import CheckedJob, LawBroken
from fault_injection.fault_run import CALM_MS, FaultRun
from fault_injection.placements_aside import AsideJob
from fault_injection.runs import Tally

from muster.protocol.events import Event
from muster.simulation.shrinking import shrunk
from muster.state.machine import Step
from muster.state.ownership import NO_MEMBER
from muster.streams.checkpoint.older_than_published import ReadBack, first_ahead
from muster.worker.session_steps import State

GENERATIONS = int(os.environ.get("MUSTER_FAULT_GENERATIONS", "4000"))
SEED = int(os.environ.get("MUSTER_FAULT_SEED", "1000000"))
PROCESSES = int(os.environ.get("MUSTER_FAULT_PROCESSES", "2"))


def no_law_is_broken(tally: Tally) -> None:
    """Fail with the trace if a law was broken."""
    if tally.broken is not None:
        pytest.fail(str(tally.broken), pytrace=False)


def test_a_hundred_generations() -> None:
    """A few runs: every kind of fault happens, tasks change owners, all laws hold."""
    tally = runs.tally_of(seed=1, generations=120)
    no_law_is_broken(tally)
    assert tally.generations >= 120
    assert tally.changes > tally.generations / 2
    assert set(tally.faults) == {kind.__name__ for kind in faults.KINDS}
    assert 0 < tally.settled_ms <= CALM_MS


@pytest.mark.slow
@pytest.mark.timeout(600 + GENERATIONS // 20)
def test_many_thousands_of_generations(capsys: pytest.CaptureFixture[str]) -> None:
    """Play runs until a number of generations was opened; print the sums."""
    tally = runs.tally_of(SEED, GENERATIONS, PROCESSES)
    with capsys.disabled():
        print(f"\n{tally}")
    no_law_is_broken(tally)
    assert tally.generations >= GENERATIONS
    assert tally.settled_ms <= CALM_MS


@pytest.mark.parametrize("seed", range(4))
def test_a_day_of_a_fleet(seed: int) -> None:
    """Deploys, drains, new settings and topics overlap: all laws hold."""
    world, settled_ms, law = runs.play(seed, usual_days.day(seed), job=runs.job_of(seed))
    assert law == ""
    assert world.generations > 0
    assert 0 < settled_ms <= CALM_MS


def test_every_chore_is_in_some_day() -> None:
    """In three hundred days every kind of step happens that a chore may have."""
    kinds = {type(step).__name__ for seed in range(300) for _, step in usual_days.day(seed)}
    assert kinds == {kind.__name__ for kind in faults.KINDS} | {"StartsAs", "Finds"}


def test_a_static_member_returns_under_another_member_id() -> None:
    """A container with a new host name goes on with the tasks of its instance id."""
    world = FaultRun(0)
    starts = [(0, faults.Starts("W1")), (100, faults.Starts("W4"))]
    leaves = (5_000, faults.Stops("W4", temporary=True))
    world.play([*starts, leaves, (5_500, faults.StartsAs("W4-new", "i-W4"))])
    changes = world.changes
    assert 0 < world.settle() <= CALM_MS
    using = {process.name: len(process.using) for process in world.processes}
    assert using in ({"W1": 3, "W4-new": 2}, {"W1": 2, "W4-new": 3})
    assert world.changes - changes == using["W4-new"]


class Placed(CheckedJob):
    """A coordinator that records where a `static` group's jobs are placed."""

    runners: ClassVar[dict[str, set[str]]] = {}

    def decide(self, events: Sequence[Event]) -> Step:
        """Decide as usual, and record the placement."""
        step = super().decide(events)
        group = step.group
        for task, slot in enumerate(group.target.active.tolist()):
            member = None if slot == NO_MEMBER else group.roster.by_slot[slot]
            if member is not None and group.assignor == "static":
                self.runners.setdefault(str(group.table.task(task)), set()).add(member.id)
        return step


def test_pinned_jobs_live_through_faults() -> None:
    """In a `static` group jobs move from one member that names them to the other, and back."""
    Placed.runners.clear()
    static = faults.Configures(faults.ASSIGNORS.index("static"), 2, 0)
    faulty = [(at, f) for at, f in runs.stream(3) if not isinstance(f, faults.Configures)]
    world = FaultRun(3, job=Placed)
    world.play([(0, static), *faulty])
    assert 0 < world.settle() <= CALM_MS
    assert Placed.runners["c-0"] == {"W2", "W5"}
    assert Placed.runners["c-1"] == {"W1", "W3", "W4"}


def test_a_member_that_is_deaf_joins_again_in_vain_and_harms_no_other() -> None:
    """It stops what it has in time, asks to join and uses nothing until it reads again.

    The tasks it is granted meanwhile are not used until it is taken for deaf; then others get them,
    and no task has two users. As soon as it reads, it has its share again.
    """
    world = FaultRun(0)
    deafens = faults.Deafens("W1", 45_000)
    starts = [(0, faults.Starts("W1")), (1_000, faults.Starts("W2"))]
    world.play([*starts, (3_000, deafens), (3_000, faults.Starts("W3"))])
    deaf = world.processes[0]
    assert len(deaf.using) == 3
    world.run(3_000 + faults.SESSION_MS + 500)
    assert deaf.session.state is State.JOINING
    while world.clock_ms < 47_500:
        world.run(world.clock_ms + 100)
        assert not deaf.using
        others = sum(len(process.using) for process in world.processes if process is not deaf)
        assert others >= 3  # their own shares, whatever the deaf one is given
    assert others == 5
    assert 0 < world.settle() <= CALM_MS
    assert deaf.using
    assert sum(len(process.using) for process in world.processes) == 5


@pytest.mark.parametrize("seed", range(8))
def test_tokens_grow_while_two_coordinators_live(seed: int) -> None:
    """The first gives tasks under a dozen more generations while its successor starts.

    Members believe it until the successor has asked them; who had the newest tokens is dead by
    then. The tokens that the successor gives with the same tasks are newer all the same.
    """
    given = two_coordinators.life(seed)
    world, settled_ms, law = runs.play(seed, given)
    assert law == ""
    assert world.generations > 10
    assert 0 < settled_ms <= CALM_MS


@pytest.mark.parametrize("seed", range(8))
def test_members_are_silent_while_two_coordinators_live(seed: int) -> None:
    """They freeze with what the first gave them; the second gives none of it to another."""
    _, settled_ms, law = runs.play(seed, two_coordinators.silent(seed))
    assert law == ""
    assert 0 < settled_ms <= CALM_MS


def test_a_released_task_goes_back_to_its_destination() -> None:
    """A placement computed aside moves a task away from its owner and names it the destination.

    When the owner has released the task, its copy is ready at once, so the task goes back. It
    waited for the follow-up, 24 minutes later.
    """
    _, settled_ms, law = runs.play(8351224, runs.stream(8351224), job=runs.job_of(8351224))
    assert law == ""
    assert 0 < settled_ms <= CALM_MS


@pytest.mark.parametrize(
    "seed",
    [
        *range(6),
        173,  # a standby caught up before the answer that made it a learner, and stayed one
        241,  # the same
    ],
)
def test_a_fleet_settles_whose_placements_are_computed_aside(seed: int) -> None:
    """Copies catch up while a placement is computed that knows nothing of it; they take over."""
    given = placements_aside.life(seed)
    world, settled_ms, law = runs.play(seed, given, job=AsideJob)
    assert law == ""
    assert 0 < settled_ms <= 15_000
    assert 4 <= world.generations < 20


def test_some_runs_compute_placements_aside() -> None:
    """One seed in four; batches go on without an answer, and later ones have it."""
    kinds = Counter(runs.job_of(seed) for seed in range(100))
    assert kinds == {AsideJob: 25, CheckedJob: 75}
    seen: list[bool] = []

    class Noted(AsideJob):
        """It notes whether each answer was there at once."""

        def decide(self, events: Sequence[Event]) -> Step:
            step = super().decide(events)
            target = step.group.target
            if target.asked_ms is not None:
                seen.append(target.deferred is not None)
            return step

    assert runs.play(4, runs.stream(4), job=Noted)[2] == ""
    assert 0 < sum(seen) < len(seen) / 2


def test_a_token_does_not_go_back_before_a_new_coordinator_has_placed() -> None:
    """W3 runs W1's tasks, which the first coordinator gave it; the second knows W1 as their owner.

    It asks W3 to stop them, then W1 expires and W3 has them again, before any placement.
    """
    seed = 2_000_153
    assert runs.play(seed, runs.stream(seed))[2] == ""


def restored(seed: int, *, goes_on: bool) -> str:
    """The law that is broken after the coordinator's machine was restored from a snapshot of it.

    The checkpoint is that of 6 s; the coordinator went on for 6 s more. It is started again, on
    that checkpoint if it `goes_on`, else without one.
    """
    world = FaultRun(seed)
    world.play(
        [(0, faults.Starts("W1")), (0, faults.Starts("W2")), (0, faults.Configures(0, 0, 0))]
    )
    world.run(6_000)
    snapshot = replace(world.jobs.newest.checkpoint, begun=None)
    snapshot.through = dict(snapshot.through)
    later = [
        (6_000, faults.Starts("W3")),
        (8_000, faults.Starts("W4")),
        (9_000, faults.Stops("W1")),
    ]
    try:
        world.play(later)
        world.run(12_000)
        world.jobs.running.remove(world.jobs.newest)
        world.jobs.newest = None
        world.run(13_000)
        ends = {topic: {0: end} for topic, end in snapshot.through.items()}
        assert first_ahead([("", world.log.snapshot)], ends, ReadBack({}, {})) is not None
        world.jobs.begin(snapshot if goes_on else None)
        world.run(30_000)
        world.settle()
    except LawBroken as law:
        return str(law)
    return ""


def test_a_checkpoint_that_was_restored_from_a_snapshot_of_its_machine() -> None:
    """What is published shows it, so the job does not go on from it; it would break laws."""
    assert [restored(seed, goes_on=False) for seed in range(3)] == [""] * 3
    assert any(restored(seed, goes_on=True) for seed in range(3))


@pytest.mark.parametrize(
    "seed",
    [
        7_021_220,  # a third coordinator gave out lower tokens than the second one
        7_033_323,  # a dead member with the default session is fenced, and removed a session later
        7_042_562,  # the last that heartbeat apart left: a new session was as old as the outage
        8_002_067,  # a config gave a fenced member back what it owed: it was not removed in time
        7_036_064,  # a static member was fenced while it was away, and returned: it owed nothing
    ],
)
def test_runs_that_once_broke_a_law(seed: int) -> None:
    """They keep it now."""
    assert runs.play(seed, runs.stream(seed))[2] == ""


def test_lags_of_the_exporter_arrive_in_their_order() -> None:
    """A copy is reported far behind, and at once as near: the group knows the second report."""
    seed = 2_000_521
    assert runs.play(seed, runs.stream(seed))[2] == ""


def test_the_checker_finds_a_job_off_its_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker fails a `static` group whose member runs a job that it does not name."""
    monkeypatch.setitem(faults.PINNED, "W1", ("1_2",))  # for the checker
    monkeypatch.setattr(fault_run, "PINNED", {})  # the process still names nothing
    world = FaultRun(3)
    static = faults.Configures(faults.ASSIGNORS.index("static"), 2, 0)
    with pytest.raises(LawBroken, match="1_0 is to run on W1, not on any member"):
        world.play([(0, static), (1_000, faults.Starts("W1")), (5_000, faults.Dies("W1"))])


def test_a_run_is_the_same_each_time() -> None:
    """The same seed and faults give the same trace, also in another process."""
    given = runs.stream(7)
    (world, settled_ms, law), (again, _, _) = (runs.play(7, given, traced=True) for _ in range(2))
    assert len(world.lines) > 100
    assert (list(world.lines), law) == (list(again.lines), "")
    (result,) = runs.results(7, generations=1)  # without a trace
    assert (result.settled_ms, result.generations) == (settled_ms, world.generations)
    assert result.faults == Counter(type(fault).__name__ for _, fault in given)


def test_a_failing_run_is_made_small() -> None:
    """Of ten faults two together break a law: shrinking leaves those two, in order."""
    given = [(at, faults.Dies(f"W{at % 5}")) for at in range(10)]
    needed = [given[3], given[8]]
    plays = []

    def breaks(part: object) -> bool:
        plays.append(part)
        return all(fault in part for fault in needed)

    assert shrunk(given, breaks, plays_max=600) == needed
    assert len(plays) < 60
    assert shrunk(given, breaks, plays_max=0) == given
