"""A group under every fault at once: no task has two owners, and afterwards the group settles.

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

from muster.protocol.events import Event
from muster.simulation import faults, process, trial
from muster.simulation.jobs import Job
from muster.simulation.judge import LawBroken
from muster.simulation.ordeal import CALM_MS, Ordeal
from muster.simulation.trial import Tally
from muster.state.group import NO_MEMBER
from muster.state.machine import Step

GENERATIONS = int(os.environ.get("MUSTER_ORDEAL_GENERATIONS", "8000"))
SEED = int(os.environ.get("MUSTER_ORDEAL_SEED", "1000000"))
PROCESSES = int(os.environ.get("MUSTER_ORDEAL_PROCESSES", "2"))


def no_law_is_broken(tally: Tally) -> None:
    """Fails with the story of the law, if one was."""
    if tally.broken is not None:
        pytest.fail(str(tally.broken), pytrace=False)


def test_a_hundred_generations() -> None:
    """What CI does, in small: every kind of fault happens, tasks change hands, all laws hold."""
    tally = trial.tried(seed=1, generations=120)
    no_law_is_broken(tally)
    assert tally.generations >= 120
    assert tally.changes > tally.generations / 2
    assert set(tally.faults) == {kind.__name__ for kind in faults.KINDS}
    assert 0 < tally.settled_ms <= CALM_MS


@pytest.mark.slow
@pytest.mark.timeout(600 + GENERATIONS // 20)
def test_many_thousands_of_generations(capsys: pytest.CaptureFixture[str]) -> None:
    """Lives in a row until so many generations have been opened; the sums are printed."""
    tally = trial.tried(SEED, GENERATIONS, PROCESSES)
    with capsys.disabled():
        print(f"\n{tally}")
    no_law_is_broken(tally)
    assert tally.generations >= GENERATIONS
    assert tally.settled_ms <= CALM_MS


class Placed(Job):
    """A coordinator that notes where a `static` group's jobs are placed."""

    runners: ClassVar[dict[str, set[str]]] = {}

    def decide(self, events: Sequence[Event]) -> Step:
        """As always."""
        step = super().decide(events)
        group = step.group
        for task, slot in enumerate(group.target.tolist()):
            member = None if slot == NO_MEMBER else group.members[slot]
            if member is not None and group.assignor == "static":
                self.runners.setdefault(str(group.table.task(task)), set()).add(member.id)
        return step


def test_pinned_jobs_live_through_faults() -> None:
    """A `static` group: jobs go from one member that names them to the other, and back."""
    Placed.runners.clear()
    static = faults.Configures(faults.ASSIGNORS.index("static"), 2, 0)
    faulty = [(at, f) for at, f in trial.stream(3) if not isinstance(f, faults.Configures)]
    world = Ordeal(3, job=Placed)
    world.play([(0, static), *faulty])
    assert 0 < world.settle() <= CALM_MS
    assert Placed.runners["c-0"] == {"W2", "W5"}
    assert Placed.runners["c-1"] == {"W1", "W3", "W4"}


def test_a_job_off_its_pins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that is believed to have named another job is found to run the wrong one."""
    monkeypatch.setitem(faults.PINNED, "W1", ("1_2",))  # the judge and the process know it
    monkeypatch.setattr(process, "PINNED", {})  # the process says nothing of it
    world = Ordeal(3)
    static = faults.Configures(faults.ASSIGNORS.index("static"), 2, 0)
    with pytest.raises(LawBroken, match="1_0 is to run on W1, not on nobody"):
        world.play([(0, static), (1_000, faults.Starts("W1")), (5_000, faults.Dies("W1"))])


def test_a_life_is_the_same_each_time() -> None:
    """Same seed, same faults, same story; another process of the machine makes no difference."""
    given = trial.stream(7)
    (told, settled_ms, law), (again, _, _) = (trial.play(7, given, told=True) for _ in range(2))
    assert len(told.story.lines) > 100
    assert (list(told.story.lines), law) == (list(again.story.lines), "")
    (life,) = trial.trial(7, generations=1)  # it tells no story
    assert (life.settled_ms, life.generations) == (settled_ms, told.generations)
    assert life.faults == Counter(type(fault).__name__ for _, fault in given)


def test_a_failing_life_is_made_small() -> None:
    """Of ten faults two together break it: those two are left, in their order."""
    given = [(at, faults.Dies(f"W{at % 5}")) for at in range(10)]
    needed = [given[3], given[8]]
    plays = []

    def breaks(part: object) -> bool:
        plays.append(part)
        return all(fault in part for fault in needed)

    assert trial.shrunk(given, breaks, plays_max=600) == needed
    assert len(plays) < 60
    assert trial.shrunk(given, breaks, plays_max=0) == given
