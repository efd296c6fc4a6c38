"""Histories of ownership: the check accepts what a lock could have answered, nothing else."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from exploration.mutants import MUTANTS, break_rule
from fault_injection import faults, runs
from fault_injection.checker import Checker, LawBroken
from fault_injection.fault_run import FaultRun
from hypothesis import given
from hypothesis import strategies as st
from support.worker.locks import NEVER, Operation, held, unexplained
from support.worker.overlap import FOREVER, Tenure, unlike_locks

Hold = tuple[str, tuple[int, int], float, float]
"""Owner, token, first and last moment of use."""


def history(*holds: Hold) -> list[Operation]:
    """The operations of periods of ownership."""
    return [each for number, hold in enumerate(holds) for each in held(number, *hold)]


def test_owners_one_after_the_other_are_a_lock() -> None:
    """Each owner has a newer token, and the next begins when the last has ended or later."""
    holds = [("A", (1, 1), 0, 10), ("B", (2, 2), 10, 20), ("A", (3, 4), 30, 40)]
    assert unexplained(history(*holds)) == []


def test_a_member_that_returns_may_have_the_token_it_had() -> None:
    """Another member may not."""
    assert unexplained(history(("A", (1, 1), 0, 10), ("A", (1, 1), 12, 20))) == []
    assert unexplained(history(("A", (1, 1), 0, 10), ("B", (1, 1), 12, 20))) != []


@pytest.mark.parametrize(
    "holds",
    [
        pytest.param((("A", (1, 1), 0, 10), ("B", (2, 2), 9, 20)), id="two owners at once"),
        pytest.param((("A", (2, 2), 0, 10), ("B", (1, 1), 12, 20)), id="an older token"),
        pytest.param((("A", (1, 1), 0, 10), ("B", (2, 2), 2, 4)), id="one within another"),
        pytest.param(
            (("A", (1, 1), 0, 10), ("B", (2, 2), 12, 20), ("A", (1, 1), 22, 30)),
            id="an old owner goes on",
        ),
        pytest.param((("A", (1, 1), 0, NEVER), ("B", (2, 2), 99, 100)), id="one never ends"),
    ],
)
def test_a_broken_history_is_found(holds: tuple[Hold, ...]) -> None:
    """No order of its operations is one that a lock with fencing tokens could have answered."""
    assert unexplained(history(*holds)) != []


@given(
    gaps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=2, max_size=30),
    data=st.data(),
)
def test_a_history_is_broken_by_one_early_begin(
    gaps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A lock's history of any length is accepted; one owner that begins early breaks it."""
    holds: list[Hold] = []
    now = 0
    for number, (pause, span) in enumerate(gaps):
        begun = now + pause
        now = begun + span
        holds.append((f"M{number % 3}", (number, number), begun, now))
    assert all(a[3] <= b[2] for a, b in pairwise(holds))
    assert unexplained(history(*holds)) == []
    early = data.draw(st.integers(1, len(holds) - 1))
    owner, token, _, ended = holds[early]
    holds[early] = (owner, token, holds[early - 1][3] - 0.5, ended)
    assert unexplained(history(*holds)) != []


def test_the_story_names_the_operations_that_do_not_fit() -> None:
    """The law of a broken history says who acquired which task, when, and with which token."""
    story = " ".join(map(str, unexplained(history(("A", (1, 1), 0, 10), ("B", (2, 2), 9, 20)))))
    assert "A acquires with token (1, 1)" in story
    assert "B acquires with token (2, 2)" in story


def tenure(task: str, member: str, generation: int, start_ms: int, stop_ms: int | None) -> Tenure:
    """What a real worker's log says of a task."""
    stop_ns = FOREVER if stop_ms is None else stop_ms * 1_000_000
    return Tenure(task, member, 7, generation, generation, start_ms * 1_000_000, stop_ns)


def test_the_logs_of_real_workers_are_judged() -> None:
    """Of two tasks the one is given back in time; the other's new owner has an older token."""
    good = [tenure("0_0", "W1", 1, 0, 10), tenure("0_0", "W2", 2, 10, None)]
    assert unlike_locks(good) == ""
    older = [tenure("0_1", "W1", 5, 0, 10), tenure("0_1", "W2", 4, 20, None)]
    assert "0_1 is no lock with fencing tokens" in unlike_locks([*good, *older])
    both = [tenure("0_1", "W1", 5, 0, None), tenure("0_1", "W2", 6, 20, None)]
    assert "W2 acquires with token (6, 6)" in unlike_locks([*good, *both])


def test_every_run_with_faults_notes_its_history() -> None:
    """The periods of ownership of a run are in its history, and are those of locks."""
    world, _, law = runs.play(3, runs.stream(3))
    assert law == ""
    assert world.history.count >= world.changes > 10


@pytest.mark.parametrize(
    "rule",
    [
        "a lease ends before the session",
        "a revoked task stays with its holder until it is released",
        "a member expires when its session has ended, not before",
    ],
)
def test_it_finds_broken_rules_without_the_check_of_overlaps(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the other checks of ownership switched off, a broken rule is still found."""
    (mutant,) = (each for each in MUTANTS if each.rule == rule)
    break_rule(mutant, monkeypatch)
    monkeypatch.setattr(Checker, "uses", lambda *_: None)
    monkeypatch.setattr(Checker, "granted", lambda *_: None)
    for seed in range(40):
        world = FaultRun(seed)
        with suppress(LawBroken):  # another law, which is not what is looked for here
            world.play(runs.stream(seed))
        if "no lock" in world.history.broken():
            return
    pytest.fail("all histories are those of locks")


def test_a_guard_that_stops_tasks_ends_their_time() -> None:
    """A process is frozen for two sessions: its tasks are another's from the end of its guard."""
    world = FaultRun(0)
    starts = [(0, faults.Starts("W1")), (1_000, faults.Starts("W2"))]
    world.play([*starts, (4_000, faults.Freezes("W1", 2 * faults.SESSION_MS))])
    frozen, other = world.processes
    before = set(frozen.using)
    world.run(3_900 + 2 * faults.SESSION_MS)
    assert before
    assert before <= other.using
    assert frozen.using == before  # it has not noticed
    assert world.history.broken() == ""
    assert world.settle() > 0
