"""A member that goes on joining and reads nothing is given no tasks, until it shows that it reads.

Heartbeats of a member that has all of its tasks come from W2; W1 repeats its join every 4 s.
"""

from __future__ import annotations

from support.state.story import Story, beat, config, join, leave, report, tick

from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import Subtopology
from muster.state.machine import Step

FOUR = Subtopology("0", 4)
SESSION_MS, REBALANCE_MS = 45_000, 60_000


def joining(until_ms: int, *, heard_ms: int | None = None) -> tuple[Story, dict[int, dict]]:
    """W1 and W2 share four tasks; the records of each time at which one was written.

    Args:
        until_ms: W1 repeats its join until then, unless it is heard.
        heard_ms: from this time on W1 sends heartbeats.
    """
    story = Story()
    config_ = config(FOUR, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS)
    story.take(config_, join("W1"), join("W2"))
    assert story.group.owned.holder.tolist() == [0, 1, 0, 1]
    records = {}
    for ms in range(4_000, until_ms, 4_000):
        sign = join("W1") if heard_ms is None or ms < heard_ms else beat("W1", 0)
        lines = story.at(ms).records(
            sign, beat("W2", 0, epoch=story.group.target.generation), tick()
        )
        if lines:
            records[ms] = lines
    return story, records


def assignments(step: Step) -> list[MemberAssignment]:
    """The records to members that a step published."""
    return [record for record in step.records if isinstance(record, MemberAssignment)]


def test_a_deaf_member_loses_its_share() -> None:
    """It is fenced a rebalance timeout after the proof, and its tasks are free a session later."""
    story, records = joining(200_000)
    fenced = [ms for ms, lines in records.items() if lines.get("W1") == "FENCED_MEMBER_EPOCH"]
    granted = [ms for ms, lines in records.items() if "0_0 0_1 0_2 0_3" in lines.get("W2", "")]
    proved_ms = 12_000  # the tick whose mark is behind the first repeated join
    assert fenced[0] == proved_ms + REBALANCE_MS
    assert fenced[0] + SESSION_MS <= granted[0] <= fenced[0] + SESSION_MS + 12_000
    assert story.group.owned.holder.tolist() == [1, 1, 1, 1]
    assert "W1" in story.group.roster.by_id  # it stays a member, and is answered with nothing
    assert records[max(records)]["W1"].startswith("- | - | -")
    assert "W1 goes on joining and reads no answer; W1 fenced" in story.group.cause


def test_a_deaf_member_that_reads_again_has_its_share_again() -> None:
    """Its heartbeat, or its leave and the join behind it, brings it back."""
    story, _ = joining(200_000)
    assert "0_" in story.at(200_000).records(beat("W1", 0, epoch=0))["W2"]
    assert story.group.cause == "W1 returned"
    assert sorted(story.group.target.active.tolist()) == [0, 0, 1, 1]
    story, _ = joining(200_000)
    story.at(200_000).take(leave("W1", temporary=True), join("W1", 2))
    assert story.group.cause == "W1 joined; W1 left"
    assert story.group.target.active.tolist().count(story.group.roster.by_id["W1"]) == 2


def test_a_fenced_deaf_members_joins_free_nothing() -> None:
    """A join may be older than the answer that its sender has read since, and then runs tasks."""
    story, _ = joining(76_000)
    assert story.group.cause.endswith("W1 fenced")
    story.at(77_000).take(join("W1"))
    assert story.group.owned.holder.tolist() == [0, 1, 0, 1]


def test_a_member_that_reads_late_keeps_its_share() -> None:
    """It repeats its join for 60 s while answers are on their way, then reads and heartbeats."""
    story, records = joining(400_000, heard_ms=64_000)
    assert story.group.owned.holder.tolist() == [0, 1, 0, 1]
    assert story.group.generation == 1
    assert {lines.get("W1") for ms, lines in records.items() if ms < 64_000} == {
        "0_0 0_2 | - | - @1"
    }


def test_a_repeated_join_is_answered_without_a_new_record_of_the_group() -> None:
    """W1 shows no sign of reading: it gets the same record again, and nothing else is published."""
    story = Story()
    story.take(config(FOUR), join("W1"), join("W2"))
    answers = []
    for ms in range(4_000, 20_000, 4_000):
        step = story.at(ms).take(join("W1"))
        answers += [(r.revision, len(r.active)) for r in assignments(step)]
        assert step.changed == (ms == 4_000)  # it may have read the answer to its first join
    assert answers == [(2, 2)] * 4
    story.at(20_000).take(beat("W1", 0))  # it reads, so an answer must be newer than what it read
    again = assignments(story.at(21_000).take(join("W1")))
    assert [(r.revision, len(r.active)) for r in again] == [(3, 2)]
    gets_less = assignments(story.at(22_000).take(join("W3"), join("W1")))
    assert next(r for r in gets_less if r.member == "W1").revision == 4  # something has changed


def test_a_coordinator_that_was_away_takes_no_member_for_deaf() -> None:
    """It reads an hour of joins in one batch; their time begins behind its first answer."""
    story = Story()
    story.take(config(FOUR))
    story.at(3_600_000).take(*(join("W1") for _ in range(900)))
    revision = story.group.roster.by_slot[0].revision
    for ms in range(3_604_000, 3_640_000, 4_000):
        story.at(ms).take(join("W1"), tick())
    story.at(3_640_000).take(report("W1", revision, "0_0", "0_1", "0_2", "0_3"))
    for ms in range(3_644_000, 3_800_000, 4_000):
        story.at(ms).take(beat("W1", 0), tick())
    assert story.group.owned.holder.tolist() == [0, 0, 0, 0]
    assert story.group.generation == 1


def test_a_release_that_a_deaf_member_owes_does_not_begin_its_time_again() -> None:
    """W3 is to get a task of W1: each join of W1 withdraws the release, which is asked again."""
    story, _ = joining(30_000)
    story.at(30_000).take(join("W3"))
    for ms in range(34_000, 76_000, 4_000):
        story.at(ms).take(
            join("W1"), beat("W2", 0), beat("W3", 0, epoch=story.group.target.generation), tick()
        )
    assert story.group.cause.endswith("W1 fenced")


def test_a_deaf_member_that_falls_silent_expires() -> None:
    """Its tasks left the table before it was taken for deaf: it is asked for them no more."""
    story = Story()
    values = {"session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": 20_000}
    story.take(config(FOUR, **values), join("W1"), join("W2"))
    for ms in range(4_000, 400_000, 4_000):
        events = [join("W1")] if ms < 60_000 else []
        events += [config(Subtopology("1", 2), **values)] if ms == 12_000 else []
        story.at(ms).take(*events, tick())
    assert "W1" not in story.group.roster.by_id
