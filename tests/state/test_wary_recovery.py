"""What another coordinator, or a client in a member's name, may have done: asked before acting."""

from __future__ import annotations

from support.story import Story, beat, config, join, report, tick

from muster.protocol.events import Mark, Refused, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.tasks import Subtopology
from muster.state.group import Group

FOUR = Subtopology("0", 4)
SESSION_MS, BEAT_MS = 45_000, 5_000


def wary() -> Story:
    """A group that is not stored, met by coordinator 2 just after a checkpoint was lost."""
    return Story(group=Group.new(GroupId("g"), wary=True), epoch=2)


def test_who_joins_an_unknown_group_is_asked_first() -> None:
    """The coordinator before had let W1 in and given it all: W2 gets its part when W1 lets go.

    Granting by the log alone would have made two owners. Its generation is none that the
    coordinator before may have used.
    """
    story = wary()
    told = story.told(config(FOUR), join("W1"), join("W2"))
    assert told == {"W1": "- | - | - @0 report", "W2": "- | - | - @0 report"}
    everything = ("0_0", "0_1", "0_2", "0_3")
    assert story.at(100).told(report("W2", 1, epoch=0, coordinator_epoch=2)) == {}
    told = story.at(200).told(report("W1", 1, *everything, coordinator_epoch=2))
    assert told == {"W1": "0_0 0_1 | - | - @1"}
    assert story.group.generation == 2
    assert story.group.holder.tolist() == [0, 0, 0, 0]
    told = story.at(300).told(report("W1", 2, "0_0", "0_1"))
    assert told["W2"] == "0_2 0_3 | - | - @2"


def test_an_answer_names_the_one_who_asked() -> None:
    """A report from before the question, read again, is none."""
    story = wary()
    story.take(config(FOUR), join("W1"))
    assert story.at(100).told(report("W1", 1, "0_0", coordinator_epoch=1)) == {}
    assert story.group.recovering == frozenset({0})
    told = story.at(200).told(report("W1", 1, "0_0", coordinator_epoch=2))
    assert told == {"W1": "0_0 0_1 0_2 0_3 | - | - @2"}


def test_it_ends_when_no_other_coordinator_can_be_at_work() -> None:
    """Two heartbeat intervals after a tick that repeats its own word, no member is asked."""
    story = wary()
    story.take(config(FOUR))
    story.at(1_000).take(Tick(group=GroupId("g"), published=Mark(1, 10_000)))  # another's
    assert story.at(30_000).told(join("W1"))["W1"].endswith("report")
    story.at(30_100).take(report("W1", 1, epoch=0), tick())
    last_ms = 30_100 + 2 * BEAT_MS
    assert story.at(last_ms - 1).told(join("W2"))["W2"].endswith("report")
    story.at(last_ms - 1).take(report("W2", 1, epoch=0))
    assert story.at(last_ms).told(join("W3"))["W3"] == "- | - | - @4"
    assert story.group.recovering == frozenset()


def refused() -> Story:
    """W1 and W2 have two tasks each; an event in the name of W1 is refused."""
    story = Story()
    story.take(config(FOUR), join("W1"), join("W2"))
    story.at(100).take(Refused(group=GroupId("g"), member=MemberId("W1")))
    return story


def live(story: Story, first_ms: int, end_ms: int) -> dict[str, str]:
    """W2 is alive, a tick comes with each of its heartbeats; what was said last to whom."""
    told = {}
    digest = int(story.group.soft.digest[1])
    for ms in range(first_ms, end_ms, BEAT_MS):
        told |= story.at(ms).told(beat("W2", digest), tick())
    return told


def test_a_member_with_a_refused_event_is_told_before_it_is_given_up() -> None:
    """Kafka has taken its event, so it may count on a session the group does not know of."""
    story = refused()
    assert live(story, BEAT_MS, SESSION_MS) == {}
    told = live(story, SESSION_MS, 2 * SESSION_MS)
    assert told == {"W1": "FENCED_MEMBER_EPOCH"}
    assert story.group.holder.tolist() == [0, 1, 0, 1]
    told = live(story, 2 * SESSION_MS, 2 * SESSION_MS + 3 * BEAT_MS)
    assert told["W1"] == "gone"
    assert story.group.holder.tolist() == [1, 1, 1, 1]


def test_an_accepted_heartbeat_makes_up_for_a_refused_event() -> None:
    """It is the newest word that counts: W1 expires like anybody a session after it."""
    story = refused()
    story.at(200).take(beat("W1", int(story.group.soft.digest[0])))
    told = live(story, BEAT_MS, SESSION_MS + 2 * BEAT_MS)
    assert told["W1"] == "gone"
