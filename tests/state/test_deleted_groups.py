"""A deleted group: its members stop in order, and its generations are never used again."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from support.state.groups import same_group
from support.state.story import Story, beat, config, join, leave, report, snapshot, tick

from muster.protocol.events import Event, GroupDeleted, Origin
from muster.protocol.ids import GroupId
from muster.protocol.records import Fault, GroupState, MemberAssignment
from muster.protocol.tasks import Subtopology
from muster.simulation.jobs import read_back
from muster.state.deletion import DISMISSED_MAX
from muster.state.group import Group
from muster.state.machine import advance

FOUR = Subtopology("0", 4)
DELETED = GroupDeleted(group=GroupId("g"))


def working(**values: object) -> Story:
    """W1 and W2 have two tasks each, W3 joined last; generation 2."""
    story = Story()
    story.take(config(FOUR, **values), join("W1"), join("W2"))
    story.at(10).take(report("W1", 1, "0_0", "0_2"), report("W2", 1, "0_1", "0_3"))
    return story


def test_thousands_of_members_are_dismissed_in_several_batches() -> None:
    """Each member gets its fault once; a tick at once goes on, and other groups wait less long."""
    story = Story()
    story.take(config(FOUR), *(join(f"m{number}") for number in range(2_500)))
    told = []
    holders = [story.group.roster.by_slot[slot] for slot in story.group.owned.holder.tolist()]
    step = story.at(10).take(DELETED)
    dismissed = [step]
    while story.group.sessions.wake_ms is not None and len(dismissed) < 9:
        if len(story.group.roster) > len(holders):
            assert step.wake_at_ms is not None
            assert step.wake_at_ms <= story.now_ms
            step = story.take(tick())
        else:
            step = story.take(*(report(member.id, 2) for member in holders))
        dismissed.append(step)
    for step in dismissed:
        records = [r for r in step.records if isinstance(r, MemberAssignment)]
        faults = [r.member for r in records if r.fault is Fault.GROUP_ID_NOT_FOUND]
        assert len(faults) <= DISMISSED_MAX
        told += faults
    assert len(told) == len(set(told)) == 2_500
    assert not story.group.roster
    assert len(dismissed) == 2_500 // DISMISSED_MAX + 1


def test_members_stop_in_order_and_are_removed() -> None:
    """Each member is asked to release all, keeps it until it reports, then gets a fault."""
    story = working()
    step = story.at(1_000).take(DELETED)
    records = [r for r in step.records if isinstance(r, MemberAssignment)]
    assert [(r.member, len(r.active), r.fault) for r in records] == [
        ("W1", 0, None),
        ("W2", 0, None),
    ]
    words = "group deleted by muster config delete (config-0@6)"
    assert all(r.message.startswith(words) for r in records)
    dead = snapshot(step)
    assert (dead.state, len(dead.members), dead.tasks) == (GroupState.DEAD, 2, ())
    # W1 still stops one of its tasks, and is a member until it has stopped it.
    assert story.at(1_100).records(report("W1", 2, "0_2", releasing=("0_2",))) == {}
    assert story.at(1_200).records(report("W2", 2)) == {"W2": "GROUP_ID_NOT_FOUND"}
    assert story.at(1_300).records(report("W1", 2)) == {"W1": "GROUP_ID_NOT_FOUND"}
    last = read_back(story.group.snapshot())
    assert (last.state, last.members, last.generation) == (GroupState.DEAD, (), 1)
    assert last.cause.startswith(words)


def test_a_join_to_a_deleted_group_is_refused() -> None:
    """Joins do not bring the group back; after a new config the next join gets tasks."""
    story = working()
    story.at(1_000).take(DELETED)
    story.at(1_100).take(report("W1", 2), report("W2", 2))
    for at_ms in (2_000, 7_000, 60_000):
        step = story.at(at_ms).take(join("W1", 2))
        assert not step.changed
        assert story.group.state is GroupState.DEAD
    assert story.records(join("W9")) == {"W9": "GROUP_ID_NOT_FOUND"}
    assert story.at(70_000).records(config(FOUR)) == {}
    assert story.group.state is GroupState.EMPTY
    assert story.at(71_000).records(join("W1", 2)) == {"W1": "0_0 0_1 0_2 0_3 | - | - @2"}
    assert "group deleted" not in story.group.cause


def test_generations_go_on_after_deletions() -> None:
    """Deleted and configured again three times, with other assignors and tasks: tokens grow."""
    story, tokens = Story(), []
    for life in range(1, 4):
        assignor = ("sticky", "high-availability", "cooperative")[life - 1]
        start = story.at(life * 100_000)
        start.take(config(Subtopology("0", life), assignor=assignor))
        step = start.take(join("W1", life))
        granted = [r for r in step.records if isinstance(r, MemberAssignment) and r.active]
        tokens += [(r.generation, r.epoch) for r in granted]
        story.at(life * 100_000 + 1_000).take(leave("W1", life))
        story.at(life * 100_000 + 2_000).take(DELETED)
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 3


@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint kept", "checkpoint lost"])
def test_the_record_of_a_dead_group_is_enough(lost: bool) -> None:
    """Restored or recovered, the group is dead, and its next generation is a new one."""
    story = working()
    story.at(1_000).take(DELETED, leave("W1"), leave("W2"))
    record = read_back(story.group.snapshot())
    if lost:
        story.group, story.epoch = Group.recover(record), 7
    else:
        group = Group.restore(record, story.group.liveness())
        same_group(group, story.group)
        story.group = group
    assert story.at(2_000).records(join("W1", 5)) == {"W1": "GROUP_ID_NOT_FOUND"}
    story.at(3_000).take(config(FOUR))
    step = story.at(4_000).take(join("W1", 5))
    if lost:  # it is asked first, for the coordinator before may have let it in
        step = story.at(5_000).take(report("W1", 0, epoch=0, incarnation=5, coordinator_epoch=7))
    assert snapshot(step).generation > record.generation


def test_a_deletion_is_finished_by_the_next_coordinator() -> None:
    """The checkpoint is lost while members stop: they are asked, then removed."""
    story = working()
    story.at(1_000).take(DELETED)
    story.group, story.epoch = Group.recover(read_back(story.group.snapshot())), 7
    assert set(story.at(2_000).records(tick())) == {"W1", "W2"}
    records = story.at(2_100).records(report("W2", 2, coordinator_epoch=7))
    assert records == {"W2": "GROUP_ID_NOT_FOUND"}
    assert story.group.state is GroupState.DEAD
    story.at(2_200).take(report("W1", 2, "0_0", coordinator_epoch=7))
    story.at(15_000).take(tick())
    revision = story.group.snapshot().members[0].revision
    assert story.at(15_100).records(report("W1", revision, coordinator_epoch=7)) == {
        "W1": "GROUP_ID_NOT_FOUND"
    }
    assert len(story.group.roster) == 0


@pytest.mark.parametrize(
    "event", [join("W1"), leave("W1"), leave("W1", temporary=True), beat("W1", 1, epoch=9)]
)
def test_events_of_members_while_the_group_ends(event: Event) -> None:
    """A member joins again, leaves or breaks the rules: in the end no member is left."""
    story = working(session_timeout_ms=2_000, heartbeat_interval_ms=400, rebalance_timeout_ms=600)
    story.at(1_000).take(DELETED)
    story.at(1_010).take(replace(event, origin=event.origin))
    for at_ms in range(1_400, 12_000, 400):
        story.at(at_ms).take(tick())
    assert (len(story.group.roster), story.group.state) == (0, GroupState.DEAD)
    assert story.group.generation == 1


def test_a_config_that_comes_while_members_stop() -> None:
    """Members keep tasks that they have not stopped yet; nothing is granted twice."""
    story = working()
    story.at(1_000).take(DELETED)
    story.at(1_100).take(report("W2", 2))
    assert story.at(1_200).records(config(FOUR)) == {}
    assert story.group.owned.holder[[0, 2]].tolist() == [0, 0]
    revision = story.group.snapshot().members[0].revision
    records = story.at(1_300).records(report("W1", revision))
    assert records == {"W1": "0_0 0_1 0_2 0_3 | - | - @2"}
    assert story.group.state is GroupState.STABLE


def test_deleted_twice_is_deleted_once() -> None:
    """The second deletion changes nothing, not even the cause."""
    story = working()
    story.at(1_000).take(DELETED, leave("W1"), leave("W2"))
    record = story.group.snapshot()
    step = story.at(2_000).take(DELETED)
    assert not step.changed
    assert story.group.snapshot().cause == record.cause


def calls_of_reports(members: int) -> int:
    """How many functions are called while so many members report that they have stopped."""
    story = Story()
    names = [f"W{number:03}" for number in range(members)]
    story.take(config(Subtopology("0", 20 * members)), *map(join, names))
    story.at(1_000).take(DELETED)
    reports = [report(name, 2) for name in names]
    events = [
        replace(each, origin=Origin("membership", 0, 9_000 + number, story.now_ms))
        for number, each in enumerate(reports)
    ]
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        step = advance(story.group, events, coordinator_epoch=1)
    finally:
        sys.setprofile(None)
    assert not step.group.roster
    return calls


def test_a_report_costs_what_its_member_stopped() -> None:
    """Six times as many members cost some six times as much, not thirty-six times."""
    assert calls_of_reports(60) < 12 * calls_of_reports(10)
