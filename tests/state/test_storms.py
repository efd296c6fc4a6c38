"""When a generation waits: an empty group that fills up, and generations that come too fast."""

from __future__ import annotations

from support.story import Story, config, join, leave, report, tick

from muster.protocol.records import GroupState
from muster.protocol.tasks import Subtopology

FOUR = Subtopology("0", 4)


def test_a_fleet_that_starts_is_one_generation() -> None:
    """Joins within initial.rebalance.delay.ms of the first one are placed together, once."""
    story = Story()
    story.take(config(FOUR, initial_rebalance_delay_ms=3_000))
    assert story.told(join("W1")) == {"W1": "- | - | - @0"}
    assert story.at(1_000).told(join("W2"))["W2"] == "- | - | - @0"
    step = story.at(2_999).take(tick())
    assert (story.group.state, step.wake_at_ms) == (GroupState.ASSIGNING, 1_003_000)
    assert story.at(3_000).told(tick()) == {
        "W1": "0_0 0_2 | - | - @1",
        "W2": "0_1 0_3 | - | - @1",
    }


def test_a_group_that_was_left_by_all_waits_like_a_new_one() -> None:
    """The first to come back is placed after the delay, though the group has generations behind."""
    story = Story()
    story.take(config(FOUR, initial_rebalance_delay_ms=3_000), join("W1"))
    story.at(3_000).take(tick())
    story.at(4_000).take(leave("W1"))
    assert story.group.state is GroupState.EMPTY
    assert story.at(9_000).told(join("W2")) == {"W2": "- | - | - @2"}
    assert story.at(10_000).told(tick()) == {}
    step = story.at(11_999).take(tick())
    assert (story.group.state, step.wake_at_ms) == (GroupState.ASSIGNING, 1_012_000)
    assert story.at(12_000).told(tick()) == {"W2": "0_0 0_1 0_2 0_3 | - | - @3"}


def test_who_joins_a_group_at_work_does_not_wait() -> None:
    """The delay is for an empty group only."""
    story = Story()
    story.take(config(FOUR, initial_rebalance_delay_ms=3_000), join("W1"))
    story.at(3_000).take(tick())
    assert story.at(9_000).told(join("W2"))["W1"] == "0_0 0_1 | - | - @1"


def test_generations_keep_their_distance() -> None:
    """With assignment.interval.ms two joins soon after a generation make one, when it is over."""
    story = Story()
    story.take(config(FOUR, assignment_interval_ms=5_000), join("W1"))
    placed = story.group.generation
    assert story.at(1_000).told(join("W2")) == {"W2": "- | - | - @1"}
    story.at(2_000).take(join("W3"))
    assert (story.group.state, story.group.generation) == (GroupState.ASSIGNING, placed + 1)
    assert story.at(4_999).told(tick()) == {}
    told = story.at(5_000).told(tick())
    assert told["W1"] == "0_0 0_1 | - | - @1"
    told = story.at(5_100).told(report("W1", 2, "0_0", "0_1"))
    assert told == {"W2": "0_3 | - | - @2", "W3": "0_2 | - | - @2"}
