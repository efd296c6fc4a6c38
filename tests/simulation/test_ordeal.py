"""A group under many faults: no task has two owners, and afterwards the group settles.

=============================  ===========================================================
MUSTER_ORDEAL_GENERATIONS      how many the long run opens, in all (`make long`: 100,000)
MUSTER_ORDEAL_SEED             of its first life; the others follow
MUSTER_ORDEAL_PROCESSES        how many processes of this machine it takes
=============================  ===========================================================

A law that is broken is printed with its seed, the fewest faults that break it, and the story.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import pytest
from support import two_coordinators

from muster.protocol.events import Event
from muster.simulation import faults, process, trial
from muster.simulation.jobs import Job
from muster.simulation.judge import LawBroken
from muster.simulation.ordeal import CALM_MS, Ordeal
from muster.simulation.trial import Tally
from muster.state.group import NO_MEMBER
from muster.state.machine import Step
from muster.worker.states import State

GENERATIONS = int(os.environ.get("MUSTER_ORDEAL_GENERATIONS", "4000"))
SEED = int(os.environ.get("MUSTER_ORDEAL_SEED", "1000000"))
PROCESSES = int(os.environ.get("MUSTER_ORDEAL_PROCESSES", "2"))


def no_law_is_broken(tally: Tally) -> None:
    """Fail with the story if a law was broken."""
    if tally.broken is not None:
        pytest.fail(str(tally.broken), pytrace=False)


def test_a_hundred_generations() -> None:
    """A short trial: every kind of fault happens, tasks change owners, all laws hold."""
    tally = trial.tried(seed=1, generations=120)
    no_law_is_broken(tally)
    assert tally.generations >= 120
    assert tally.changes > tally.generations / 2
    assert set(tally.faults) == {kind.__name__ for kind in faults.KINDS}
    assert 0 < tally.settled_ms <= CALM_MS


@pytest.mark.slow
@pytest.mark.timeout(600 + GENERATIONS // 20)
def test_many_thousands_of_generations(capsys: pytest.CaptureFixture[str]) -> None:
    """Play lives until a number of generations was opened; print the sums."""
    tally = trial.tried(SEED, GENERATIONS, PROCESSES)
    with capsys.disabled():
        print(f"\n{tally}")
    no_law_is_broken(tally)
    assert tally.generations >= GENERATIONS
    assert tally.settled_ms <= CALM_MS


class Placed(Job):
    """A coordinator that records where a `static` group's jobs are placed."""

    runners: ClassVar[dict[str, set[str]]] = {}

    def decide(self, events: Sequence[Event]) -> Step:
        """Decide as usual, and record the placement."""
        step = super().decide(events)
        group = step.group
        for task, slot in enumerate(group.target.tolist()):
            member = None if slot == NO_MEMBER else group.members[slot]
            if member is not None and group.assignor == "static":
                self.runners.setdefault(str(group.table.task(task)), set()).add(member.id)
        return step


def test_pinned_jobs_live_through_faults() -> None:
    """In a `static` group jobs move from one member that names them to the other, and back."""
    Placed.runners.clear()
    static = faults.Configures(faults.ASSIGNORS.index("static"), 2, 0)
    faulty = [(at, f) for at, f in trial.stream(3) if not isinstance(f, faults.Configures)]
    world = Ordeal(3, job=Placed)
    world.play([(0, static), *faulty])
    assert 0 < world.settle() <= CALM_MS
    assert Placed.runners["c-0"] == {"W2", "W5"}
    assert Placed.runners["c-1"] == {"W1", "W3", "W4"}


def test_a_member_that_is_deaf_joins_again_in_vain_and_harms_no_other() -> None:
    """It stops what it has in time, asks to join and uses nothing until it reads again.

    The tasks it is granted meanwhile are not used; others keep theirs, and no task has two users.
    As soon as it reads, it has its share again.
    """
    world = Ordeal(0)
    deafens = faults.Deafens("W1", 25_000)
    starts = [(0, faults.Starts("W1")), (1_000, faults.Starts("W2"))]
    world.play([*starts, (3_000, deafens), (3_000, faults.Starts("W3"))])
    deaf = world.processes[0]
    assert len(deaf.using) == 3
    world.run(3_000 + faults.SESSION_MS + 500)
    assert deaf.session.state is State.JOINING
    while world.clock_ms < 27_500:
        world.run(world.clock_ms + 100)
        assert not deaf.using
        others = sum(len(process.using) for process in world.processes if process is not deaf)
        assert others >= 3  # their own shares, whatever the deaf one is given
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
    world, settled_ms, law = trial.play(seed, given)
    assert law == ""
    assert world.generations > 10
    assert 0 < settled_ms <= CALM_MS


def test_a_job_off_its_pins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge fails a `static` group whose member runs a job that it does not name."""
    monkeypatch.setitem(faults.PINNED, "W1", ("1_2",))  # for the judge
    monkeypatch.setattr(process, "PINNED", {})  # the process still names nothing
    world = Ordeal(3)
    static = faults.Configures(faults.ASSIGNORS.index("static"), 2, 0)
    with pytest.raises(LawBroken, match="1_0 is to run on W1, not on nobody"):
        world.play([(0, static), (1_000, faults.Starts("W1")), (5_000, faults.Dies("W1"))])


def test_a_life_is_the_same_each_time() -> None:
    """The same seed and faults give the same story, also in another process."""
    given = trial.stream(7)
    (world, settled_ms, law), (again, _, _) = (trial.play(7, given, told=True) for _ in range(2))
    assert len(world.story.lines) > 100
    assert (list(world.story.lines), law) == (list(again.story.lines), "")
    (life,) = trial.trial(7, generations=1)  # without a story
    assert (life.settled_ms, life.generations) == (settled_ms, world.generations)
    assert life.faults == Counter(type(fault).__name__ for _, fault in given)


def test_a_failing_life_is_made_small() -> None:
    """Of ten faults two together break a law: shrinking leaves those two, in order."""
    given = [(at, faults.Dies(f"W{at % 5}")) for at in range(10)]
    needed = [given[3], given[8]]
    plays = []

    def breaks(part: object) -> bool:
        plays.append(part)
        return all(fault in part for fault in needed)

    assert trial.shrunk(given, breaks, plays_max=600) == needed
    assert len(plays) < 60
    assert trial.shrunk(given, breaks, plays_max=0) == given
