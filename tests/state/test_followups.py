"""E-07: a follow-up that an assignor asked for survives a restart of the coordinator."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from support.state.story import Story, config, join, report, tick

from muster.assignor.model import GroupView, Placement
from muster.assignor.registry import get
from muster.protocol.codec import decode_record, encode
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.state.group import Group

ASKED_MS = 600_000


@dataclass
class Wishing:
    """Places as `sticky` and asks for one follow-up."""

    name: str = "wishing"
    placed: int = 0

    def assign(self, view: GroupView) -> Placement:
        """The first answer asks for a follow-up."""
        self.placed += 1
        wish = ASKED_MS if self.placed == 1 else None
        return replace(get("sticky").assign(view), followup_ms=wish)


@pytest.mark.parametrize("lost", [False, True], ids=["restart", "lost_checkpoint"])
def test_a_follow_up_outlives_a_restart(lost: bool) -> None:
    """Recovered from the published record, the group is placed again at the time asked for."""
    wishing = Wishing()
    story = Story(lookup=lambda name: wishing)
    long = {"session_timeout_ms": 1_800_000, "heartbeat_interval_ms": 600_000}
    story.take(config(Subtopology("0", 2), **long), join("W1"))
    value = encode(story.group.snapshot()).value
    record = decode_record(TopicKind.GROUPS, b"g", value)
    assert isinstance(record, GroupSnapshot)
    if lost:
        story.group, story.epoch = Group.recover(record), 2
        story.at(1_000).take(tick())
        story.take(report("W1", 1, "0_0", "0_1", coordinator_epoch=2))
    else:
        story.group = Group.restore(record, story.group.liveness())
    story.at(ASKED_MS - 1).take(tick())
    assert wishing.placed == 1
    story.at(ASKED_MS).take(tick())
    assert (wishing.placed, story.group.timers.followup_ms) == (2, None)
    story.at(2 * ASKED_MS).take(tick())
    assert wishing.placed == 2
