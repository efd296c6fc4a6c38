"""A new coordinator without a checkpoint, in the corners where simulation found a broken law."""

from __future__ import annotations

from support.story import GROUP, Story, beat, config, join, leave, report, tick

from muster.protocol.digest import Holding
from muster.protocol.records import Fault, MemberAssignment, MemberState
from muster.protocol.tasks import Subtopology, TaskSet
from muster.state.group import Group

FOUR = Subtopology("0", 4)
SESSION_MS = 45_000
STABLE = MemberState.STABLE


def digest(*active: str) -> int:
    """Digest of some actives."""
    return Holding(active=TaskSet.of(active)).digest()


def two_members(*, static: str | None = None, **values: object) -> Story:
    """W1 and W2 hold two tasks each, both at epoch 1, revision 1."""
    story = Story()
    first = join("W1", holding=Holding(active=TaskSet.of(["0_0", "0_1"])))
    second = join("W2", holding=Holding(active=TaskSet.of(["0_2", "0_3"])), instance_id=static)
    story.take(config(FOUR, **values), first, second)
    return story


def lose_checkpoint(story: Story) -> None:
    """Coordinator 2 starts from what coordinator 1 published."""
    story.group, story.epoch = Group.recover(story.group.snapshot()), story.epoch + 1


def test_a_static_member_is_away_for_a_moment_while_it_is_asked() -> None:
    """It owed a release, leaves and is back within one batch: the question to it stays open."""
    story = two_members(static="i")
    story.at(100).take(join("W3", incarnation=3))
    assert story.group.members[1].state is MemberState.UNREVOKED
    lose_checkpoint(story)
    back = join("W2", incarnation=2, instance_id="i")
    told = story.at(200).told(leave("W2", temporary=True), back)
    assert told["W2"].endswith("report")
    assert 1 in story.group.recovering
    assert story.group.soft.debt[1] != 0  # it has a time to answer in


def test_a_member_that_waited_is_stable_when_the_reports_show_nothing_is_missing() -> None:
    """The old coordinator granted after its last snapshot; W1 says so before W2 says it let go.

    W1 waits for nothing any more when the last report is in, though that one changes nothing.
    """
    story = Story()
    second = join("W2", holding=Holding(active=TaskSet.of(["0_0", "0_1", "0_2"])))
    third = join("W3", holding=Holding(active=TaskSet.of(["0_3", "0_4"])))
    story.take(config(Subtopology("0", 5)), second, third)
    assert story.at(100).told(join("W1"))["W2"] == "0_0 0_1 | - | - @1"
    waits = MemberState.UNRELEASED
    assert [m.state for m in story.group.live()] == [waits, MemberState.UNREVOKED, STABLE]
    lose_checkpoint(story)
    story.at(200).take(tick())
    story.at(300).take(report("W1", 2, "0_2", epoch=2, coordinator_epoch=2))
    story.at(400).take(report("W2", 2, "0_0", "0_1", coordinator_epoch=2))
    story.at(500).take(report("W3", 1, "0_3", "0_4", coordinator_epoch=2))
    assert [m.state for m in story.group.live()] == [STABLE, STABLE, STABLE]


def test_a_question_that_is_not_answered_fences_the_member_of_that_name() -> None:
    """Coordinator 1 let another process in as W2 after its last snapshot.

    Coordinator 2 knows the old one only, hears heartbeats, and waits in vain for the report. So
    all of that name are told to drop everything a session before W2's tasks go to others.
    """
    story = two_members(rebalance_timeout_ms=10_000)
    lose_checkpoint(story)
    story.at(1_000).take(tick())
    story.at(2_000).take(report("W1", 1, "0_0", "0_1", coordinator_epoch=2))
    fenced = []
    for ms in range(4_000, 30_000, 2_000):
        alive = (beat("W1", digest("0_0", "0_1")), beat("W2", digest("0_2", "0_3")))
        step = story.at(ms).take(*alive, tick())
        fenced += [r for r in step.records if isinstance(r, MemberAssignment) and r.fault]
    assert {(r.member, r.incarnation, r.fault) for r in fenced} == {
        ("W2", 0, Fault.FENCED_MEMBER_EPOCH)
    }
    assert len(fenced) > 1  # again and again, while it beats


def test_a_shorter_session_is_not_taken_from_the_answer_to_a_question() -> None:
    """The question stands under the old revision, so a member reads no new timeout in it."""
    story = two_members(session_timeout_ms=SESSION_MS)
    lose_checkpoint(story)
    shorter = config(FOUR, session_timeout_ms=10_000)
    story.at(100).take(shorter)
    answers = [
        report("W1", 1, "0_0", "0_1", coordinator_epoch=2),
        report("W2", 1, "0_2", "0_3", coordinator_epoch=2),
    ]
    told = story.at(200).told(*answers)
    assert [m.session_timeout_ms for m in story.group.live()] == [SESSION_MS, SESSION_MS]
    assert set(told) == {"W1", "W2"}  # now they are told, under a new revision
    assert all(line.endswith("report") for line in told.values())
    revisions = [m.revision for m in story.group.live()]
    story.at(300).take(report("W1", revisions[0], "0_0", "0_1", epoch=2, coordinator_epoch=2))
    assert [m.session_timeout_ms for m in story.group.live()] == [10_000, SESSION_MS]


def test_a_batch_that_is_taken_again_by_the_next_coordinator_decides_alike() -> None:
    """Coordinator 1 met the group warily, published a part of a batch and ended.

    Coordinator 2 goes on from its checkpoint and takes the batch again: the answers it has are to a
    question of coordinator 1, and everybody is told the same. Generation 1 may have been the one of
    a coordinator before.
    """
    story = Story(group=Group.new(GROUP, wary=True))
    assert story.told(config(FOUR), join("W1"), join("W2"))["W1"] == "- | - | - @0 report"
    story.at(100).take(report("W2", 0, epoch=0, coordinator_epoch=1))
    kept = Group.restore(story.group.snapshot(), story.group.liveness())
    answer = report("W1", 0, epoch=0, coordinator_epoch=1)
    again = Story(group=kept, epoch=2, offset=story.offset).at(200).told(answer)
    first = story.at(200).told(answer)
    assert first == {"W1": "0_0 0_2 | - | - @2", "W2": "0_1 0_3 | - | - @2"}
    assert again == first


def test_the_next_coordinator_is_wary_no_longer_than_the_one_before() -> None:
    """A tick that proved to coordinator 1 what it reads is young proves so to its successor."""
    story = Story(group=Group.new(GROUP, wary=True))
    story.take(config(FOUR), join("W1"))
    kept = Group.restore(story.group.snapshot(), story.group.liveness())
    again = Story(group=kept, epoch=2, offset=story.offset, published=story.published)
    for each in (story, again):
        each.at(1_000).take(tick())
    assert again.group.wary_until_ms == story.group.wary_until_ms == 1_011_000


def away_while_another_coordinator_gave_its_task_away() -> Story:
    """W2 is away, with two tasks; W1 got 0_2 from a coordinator whose snapshot was overwritten."""
    story = two_members(static="i")
    story.at(100).take(leave("W2", temporary=True))
    lose_checkpoint(story)
    story.at(200).take(tick())
    return story


def test_a_member_that_returns_while_others_are_asked_is_given_nothing() -> None:
    """What waited for W2 may run on W1, which has not answered; W1 says so and keeps it."""
    story = away_while_another_coordinator_gave_its_task_away()
    back = join("W2", incarnation=2, instance_id="i")
    assert story.at(300).told(back)["W2"].startswith("- | - | -")
    holds = report("W1", 2, "0_0", "0_1", "0_2", epoch=2, coordinator_epoch=2)
    told = story.at(400).told(holds, report("W2", 1, coordinator_epoch=2))
    assert story.group.holder.tolist()[2] == story.group.by_id["W1"]
    assert "0_2" not in told["W2"]


def test_a_member_claims_what_waits_for_one_that_is_away() -> None:
    """W1 runs it by its own word, so it is its holder; W2 gets it only after W1 has stopped."""
    story = away_while_another_coordinator_gave_its_task_away()
    holds = report("W1", 2, "0_0", "0_1", "0_2", epoch=2, coordinator_epoch=2)
    story.at(300).take(holds)
    assert story.group.holder.tolist()[2] == story.group.by_id["W1"]
    assert len(story.group.duplicate) == 0
    told = story.at(400).told(join("W2", incarnation=2, instance_id="i"))
    assert "0_2" not in told["W2"]
