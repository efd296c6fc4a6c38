"""Who is missing of the members that a governor let go."""

from __future__ import annotations

import uuid

from muster.adopt.evicted_members import RETURN_MS, EvictedMembers


def member(client: str) -> str:
    """A member id, as Kafka makes it."""
    return f"{client}-{uuid.uuid4()}"


def test_they_return_under_other_ids():
    """A member is known by its client id; members that share one are counted."""
    let_go = EvictedMembers()
    let_go.add([member("app"), member("app"), member("w-1:8083")], 0)
    assert let_go.missing([], 10) == 3
    assert let_go.missing([member("app"), member("other")], 20) == 2
    assert let_go.missing([member("app"), member("app")], 30) == 1
    assert let_go.missing([member("app"), member("app"), member("w-1:8083")], 40) == 0


def test_who_leaves_later_is_not_missing():
    """When all have returned, a death is Kafka's business again."""
    let_go = EvictedMembers()
    let_go.add([member("a")], 0)
    assert let_go.missing([member("a")], 10) == 0
    assert let_go.missing([], 20) == 0


def test_one_that_does_not_return():
    """Its time ends; the group goes on without it."""
    let_go = EvictedMembers()
    let_go.add([member("a"), member("b")], 0)
    assert let_go.missing([member("a")], RETURN_MS - 1) == 1
    assert let_go.missing([member("a")], RETURN_MS) == 0


def test_let_go_twice():
    """A member that was let go again before it was back counts once."""
    let_go = EvictedMembers()
    let_go.add([member("a"), member("b")], 0)
    let_go.add([member("a")], 100)
    assert let_go.missing([member("a")], 200) == 1
