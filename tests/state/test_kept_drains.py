"""A drain holds through fencing, expiry, leaving and joining again, until it is undone."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

import numpy as np
import pytest
from support.state.story import Story, config, join, leave, report, since, tick

from muster.protocol.events import Drain, Event, Origin
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import KeptDrain
from muster.protocol.tasks import Subtopology
from muster.simulation.jobs import read_back
from muster.state import kept_drains
from muster.state.group import Group
from muster.state.machine import advance

FOUR = Subtopology("0", 4)
QUICK = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 400, "rebalance_timeout_ms": 600}


def drain(member: str, on: bool = True) -> Drain:
    """An operator's drain, or its end."""
    return Drain(group=GroupId("g"), member=MemberId(member), on=on)


def two(**more: object) -> Story:
    """W1 and W2 have two tasks each; W2 may have an instance id."""
    story = Story()
    story.take(config(FOUR, **QUICK), join("W1"), join("W2", **more))
    story.at(10).take(report("W1", 1, "0_0", "0_2"), report("W2", 1, "0_1", "0_3"))
    return story


def hung(**more: object) -> Story:
    """W2 is drained, does not stop its tasks, and is expelled; W1 is alive."""
    story = two(**more)
    story.at(100).take(drain("W2"))
    for at_ms in range(500, 6_000, 400):
        story.at(at_ms).take(tick(), alive(story))
    assert "W2" not in story.group.roster.by_id
    return story


def alive(story: Story) -> Event:
    """W1 sends heartbeats with the digest of its tasks."""
    slot = story.group.roster.by_id["W1"]
    entry = story.group.roster.by_slot[slot]
    assert entry is not None
    held = np.flatnonzero((story.group.owned.holder == slot) & ~story.group.owned.revoking)
    tasks = [str(story.group.table.task(t)) for t in held.tolist()]
    return report("W1", entry.revision, *tasks, epoch=entry.epoch)


def held_by(story: Story, member: str) -> int:
    """Number of tasks of a member."""
    return int((story.group.owned.holder == story.group.roster.by_id[member]).sum())


def settled(story: Story, at_ms: int) -> Story:
    """Every live member does what its record asks."""
    for step in range(3):
        story.at(at_ms + step).take(alive(story))
    return story


def test_fenced_before_it_was_empty_is_expelled() -> None:
    """The record says so as soon as the member is fenced, while it still has its tasks."""
    story = two()
    story.at(100).take(drain("W2"))
    assert story.group.drains == ()
    for at_ms in range(500, 2_000, 400):
        story.at(at_ms).take(tick(), alive(story))
        if story.group.drains:
            break
    assert story.group.drains == (KeptDrain(MemberId("W2"), None, None, expelled=True),)
    assert held_by(story, "W2") == 2
    assert read_back(story.group.snapshot()).drains == story.group.drains


def test_it_returns_drained() -> None:
    """Seven seconds later its process joins again: it gets no task, and W1 keeps all."""
    story = hung()
    (kept,) = story.group.drains
    assert (kept.member, kept.expelled, kept.gone_ms is not None) == ("W2", True, True)
    records = story.at(8_000).records(join("W2", 2))
    assert records["W2"].startswith("- | - | - @")
    settled(story, 8_100)
    assert (held_by(story, "W1"), held_by(story, "W2")) == (4, 0)
    assert "W2 joined; W2 draining" in story.group.cause
    (kept,) = story.group.drains
    assert kept == KeptDrain(MemberId("W2"), None, None, expelled=True)


def test_undone_when_it_is_back_and_while_it_is_gone() -> None:
    """In both cases it gets its share again, and no drain is kept."""
    story = hung()
    story.at(8_000).take(join("W2", 2))
    story.at(8_100).take(drain("W2", on=False))
    settled(story, 8_200)
    assert (held_by(story, "W2"), story.group.drains) == (2, ())
    gone = hung()
    assert gone.at(7_000).take(drain("W2", on=False)).changed
    gone.at(8_000).take(join("W2", 2))
    settled(gone, 8_100)
    assert (held_by(gone, "W2"), gone.group.drains) == (2, ())


def test_by_instance_id_too() -> None:
    """A static member returns under another member id and is drained."""
    story = hung(instance_id="i2")
    story.at(8_000).take(join("W7", 2, instance_id="i2"))
    settled(story, 8_100)
    assert held_by(story, "W7") == 0
    story.at(9_000).take(drain("W7", on=False))
    settled(story, 9_100)
    assert (held_by(story, "W7"), story.group.drains) == (2, ())


def test_a_second_drain_clears_expelled() -> None:
    """A second order to a member that is back and empty clears "expelled"."""
    story = hung()
    story.at(8_000).take(join("W2", 2))
    step = story.at(8_100).take(drain("W2"))
    assert step.changed  # a new record shows that the order was read
    assert story.group.drains == ()
    assert [m.draining for m in story.group.roster] == [False, True]


@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint kept", "checkpoint lost"])
def test_a_member_that_left_in_order_was_not_expelled(lost: bool) -> None:
    """It was emptied, stopped, and starts again days later: still drained."""
    story = two()
    story.at(100).take(drain("W2"))
    story.at(200).take(report("W2", 2))
    story.at(300).take(leave("W2"))
    assert story.group.drains == (KeptDrain(MemberId("W2"), None, 1_000_300, expelled=False),)
    record = read_back(story.group.snapshot())
    liveness = story.group.liveness()
    story.group = Group.recover(record) if lost else Group.restore(record, liveness)
    assert story.group.drains == record.drains
    story.at(kept_drains.KEPT_MS).take(join("W2", 2))
    assert [m.draining for m in story.group.roster if m.id == "W2"] == [True]
    assert story.group.drains == ()


def test_a_drain_of_one_that_never_returns_is_dropped() -> None:
    """It is dropped after a week; if there are too many, the oldest go first."""
    story = two()
    story.at(100).take(drain("W2"))
    story.at(200).take(report("W2", 2))
    story.at(300).take(leave("W2"))
    story.at(300 + kept_drains.KEPT_MS).take(join("W2", 2))
    assert [m.draining for m in story.group.roster if m.id == "W2"] == [False]
    crowd = Story()
    crowd.take(config(FOUR))
    for number in range(kept_drains.KEPT_MAX + 3):
        name = f"M{number:04}"
        crowd.at(number).take(join(name), drain(name), leave(name))
    assert len(crowd.group.drains) == kept_drains.KEPT_MAX
    assert crowd.group.drains[0].member == "M0003"


def calls_of_a_drained_fleet(size: int) -> int:
    """How many functions are called when a drained fleet leaves in one batch, 1 ms apart."""
    names = [f"M{number:04}" for number in range(size)]
    story = Story()
    story.take(config(FOUR, scale_down_timeout_ms=600_000), *map(join, names), *map(drain, names))
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    group, left = story.group, [since(ms, leave(name)) for ms, name in enumerate(names, 1)]
    placed = [
        replace(event, origin=event.origin._replace(topic="membership", offset=1_000 + number))
        for number, event in enumerate(left)
    ]
    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        step = advance(group, placed, coordinator_epoch=1)
    finally:
        sys.setprofile(profiler)
    assert len(step.group.drains) == size
    return calls


def test_a_drained_fleet_that_leaves_at_once_costs_the_same_for_each_member() -> None:
    """Four times as many members take about four times as many calls, not sixteen times."""
    assert calls_of_a_drained_fleet(400) < 5 * calls_of_a_drained_fleet(100)


def test_a_drain_of_an_unknown_member_is_a_dead_letter() -> None:
    """Draining or undraining an unknown member is a dead letter, and nothing is kept."""
    story = two()
    for on in (True, False):
        step = story.at(100).take(drain("W9", on=on))
        assert ([r.reason for r in step.records], step.changed) == (["UNKNOWN_MEMBER_ID"], False)


def test_the_time_of_a_drain_begins_again_without_the_checkpoint() -> None:
    """W2's tasks wait for copies that never catch up; a new coordinator lets it go in time, too."""
    story = Story()
    four = Subtopology("0", 4, stateful=True)
    values = {"assignor": "high-availability", "scale_down_timeout_ms": 20_000}
    story.take(config(four, **values), join("W1"), join("W2"))
    story.at(1_000).take(drain("W2"))
    assert story.group.timers.drain_until_ms == {1: story.now_ms + 20_000}
    story.group, story.epoch = Group.recover(read_back(story.group.snapshot())), 2
    told = {"coordinator_epoch": 2}
    story.at(2_000).take(report("W1", 2, "0_0", "0_2", learner=["0_1", "0_3"], **told))
    story.take(report("W2", 1, "0_1", "0_3", **told), tick())
    for ms in range(5_000, 20_000, 5_000):
        one, two = story.group.roster.member(0), story.group.roster.member(1)
        story.at(ms).take(
            report(
                "W1", one.revision, "0_0", "0_2", learner=["0_1", "0_3"], epoch=one.epoch, **told
            ),
            report("W2", two.revision, "0_1", "0_3", epoch=two.epoch, **told),
            tick(),
        )
        assert story.group.target.active.tolist() == [0, 1, 0, 1]
    story.at(21_000).take(tick())
    assert story.group.target.active.tolist() == [0, 0, 0, 0]
    assert story.group.cause.startswith("W2 drained for scale.down.timeout.ms")


def test_a_restored_group_gives_the_same_cause() -> None:
    """Two drains end in one batch; the group in memory has them in the order of the orders."""
    story = Story()
    story.take(config(FOUR, scale_down_timeout_ms=5_000), *map(join, ("W1", "W2", "W3")))
    story.at(100).take(drain("W2"))
    group = story.at(200).take(drain("W1")).group
    restored = Group.restore(group.snapshot(), group.liveness())
    late = replace(tick(), origin=Origin("membership", 0, 999, 1_010_000))
    causes = [advance(each, [late], coordinator_epoch=1).group.cause for each in (group, restored)]
    ended = "drained for scale.down.timeout.ms"
    assert causes == [f"W2 {ended}; W1 {ended}"] * 2
