"""Rare cases of a coordinator without a checkpoint, in which simulation broke an invariant."""

from __future__ import annotations

from support.state.story import GROUP, Story, beat, config, join, leave, report, tick

from muster.protocol.digest import Holding
from muster.protocol.records import Fault, MemberAssignment, MemberState
from muster.protocol.tasks import Subtopology, TaskSet
from muster.state.group import Group
from muster.state.liveness import FENCED

FOUR = Subtopology("0", 4)
SESSION_MS = 45_000
VERIFIED_MS = 15_000
"""After the unverified time of these stories."""
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
    """A member that owes a release leaves and returns in one batch: it is still asked."""
    story = two_members(static="i")
    story.at(100).take(join("W3", incarnation=3))
    assert story.group.roster.by_slot[1].state is MemberState.UNREVOKED
    lose_checkpoint(story)
    back = join("W2", incarnation=2, instance_id="i")
    records = story.at(200).records(leave("W2", temporary=True), back)
    assert records["W2"].endswith("report")
    assert 1 in story.group.recovery.asked
    assert story.group.sessions.response_due[1] != 0  # it has a time to answer in


def test_a_member_that_waited_is_stable_when_the_reports_show_nothing_is_missing() -> None:
    """The old coordinator granted a task after its last snapshot.

    W1 reports the task, then W2 reports without it. W1 is stable after the last report, although
    that report changes nothing.
    """
    story = Story()
    second = join("W2", holding=Holding(active=TaskSet.of(["0_0", "0_1", "0_2"])))
    third = join("W3", holding=Holding(active=TaskSet.of(["0_3", "0_4"])))
    story.take(config(Subtopology("0", 5)), second, third)
    assert story.at(100).records(join("W1"))["W2"] == "0_0 0_1 | - | - @1"
    waits = MemberState.UNRELEASED
    assert [m.state for m in story.group.roster] == [waits, MemberState.UNREVOKED, STABLE]
    lose_checkpoint(story)
    story.at(200).take(tick())
    story.at(300).take(report("W1", 2, "0_2", epoch=2, coordinator_epoch=2))
    story.at(400).take(report("W2", 2, "0_0", "0_1", coordinator_epoch=2))
    story.at(500).take(report("W3", 1, "0_3", "0_4", coordinator_epoch=2))
    story.at(VERIFIED_MS).take(tick())
    assert [m.state for m in story.group.roster] == [STABLE, STABLE, STABLE]


def test_a_member_that_does_not_answer_the_question_is_fenced() -> None:
    """Coordinator 1 admitted another process as W2 after its last snapshot.

    Coordinator 2 knows only the old process and gets heartbeats but no report. So it fences every
    process of that id, and waits a session before it grants W2's tasks to others.
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
    """The question has the old revision, so an answer does not prove that a timeout was read."""
    story = two_members(session_timeout_ms=SESSION_MS)
    lose_checkpoint(story)
    shorter = config(FOUR, session_timeout_ms=10_000)
    story.at(100).take(shorter)
    answers = [
        report("W1", 1, "0_0", "0_1", coordinator_epoch=2),
        report("W2", 1, "0_2", "0_3", coordinator_epoch=2),
    ]
    records = story.at(200).records(*answers)
    assert [m.session_timeout_ms for m in story.group.roster] == [SESSION_MS, SESSION_MS]
    assert set(records) == {"W1", "W2"}  # the timeout comes with a new revision
    assert all(line.endswith("report") for line in records.values())
    revisions = [m.revision for m in story.group.roster]
    story.at(300).take(report("W1", revisions[0], "0_0", "0_1", coordinator_epoch=2))
    assert [m.session_timeout_ms for m in story.group.roster] == [10_000, SESSION_MS]


def test_a_batch_processed_again_by_the_next_coordinator_decides_alike() -> None:
    """Coordinator 1 has an unverified group, publishes part of a batch and ends.

    Coordinator 2 continues from its checkpoint and processes the batch again. The answers in it are
    to a question of coordinator 1, and both attempts give the same records. An earlier coordinator
    may have used generations up to 7: one for each event of the log and one for a lost batch.
    """
    story = Story(group=Group.new(GROUP, unverified=True))
    assert story.records(config(FOUR), join("W1"), join("W2"))["W1"] == "- | - | - @0 report"
    story.at(100).take(report("W2", 0, epoch=0, coordinator_epoch=1))
    kept = Group.restore(story.group.snapshot(), story.group.liveness())
    answer = report("W1", 0, epoch=0, coordinator_epoch=1)
    again = Story(group=kept, epoch=2, offset=story.offset)
    for each in (story, again):
        each.at(200).take(answer)
    first = story.at(VERIFIED_MS).records(tick())
    assert first == {"W1": "0_0 0_2 | - | - @8", "W2": "0_1 0_3 | - | - @8"}
    assert again.at(VERIFIED_MS).records(tick()) == first


def test_the_unverified_time_of_the_next_coordinator_is_no_longer() -> None:
    """A tick with coordinator 1's mark ends the unverified time of its successor too."""
    story = Story(group=Group.new(GROUP, unverified=True))
    story.take(config(FOUR), join("W1"))
    kept = Group.restore(story.group.snapshot(), story.group.liveness())
    again = Story(group=kept, epoch=2, offset=story.offset, published=story.published)
    for each in (story, again):
        each.at(1_000).take(tick())
    assert (
        again.group.recovery.unverified_until_ms
        == story.group.recovery.unverified_until_ms
        == 1_011_000
    )


def away_while_another_coordinator_gave_its_task_away() -> Story:
    """W2 is away with two tasks; another coordinator granted one of them, 0_2, to W1."""
    story = two_members(static="i")
    story.at(100).take(leave("W2", temporary=True))
    lose_checkpoint(story)
    story.at(200).take(tick())
    return story


def test_a_member_that_returns_during_a_recovery_gets_no_tasks() -> None:
    """A task that waits for W2 may run on W1, which has not answered; W1 keeps it."""
    story = away_while_another_coordinator_gave_its_task_away()
    back = join("W2", incarnation=2, instance_id="i")
    assert story.at(300).records(back)["W2"].startswith("- | - | -")
    holds = report("W1", 2, "0_0", "0_1", "0_2", epoch=2, coordinator_epoch=2)
    records = story.at(400).records(holds, report("W2", 1, coordinator_epoch=2))
    assert story.group.owned.holder.tolist()[2] == story.group.roster.by_id["W1"]
    assert "0_2" not in records["W2"]


def test_a_member_claims_a_task_that_waits_for_an_absent_member() -> None:
    """W1 reports 0_2 and becomes its holder; W2 gets it only after W1 has released it."""
    story = away_while_another_coordinator_gave_its_task_away()
    holds = report("W1", 2, "0_0", "0_1", "0_2", epoch=2, coordinator_epoch=2)
    story.at(300).take(holds)
    assert story.group.owned.holder.tolist()[2] == story.group.roster.by_id["W1"]
    assert len(story.group.owned.duplicate) == 0
    records = story.at(400).records(join("W2", incarnation=2, instance_id="i"))
    assert "0_2" not in records["W2"]


def test_a_heartbeat_of_before_a_leave_fences_no_member_that_a_new_coordinator_reads_back() -> None:
    """The snapshot lacks an epoch that W2 had before it left; its heartbeat of then is read again.

    W2 stays away as it was, and owes nothing when it returns.
    """
    story = away_while_another_coordinator_gave_its_task_away()
    slot = story.group.roster.by_id["W2"]
    story.at(250).take(beat("W2", digest("0_2", "0_3"), epoch=9))
    assert not story.group.sessions.flags[slot] & FENCED
    assert not story.group.sessions.response_due[slot]
    story.at(300).take(report("W1", 2, "0_0", "0_1", epoch=2, coordinator_epoch=2))
    story.at(VERIFIED_MS).take(tick())
    back = join("W2", incarnation=2, instance_id="i")
    story.at(VERIFIED_MS + 100).take(back)
    assert story.group.roster.by_slot[slot].state is STABLE
    assert not story.group.sessions.response_due[slot]
