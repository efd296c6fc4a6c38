"""Reported lags: believed for a time, refused if they are not valid."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.state.story import GROUP, Story, config, join, report, tick

from muster.assignor.model import Assignor, GroupView, Placement
from muster.assignor.registry import get
from muster.protocol.events import Lag, LagReport
from muster.protocol.ids import MemberId, Role, Task, parse_task
from muster.protocol.records import Fault, Rejected
from muster.protocol.tasks import Subtopology
from muster.state import lag
from muster.state.draft import Draft

FOUR = Subtopology("0", 4, stateful=True)


@dataclass
class Watched:
    """An assignor that records its views."""

    assignor: Assignor
    seen: list[GroupView]
    name: str = "learner"

    def assign(self, view: GroupView) -> Placement:
        """As the assignor does."""
        self.seen.append(view)
        return self.assignor.assign(view)


def lag_of(member: str, offsets: int, task: Task) -> LagReport:
    """An exporter's lag of one copy."""
    return LagReport(group=GROUP, member=MemberId(member), lags=(Lag(task, offsets),))


def learning(**values: object) -> tuple[Story, Task, str]:
    """W1 runs four tasks, W2 learns two: one of them, and W2's name."""
    story = Story()
    story.take(config(FOUR, assignor="learner", **values), join("W1"))
    story.at(100).take(join("W2"))
    pair = story.group.owned.copies[Role.LEARNER].kept[0]
    return story, story.group.table.task(int(pair) >> 32), "W2"


@pytest.mark.parametrize("offsets", [-1, -(2**62), 2**62 + 1, 2**63 - 1])
def test_a_lag_that_cannot_be_is_a_dead_letter(offsets: int) -> None:
    """A negative or too large lag changes nothing, and the dead letter names the bounds."""
    story, task, member = learning()
    before = story.group.snapshot()
    step = story.at(200).take(lag_of(member, offsets, task))
    (letter,) = (r for r in step.records if isinstance(r, Rejected))
    assert (letter.reason, step.changed) == (Fault.INVALID_REQUEST.value, False)
    assert letter.message == f"lag {offsets} of {task} on W2: expected 0 to {2**62}"
    assert (story.group.snapshot().lags == before.lags).all()


def test_lags_of_strangers_are_dead_letters() -> None:
    """Lags of unknown members and unknown tasks are dead letters."""
    story, task, member = learning()
    for event, reason in (
        (lag_of("W9", 5, task), Fault.UNKNOWN_MEMBER_ID),
        (lag_of(member, 5, Task("7", 0)), Fault.INVALID_REQUEST),
    ):
        step = story.at(200).take(event)
        assert [r.reason for r in step.records if isinstance(r, Rejected)] == [reason.value]


def test_a_small_lag_promotes_at_once() -> None:
    """At acceptable.recovery.lag the learner counts as ready without a report."""
    story, task, member = learning(acceptable_recovery_lag=100)
    generation = story.group.generation
    story.at(1_000).take(lag_of(member, 101, task))
    assert story.group.generation == generation
    story.at(2_000).take(lag_of(member, 100, task))
    assert story.group.cause == f"learner of {task} on W2 ready"
    assert story.group.generation == generation + 1


@pytest.mark.parametrize(("age_ms", "believed"), [(60_000, True), (60_001, False)])
@pytest.mark.parametrize("kept", [False, True], ids=["on a disk", "a copy that is kept"])
def test_a_lag_ages_unless_the_copy_is_kept(age_ms: int, believed: bool, kept: bool) -> None:
    """After probing.rebalance.interval.ms a lag is not believed, except that of a copy."""
    seen: list[GroupView] = []
    story, task, member = learning(
        acceptable_recovery_lag=100,
        probing_rebalance_interval_ms=60_000,
        learner_partial_rebalance=False,  # W2's other learner is waited for, so nothing moves
    )
    learned = {
        str(story.group.table.task(int(pair) >> 32))
        for pair in story.group.owned.copies[Role.LEARNER].kept
    }
    (other, _) = sorted({"0_0", "0_1", "0_2", "0_3"} - learned)
    story.lookup = lambda name: Watched(get(name), seen)
    story.at(200).take(tick())
    story.take(lag_of(member, 100, task if kept else parse_task(other)))
    story.at(200 + age_ms).take(join("W3"))
    view = seen[-1]
    assert len(view.lags.offsets) == (believed or kept)
    assert len(view.ready.task) == kept


def test_lags_that_change_little_change_no_record() -> None:
    """A lag that changes little is ignored; one that halves or doubles is kept."""
    story, task, member = learning()
    assert story.at(1_000).take(lag_of(member, 50_000, task)).changed
    assert not story.at(2_000).take(lag_of(member, 40_000, task)).changed
    assert not story.at(3_000).take(lag_of(member, 60_000, task)).changed
    assert story.at(4_000).take(lag_of(member, 25_000, task)).changed
    assert story.at(5_000).take(lag_of(member, 50_000, task)).changed


def test_the_longest_lag_said_again_changes_no_record() -> None:
    """Twice the longest lag there may be is more than 64 bits hold."""
    story, task, member = learning()
    assert story.at(1_000).take(lag_of(member, lag.OFFSETS_MAX, task)).changed
    assert not story.at(2_000).take(lag_of(member, lag.OFFSETS_MAX, task)).changed


@pytest.mark.parametrize("said_before", [False, True])
def test_the_report_that_releases_a_task_says_what_is_left_on_the_disk(said_before: bool) -> None:
    """The lag in it counts as that of other state, whether or not the same lag was known before."""
    story = Story()
    story.take(config(FOUR, assignor="sticky"), join("W1"))
    story.at(100).take(report("W1", 1, "0_0", "0_1", "0_2", "0_3"))
    story.at(200).take(join("W2"))
    table, owned = story.group.table, story.group.owned
    tasks = [str(table.task(task)) for task in range(4)]
    released = [name for name, leaves in zip(tasks, owned.revoking, strict=True) if leaves]
    rest = [name for name in tasks if name not in released]
    lags = tuple(Lag(parse_task(name), 0) for name in released)
    if said_before:
        story.at(250).take(LagReport(group=GROUP, member=MemberId("W1"), lags=lags))
    story.at(300).take(report("W1", 2, *rest, lags=lags))
    stored = story.group.owned.lags
    left = [
        (str(story.group.table.task(int(pair) >> 32)), int(pair) & 0xFF) for pair in stored.pair
    ]
    assert left == [(name, story.group.roster.by_id["W1"]) for name in released]
    assert set(stored.reported_ms.tolist()) == {story.group.sessions.clock_ms}


def test_a_task_that_is_released_without_a_word_leaves_no_lag() -> None:
    """What was known of the running task ends with it."""
    story = Story()
    story.take(config(FOUR, assignor="sticky"), join("W1"))
    story.at(100).take(report("W1", 1, "0_0", "0_1", "0_2", "0_3"))
    story.at(150).take(lag_of("W1", 0, Task("0", 3)))
    story.at(200).take(join("W2"))
    revoking = story.group.owned.revoking
    assert revoking[3]
    kept = [f"0_{task}" for task in range(4) if not revoking[task]]
    story.at(300).take(report("W1", 2, *kept))
    assert len(story.group.owned.lags.pair) == 0


def test_ready_after_a_lag_counts_with_a_lag_of_zero() -> None:
    """`ready` alone may be repeated by a member that does not know of an exporter's lag."""
    story, task, member = learning()
    revision = next(m.revision for m in story.group.roster if m.id == member)
    kept = story.group.owned.copies[Role.LEARNER].kept.tolist()
    copies = [str(story.group.table.task(pair >> 32)) for pair in kept]
    says = {"epoch": 2, "learner": copies, "ready": copies[:1]}

    def caught_up() -> bool:
        return len(lag.caught_up(Draft(story.group, 1, get))) == 1

    story.at(200).take(report(member, revision, **says))
    assert caught_up()
    story.at(300).take(lag_of(member, 50_000, task))
    assert not caught_up()
    story.at(400).take(report(member, revision, **says))
    story.at(410).take(report(member, revision, **says, lags=(Lag(task, 50_000),)))
    assert not caught_up()
    story.at(420).take(report(member, revision, **says, lags=(Lag(task, 0),)))
    assert caught_up()
