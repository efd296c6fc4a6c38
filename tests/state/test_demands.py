"""A member has its full rebalance timeout, counted from the time at which it could read the demand.

Heartbeats have the broker's timestamps, whenever the coordinator reads them. These tests play a
coordinator that is behind with batches of old records.
"""

from __future__ import annotations

import pytest
from support.state.story import Story, beat, config, join, leave, report, since, tick

from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import Mark, Refused, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberState, WakeUp
from muster.protocol.tasks import Subtopology, TaskSet
from muster.state.group import Group
from muster.state.session_clock import step_of

FOUR = Subtopology("0", 4)
ALL = ("0_0", "0_1", "0_2", "0_3")
RELEASING = Holding(active=TaskSet.of(ALL), releasing=TaskSet.of(["0_2", "0_3"])).digest()
"""Digest of W1 once it has read that it must give two up."""
REBALANCE_MS, SESSION_MS = 10_000, 45_000


def owing(own_timeout_ms: int | None = None) -> Story:
    """W1 has all tasks and was asked at 100 ms to give two of them to W2."""
    story = Story()
    first = join("W1", rebalance_timeout_ms=own_timeout_ms)
    story.take(config(FOUR, rebalance_timeout_ms=REBALANCE_MS), first)
    assert story.at(100).records(join("W2"))["W1"] == "0_0 0_1 | - | - @1"
    return story


def beats(story: Story, first_ms: int, end_ms: int, *more: Tick) -> dict[str, str]:
    """Both members send heartbeats every 2 s, one batch each; the last records they got."""
    records = {}
    for ms in range(first_ms, end_ms, 2_000):
        records |= story.at(ms).records(beat("W1", RELEASING), beat("W2", 0, epoch=2), *more)
    return records


def lives_alone(story: Story, first_ms: int, end_ms: int) -> None:
    """Every 2 s W2 says that it has what its newest record gave it; W1 says nothing."""
    for ms in range(first_ms, end_ms, 2_000):
        member = story.group.roster.by_slot[1]
        story.at(ms).take(beat("W2", story.group.sessions.digest[1], epoch=member.epoch), tick())


def test_too_slow_a_release_fences() -> None:
    """The time runs from the first tick behind the demand; a session later the tasks are free."""
    story = owing()
    assert beats(story, 2_000, 4_000) == {}
    assert story.at(4_000).records(tick()) == {}  # proves that W1 can have read it
    assert beats(story, 6_000, 14_000) == {}
    assert story.at(13_999).records(tick()) == {}
    assert story.at(14_000).records(tick())["W1"] == "FENCED_MEMBER_EPOCH"
    why = "W1 did not stop 0_2, 0_3 within 10000 ms (rebalance.timeout.ms); W1 fenced"
    assert story.group.cause.endswith(why)
    beats(story, 16_000, 18_000)
    story.at(18_000).take(tick())  # proves that W1 can have read that it is fenced
    records = beats(story, 20_000, 62_000)
    assert set(records.values()) <= {"FENCED_MEMBER_EPOCH"}
    assert story.group.owned.holder.tolist() == [0, 0, 0, 0]
    story.at(62_999).take(tick())
    assert story.group.owned.holder.tolist() == [0, 0, 0, 0]
    assert story.at(63_000).records(tick()) == {"W1": "gone", "W2": "0_0 0_1 0_2 0_3 | - | - @4"}


@pytest.mark.parametrize("own_ms", [4_000, 30_000])
def test_b_03_a_members_own_timeout_counts(own_ms: int) -> None:
    """A member may say how long it needs to stop tasks, less or more than the group's setting."""
    story = owing(own_ms)
    assert beats(story, 2_000, 4_000) == {}
    story.at(4_000).take(tick())  # proves that W1 can have read it
    end_ms = 4_000 + own_ms
    assert beats(story, 6_000, end_ms) == {}
    assert story.at(end_ms - 1).records(tick()) == {}
    assert story.at(end_ms).records(tick())["W1"] == "FENCED_MEMBER_EPOCH"
    assert f"W1 did not stop 0_2, 0_3 within {own_ms} ms" in story.group.cause


def test_a_member_that_must_release_more_has_its_full_time_for_that() -> None:
    """W1 releases the two tasks it was asked for; meanwhile a config has removed the others."""
    story = owing()
    lives_alone(story, 2_000, 10_000)
    released = report("W1", story.group.roster.by_slot[0].revision, "0_0", "0_1")
    story.at(10_000).take(config(Subtopology("1", 1), rebalance_timeout_ms=REBALANCE_MS), released)
    lives_alone(story, 12_000, 20_000)
    assert "fenced" not in story.group.cause
    lives_alone(story, 20_000, 26_000)
    assert "W1 fenced" in story.group.cause


def test_a_fenced_member_is_removed_although_a_config_gives_back_what_it_owed() -> None:
    """In one batch W1 is fenced while it owes removed tasks, which come back. W1 never does."""
    story = owing()
    refused = Refused(group=GroupId("g"), member=MemberId("W1"))
    beats_of_others = [since(ms, beat("W2", 0, epoch=2)) for ms in range(2_000, 48_000, 2_000)]
    story.at(1_000).take(
        since(1_000, config(rebalance_timeout_ms=REBALANCE_MS)),
        since(1_000, report("W1", story.group.roster.by_slot[0].revision, "0_0", "0_1")),
        since(1_000, refused),
        *beats_of_others,
        since(48_000, config(FOUR, rebalance_timeout_ms=REBALANCE_MS)),
    )
    assert "W1 fenced" in story.group.cause
    lives_alone(story, 50_000, 110_000)
    assert [member.id for member in story.group.roster] == ["W2"]
    assert story.group.owned.holder.tolist() == [1, 1, 1, 1]


def test_a_coordinator_that_is_behind_fences_no_member() -> None:
    """Ten minutes of heartbeats from before the demand do not count against W1."""
    story = owing()
    assert set(beats(story, 2_000, 600_000).values()) <= {"0_0 0_1 | - | - @1 report"}
    # W1 reads the record now, long after the records that the coordinator has read, and answers.
    story.at(601_000).take(tick())
    revision = story.group.roster.by_slot[0].revision
    assert story.at(610_000).records(report("W1", revision, "0_0", "0_1")) == {
        "W2": "0_2 0_3 | - | - @2"
    }


def test_an_answer_in_a_backlog_is_in_time() -> None:
    """A batch has the release and ten more minutes of records: the member is not fenced."""
    story = owing()
    story.at(500).take(beat("W2", 0, epoch=2))  # what follows is behind the demand
    answered = since(2_000, report("W1", 2, "0_0", "0_1"))
    beats_after = [since(ms, beat("W2", 0, epoch=2)) for ms in range(6_000, 600_000, 2_000)]
    records = story.records(since(1_000, tick()), answered, *beats_after, since(600_000, tick()))
    assert "FENCED_MEMBER_EPOCH" not in records.values()


def test_ticks_with_an_older_mark_prove_nothing() -> None:
    """Ticks with an older wake-up's mark do not start the time."""
    story = owing()
    before = story.published
    assert beats(story, 2_000, 100_000, Tick(group="g", published=before)) == {}
    assert story.published.taken > before.taken
    assert story.at(100_000).records(tick()) == {}
    assert beats(story, 102_000, 110_000) == {}
    assert story.at(110_000).records(tick())["W1"] == "FENCED_MEMBER_EPOCH"


def test_ticks_with_an_older_coordinators_mark_prove_nothing() -> None:
    """A tick with an older coordinator's mark does not start the time, however high it is."""
    story = owing()
    story.epoch = 2
    story.at(200).take(
        join("W3", incarnation=3), report("W1", 2, "0_0", "0_1")
    )  # coordinator 2 decides again
    assert story.group.roster.by_slot[0].state is MemberState.STABLE
    story.at(300).take(join("W4", incarnation=4))
    assert story.group.roster.by_slot[0].state is MemberState.UNREVOKED
    digest = Holding(active=TaskSet.of(ALL[:2]), releasing=TaskSet.of(["0_1"])).digest()
    ahead = Tick(group="g", published=Mark(1, 10_000))
    for ms in range(2_000, 100_000, 2_000):
        alive = [beat("W1", digest, epoch=2), *(beat(m, 0, epoch=2) for m in ("W2", "W3", "W4"))]
        records = story.at(ms).records(*alive, ahead)
        assert "FENCED_MEMBER_EPOCH" not in records.values()


@pytest.mark.parametrize("left", [False, True])
def test_records_of_an_older_coordinator_are_replaced(left: bool) -> None:
    """A tick with an older coordinator's mark makes the group publish its records again, once."""
    story = Story()
    story.take(config(FOUR), join("W1"))
    story.epoch = 2
    story.at(100).take(join("W2"))
    if left:
        story.at(150).take(leave("W1"), leave("W2"))
    snapshot, wake = story.at(200).take(Tick(group="g", published=Mark(1, 0))).records
    assert codec.encode(snapshot) == codec.encode(story.group.snapshot())
    assert isinstance(snapshot, GroupSnapshot)
    assert (snapshot.coordinator_epoch, len([*story.group.roster])) == (2, 0 if left else 2)
    assert isinstance(wake, WakeUp)
    assert wake.published == (None if left else Mark(2, story.group.sessions.taken - 1))
    assert story.at(300).take(Tick(group="g", published=wake.published)).records == ()


def test_the_mark_covers_the_batches_before() -> None:
    """The mark covers earlier batches, not its own, and is published once per demand."""
    story = Story()
    story.take(config(FOUR), join("W1"))
    demanded = story.at(100).take(join("W2"))
    assert not [record for record in demanded.records if isinstance(record, WakeUp)]
    taken = story.group.sessions.taken
    (vouches,) = story.at(200).take(beat("W2", 0, epoch=2)).records
    assert vouches == WakeUp(group="g", at_ms=1_010_200, published=Mark(1, taken))
    assert story.at(300).take(beat("W2", 0, epoch=2)).records == ()


def test_a_fenced_member_is_not_removed_before_it_could_read() -> None:
    """A coordinator ten minutes behind fences a member, and does not remove it too early."""
    story = owing()
    story.at(200).take(report("W1", 2, *ALL))  # keeps what it should give up, which is no crime
    assert story.at(300).records(report("W2", 1, "0_0", epoch=2))["W2"] == "FENCED_MEMBER_EPOCH"
    records = beats(story, 2_000, 600_000)
    assert "gone" not in records.values()
    assert [member.id for member in story.group.roster] == ["W1", "W2"]


def test_a_lost_checkpoint_starts_the_time_again() -> None:
    """After a recovery, the time of an earlier demand starts again with the question."""
    story = owing()
    story.group, story.epoch = Group.recover(story.group.snapshot()), 2
    asked = story.at(500_000).records(tick())
    assert asked == {"W1": "0_0 0_1 | - | - @1 report", "W2": "- | - | - @2 report"}
    story.at(501_000).take(report("W1", 2, *ALL, releasing=ALL[2:]), report("W2", 1, epoch=2))
    assert story.group.roster.by_slot[0].state is MemberState.UNREVOKED
    assert "FENCED_MEMBER_EPOCH" not in beats(story, 502_000, 506_000).values()
    story.at(506_000).take(tick())
    assert "FENCED_MEMBER_EPOCH" not in beats(story, 508_000, 516_000).values()
    assert story.at(516_000).records(tick())["W1"] == "FENCED_MEMBER_EPOCH"


@pytest.mark.parametrize("returns", [False, True])
def test_a_lost_checkpoint_fences_members_that_do_not_answer(returns: bool) -> None:
    """A live member that does not answer is fenced and keeps its tasks for a session.

    The group goes on when the member has joined again without tasks, or is gone.
    """
    story = owing()
    story.at(200).take(report("W1", 2, "0_0", "0_1"))
    story.group, story.epoch = Group.recover(story.group.snapshot()), 2
    story.at(1_000).take(tick())
    story.at(2_000).take(report("W1", 2, "0_0", "0_1", epoch=2, coordinator_epoch=2))
    mute = Holding(active=TaskSet.of(["0_2", "0_3"])).digest()
    fenced_ms = None
    for ms in range(4_000, 100_000, 2_000):
        alive = beat("W1", Holding(active=TaskSet.of(ALL[:2])).digest()), beat("W2", mute, epoch=2)
        records = story.at(ms).records(*alive, tick())
        if fenced_ms is None and records.get("W2") == "FENCED_MEMBER_EPOCH":
            fenced_ms = ms
            if returns:
                story.at(ms + 100).take(leave("W2"), join("W2", incarnation=2))
        if not story.group.recovery.asked:
            break
    assert fenced_ms is not None
    assert fenced_ms >= 1_000 + REBALANCE_MS
    assert ms == fenced_ms if returns else ms >= fenced_ms + SESSION_MS
    owners = [story.group.roster.by_slot[slot].id for slot in story.group.owned.holder]
    assert owners == (["W1", "W1", "W2", "W2"] if returns else ["W1"] * 4)


@pytest.mark.parametrize(("beat_ms", "first_ms"), [(3_000, 10), (3_000, 2_999), (1_000, 500)])
def test_a_fence_comes_within_the_bound(beat_ms: int, first_ms: int) -> None:
    """The clock ticks when wake-ups ask for it, and W1 never answers.

    It is fenced after the rebalance timeout and at most a heartbeat interval and a step more, the
    bound that `groups describe` shows and docs/operations.md states.
    """
    story = Story()
    patience_ms = 15_000
    begun = story.take(
        config(FOUR, rebalance_timeout_ms=patience_ms, heartbeat_interval_ms=beat_ms), join("W1")
    )
    wake = next(record for record in begun.records if isinstance(record, WakeUp))
    sent = {"W1": first_ms, "W2": beat_ms}
    story.at(0).take(join("W2"))
    now_ms = 0
    while "W1 fenced" not in story.group.cause:
        next_ms = min(sent.values())
        if wake.at_ms is not None and wake.at_ms - 1_000_000 <= next_ms:
            now_ms, event = max(now_ms, wake.at_ms - 1_000_000), tick()
        else:
            now_ms, member = next_ms, min(sent, key=sent.__getitem__)
            sent[member] += beat_ms
            event = beat(member, 0, epoch=1 if member == "W1" else 2)
        step = story.at(now_ms).take(event)
        wake = next((r for r in step.records if isinstance(r, WakeUp)), wake)
        assert now_ms <= patience_ms + beat_ms + step_of(story.group.settings)
    assert now_ms >= patience_ms
