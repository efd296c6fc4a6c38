"""A member stops its tasks one by one; each is free with the first report that lacks it."""

from __future__ import annotations

from support.state.groups import same_group
from support.state.story import Story, beat, config, join, leave, report, snapshot, tick

from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.records import MemberState
from muster.protocol.tasks import Subtopology, TaskSet
from muster.state.group import Group
from muster.state.ownership import slot_of, task_of

SIX = Subtopology("0", 6)
REBALANCE_MS = 10_000


def owing() -> Story:
    """W1 runs six tasks; its record 2 asks it to give three of them to W2."""
    story = Story()
    story.take(config(SIX, rebalance_timeout_ms=REBALANCE_MS), join("W1"))
    assert story.at(100).records(join("W2"))["W1"] == "0_0 0_1 0_2 | - | - @1"
    return story


def held(*active: str, releasing: tuple[str, ...] = ()) -> int:
    """Digest of a member that runs these tasks and is stopping some of them."""
    return Holding(active=TaskSet.of(active), releasing=TaskSet.of(releasing)).digest()


def test_each_report_frees_the_tasks_it_lacks() -> None:
    """Each report frees the tasks it lacks; W1 keeps state and epoch until the last one."""
    story = owing()
    records = story.at(150).records(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5"))
    assert records == {"W2": "0_3 | - | - @2"}
    member = story.group.roster.by_slot[0]
    assert (member.state, member.epoch) == (MemberState.UNREVOKED, 1)
    records = story.at(200).records(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    assert records == {"W2": "0_3 0_5 | - | - @2"}
    records = story.at(6_100).records(report("W1", 2, "0_0", "0_1", "0_2"))
    assert records == {"W2": "0_3 0_4 0_5 | - | - @2"}
    assert [m.state for m in story.group.roster] == [MemberState.STABLE] * 2
    assert [m.epoch for m in story.group.roster] == [2, 2]


def test_a_heartbeat_after_a_partial_release_agrees() -> None:
    """The expected digest is of the tasks still held, so the group asks for nothing."""
    story = owing()
    story.at(150).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    digest = held("0_0", "0_1", "0_2", "0_4", releasing=("0_4",))
    for ms in (1_000, 3_000, 5_000):
        assert story.at(ms).records(beat("W1", digest)) == {}
    assert story.group.sessions.misses[0] == 0


def test_partial_releases_do_not_extend_the_timeout() -> None:
    """One task is released each second; the rebalance timeout is not extended."""
    story = owing()
    digest = held(*("0_0", "0_1", "0_2", "0_3", "0_4", "0_5"), releasing=("0_3", "0_4", "0_5"))
    story.at(2_000).take(beat("W1", digest), beat("W2", 0, epoch=2))
    story.at(4_000).take(tick())  # proves that W1 can have read it
    story.at(8_000).take(report("W1", 2, "0_0", "0_1", "0_2", "0_3", "0_4"))
    story.at(13_000).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    assert "W1" not in story.at(13_999).records(tick())
    assert story.at(14_000).records(tick())["W1"] == "FENCED_MEMBER_EPOCH"
    # What it did not release stays its own; what it released is W2's.
    assert story.group.owned.holder.tolist() == [0, 0, 0, 1, 0, 1]


def test_a_report_from_before_the_demand_frees_nothing() -> None:
    """W1's report on record 1 lacks tasks that it has not started yet: they stay its own."""
    story = owing()
    records = story.records(report("W1", 1, "0_0", "0_1", "0_2"))
    assert records == {}
    assert story.group.owned.holder.tolist() == [0] * 6


def test_a_member_that_owes_is_granted_nothing_new() -> None:
    """As in Kafka: W3 leaves while W1 stops a task; W1 gets its share after its last report."""
    story = owing()
    story.take(report("W1", 2, "0_0", "0_1", "0_2", "0_4"))
    story.at(300).take(leave("W2"))  # all tasks are W1's again, which is stopping 0_4
    assert story.group.roster.by_slot[0].state is MemberState.UNREVOKED
    assert story.group.owned.holder.tolist() == [0, 0, 0, -1, 0, -1]
    records = story.at(400).records(report("W1", 2, "0_0", "0_1", "0_2"))
    assert records == {"W1": "0_0 0_1 0_2 0_3 0_4 0_5 | - | - @3"}


def test_copies_are_freed_one_by_one() -> None:
    """Standbys are no longer wanted: W1 drops one of two and still owes the other."""
    story = Story()
    unit = Subtopology("0", 4, stateful=True)
    values = {"assignor": "high-availability"}
    story.take(config(unit, num_standby_replicas=1, **values), join("W1"), join("W2"))
    assert story.records(config(unit, **values))["W1"] == "0_0 0_2 | - | - @1"
    assert task_of(story.group.owned.copies[Role.STANDBY].releasing[:2]).tolist() == [0, 1]
    assert story.records(report("W1", 2, "0_0", "0_2", standby=["0_3"])) == {}
    releasing = story.group.owned.copies[Role.STANDBY].releasing
    assert task_of(releasing[slot_of(releasing) == 0]).tolist() == [3]
    assert story.group.roster.by_slot[0].state is MemberState.UNREVOKED
    story.take(report("W1", 2, "0_0", "0_2"))
    assert story.group.roster.by_slot[0].state is MemberState.STABLE


def test_tasks_that_left_the_table_are_freed_one_by_one() -> None:
    """Two of four tasks are deleted and return: W2 gets the one that W1 has stopped."""
    story = Story()
    story.take(config(Subtopology("0", 4)), join("W1"))
    assert story.records(config(Subtopology("0", 2)))["W1"] == "0_0 0_1 | - | - @1"
    story.take(report("W1", 2, "0_0", "0_1", "0_2"))
    assert [str(orphan.task) for orphan in story.group.owned.orphans] == ["0_2"]
    assert story.group.roster.by_slot[0].state is MemberState.UNREVOKED
    records = story.records(config(Subtopology("0", 4)), join("W2"))
    assert records["W2"] == "0_3 | - | - @3"
    assert story.records(report("W1", 2, "0_0", "0_1"))["W2"] == "0_2 0_3 | - | - @3"


def test_a_task_that_two_members_claim_waits_for_both() -> None:
    """W3 joins with tasks that W1 has: each is free when neither reports it."""
    story = owing()
    claimed = Holding(active=TaskSet.of(["0_3", "0_4"]))
    story.at(150).take(join("W3", holding=claimed))
    assert story.at(200).records(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5")) == {}
    assert story.group.owned.holder.tolist() == [0, 0, 0, 2, 0, 0]  # 0_3 is W3's to release now
    assert story.at(250).records(report("W3", 1, "0_4", epoch=0)) == {"W2": "0_3 | - | - @3"}


def test_a_restored_group_continues_a_partial_release() -> None:
    """The group is restored after the first of three reports, and the rest is released to it."""
    story = owing()
    step = story.at(150).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5"))
    again = Group.restore(snapshot(step), story.group.liveness())
    same_group(again, story.group)
    story.group = again
    records = story.at(200).records(report("W1", 2, "0_0", "0_1", "0_2"))
    assert records == {"W2": "0_3 0_4 0_5 | - | - @2"}


def test_a_recovered_group_continues_a_partial_release() -> None:
    """A new coordinator asks, and waits only for the tasks that W1's answer still has."""
    story = owing()
    step = story.at(150).take(report("W1", 2, "0_0", "0_1", "0_2", "0_4", "0_5"))
    story.group, story.epoch = Group.recover(snapshot(step)), 2
    assert set(story.at(200).records(tick())) == {"W1", "W2"}
    story.at(300).take(report("W2", 2, "0_3", epoch=2, coordinator_epoch=2))
    answer = report("W1", 2, "0_0", "0_1", "0_2", "0_5", coordinator_epoch=2)
    story.at(400).take(answer)
    assert story.at(15_000).records(tick())["W2"] == "0_3 0_4 | - | - @2"
    assert story.group.roster.by_slot[0].state is MemberState.UNREVOKED
    records = story.at(15_100).records(report("W1", 2, "0_0", "0_1", "0_2", coordinator_epoch=2))
    assert records == {"W2": "0_3 0_4 0_5 | - | - @2"}


def test_a_member_that_has_just_left_becomes_no_holder() -> None:
    """W2 claims a task that W1 runs, and leaves in the batch in which W1 gives that task up."""
    story = Story()
    story.take(config(SIX, rebalance_timeout_ms=REBALANCE_MS), join("W1"))
    story.at(100).take(join("W2", holding=Holding(active=TaskSet.of(["0_5"]))))
    story.at(110).take(join("W3", holding=Holding(active=TaskSet.of(["0_5"]))))
    w2, w3 = (story.group.roster.by_id[name] for name in ("W2", "W3"))
    assert sorted(slot_of(story.group.owned.duplicate).tolist()) == sorted([w2, w3])
    story.at(150).take(leave("W2"), report("W1", 2, "0_0", "0_1", "0_2"))
    assert story.group.owned.holder[5] == w3
    assert len(story.group.owned.duplicate) == 0
