"""A plug-in's outcome is stored before it is published, so two attempts never differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from support.state.story import Story, config, join, leave, report, snapshot, tick

from muster.assignor.errors import AssignorError
from muster.assignor.model import GroupView, Pairs, Placement, no_pairs
from muster.assignor.registry import get
from muster.protocol import codec
from muster.protocol.records import GroupSnapshot, MemberAssignment, Rejected
from muster.protocol.tasks import Subtopology
from muster.state.group import Group

FOUR = Subtopology("0", 4)


class Moody:
    """Fails every second time; else places as "sticky" and remembers how often."""

    name = "moody"

    def __init__(self) -> None:
        self.calls = 0

    def assign(self, view: GroupView) -> Placement:
        """Asked again, it says something else."""
        self.calls += 1
        if self.calls % 2 == 0:
            raise AssignorError("not in the mood")
        return get("sticky").assign(view)


def moody(calls: int = 0) -> tuple[Story, Moody]:
    """W1 has four tasks; the group gets the plug-in when W2 joins."""
    plugin = Moody()
    plugin.calls = calls
    story = Story(lookup=lambda name: plugin if name == "x:Moody" else get(name))
    story.take(config(FOUR), join("W1"))
    return story, plugin


@pytest.mark.parametrize("calls", [0, 1], ids=["an answer is kept", "a failure is kept"])
def test_the_first_attempt_that_is_stored_counts(calls: int) -> None:
    """A batch run twice publishes the same bytes, and so does the next from either store."""
    written = []
    for more in (0, 1):
        story, plugin = moody(calls + more)
        asked = story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
        assert plugin.calls == calls + more + 1
        written.append([codec.encode(record) for record in asked.records])
        assert not [
            r for r in asked.records if isinstance(r, MemberAssignment) and r.member == "W1"
        ]
        records, offset = [], story.offset
        for _ in range(2):
            story.offset = offset
            story.group = Group.restore(snapshot(asked), asked.group.liveness())
            taken = story.at(101).take(tick())
            records.append([codec.encode(record) for record in taken.records])
        assert records[0] == records[1]
        assert plugin.calls == calls + more + 1
        failed = (calls + more) % 2 == 1
        letters = [r for r in taken.records if isinstance(r, Rejected)]
        assert [r.reason for r in letters] == ["ASSIGNOR_FAILED"] * failed
        assert story.group.target.active.tolist() == ([0] * 4 if failed else [0, 0, 1, 1])
    assert written[0] == written[1]


def test_a_deferred_answer_is_applied_before_the_events() -> None:
    """W2 leaves in the batch that applies the answer: W1 never gave its tasks up."""
    story, plugin = moody()
    story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
    plugin.calls = 2
    story.at(101).take(leave("W2"))
    assert (story.group.generation, story.group.target.generation) == (3, 2)
    assert story.at(102).records(tick()) == {}
    assert (story.group.target.generation, story.group.target.active.tolist()) == (3, [0, 0, 0, 0])
    assert (story.group.target.moves, plugin.calls) == ((), 3)


def test_a_lost_answer_is_asked_for_again() -> None:
    """The answer is lost with the checkpoint; the plug-in is asked after all reports."""
    story, plugin = moody(1)
    asked = story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
    story.group = Group.recover(snapshot(asked))
    assert (story.group.target.deferred, story.group.state.value) == (None, "Assigning")
    assert plugin.calls == 2


def test_an_answered_generation_is_published_even_if_the_next_begins() -> None:
    """W3 joins in the batch that applies the answer: both generations are published.

    If the job dies between the two records, the group recovers from the first alone.
    """
    story, plugin = moody()
    story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
    plugin.calls = 2
    step = story.at(101).take(join("W3"))
    first, second = (r for r in step.records if isinstance(r, GroupSnapshot))
    moved = {move.task for move in first.moves}
    assert (first.generation, first.target_generation, len(moved)) == (2, 2, 2)
    assert "W2 joined" in first.cause
    assert (second.generation, second.target_generation, second.moves) == (3, 2, ())
    assert second.cause == "W3 joined"
    assert [m.id for m in first.members] == ["W1", "W2"]
    recovered = Group.recover(first)
    assert recovered.target.active.tolist() == story.group.target.active.tolist()


@dataclass
class Asking:
    """Places as "sticky" and asks this many times to be asked again at once."""

    wishes: int
    name: str = "asking"
    asked: list[list[int]] = field(default_factory=list)

    def assign(self, view: GroupView) -> Placement:
        """It remembers the owners that it saw."""
        self.asked.append(view.active.tolist())
        self.wishes -= 1
        answer = get("sticky").assign(view)
        return replace(answer, followup_ms=0 if self.wishes >= 0 else None)


def test_a_follow_up_waits_until_the_answer_has_been_carried_out() -> None:
    """EX-S1-10: with a deadline that has passed it is asked again after all members have acted."""
    plugin = Asking(wishes=0)
    story = Story(lookup=lambda name: plugin)
    story.take(config(FOUR, assignor="x:Asking"), join("W1"))
    story.at(1).take(tick())
    plugin.wishes = 1
    story.at(100).take(join("W2"))
    assert story.at(101).records(tick()) == {"W1": "0_0 0_1 | - | - @1"}
    for ms in (102, 103):
        story.at(ms).take(tick())
    assert len(plugin.asked) == 2
    step = story.at(200).take(report("W1", 3, "0_0", "0_1"))
    assert (step.wake_at_ms, len(plugin.asked)) == (story.now_ms, 2)
    for ms in (201, 202, 203):
        story.at(ms).take(tick())
    assert (story.group.cause, len(plugin.asked)) == ("follow-up", 3)
    assert plugin.asked[-1] == [0, 0, 1, 1]
    assert story.group.timers.followup_ms is None


@dataclass
class Warming:
    """The first member runs the task until the second has a learner of it that has caught up."""

    warms: bool = False
    names_next: bool = False
    name: str = "warming"

    def assign(self, view: GroupView) -> Placement:
        """At first the second member's copy is a standby; it may be named as the next owner."""
        if len(view.members) == 1:
            return get("sticky").assign(view)
        first, second = (np.full(1, member, dtype=np.int32) for member in range(2))
        copy = Pairs(np.zeros(1, dtype=np.int32), second)
        active = second if len(view.ready) or view.active[0] == 1 else first
        answer = Placement(
            active=active, destination=active, standby=no_pairs(), learner=no_pairs()
        )
        if active is second:
            return answer
        if not self.warms:
            return replace(answer, standby=copy)
        return replace(answer, learner=copy, destination=second if self.names_next else first)


@pytest.mark.parametrize("names_next", [False, True], ids=["a learner alone", "the next owner"])
def test_a_copy_that_catches_up_when_the_answer_is_applied_takes_over(names_next: bool) -> None:
    """W2 reports its standby as ready before it knows that the answer has made it a learner."""
    plugin = Warming(names_next=names_next)
    story = Story(lookup=lambda name: plugin)
    one = Subtopology("0", 1, stateful=True)
    story.take(config(one, assignor="x:Warming"), join("W1"), join("W2"))
    assert story.at(1).records(tick())["W2"] == "- | 0_0 | - @1"
    plugin.warms = True
    story.at(100).take(join("W3"))
    ready = report("W2", story.group.roster.member(1).revision, standby=["0_0"], ready=["0_0"])
    story.at(101).take(ready)
    assert story.group.cause == "standby of 0_0 on W2 ready"
    for ms in (102, 103):
        story.at(ms).take(tick())
    assert (story.group.generation, story.group.target.active.tolist()) == (3, [1])


def test_a_cause_has_all_that_happened_and_the_newest_failure() -> None:
    """Causes that come after a failure stay; the failure ends with the placement that works."""
    story, plugin = moody(1)
    story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
    story.at(101).take(tick())
    plugin.calls = 1
    story.at(200).take(join("W3"), config(FOUR, assignor="x:Moody", num_standby_replicas=1))
    story.at(201).take(tick())
    happened = (
        "assignor sticky → x:Moody; W2 joined; config changed: num.standby.replicas; W3 joined"
    )
    failed = "assignor x:Moody failed, the target stays: not in the mood"
    assert story.group.cause == f"{happened}; {failed}"
    story.at(300).take(leave("W3"))
    story.at(301).take(tick())
    assert story.group.cause == f"{happened}; W3 left"
    assert story.group.target.generation == story.group.generation
