"""What `muster drain --wait` concludes from the group's snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.state.story import Story, config, join, leave, report, tick

from muster.cli.drain import still_to_do
from muster.errors import NotDrained
from muster.kafka.writer import Place
from muster.protocol.client_tags import GOVERNED
from muster.protocol.events import Drain, GroupDeleted
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, Quarantine
from muster.protocol.tasks import Subtopology

QUICK = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 400, "rebalance_timeout_ms": 600}
ORDER = Drain(group=GroupId("g"), member=MemberId("W2"))


def drained() -> tuple[Story, Place]:
    """W1 and W2 have two tasks each, and W2 was just drained; also the place of the drain event."""
    story = Story()
    story.take(config(Subtopology("0", 4), **QUICK), join("W1"), join("W2"))
    story.at(10).take(report("W1", 1, "0_0", "0_2"), report("W2", 1, "0_1", "0_3"))
    story.at(100).take(ORDER)
    return story, Place("membership", 0, story.offset)


def now(story: Story) -> GroupSnapshot:
    """The group's newest snapshot."""
    return story.group.snapshot()


def test_it_is_empty_when_it_has_stopped_all() -> None:
    """A member is empty once the coordinator has read the drain and the member has stopped all."""
    story, order = drained()
    later = order._replace(offset=order.offset + 1)
    waits = "has not been asked yet: no coordinator has read the drain"
    assert still_to_do(now(story), "W2", later) == waits
    assert still_to_do(now(story), "W2", order) == "still holds 2 tasks"
    story.at(200).take(report("W2", 2, "0_3", releasing=("0_3",)))
    assert still_to_do(now(story), "W2", order) == "still holds 1 tasks"
    story.at(300).take(report("W2", 2))
    assert still_to_do(now(story), "W2", order) is None
    story.at(400).take(leave("W2"))  # it stopped as soon as it was empty
    assert still_to_do(now(story), "W2", order) is None


def test_expelled_is_not_drained() -> None:
    """A fenced member is not drained: not while it is a member, and not after it rejoins."""
    story, order = drained()
    assert still_to_do(now(story), "W2", order) == "still holds 2 tasks"
    for at_ms in range(500, 6_000, 400):
        story.at(at_ms).take(tick(), report("W1", 1, "0_0", "0_2"))
        if at_ms >= 2_500:  # fenced by then, but still a member with its tasks
            with pytest.raises(NotDrained, match="expelled, not drained: it was fenced"):
                still_to_do(now(story), "W2", order)
    story.at(7_000).take(join("W2", 2))
    with pytest.raises(NotDrained, match="expelled, not drained"):
        still_to_do(now(story), "W2", order)


def test_a_governed_member_joins_anew() -> None:
    """Its governor says again what it runs: the command goes on waiting."""
    story = Story()
    governed = {"tags": (GOVERNED,)}
    story.take(config(Subtopology("0", 4), **QUICK), join("W1", **governed), join("W2", **governed))
    story.at(10).take(report("W1", 1, "0_0", "0_2"), report("W2", 1, "0_1", "0_3"))
    story.at(100).take(ORDER)
    order = Place("membership", 0, story.offset)
    for at_ms in range(500, 6_000, 400):  # until W2 is expelled
        story.at(at_ms).take(tick(), report("W1", 1, "0_0", "0_2"))
    assert still_to_do(now(story), "W2", order) == "has not joined again yet"
    story.at(7_000).take(join("W2", 2, **governed))
    assert still_to_do(now(story), "W2", order) is None


@pytest.mark.parametrize(
    "event", [replace(ORDER, on=False), GroupDeleted(group=GroupId("g"))], ids=["undone", "deleted"]
)
def test_a_drain_that_is_undone_meanwhile(event: Drain | GroupDeleted) -> None:
    """If the drain is undone or the group deleted, the command fails."""
    story, order = drained()
    story.at(200).take(event)
    if isinstance(event, GroupDeleted):
        story.at(300).take(report("W2", 3))
    with pytest.raises(NotDrained, match="the drain was undone, or the group was deleted"):
        still_to_do(now(story), "W2", order)


def test_a_member_that_left_before_the_drain() -> None:
    """If the member left before the drain event, the command fails and does not wait."""
    story, order = drained()
    story.at(200).take(replace(ORDER, on=False), leave("W2"))
    late = order._replace(offset=story.offset + 1)
    with pytest.raises(NotDrained, match="expelled before the drain"):
        still_to_do(now(story), "W2", late)


def test_a_drained_member_that_leaves_before_the_drain_is_read() -> None:
    """An earlier drain holds: the coordinator refuses this one, and the member is empty."""
    story, order = drained()
    story.at(200).take(report("W2", 2))
    story.at(300).take(leave("W2"))
    late = order._replace(offset=story.offset + 1)
    assert still_to_do(now(story), "W2", late) is None


def test_a_group_that_is_quarantined_meanwhile() -> None:
    """It stands still, so the member would never become empty."""
    story, order = drained()
    aside = replace(now(story), quarantine=Quarantine(1, "it was ended by SIGABRT"))
    with pytest.raises(NotDrained, match=r"W2: not drained: group 'g' is quarantined.*SIGABRT"):
        still_to_do(aside, "W2", order)
