"""A config renames thousands of tasks while a member runs the old ones."""

from __future__ import annotations

import json

import pytest
from support.state.groups import same_group
from support.state.story import Story, beat, config, join

from muster.protocol import digest
from muster.protocol.tasks import Subtopology
from muster.state import stored_orphans
from muster.state.group import Group
from muster.state.liveness import Liveness

COUNT = 1_000


def named(version: str) -> tuple[Subtopology, ...]:
    """So many units with long names."""
    return tuple(Subtopology(f"{version}{'x' * 100}{number}", 1) for number in range(COUNT))


def renamed() -> Story:
    """W1 runs all tasks, and is to give all of them up."""
    story = Story()
    story.take(config(*named("a")), join("W1"))
    story.at(1_000).take(config(*named("b")))
    assert len(story.group.owned.orphans) == COUNT
    return story


def test_they_are_stored_in_few_bytes_and_read_back() -> None:
    """A heartbeat does not write the names of all tasks into the state store again."""
    story = renamed()
    liveness = story.group.liveness()
    assert len(liveness) < 10 * COUNT
    same_group(Group.restore(story.group.snapshot(), liveness), story.group)
    before = stored_orphans._deflated.cache_info()
    for ms in (2_000, 3_000):
        story.at(ms).take(beat("W1", 0))
        assert len(story.group.liveness()) < 10 * COUNT
    after = stored_orphans._deflated.cache_info()
    assert (after.misses, after.hits) == (before.misses, before.hits + 2)


@pytest.mark.parametrize("bytes_max", [0, stored_orphans.BYTES_MAX])
def test_those_that_are_not_deflated_are_read_too(
    bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version wrote all of them in JSON; so does this one if they take too many bytes."""
    story = renamed()
    monkeypatch.setattr(stored_orphans, "BYTES_MAX", bytes_max)
    stored_orphans._deflated.cache_clear()
    liveness = story.group.liveness()
    end = Liveness.from_bytes(liveness)[1]
    assert (liveness[end : end + 1] == b"{") == (bytes_max == 0)
    if bytes_max == 0:
        assert len(json.loads(liveness[end:])["orphans"]) == COUNT
    same_group(Group.restore(story.group.snapshot(), liveness), story.group)
    stored_orphans._deflated.cache_clear()


def test_no_name_is_hashed_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of many units are computed together: a name of 100 bytes takes 10 µs alone."""
    alone: list[str] = []
    fnv1a64 = digest.fnv1a64
    monkeypatch.setattr(digest, "fnv1a64", lambda text: alone.append(text) or fnv1a64(text))
    renamed()
    assert alone == []
