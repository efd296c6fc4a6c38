"""What a plug-in answers is stored before anybody hears of it: two attempts never differ."""

from __future__ import annotations

import pytest
from support.story import Story, config, join, leave, snapshot, tick

from muster.assignor.errors import AssignorError
from muster.assignor.model import GroupView, Placement
from muster.assignor.registry import get
from muster.protocol import codec
from muster.protocol.records import MemberAssignment, Rejected
from muster.protocol.tasks import Subtopology
from muster.state.group import Group

FOUR = Subtopology("0", 4)


class Moody:
    """Fails every second time; else it places as "sticky" does, and remembers how often."""

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
    """W1 has four tasks; its group changes to the plug-in when W2 joins."""
    plugin = Moody()
    plugin.calls = calls
    story = Story(lookup=lambda name: plugin if name == "x:Moody" else get(name))
    story.take(config(FOUR), join("W1"))
    return story, plugin


@pytest.mark.parametrize("calls", [0, 1], ids=["an answer is kept", "a failure is kept"])
def test_the_first_attempt_that_is_stored_counts(calls: int) -> None:
    """The same batch twice publishes the same bytes; so does the next, from what either stored."""
    said = []
    for more in (0, 1):
        story, plugin = moody(calls + more)
        asked = story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
        assert plugin.calls == calls + more + 1
        said.append([codec.encode(record) for record in asked.records])
        assert not [
            r for r in asked.records if isinstance(r, MemberAssignment) and r.member == "W1"
        ]
        told, offset = [], story.offset
        for _ in range(2):
            story.offset = offset
            story.group = Group.restore(snapshot(asked), asked.group.liveness())
            taken = story.at(101).take(tick())
            told.append([codec.encode(record) for record in taken.records])
        assert told[0] == told[1]
        assert plugin.calls == calls + more + 1
        failed = (calls + more) % 2 == 1
        letters = [r for r in taken.records if isinstance(r, Rejected)]
        assert [r.reason for r in letters] == ["ASSIGNOR_FAILED"] * failed
        assert story.group.target.tolist() == ([0] * 4 if failed else [0, 0, 1, 1])
    assert said[0] == said[1]


def test_it_is_taken_before_what_happens_next() -> None:
    """W2 leaves in the very batch that takes the answer: what it was to have, W1 never gave up."""
    story, plugin = moody()
    story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
    plugin.calls = 2
    story.at(101).take(leave("W2"))
    assert (story.group.generation, story.group.target_generation) == (3, 2)
    assert story.at(102).told(tick()) == {}
    assert (story.group.target_generation, story.group.target.tolist()) == (3, [0, 0, 0, 0])
    assert (story.group.moves, plugin.calls) == ((), 3)


def test_a_lost_answer_is_asked_for_again() -> None:
    """With the checkpoint goes the answer; the plug-in is asked when all members have reported."""
    story, plugin = moody(1)
    asked = story.at(100).take(config(FOUR, assignor="x:Moody"), join("W2"))
    story.group = Group.recover(snapshot(asked))
    assert (story.group.kept, story.group.state.value) == (None, "Assigning")
    assert plugin.calls == 2
