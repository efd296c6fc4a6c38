"""When a generation waits: a fleet that starts, and generations that come too fast."""

from __future__ import annotations

import random

import pytest
from support.groups import same_group
from support.story import Story, config, join, leave, report, snapshot, tick

from muster.protocol.events import Event
from muster.protocol.records import GroupState, MemberAssignment
from muster.protocol.tasks import Subtopology
from muster.state.group import Group

FOUR = Subtopology("0", 4)
START = {"initial_rebalance_delay_ms": 3_000}
PAUSE_MS = 250
"""A twelfth of that."""


def starting() -> Story:
    """A group with four tasks; W1 has joined at 0 ms."""
    story = Story()
    assert story.told(config(FOUR, **START), join("W1")) == {"W1": "- | - | - @0"}
    return story


def running() -> Story:
    """W1 has run all four tasks since 250 ms."""
    story = starting()
    story.at(PAUSE_MS).take(tick())
    return story


def started(story: Story, events: list[Event]) -> list[str]:
    """Tasks that members were given in a batch."""
    records = (r for r in story.take(*events).records if isinstance(r, MemberAssignment))
    return [str(task) for record in records for task in record.active]


def test_one_worker_alone_starts_soon() -> None:
    """It asks to be woken a pause after its join, and then has everything."""
    story = starting()
    assert story.group.state is GroupState.ASSIGNING
    step = story.at(100).take(tick())
    assert step.wake_at_ms == 1_000_000 + PAUSE_MS
    assert story.at(PAUSE_MS - 1).told(tick()) == {}
    assert story.at(PAUSE_MS).told(tick()) == {"W1": "0_0 0_1 0_2 0_3 | - | - @1"}


def test_a_fleet_that_starts_is_one_generation() -> None:
    """Each join is soon after the one before: all are placed together, a pause after the last."""
    story = starting()
    for number in range(2, 11):
        told = story.at(200 * (number - 1)).told(join(f"W{number}"))
        assert told == {f"W{number}": "- | - | - @0"}
    step = story.at(1_900).take(tick())
    assert step.wake_at_ms == 1_000_000 + 1_800 + PAUSE_MS
    told = story.at(1_800 + PAUSE_MS).told(tick())
    assert len(told) == 4  # the others have nothing to be told: there are four tasks
    assert story.group.generation == 1
    assert story.group.cause.endswith("; 4 tasks added; W1, W10 and 8 more joined")


def test_joining_that_does_not_end_is_not_waited_for() -> None:
    """The delay after the first join what there is runs; who comes later joins a group at work."""
    story = starting()
    for ms in range(100, 3_000, 100):
        assert story.at(ms).told(join(f"W{ms}")) == {f"W{ms}": "- | - | - @0"}
    story.at(3_000).take(tick())
    assert (story.group.state, len(story.group.roster)) == (GroupState.STABLE, 30)
    story.at(3_050).take(join("W0"))
    assert story.group.target_generation == 2


@pytest.mark.parametrize("seed", range(5))
def test_each_task_is_started_once(seed: int) -> None:
    """Sixty members come within two seconds, in batches of any size; nothing is taken back."""
    chance = random.Random(seed)
    story = Story()
    story.take(config(Subtopology("0", 300), **START))
    times = sorted(chance.randrange(2_000) for _ in range(60))
    given: list[str] = []
    while times:
        batch, times = times[: (size := chance.randrange(1, 12))], times[size:]
        joins = [join(f"W{60 - len(times) - n}") for n in range(len(batch))]
        given += started(story.at(batch[-1]), joins)
    given += started(story.at(2_000 + PAUSE_MS), [tick()])
    assert sorted(given) == sorted(f"0_{task}" for task in range(300))
    assert story.group.state is GroupState.STABLE


@pytest.mark.parametrize("together", [False, True])
def test_all_workers_restarted(together: bool) -> None:
    """All leave and come again, perhaps in one batch: the group waits as it did at first."""
    story = Story()
    story.take(config(FOUR, **START), join("W1"), join("W2"))
    story.at(PAUSE_MS).take(tick())
    gone = [leave("W1"), leave("W2")]
    if not together:
        story.at(9_000).take(*gone)
        assert story.group.state is GroupState.EMPTY
        gone = []
    told = story.at(9_100).told(*gone, join("W1", 2))
    assert told["W1"].startswith("- | - | -")
    assert story.at(9_200).told(join("W2", 2))["W2"].startswith("- | - | -")
    assert story.at(9_449).told(tick()) == {}
    told = story.at(9_450).told(tick())
    assert {name: said[:8] for name, said in told.items()} == {"W1": "0_0 0_2 ", "W2": "0_1 0_3 "}


def test_who_joins_a_group_at_work_does_not_wait() -> None:
    """Where something runs a newcomer is placed by the batch that brings it."""
    story = running()
    assert story.at(9_000).told(join("W2"))["W1"] == "0_0 0_1 | - | - @1"


def test_who_returns_in_time_does_not_wait() -> None:
    """A static worker left for a while: what waited for it is its own with the next word."""
    story = Story()
    story.take(config(FOUR, **START), join("W1", instance_id="i1"))
    story.at(PAUSE_MS).take(tick())
    story.at(5_000).take(leave("W1", temporary=True))
    told = story.at(7_000).told(join("W9", 2, instance_id="i1"))
    assert told["W9"] == "0_0 0_1 0_2 0_3 | - | - @1"


def test_tasks_that_come_late_do_not_wait() -> None:
    """Members of a group without a config have waited long enough."""
    story = Story()
    story.take(config(**START), join("W1"), join("W2"))
    story.at(59_000).take(tick())
    told = story.at(60_000).told(config(FOUR, **START))
    assert told == {"W1": "0_0 0_2 | - | - @1", "W2": "0_1 0_3 | - | - @1"}


def test_the_delay_is_taken_away() -> None:
    """An operator sets it to 0 while a fleet starts: it starts at once."""
    story = starting()
    told = story.at(100).told(config(FOUR, initial_rebalance_delay_ms=0))
    assert told == {"W1": "0_0 0_1 0_2 0_3 | - | - @1"}


def test_a_start_goes_on_after_a_restart_of_the_coordinator() -> None:
    """The checkpoint has who came and when, so the wait ends when it would have."""
    story = Story()
    step = story.take(config(FOUR, **START), join("W1"))
    again = Group.restore(snapshot(step), story.group.liveness())
    same_group(again, story.group)
    story.group = again
    assert story.at(100).told(join("W2")) == {"W2": "- | - | - @0"}
    assert len(story.at(100 + PAUSE_MS).told(tick())) == 2


def test_a_plug_in_is_asked_when_joining_has_paused() -> None:
    """Its answer for all who came is taken by the batch after that."""
    plug_in = "support.plugin_assignors:FirstTakesAll"
    story = Story()
    story.take(config(FOUR, assignor=plug_in, **START), join("W1"))
    story.at(100).take(join("W2"))
    assert story.at(349).told(tick()) == {}
    assert story.at(350).told(tick()) == {}
    told = story.at(360).told(tick())
    assert told["W1"] == "0_0 0_1 0_2 0_3 | - | - @1"


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
