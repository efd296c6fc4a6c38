"""The book that benchmarks keep: who runs which task, and for how long nothing runs it."""

from __future__ import annotations

import time

import pytest
from support.worker.machines import Ownership


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the book, in seconds; a test sets it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_shares(clock: list[float]) -> None:
    """Tasks are shared out when each has an owner, and no member has more than its share."""
    book = Ownership(3)
    for member in ("A", "B"):
        book.come(member)
    book.start("A", [1, 2, 3])
    assert not book.is_shared_out(2)
    book.stop("A", [3])
    assert not book.is_shared_out(2)
    book.start("B", [3])
    assert book.is_shared_out(2)
    book.go("B")
    assert (book.is_shared_out(1), book.sizes()) == (False, [2])


def test_a_restart_in_place_is_no_move(clock: list[float]) -> None:
    """A process that follows another in its place takes its tasks back; elsewhere they move."""
    book = Ownership(2)
    for member in ("A", "B", "A.2"):
        book.come(member)
    book.start("A", [1])
    book.start("B", [2])
    book.go("A")
    book.start("A.2", [1])
    assert (book.counts().starts, book.counts().moves) == (3, 0)
    book.stop("B", [2])
    book.start("A.2", [2])
    assert (book.counts().starts, book.counts().moves, book.counts().overlaps) == (4, 1, 0)


def test_two_owners_are_counted(clock: list[float]) -> None:
    """A start of a task that another member runs is an overlap."""
    book = Ownership(1)
    for member in ("A", "B"):
        book.come(member)
        book.start(member, [1])
    assert book.counts().overlaps == 1


def test_time_without_an_owner(clock: list[float]) -> None:
    """Seconds are summed over the tasks without an owner, from when all had one."""
    book = Ownership(2)
    book.come("A")
    clock[0] += 50
    book.start("A", [1, 2])
    clock[0] += 10
    book.stop("A", [1, 2])
    clock[0] += 3
    book.start("A", [1])
    clock[0] += 4
    assert book.counts().ownerless_s == 2 * 3 + 4
