"""Unverified groups and refused events: the group asks members, and waits, before it acts."""

from __future__ import annotations

from support.state.story import Story, beat, config, join, report, tick

from muster.protocol.events import Mark, Refused, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupState
from muster.protocol.tasks import Subtopology
from muster.state.group import Group
from muster.state.lost_checkpoint import WAITS

FOUR = Subtopology("0", 4)
SESSION_MS, BEAT_MS = 45_000, 5_000
VERIFIED_MS = 15_000
"""After the unverified time of these stories."""


def unverified() -> Story:
    """An unverified group, first met by coordinator 2 after a checkpoint was lost."""
    return Story(group=Group.new(GroupId("g"), unverified=True), epoch=2)


def test_a_member_that_joins_an_unknown_group_is_asked_first() -> None:
    """An earlier coordinator granted all tasks to W1; W2 gets its share when W1 releases it.

    Without the question both would own tasks. The generation is none that the earlier coordinator
    may have used: one for its lost batch, and one for each of six events.
    """
    story = unverified()
    records = story.records(config(FOUR), join("W1"), join("W2"))
    assert records == {"W1": "- | - | - @0 report", "W2": "- | - | - @0 report"}
    everything = ("0_0", "0_1", "0_2", "0_3")
    assert story.at(100).records(report("W2", 1, epoch=0, coordinator_epoch=2)) == {}
    assert story.at(200).records(report("W1", 1, *everything, coordinator_epoch=2)) == {}
    records = story.at(VERIFIED_MS).records(tick())
    assert records == {"W1": "0_0 0_1 | - | - @1"}
    assert story.group.generation == 8
    assert story.group.owned.holder.tolist() == [0, 0, 0, 0]
    records = story.at(VERIFIED_MS + 100).records(report("W1", 2, "0_0", "0_1"))
    assert records["W2"] == "0_2 0_3 | - | - @8"


def test_a_free_task_waits_until_an_earlier_coordinator_must_have_stopped() -> None:
    """W2 joined, and the earlier coordinator gave it all tasks before the new one read the join.

    W1 has answered that it holds nothing, and all tasks look free; the cause says what they wait
    for, and the wake-up asks for a tick when the wait ends.
    """
    story = unverified()
    story.take(config(FOUR), join("W1"))
    step = story.at(100).take(report("W1", 0, epoch=0, coordinator_epoch=2))
    assert story.group.state is GroupState.ASSIGNING
    assert story.group.cause.endswith(WAITS)
    assert step.wake_at_ms == story.now_ms + 2 * BEAT_MS
    assert story.at(200).records(join("W2")) == {"W2": "- | - | - @0 report"}
    everything = ("0_0", "0_1", "0_2", "0_3")
    assert story.at(VERIFIED_MS).records(tick()) == {}  # W2 has not answered
    records = story.at(VERIFIED_MS + 1).records(report("W2", 1, *everything, coordinator_epoch=2))
    assert records == {"W2": "0_0 0_1 | - | - @1"}
    assert WAITS not in story.group.cause


def test_an_older_report_is_not_an_answer() -> None:
    """A report from before the question, read again, is not an answer."""
    story = unverified()
    story.take(config(FOUR), join("W1"))
    assert story.at(100).records(report("W1", 1, "0_0", coordinator_epoch=1)) == {}
    assert story.group.recovery.asked == frozenset({0})
    story.at(200).take(report("W1", 1, "0_0", coordinator_epoch=2))
    assert story.group.recovery.asked == frozenset()
    records = story.at(VERIFIED_MS).records(tick())
    assert records == {"W1": "0_0 0_1 0_2 0_3 | - | - @7"}


def test_a_group_is_verified_two_intervals_after_a_tick_with_its_own_mark() -> None:
    """Two heartbeat intervals after a tick with its own mark, the group asks no member."""
    story = unverified()
    story.take(config(FOUR))
    story.at(1_000).take(Tick(group=GroupId("g"), published=Mark(1, 10_000)))  # another's
    assert story.at(30_000).records(join("W1"))["W1"].endswith("report")
    story.at(30_100).take(report("W1", 1, epoch=0), tick())
    last_ms = 30_100 + 2 * BEAT_MS
    assert story.at(last_ms - 1).records(join("W2"))["W2"].endswith("report")
    story.at(last_ms - 1).take(report("W2", 1, epoch=0))
    assert not story.at(last_ms).records(join("W3"))["W3"].endswith("report")
    assert story.group.recovery.asked == frozenset()
    assert story.group.state is GroupState.STABLE


def refused() -> Story:
    """W1 and W2 have two tasks each; an event in the name of W1 is refused."""
    story = Story()
    story.take(config(FOUR), join("W1"), join("W2"))
    story.at(100).take(Refused(group=GroupId("g"), member=MemberId("W1")))
    return story


def live(story: Story, first_ms: int, end_ms: int) -> dict[str, str]:
    """W2 sends heartbeats, each with a tick; the last record of each member."""
    records = {}
    digest = int(story.group.sessions.digest[1])
    for ms in range(first_ms, end_ms, BEAT_MS):
        records |= story.at(ms).records(beat("W2", digest), tick())
    return records


def test_a_member_with_a_refused_event_is_fenced_before_it_expires() -> None:
    """It is fenced first, because it may count on a session that the group does not know of."""
    story = refused()
    assert live(story, BEAT_MS, SESSION_MS) == {}
    records = live(story, SESSION_MS, 2 * SESSION_MS)
    assert records == {"W1": "FENCED_MEMBER_EPOCH"}
    assert story.group.owned.holder.tolist() == [0, 1, 0, 1]
    records = live(story, 2 * SESSION_MS, 2 * SESSION_MS + 3 * BEAT_MS)
    assert records["W1"] == "gone"
    assert story.group.owned.holder.tolist() == [1, 1, 1, 1]


def test_an_accepted_heartbeat_makes_up_for_a_refused_event() -> None:
    """The newest event counts: W1 expires a session after its heartbeat."""
    story = refused()
    story.at(200).take(beat("W1", int(story.group.sessions.digest[0])))
    records = live(story, BEAT_MS, SESSION_MS + 2 * BEAT_MS)
    assert records["W1"] == "gone"
