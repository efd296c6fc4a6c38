"""A tick names a later coordinator: the earlier one leaves the group, the later one may act."""

from __future__ import annotations

from support.state.story import Story, config, join, report, snapshot

from muster.protocol.events import Mark, Tick
from muster.protocol.ids import GroupId
from muster.protocol.tasks import Subtopology
from muster.state.group import Group

FOUR = Subtopology("0", 4)
ALL = ("0_0", "0_1", "0_2", "0_3")
FIRST_TICK = Tick(group=GroupId("g"), published=Mark(2, 0))
"""The tick that coordinator 2 writes for every group when it starts."""


def with_w1() -> Story:
    """W1 has all tasks, from coordinator 1."""
    story = Story()
    story.take(config(FOUR), join("W1"))
    story.at(100).take(report("W1", 1, *ALL))
    return story


def taken_over(story: Story) -> Story:
    """Coordinator 2 starts from what is published; coordinator 1 obeys its ticks."""
    group = Group.recover(story.group.snapshot(), predecessors_obey=True)
    return Story(group=group, epoch=2, offset=story.offset).at(200)


def test_a_coordinator_leaves_the_group_for_good() -> None:
    """It takes nothing of the batch with the tick, and nothing later, also after it was stored."""
    story = with_w1()
    before = story.group.snapshot()
    step = story.at(200).take(join("W2"), FIRST_TICK)
    assert (step.records, step.wake_at_ms, step.changed) == ((), None, False)
    assert story.group.is_left_to_a_later_one(story.epoch)
    story.group = Group.restore(before, story.group.liveness())
    assert story.at(300).take(join("W3")).records == ()
    assert [m.id for m in story.group.roster] == ["W1"]
    assert not story.group.is_left_to_a_later_one(2)


def test_ticks_of_this_and_of_earlier_coordinators_are_obeyed_by_none() -> None:
    """The clock repeats the mark of the coordinator that published the wake-up."""
    story = with_w1().at(200)
    story.epoch = 2
    earlier = Tick(group=GroupId("g"), published=Mark(1, 3))
    story.take(earlier, FIRST_TICK)
    assert not story.group.is_left_to_a_later_one(2)


def test_free_tasks_wait_for_answers_only() -> None:
    """The coordinator acts as soon as its tick is read and all members have answered."""
    story = taken_over(with_w1())
    assert story.records(FIRST_TICK) == {"W1": "0_0 0_1 0_2 0_3 | - | - @1 report"}
    records = story.at(300).records(join("W2"))
    assert records == {"W2": "- | - | - @0"}  # it joined behind the tick
    records = story.at(400).records(report("W1", 1, *ALL, coordinator_epoch=2))
    assert records == {"W1": "0_0 0_1 | - | - @1"}
    records = story.at(500).records(report("W1", 2, "0_0", "0_1"))
    assert records["W2"].startswith("0_2 0_3 | - | - @")


def test_a_member_that_joined_before_the_tick_is_asked() -> None:
    """The earlier coordinator may have admitted W2. A clock that was set back hides no join."""
    story = taken_over(with_w1())
    records = story.records(FIRST_TICK, join("W2"))  # in one batch, so their order says nothing
    assert records["W2"] == "- | - | - @0 report"
    assert story.at(300).records(report("W1", 1, *ALL, coordinator_epoch=2)) == {}
    records = story.at(400).records(report("W2", 1, epoch=0, coordinator_epoch=2))
    assert records == {"W1": "0_0 0_1 | - | - @1"}


def test_only_its_own_tick_shows_that_the_group_is_its_own() -> None:
    """An answer may stand before the tick in the log: the earlier coordinator may still act."""
    story = taken_over(with_w1())
    story.take(report("W1", 1, *ALL, coordinator_epoch=2))
    records = story.at(300).records(join("W2"))
    assert records == {"W2": "- | - | - @0 report"}
    story.at(400).take(FIRST_TICK)
    records = story.at(500).records(report("W2", 1, epoch=0, coordinator_epoch=2))
    assert records == {"W1": "0_0 0_1 | - | - @1"}


def test_a_group_without_members_waits_as_before() -> None:
    """Joins before the start may not be read again, so unknown members get time to speak."""
    story = Story()
    story.take(config(FOUR))
    story = taken_over(story)
    story.take(FIRST_TICK)
    records = story.at(300).records(join("W1"))
    assert records == {"W1": "- | - | - @0 report"}
    assert story.at(400).records(report("W1", 1, epoch=0, coordinator_epoch=2)) == {}


def test_tokens_stay_above_all_events_until_members_have_answered() -> None:
    """The earlier coordinator may open a generation for a config that it reads before the tick."""
    story = taken_over(with_w1())
    story.take(FIRST_TICK)
    floor = story.group.recovery.floor
    story.at(300).take(config(FOUR, **{"session.timeout.ms": 50_000}))
    story.at(400).take(report("W1", 1, *ALL, coordinator_epoch=2))
    assert story.group.generation == floor + 2 + 1


def test_a_second_takeover_knows_the_tokens_that_the_first_may_have_used() -> None:
    """The coordinator between has published nothing but its questions; it may still place.

    Found by random faults (`fault_injection`, seed 7021220): the third coordinator counted the
    events behind that record only, and gave a task out with a lower token than the second one.
    """
    story = taken_over(with_w1())
    story.take(FIRST_TICK)
    for at_ms in (300, 320, 340):
        step = story.at(at_ms).take(config(FOUR, **{"session.timeout.ms": 50_000 + at_ms}))
    second_floor = story.group.recovery.floor
    assert second_floor > story.group.generation + 2
    assert Group.recover(snapshot(step)).recovery.floor > second_floor


def test_each_coordinator_between_raises_the_floor() -> None:
    """Coordinator 2 published late; coordinator 3 counted from one above what 2 had counted."""
    record = with_w1().group.snapshot()
    floors: list[int] = []
    for epoch in (2, 3, 4):
        story = Story(
            group=Group.recover(record, predecessors_obey=True), epoch=epoch, offset=9
        ).at(200)
        story.take(config(FOUR, **{"session.timeout.ms": 50_000}))
        floors.append(story.group.recovery.floor)
    assert floors == [floors[0], floors[0] + 1, floors[0] + 2]
