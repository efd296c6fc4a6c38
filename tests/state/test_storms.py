"""When a generation waits: a fleet that starts, and generations in quick succession."""

from __future__ import annotations

import random

import pytest
from support.state.groups import same_group
from support.state.story import Story, config, join, leave, report, snapshot, tick

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
    assert story.records(config(FOUR, **START), join("W1")) == {"W1": "- | - | - @0"}
    return story


def running() -> Story:
    """W1 has run all four tasks since 250 ms."""
    story = starting()
    story.at(PAUSE_MS).take(tick())
    return story


def started(story: Story, events: list[Event]) -> list[str]:
    """The tasks that members got in a batch."""
    records = (r for r in story.take(*events).records if isinstance(r, MemberAssignment))
    return [str(task) for record in records for task in record.active]


def test_one_worker_alone_starts_soon() -> None:
    """The wake-up is one pause after the join; then the worker gets all tasks."""
    story = starting()
    assert story.group.state is GroupState.ASSIGNING
    step = story.at(100).take(tick())
    assert step.wake_at_ms == 1_000_000 + PAUSE_MS
    assert story.at(PAUSE_MS - 1).records(tick()) == {}
    assert story.at(PAUSE_MS).records(tick()) == {"W1": "0_0 0_1 0_2 0_3 | - | - @1"}


def test_a_fleet_that_starts_is_one_generation() -> None:
    """Joins that follow each other closely are placed together, a pause after the last."""
    story = starting()
    for number in range(2, 11):
        records = story.at(200 * (number - 1)).records(join(f"W{number}"))
        assert records == {f"W{number}": "- | - | - @0"}
    step = story.at(1_900).take(tick())
    assert step.wake_at_ms == 1_000_000 + 1_800 + PAUSE_MS
    records = story.at(1_800 + PAUSE_MS).records(tick())
    assert len(records) == 4  # the others get no record: there are four tasks
    assert story.group.generation == 1
    assert story.group.cause.endswith("; 4 tasks added; W1, W10 and 8 more joined")


def test_the_delay_bounds_the_wait_for_joins() -> None:
    """The delay after the first join the group is placed; later members join a working group."""
    story = starting()
    for ms in range(100, 3_000, 100):
        assert story.at(ms).records(join(f"W{ms}")) == {f"W{ms}": "- | - | - @0"}
    story.at(3_000).take(tick())
    assert (story.group.state, len(story.group.roster)) == (GroupState.STABLE, 30)
    story.at(3_050).take(join("W0"))
    assert story.group.target.generation == 2


@pytest.mark.parametrize("seed", range(5))
def test_each_task_is_started_once(seed: int) -> None:
    """Sixty members join within two seconds in batches of any size; no task is revoked."""
    rng = random.Random(seed)
    story = Story()
    story.take(config(Subtopology("0", 300), **START))
    times = sorted(rng.randrange(2_000) for _ in range(60))
    given: list[str] = []
    while times:
        batch, times = times[: (size := rng.randrange(1, 12))], times[size:]
        joins = [join(f"W{60 - len(times) - n}") for n in range(len(batch))]
        given += started(story.at(batch[-1]), joins)
    given += started(story.at(2_000 + PAUSE_MS), [tick()])
    assert sorted(given) == sorted(f"0_{task}" for task in range(300))
    assert story.group.state is GroupState.STABLE


@pytest.mark.parametrize("together", [False, True])
def test_all_workers_restarted(together: bool) -> None:
    """All members leave and join again: the group waits as for its first start."""
    story = Story()
    story.take(config(FOUR, **START), join("W1"), join("W2"))
    story.at(PAUSE_MS).take(tick())
    gone = [leave("W1"), leave("W2")]
    if not together:
        story.at(9_000).take(*gone)
        assert story.group.state is GroupState.EMPTY
        gone = []
    records = story.at(9_100).records(*gone, join("W1", 2))
    assert records["W1"].startswith("- | - | -")
    assert story.at(9_200).records(join("W2", 2))["W2"].startswith("- | - | -")
    assert story.at(9_449).records(tick()) == {}
    records = story.at(9_450).records(tick())
    assert {name: said[:8] for name, said in records.items()} == {
        "W1": "0_0 0_2 ",
        "W2": "0_1 0_3 ",
    }


def test_a_join_to_a_working_group_does_not_wait() -> None:
    """A member that joins a working group is placed in the same batch."""
    story = running()
    assert story.at(9_000).records(join("W2"))["W1"] == "0_0 0_1 | - | - @1"


def test_a_returning_static_member_does_not_wait() -> None:
    """A static member that left temporarily gets its tasks in the batch of its join."""
    story = Story()
    story.take(config(FOUR, **START), join("W1", instance_id="i1"))
    story.at(PAUSE_MS).take(tick())
    story.at(5_000).take(leave("W1", temporary=True))
    records = story.at(7_000).records(join("W9", 2, instance_id="i1"))
    assert records["W9"] == "0_0 0_1 0_2 0_3 | - | - @1"


def test_tasks_that_come_late_do_not_wait() -> None:
    """Members that waited for a config are placed in the batch of the config."""
    story = Story()
    story.take(config(**START), join("W1"), join("W2"))
    story.at(59_000).take(tick())
    records = story.at(60_000).records(config(FOUR, **START))
    assert records == {"W1": "0_0 0_2 | - | - @1", "W2": "0_1 0_3 | - | - @1"}


def test_a_delay_set_to_zero_ends_the_wait() -> None:
    """An operator sets the delay to 0 while a fleet starts: it is placed at once."""
    story = starting()
    records = story.at(100).records(config(FOUR, initial_rebalance_delay_ms=0))
    assert records == {"W1": "0_0 0_1 0_2 0_3 | - | - @1"}


def test_a_start_goes_on_after_a_restart_of_the_coordinator() -> None:
    """The restored group ends the wait at the same time."""
    story = Story()
    step = story.take(config(FOUR, **START), join("W1"))
    again = Group.restore(snapshot(step), story.group.liveness())
    same_group(again, story.group)
    story.group = again
    assert story.at(100).records(join("W2")) == {"W2": "- | - | - @0"}
    assert len(story.at(100 + PAUSE_MS).records(tick())) == 2


def test_a_plug_in_is_asked_when_joining_has_paused() -> None:
    """Its answer for all joined members is applied in the next batch."""
    plug_in = "support.plugin_assignors:FirstTakesAll"
    story = Story()
    story.take(config(FOUR, assignor=plug_in, **START), join("W1"))
    story.at(100).take(join("W2"))
    assert story.at(349).records(tick()) == {}
    assert story.at(350).records(tick()) == {}
    records = story.at(360).records(tick())
    assert records["W1"] == "0_0 0_1 0_2 0_3 | - | - @1"


def test_generations_keep_their_distance() -> None:
    """assignment.interval.ms: two joins soon after a generation make one more, at its end."""
    story = Story()
    story.take(config(FOUR, assignment_interval_ms=5_000), join("W1"))
    placed = story.group.generation
    assert story.at(1_000).records(join("W2")) == {"W2": "- | - | - @1"}
    story.at(2_000).take(join("W3"))
    assert (story.group.state, story.group.generation) == (GroupState.ASSIGNING, placed + 1)
    assert story.at(4_999).records(tick()) == {}
    records = story.at(5_000).records(tick())
    assert records["W1"] == "0_0 0_1 | - | - @1"
    records = story.at(5_100).records(report("W1", 2, "0_0", "0_1"))
    assert records == {"W2": "0_3 | - | - @2", "W3": "0_2 | - | - @2"}
