"""A rolling restart without standbys: who is back with its state runs its tasks at once.

And what is told of tasks that wait for a copy.
"""

from __future__ import annotations

import pytest
from support import story as stories
from support.story import GROUP, Story, join, leave, report, tick

from muster.protocol.events import Drain, GroupConfig, Lag, LagReport
from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.tasks import Subtopology
from muster.state.waits import waits_of

FOUR = Subtopology("0", 4, stateful=True)


def config(**values: object) -> GroupConfig:
    """Four stateful tasks of the default group."""
    return stories.config(FOUR, assignor="high-availability", **values)


def lags(member: str, offsets: int, *tasks: str) -> LagReport:
    """A member's word on some of its tasks, as it goes through `muster.lag`."""
    told = tuple(Lag(Task("0", int(task[2:])), offsets) for task in tasks)
    return LagReport(group=GROUP, member=MemberId(member), lags=told)


def restarted() -> tuple[Story, list[str]]:
    """R ran two of four tasks and left; S restores them for hours and tells lags. R's tasks."""
    story = Story()
    story.take(config(), join("R"), join("S"))
    mine = [str(story.group.table.task(t)) for t in range(4) if story.group.holder[t] == 0]
    assert len(mine) == 2
    story.at(1_000).take(leave("R"))
    assert story.group.holder.tolist().count(story.group.by_id["S"]) == 4
    story.at(2_000).take(lags("S", 1_000_000, *mine))
    return story, mine


def runs(story: Story, member: str) -> list[str]:
    """What a member is to run."""
    slot = story.group.by_id[member]
    return [str(story.group.table.task(t)) for t in range(4) if story.group.target[t] == slot]


@pytest.mark.parametrize("first", ["the join", "lags in the join", "the successor's lags"])
def test_a_member_that_is_back_with_its_state_runs_its_tasks_at_once(first: str) -> None:
    """Thirty seconds away, with S two hours from having restored; the words in any order."""
    story, mine = restarted()
    told = tuple(Lag(Task("0", int(task[2:])), 0) for task in mine)
    if first == "lags in the join":
        story.at(31_000).take(join("R", 2, lags=told))
    elif first == "the join":
        story.at(31_000).take(join("R", 2))
        story.at(32_000).take(lags("R", 0, *mine))
    else:
        story.at(31_000).take(lags("S", 0, *mine))  # S was believed to have caught up
        story.at(31_500).take(join("R", 2, lags=told))
        story.at(32_000).take(lags("S", 900_000, *mine))
    assert runs(story, "R") == mine
    story.at(33_000).take(tick())
    rest = [task for task in runs(story, "S") if task not in mine]
    revision = story.group.members[story.group.by_id["S"]].revision
    story.at(34_000).take(report("S", revision, *rest, epoch=2))
    slot = story.group.by_id["R"]
    assert [str(story.group.table.task(t)) for t in range(4) if story.group.holder[t] == slot] == (
        mine
    )


def test_a_word_on_a_restoring_task_ages() -> None:
    """S has said nothing for longer than an interval: by then it is taken to have restored."""
    story, mine = restarted()
    assert len(story.group.snapshot().lags) == len(mine)
    long = {"session_timeout_ms": 1_800_000, "heartbeat_interval_ms": 600_000}
    story.at(3_000).take(config(**long))
    story.at(602_001).take(join("R", 2))
    assert len(story.group.snapshot().lags) == 0


def test_what_a_task_waits_for_is_told() -> None:
    """Its destination, and how far the copy there is behind, if that was told."""
    story = Story()
    story.take(config(max_warmup_replicas=1), join("A"))
    story.at(1_000).take(join("B"))
    waits = waits_of(story.group.snapshot())
    assert [(w.role, w.member, w.behind, w.restores) for w in waits] == [
        (Role.ACTIVE, "B", None, True),
        (Role.ACTIVE, "B", None, False),
    ]
    first, second = (w.task for w in waits)
    story.at(2_000).take(lags("B", 12_000, first))
    assert [str(w) for w in waits_of(story.group.snapshot())] == [
        f"{first} waits for B: its copy is 12,000 offsets behind",
        f"{second} waits for B: others restore first (max.warmup.replicas)",
    ]


def test_nothing_waits_in_a_group_at_rest_nor_in_one_that_drains() -> None:
    """A settled group, and one of which all members drain."""
    story = Story()
    story.take(config(), join("A"), join("B"))
    assert waits_of(story.group.snapshot()) == ()
    drains = [Drain(group=GROUP, member=MemberId(name)) for name in ("A", "B")]
    story.at(1_000).take(*drains)
    assert waits_of(story.group.snapshot()) == ()
    assert story.group.learner.wanted.size == 0
