"""A share of the batches checks the group's invariants; a broken one leaves the group unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.state.story import AT_ONCE

from muster.protocol.errors import ConfigError
from muster.protocol.events import Event, GroupConfig, Join, Origin, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TOPICS
from muster.state.group import Group
from muster.state.machine import Step, advance
from muster.streams.batch import group_batch
from muster.streams.batch.group_batch import BatchResult, Publisher
from muster.streams.batch.inbox import Inbox
from muster.streams.batch.stored_values import Stored
from muster.streams.job_settings import job_config

G = GroupId("g")
PARTITIONS = {topic.name("muster"): 2 for topic in TOPICS}
CONFIG = GroupConfig(
    group=G,
    assignor="sticky",
    settings=parse_settings(AT_ONCE, "sticky"),
    tasks=(Subtopology("0", 4),),
)


def take(stored: Stored, offset: int, event: Event, share: float) -> BatchResult:
    """Process a batch of one event."""
    kind = "config" if isinstance(event, GroupConfig) else "membership"
    origin = Origin(f"muster.{kind}", 0, offset, 1_000_000 + offset)
    inbox = Inbox("muster", G, [replace(event, origin=origin)], [])
    return group_batch.take(None, stored, inbox, Publisher(1, PARTITIONS, 600_000, 0, share))


def join(member: str) -> Join:
    """A join."""
    return Join(group=G, member=MemberId(member), incarnation=1)


def corrupting(*given: Any, **more: Any) -> Step:
    """`advance` with a bug: the target has a generation that was never opened."""
    step = advance(*given, **more)
    target = replace(step.group.target, generation=99)
    return replace(step, group=replace(step.group, target=target))


@pytest.fixture
def stored() -> Stored:
    """A group with one member."""
    before = take(Stored(), 0, CONFIG, 1.0).stored
    return take(before, 1, join("m"), 1.0).stored


def letters(done: BatchResult) -> list[bytes]:
    """Values of the dead letters."""
    return [row.value for row in done.rows if row.topic == "muster.rejected"]


def test_a_broken_law_leaves_the_group_as_it_was(
    monkeypatch: pytest.MonkeyPatch, stored: Stored
) -> None:
    """A broken invariant makes the event a dead letter; the group keeps its state and continues."""
    with monkeypatch.context() as broken:
        broken.setattr(group_batch, "advance", corrupting)
        records = take(stored, 2, join("n"), 1.0)
    (letter,) = letters(records)
    assert b"law broken: targets follow generations" in letter
    assert b"group g, generation 2 (n joined)" in letter
    assert [row.topic for row in records.rows] == ["muster.rejected"]
    assert (records.group, records.stored.snapshot) == (None, stored.snapshot)
    after = take(records.stored, 3, join("o"), 1.0)
    assert letters(after) == []
    assert after.group is not None
    assert [member.id for member in after.group.roster] == ["m", "o"]


def test_nothing_is_checked_at_a_share_of_nothing(
    monkeypatch: pytest.MonkeyPatch, stored: Stored
) -> None:
    """At share 0 a broken invariant is not found; a batch without changes is never checked."""
    monkeypatch.setattr(group_batch, "advance", corrupting)
    assert letters(take(stored, 2, join("n"), 0.0)) == []
    assert letters(take(stored, 2, Tick(group=G), 1.0)) == []


def test_a_replay_checks_the_same_batches(monkeypatch: pytest.MonkeyPatch, stored: Stored) -> None:
    """The rows of a batch decide whether it is checked, so a replay checks the same batches.

    Every batch here takes the same step, so the batches differ only in their rows.
    """
    group = take(stored, 2, join("n"), 0.0).group
    assert group is not None
    step = Step(group, (), wake_at_ms=None, changed=True)
    monkeypatch.setattr(group_batch, "advance", lambda *_, **__: step)
    calls: list[Group] = []
    monkeypatch.setattr(group_batch.invariants, "check", calls.append)
    counts: list[list[int]] = [[], []]
    for so_far in counts:
        calls.clear()
        for offset in range(2, 302):
            assert letters(take(stored, offset, join("n"), 0.25)) == []
            so_far.append(len(calls))
    assert counts[0] == counts[1]
    assert 50 < counts[0][-1] < 100


@pytest.mark.parametrize(("text", "share"), [("0", 0.0), ("1", 1.0), ("0.05", 0.05)])
def test_the_share_is_a_setting(text: str, share: float) -> None:
    """The share is a number from 0 to 1; the default is 0.01."""
    assert job_config(checkpoint="/c").check_share == 0.01
    assert job_config(checkpoint="/c", conf=[f"muster.check.share={text}"]).check_share == share


@pytest.mark.parametrize("text", ["-0.1", "1.5", "nan", "often"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    """Other values are refused; the error names the key and the accepted range."""
    with pytest.raises(ConfigError, match=r"muster\.check\.share.*0 \(never\) to 1 \(always\)"):
        job_config(checkpoint="/c", conf=[f"muster.check.share={text}"])
