"""A rolling restart without standbys: a member that returns with its state gets its tasks at once.

Also: the text about tasks that wait for a copy.
"""

from __future__ import annotations

import pytest
from support.state import story as stories
from support.state.story import GROUP, Story, join, leave, report, tick

from muster.protocol.events import Drain, GroupConfig, Lag, LagReport
from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.tasks import Subtopology
from muster.published.holdups import waits_of

FOUR = Subtopology("0", 4, stateful=True)


def config(**values: object) -> GroupConfig:
    """Four stateful tasks of the default group."""
    return stories.config(FOUR, assignor="high-availability", **values)


def lags(member: str, offsets: int, *tasks: str) -> LagReport:
    """A member's lags of some of its tasks, on `muster.lag`."""
    reported = tuple(Lag(Task("0", int(task[2:])), offsets) for task in tasks)
    return LagReport(group=GROUP, member=MemberId(member), lags=reported)


def restarted() -> tuple[Story, list[str]]:
    """R ran two of four tasks and left; S restores them for hours and reports lags. R's tasks."""
    story = Story()
    story.take(config(), join("R"), join("S"))
    mine = [str(story.group.table.task(t)) for t in range(4) if story.group.owned.holder[t] == 0]
    assert len(mine) == 2
    story.at(1_000).take(leave("R"))
    assert story.group.owned.holder.tolist().count(story.group.roster.by_id["S"]) == 4
    story.at(2_000).take(lags("S", 1_000_000, *mine))
    return story, mine


def runs(story: Story, member: str) -> list[str]:
    """The active tasks of a member."""
    slot = story.group.roster.by_id[member]
    return [
        str(story.group.table.task(t))
        for t in range(len(story.group.table))
        if story.group.target.active[t] == slot
    ]


@pytest.mark.parametrize("tasks", [1, 20])
def test_an_owner_falls_behind_in_the_batch_in_which_a_copy_leaves(tasks: int) -> None:
    """The copies of a member that has just left count no more; the other member takes over."""
    story = Story()
    unit = Subtopology("0", tasks, stateful=True)
    settings = stories.config(unit, assignor="high-availability", num_standby_replicas=2)
    story.take(settings, *map(join, ("A", "B", "C")))
    names = [str(story.group.table.task(task)) for task in range(tasks)]
    for member in list(story.group.roster):
        running = runs(story, member.id)
        copies = [name for name in names if name not in running]
        ready = {"standby": copies, "ready": copies}
        story.take(report(member.id, member.revision, *running, **ready))
    owner = story.group.target.active[0]
    runner, leaver, other = sorted(story.group.roster, key=lambda m: m.slot != owner)
    had = runs(story, runner.id)
    story.take(leave(leaver.id), lags(runner.id, 1_000_000, *had))
    assert set(had) <= set(runs(story, other.id))


@pytest.mark.parametrize("first", ["the join", "lags in the join", "the successor's lags"])
def test_a_member_that_is_back_with_its_state_runs_its_tasks_at_once(first: str) -> None:
    """R was away for 30 s, S would restore for hours; lags and join arrive in any order."""
    story, mine = restarted()
    reported = tuple(Lag(Task("0", int(task[2:])), 0) for task in mine)
    if first == "lags in the join":
        story.at(31_000).take(join("R", 2, lags=reported))
    elif first == "the join":
        story.at(31_000).take(join("R", 2))
        story.at(32_000).take(lags("R", 0, *mine))
    else:
        story.at(31_000).take(lags("S", 0, *mine))  # S was believed to have caught up
        story.at(31_500).take(join("R", 2, lags=reported))
        story.at(32_000).take(lags("S", 900_000, *mine))
    assert runs(story, "R") == mine
    story.at(33_000).take(tick())
    rest = [task for task in runs(story, "S") if task not in mine]
    revision = story.group.roster.by_slot[story.group.roster.by_id["S"]].revision
    story.at(34_000).take(report("S", revision, *rest, epoch=2))
    slot = story.group.roster.by_id["R"]
    assert [
        str(story.group.table.task(t)) for t in range(4) if story.group.owned.holder[t] == slot
    ] == (mine)


def test_the_lag_of_a_restoring_task_ages() -> None:
    """S has reported no lag for longer than the interval: it counts as restored."""
    story, mine = restarted()
    assert len(story.group.snapshot().lags) == len(mine)
    long = {"session_timeout_ms": 1_800_000, "heartbeat_interval_ms": 600_000}
    story.at(3_000).take(config(**long))
    story.at(602_001).take(join("R", 2))
    assert len(story.group.snapshot().lags) == 0


def test_waits_name_destination_and_lag() -> None:
    """The text names the destination, and the lag there if it was reported."""
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


def test_no_waits_in_a_settled_or_a_draining_group() -> None:
    """There are no waits in a settled group, or if all members drain."""
    story = Story()
    story.take(config(), join("A"), join("B"))
    assert waits_of(story.group.snapshot()) == ()
    drains = [Drain(group=GROUP, member=MemberId(name)) for name in ("A", "B")]
    story.at(1_000).take(*drains)
    assert waits_of(story.group.snapshot()) == ()
    assert story.group.owned.copies[Role.LEARNER].wanted.size == 0
