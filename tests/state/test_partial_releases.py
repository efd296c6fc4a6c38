"""A member that stops its tasks one after the other frees each of them when it says so."""

from __future__ import annotations

from support.groups import same_group
from support.story import Story, beat, config, join, leave, report, snapshot, tick

from muster.protocol.digest import Holding
from muster.protocol.records import MemberState
from muster.protocol.tasks import Subtopology, TaskSet
from muster.state.group import Group, slot_of, task_of

SIX = Subtopology("0", 6)
REBALANCE_MS = 10_000


def owing() -> Story:
    """W1 runs six tasks and was told, in its record 2, to give three of them to W2."""
    story = Story()
    story.take(config(SIX, rebalance_timeout_ms=REBALANCE_MS), join("W1"))
    assert story.at(100).told(join("W2"))["W1"] == "0_0 0_1 0_2 | - | - @1"
    return story


def held(*active: str, releasing: tuple[str, ...] = ()) -> int:
    """Digest of a member that runs these, and among them is stopping some."""
    return Holding(active=TaskSet.of(active), releasing=TaskSet.of(releasing)).digest()


def test_what_has_stopped_goes_on_at_once() -> None:
    """W2 gets each task with the report that lacks it; W1 keeps state and epoch until the last."""
    story = owing()
    told = story.at(150).told(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5"))
    assert told == {"W2": "0_3 | - | - @2"}
    member = story.group.members[0]
    assert (member.state, member.epoch) == (MemberState.UNREVOKED, 1)
    told = story.at(200).told(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    assert told == {"W2": "0_3 0_5 | - | - @2"}
    told = story.at(6_100).told(report("W1", 2, "0_0", "0_1", "0_2"))
    assert told == {"W2": "0_3 0_4 0_5 | - | - @2"}
    assert [m.state for m in story.group.live()] == [MemberState.STABLE] * 2
    assert [m.epoch for m in story.group.live()] == [2, 2]


def test_a_heartbeat_after_a_partial_release_agrees() -> None:
    """The digest expected is that of what the member still has, so nothing is asked for."""
    story = owing()
    story.at(150).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    digest = held("0_0", "0_1", "0_2", "0_4", releasing=("0_4",))
    for ms in (1_000, 3_000, 5_000):
        assert story.at(ms).told(beat("W1", digest)) == {}
    assert story.group.soft.misses[0] == 0


def test_releasing_bit_by_bit_buys_no_time() -> None:
    """One task a second is released; the time for the last one still ends as it would have."""
    story = owing()
    digest = held(*("0_0", "0_1", "0_2", "0_3", "0_4", "0_5"), releasing=("0_3", "0_4", "0_5"))
    story.at(2_000).take(beat("W1", digest), beat("W2", 0, epoch=2))
    story.at(4_000).take(tick())  # proves that W1 can have read it
    story.at(8_000).take(report("W1", 2, "0_0", "0_1", "0_2", "0_3", "0_4"))
    story.at(13_000).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    assert "W1" not in story.at(13_999).told(tick())
    assert story.at(14_000).told(tick())["W1"] == "FENCED_MEMBER_EPOCH"
    # What it did not release stays its own; what it released is W2's.
    assert story.group.holder.tolist() == [0, 0, 0, 1, 0, 1]


def test_a_report_from_before_the_demand_frees_nothing() -> None:
    """W1 was slow to start: its report on record 1 lacks tasks that it will start any moment."""
    story = owing()
    told = story.told(report("W1", 1, "0_0", "0_1", "0_2"))
    assert told == {}
    assert story.group.holder.tolist() == [0] * 6


def test_a_member_that_owes_is_granted_nothing_new() -> None:
    """Kafka's rule: W3 leaves while W1 still stops a task; W1 gets its share after the last one."""
    story = owing()
    story.take(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    story.at(300).take(leave("W2"))  # all is W1's again, who is stopping 0_4
    assert story.group.members[0].state is MemberState.UNREVOKED
    assert story.group.holder.tolist() == [0, 0, 0, -1, 0, -1]
    told = story.at(400).told(report("W1", 2, "0_0", "0_1", "0_2"))
    assert told == {"W1": "0_0 0_1 0_2 0_3 0_4 0_5 | - | - @3"}


def test_copies_are_freed_one_by_one() -> None:
    """No standbys are wanted any more: W1 drops one of its two first, and owes the other."""
    story = Story()
    unit = Subtopology("0", 4, stateful=True)
    values = {"assignor": "high-availability"}
    story.take(config(unit, num_standby_replicas=1, **values), join("W1"), join("W2"))
    assert story.told(config(unit, **values))["W1"] == "0_0 0_2 | - | - @1"
    assert task_of(story.group.standby.going[:2]).tolist() == [0, 1]
    assert story.told(report("W1", 2, "0_0", "0_2", standby=["0_3"])) == {}
    going = story.group.standby.going
    assert task_of(going[slot_of(going) == 0]).tolist() == [3]
    assert story.group.members[0].state is MemberState.UNREVOKED
    story.take(report("W1", 2, "0_0", "0_2"))
    assert story.group.members[0].state is MemberState.STABLE


def test_tasks_that_left_the_table_are_freed_one_by_one() -> None:
    """Two of four tasks are deleted and come back: the one that W1 has stopped is W2's at once."""
    story = Story()
    story.take(config(Subtopology("0", 4)), join("W1"))
    assert story.told(config(Subtopology("0", 2)))["W1"] == "0_0 0_1 | - | - @1"
    story.take(report("W1", 2, "0_0", "0_1", "0_2"))
    assert [str(orphan.task) for orphan in story.group.orphans] == ["0_2"]
    assert story.group.members[0].state is MemberState.UNREVOKED
    told = story.told(config(Subtopology("0", 4)), join("W2"))
    assert told["W2"] == "0_3 | - | - @3"
    assert story.told(report("W1", 2, "0_0", "0_1"))["W2"] == "0_2 0_3 | - | - @3"


def test_a_task_that_two_members_claim_waits_for_both() -> None:
    """W3 comes with tasks that W1 has: each is free when neither of the two reports it."""
    story = owing()
    claimed = Holding(active=TaskSet.of(["0_3", "0_4"]))
    story.at(150).take(join("W3", holding=claimed))
    assert story.at(200).told(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5")) == {}
    assert story.group.holder.tolist() == [0, 0, 0, 2, 0, 0]  # 0_3 is W3's to release now
    assert story.at(250).told(report("W3", 1, "0_4", epoch=0)) == {"W2": "0_3 | - | - @3"}


def test_a_checkpoint_of_half_a_release_goes_on() -> None:
    """What was stored after the first of three is the group; the rest is released to it."""
    story = owing()
    step = story.at(150).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5"))
    again = Group.restore(snapshot(step), story.group.liveness())
    same_group(again, story.group)
    story.group = again
    told = story.at(200).told(report("W1", 2, "0_0", "0_1", "0_2"))
    assert told == {"W2": "0_3 0_4 0_5 | - | - @2"}


def test_a_lost_checkpoint_of_half_a_release() -> None:
    """A new coordinator asks; the answer says what W1 still runs, and only that is awaited."""
    story = owing()
    step = story.at(150).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5"))
    story.group, story.epoch = Group.recover(snapshot(step)), 2
    assert set(story.at(200).told(tick())) == {"W1", "W2"}
    story.at(300).take(report("W2", 2, "0_3", epoch=2, coordinator_epoch=2))
    answer = report("W1", 2, "0_0", "0_1", "0_2", "0_5", coordinator_epoch=2)
    assert story.at(400).told(answer)["W2"] == "0_3 0_4 | - | - @2"
    assert story.group.members[0].state is MemberState.UNREVOKED
    told = story.at(500).told(report("W1", 2, "0_0", "0_1", "0_2", coordinator_epoch=2))
    assert told == {"W2": "0_3 0_4 0_5 | - | - @2"}
