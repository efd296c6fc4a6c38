"""Follow-ups of assignors (E-07, S1-10..14): through restarts, and after other generations.

Also: what a change of assignor moves in a working group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.state.story import Story, beat, config, join, leave, report, since, tick

from muster.assignor.model import GroupView, Placement
from muster.assignor.registry import get
from muster.protocol.ids import Role
from muster.protocol.records import MemberAssignment
from muster.protocol.tasks import Subtopology
from muster.simulation.jobs import read_back
from muster.state import heartbeats
from muster.state.draft import Draft
from muster.state.group import Group
from muster.state.ownership import task_of

FOUR = Subtopology("0", 4, stateful=True)
STREAMS = ("sticky", "learner", "high-availability")


@dataclass
class Wishes:
    """Places as `sticky` and asks for the follow-ups of a list, one per call."""

    wishes: list[int | None]
    name: str = "sticky"

    def assign(self, view: GroupView) -> Placement:
        """As sticky, with the next follow-up of the list."""
        wish = self.wishes.pop(0) if self.wishes else None
        return replace(get("sticky").assign(view), followup_ms=wish)


def wishing(*wishes: int | None) -> Story:
    """A group of one member whose assignor asks for these follow-ups."""
    assignor = Wishes(list(wishes))
    story = Story(lookup=lambda name: assignor)
    story.take(config(FOUR), join("W1"))
    return story


@pytest.mark.parametrize("kept", ["a checkpoint", "the published record alone"])
def test_a_follow_up_survives_a_restart(kept: str) -> None:
    """The published record has it; the next coordinator wakes at that time, and then only."""
    story = wishing(60_000, None)
    record = read_back(story.group.snapshot())
    assert record.followup_ms == story.now_ms + 60_000
    if kept == "a checkpoint":
        story.group = Group.restore(record, story.group.liveness())
    else:
        story.group = Group.recover(record)
    story.epoch = 2
    actives = [str(story.group.table.task(t)) for t in range(4)]
    story.at(1_000).take(report("W1", 1, *actives, coordinator_epoch=2))
    generation = story.group.generation
    for ms in range(9_000, 59_000, 10_000):
        story.at(ms).take(report("W1", 1, *actives, coordinator_epoch=2))
    step = story.at(59_999).take(tick())
    assert (story.group.generation, step.wake_at_ms) == (generation, 1_060_000)
    story.at(60_000).take(tick())
    assert (story.group.generation, story.group.timers.followup_ms) == (generation, None)


def test_an_earlier_generation_drops_a_follow_up() -> None:
    """Only the newest answer's follow-up counts."""
    story = wishing(60_000, None)
    story.at(10_000).take(join("W2"))
    assert story.group.timers.followup_ms is None
    generation = story.group.generation
    for ms in range(18_000, 70_000, 8_000):
        story.at(ms).take(report("W1", 2, "0_0", "0_1"), report("W2", 1, epoch=2))
    assert story.group.generation == generation


def test_a_follow_up_waits_until_the_generation_is_carried_out() -> None:
    """S1-F06: if it is due while a release is owed, it runs after the release."""
    story = wishing(None, 1_000, None)
    story.at(100).take(join("W2"))
    generation = story.group.generation
    assert story.at(2_000).take(tick()) is not None
    assert story.group.timers.followup_ms == 1_001_100
    story.at(3_000).take(report("W1", 2, "0_0", "0_1"))
    story.at(3_001).take(tick())
    assert (story.group.generation, story.group.timers.followup_ms) == (generation, None)


def test_heartbeats_behind_a_due_follow_up_are_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of heartbeats is absorbed at once, although the follow-up's time is within it."""
    runs: list[int] = []

    def counted(draft: Draft, slots: NDArray[np.intp], *more: Any) -> None:
        runs.append(len(slots))
        beat_slots(draft, slots, *more)

    beat_slots = heartbeats.beat
    monkeypatch.setattr(heartbeats, "beat", counted)
    story = wishing(60_000, None)
    story.at(59_000).take(beat("W1", int(story.group.sessions.digest[0])))
    times = range(59_100, 62_000, 100)
    digest = int(story.group.sessions.digest[0])
    story.take(*(since(ms, beat("W1", digest)) for ms in times))
    assert runs == [1, len(times)]
    assert story.group.timers.followup_ms is None  # the assignor was asked, and wants no other


def test_a_group_without_members_has_no_follow_up() -> None:
    """Without members there is nothing to place."""
    story = wishing(60_000)
    story.at(1_000).take(leave("W1"))
    assert story.group.timers.followup_ms is None
    assert story.at(60_000).take(tick()).wake_at_ms is None


@pytest.mark.parametrize(("before", "after"), list(permutations(STREAMS, 2)))
def test_another_assignor_moves_only_what_it_must(before: str, after: str) -> None:
    """A balanced group keeps its tasks; a growing one moves only the new member's share."""
    story = Story()
    story.take(config(FOUR, assignor=before), join("W1"), join("W2"))
    held = story.group.owned.holder.tolist()
    assert sorted(held) == [0, 0, 1, 1]
    assert story.at(100).records(config(FOUR, assignor=after)) == {}
    assert story.group.assignor == after
    assert (story.group.target.active.tolist(), story.group.owned.holder.tolist()) == (
        held,
        held,
    )
    story.at(200).take(config(FOUR, assignor=before), join("W3"))
    destinations = story.group.target.destination.tolist()
    assert sum(a != b for a, b in zip(held, destinations, strict=True)) == 1
    assert destinations.count(2) == 1


def test_a_copy_whose_last_word_was_refused_takes_over_after_a_follow_up() -> None:
    """The follow-up asks for the report again, because a member does not repeat it by itself.

    W2 has said that its copies are ready in a batch that had no room for it. Its heartbeats agree,
    so nothing else would tell.
    """
    story = Story()
    settings = {"assignor": "high-availability", "probing_rebalance_interval_ms": 60_000}
    story.take(config(FOUR, **settings), join("W1"))
    story.at(100).take(report("W1", 1, "0_0", "0_1", "0_2", "0_3"), join("W2"))
    learners = story.group.owned.copies[Role.LEARNER].kept
    copies = [str(story.group.table.task(task)) for task in task_of(learners)]
    assert copies
    asked: list[MemberAssignment] = []
    after_ms = 100
    while not asked:
        after_ms += 5_000
        assert after_ms < 70_000, "the follow-up has not asked"
        members = list(story.group.roster)
        digests = story.group.sessions.digest[[member.slot for member in members]].tolist()
        pairs = zip(members, digests, strict=True)
        beats = [beat(member.id, digest, member.epoch) for member, digest in pairs]
        records = story.at(after_ms).take(tick(), *beats).records
        asked = [record for record in records if isinstance(record, MemberAssignment)]
    assert [(record.member, record.report) for record in asked] == [("W2", True)]
    answer = {"learner": copies, "ready": copies, "epoch": asked[0].epoch}
    story.at(after_ms + 100).take(report("W2", asked[0].revision, **answer))
    assert len(story.group.owned.copies[Role.LEARNER].wanted) == 0
