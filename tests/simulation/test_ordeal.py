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

import pytest

from muster.simulation import faults, trial
from muster.simulation.ordeal import CALM_MS
from muster.simulation.trial import Tally

GENERATIONS = int(os.environ.get("MUSTER_ORDEAL_GENERATIONS", "8000"))
SEED = int(os.environ.get("MUSTER_ORDEAL_SEED", "1000000"))
PROCESSES = int(os.environ.get("MUSTER_ORDEAL_PROCESSES", "2"))


def no_law_is_broken(tally: Tally) -> None:
    """Fails with the story of the law, if one was."""
    if tally.broken is not None:
        pytest.fail(str(tally.broken), pytrace=False)


def test_a_few_hundred_generations() -> None:
    """What CI does, in small: every kind of fault happens, tasks change hands, all laws hold."""
    tally = trial.tried(seed=1, generations=250)
    no_law_is_broken(tally)
    assert tally.generations >= 250
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


def test_a_life_is_the_same_each_time() -> None:
    """Same seed, same faults, same story; another process of the machine makes no difference."""
    given = trial.stream(7)
    stories = [list(trial.play(7, given, told=True)[0].story.lines) for _ in range(2)]
    assert len(stories[0]) > 100
    assert stories[0] == stories[1]
    silent, settled_ms, law = trial.play(7, given)
    assert (list(silent.story.lines), law) == ([], "")
    (life,) = trial.trial(7, generations=1)
    assert (life.settled_ms, life.generations) == (settled_ms, silent.generations)
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
