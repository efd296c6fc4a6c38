"""Large placements are computed aside: batches go on, and the answer is applied by a later one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.state.groups import same_group
from support.state.story import GROUP, Story, config, join, leave, report, tick
from support.suite.examples import examples

from muster.assignor import registry
from muster.assignor.model import GroupView, Placement, no_lags, no_pairs
from muster.protocol.codec import encode
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Drain, Event, GroupConfig, Lag, LagReport, Origin
from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.records import GroupSnapshot, GroupState, MemberAssignment, Rejected
from muster.protocol.tasks import Subtopology
from muster.replay.repeat_and_compare import Published, Recording, Repetition
from muster.state import invariants, placement
from muster.state.assignor_outcome import Answer, Outcome, Question
from muster.state.group import Group
from muster.state.machine import Step, advance

TASKS = Subtopology("0", 12)


@pytest.fixture(autouse=True)
def _all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "SIZE_MAX", 0)


class Desk:
    """Computes placements aside; the test says when an answer is there.

    Attributes:
        asked: the questions, in the order in which they came first.
        is_open: whether answers are given.
        failure: what is said instead of an answer.
    """

    def __init__(self) -> None:
        self.asked: dict[Question, Outcome] = {}
        self.is_open = False
        self.failure: str | None = None

    def __call__(self, question: Question, work: Callable[[], Outcome]) -> Outcome | str | None:
        """Compute, and say so when the desk opens."""
        if question not in self.asked:
            self.asked[question] = work()
            return None
        if not self.is_open:
            return None
        return self.failure or self.asked[question]


class Slow(Story):
    """A story whose placements are computed aside, and recorded for a replay."""

    def __init__(
        self, desk: Callable[..., Outcome | str | None] | None, lookup: Any = registry.get
    ) -> None:
        super().__init__(lookup=lookup)
        self.desk = desk
        self.events: list[Event] = []
        self.published: list[Published] = []

    def take(self, *events: Event) -> Step:
        """Take one batch, check the laws and what is stored, and record it."""
        placed = []
        for event in events:
            self.offset += 1
            topic = "config" if isinstance(event, GroupConfig) else "membership"
            placed.append(replace(event, origin=Origin(topic, 0, self.offset, self.now_ms)))
        step = advance(
            self.group, placed, coordinator_epoch=1, assignors=self.lookup, aside=self.desk
        )
        invariants.check(step.group)
        shots = [each for each in step.records if isinstance(each, GroupSnapshot)]
        for each in shots:
            self.published.append(Published("", self.now_ms, each, encode(each).value))
        assert bool(shots) == step.changed
        self.events += placed
        if shots:  # what is stored is the whole group
            same_group(Group.restore(shots[-1], step.group.liveness()), step.group)
        self.group = step.group
        return step


def actives(step: Step) -> dict[str, str]:
    """Member → its actives."""
    records = (r for r in step.records if isinstance(r, MemberAssignment))
    return {record.member: " ".join(map(str, record.active)) for record in records}


def started(desk: Desk) -> Slow:
    """A group of four tasks and two members, whose placement is asked for."""
    story = Slow(desk)
    step = story.take(config(Subtopology("0", 4)), join("W1"), join("W2"))
    assert actives(step) == {"W1": "", "W2": ""}
    assert story.group.state is GroupState.ASSIGNING
    assert step.wake_at_ms == story.now_ms + 250
    return story


def test_a_batch_does_not_wait() -> None:
    """Until the answer is there nothing is published; the batch after that applies it."""
    desk = Desk()
    story = started(desk)
    assert story.at(300).take(tick()).changed is False
    desk.is_open = True
    step = story.at(600).take(tick())
    assert (step.changed, actives(step), step.wake_at_ms) == (False, {}, story.now_ms)
    assert actives(story.at(700).take(tick())) == {"W1": "0_0 0_2", "W2": "0_1 0_3"}
    assert story.group.state is GroupState.STABLE
    assert len(desk.asked) == 1


def test_an_answer_is_applied_to_the_members_of_now() -> None:
    """A member that left has no task; a new one waits for the next generation, which follows."""
    desk = Desk()
    story = started(desk)
    assert actives(story.at(100).take(leave("W1"), join("W3"))) == {"W3": ""}
    desk.is_open = True
    story.at(300).take(tick())
    assert actives(story.at(400).take(tick())) == {"W2": "0_1 0_3"}
    story.at(700).take(tick())
    story.at(800).take(tick())
    story.at(1_100).take(tick())
    assert story.group.owned.holder.tolist().count(-1) == 0
    assert "changes that arrived while the previous placement was computed" in story.group.cause
    assert story.group.generation == 2


def test_an_answer_about_other_tasks_is_not_used() -> None:
    """A config that replaces the tasks asks anew."""
    desk = Desk()
    story = started(desk)
    story.at(100).take(config(Subtopology("0", 6)))
    desk.is_open = True
    story.at(300).take(tick())
    assert actives(story.at(400).take(tick())) == {"W1": "0_0 0_2 0_4", "W2": "0_1 0_3 0_5"}
    assert len(desk.asked) == 2


def test_a_failure_keeps_the_target() -> None:
    """What ends the child becomes a dead letter and a cause; the next change asks again."""
    desk = Desk()
    story = started(desk)
    desk.is_open, desk.failure = True, "it took more than 60 s of CPU time"
    story.at(300).take(tick())
    step = story.at(400).take(tick())
    letters = [record for record in step.records if isinstance(record, Rejected)]
    assert [letter.reason for letter in letters] == [DeadLetter.ASSIGNOR_FAILED]
    assert desk.failure in story.group.cause
    assert story.at(800).take(tick()).changed is False
    desk.failure = None
    story.at(900).take(join("W3"))
    story.at(1_200).take(tick())
    assert sorted(actives(story.at(1_300).take(tick()))) == ["W1", "W2", "W3"]


def test_a_group_without_members_asks_no_more() -> None:
    """The last member's leave ends the question, and the wake-ups with it."""
    story = started(Desk())
    step = story.at(100).take(leave("W1"), leave("W2"))
    assert (story.group.target.asked_ms, step.wake_at_ms) == (None, None)


SAYS = ("a report", "a lag")
BATCHES = ("while it is computed", "when it is there", "when it is applied")


def drained(desk: Desk, assignor: str, lookup: Any = registry.get) -> Slow:
    """W1 and W2 run two tasks each and restore standbys of the others; W1 is drained."""
    story = Slow(desk, lookup)
    four = Subtopology("0", 4, stateful=True)
    desk.is_open = True
    story.take(config(four, assignor=assignor, num_standby_replicas=1), join("W1"), join("W2"))
    for ms in (300, 600, 900):
        story.at(ms).take(tick())
    assert story.group.target.active.tolist() == [0, 1, 0, 1]
    desk.is_open = False
    story.at(1_000).take(Drain(group=GROUP, member=MemberId("W1"), on=True))
    assert story.group.target.asked_ms is not None
    return story


def caught_up(story: Slow, how: str) -> Event:
    """W2's copies have caught up; their member, or an exporter, says so once."""
    w2 = story.group.roster.member(1)
    if how == "a lag":
        lags = (Lag(Task("0", 0), 0), Lag(Task("0", 2), 0))
        return LagReport(group=GROUP, member=w2.id, lags=lags)
    copies = ("0_0", "0_2")
    ready = {"standby": copies, "ready": copies}
    return report("W2", w2.revision, "0_1", "0_3", epoch=w2.epoch, **ready)


@pytest.mark.parametrize("assignor", ["learner", "high-availability"])
@pytest.mark.parametrize("how", SAYS)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_copy_that_catches_up_meanwhile_takes_over(batch: str, how: str, assignor: str) -> None:
    """The answer makes W2's standbys learners; no member reports that they caught up."""
    desk = Desk()
    story = drained(desk, assignor)
    for ms, name in zip((1_300, 1_600, 1_700), BATCHES, strict=True):
        desk.is_open = name != BATCHES[0]
        story.at(ms).take(*([caught_up(story, how)] if name == batch else []), tick())
    assert story.group.target.active.tolist() == [0, 1, 0, 1]
    assert story.group.cause.endswith("2 standbys on W2 ready")
    for ms in (1_800, 2_100, 2_200):
        story.at(ms).take(tick())
    assert story.group.target.active.tolist() == [1, 1, 1, 1]
    assert "changes that arrived" in story.group.cause
    generation = story.group.generation
    for ms in range(2_500, 6_000, 300):
        story.at(ms).take(tick())
    assert (story.group.generation, story.group.target.asked_ms) == (generation, None)


def test_a_copy_that_the_assignor_leaves_a_learner_is_no_cause_again() -> None:
    """The assignor has seen that the copies have caught up: it is not asked for them again."""
    views: list[GroupView] = []

    class Hesitating:
        """`learner`, for which no copy is ever ready."""

        name = "learner"

        def assign(self, view: GroupView) -> Placement:
            views.append(view)
            return registry.get("learner").assign(replace(view, ready=no_pairs(), lags=no_lags()))

    desk = Desk()
    story = drained(desk, "learner", lambda _name: Hesitating())
    story.at(1_300).take(caught_up(story, "a report"), tick())
    desk.is_open = True
    for ms in range(1_600, 9_000, 300):
        story.at(ms).take(tick())
    assert len(story.group.owned.copies[Role.LEARNER].kept) == 2
    assert (story.group.generation, len(views)) == (3, 3)
    assert len(views[-1].ready) == 2


@pytest.mark.parametrize("batch", BATCHES)
def test_an_owner_that_falls_behind_meanwhile_loses_the_task(batch: str) -> None:
    """The answer gives the task to a member that says meanwhile that it must restore it."""
    desk = Desk()
    story = Slow(desk)
    desk.is_open = True
    one = config(Subtopology("0", 1, stateful=True), assignor="high-availability")
    one = replace(one, settings=replace(one.settings, num_standby_replicas=2))
    story.take(one, join("W1"), join("W2"), join("W3"))
    for ms in (300, 600, 900):
        story.at(ms).take(tick())
    owner, *others = sorted(range(3), key=lambda slot: story.group.target.active[0] != slot)
    copy = {"standby": ["0_0"], "ready": ["0_0"]}
    members = [story.group.roster.member(slot) for slot in others]
    story.take(*(report(m.id, m.revision, epoch=m.epoch, **copy) for m in members))
    desk.is_open = False
    story.at(1_000).take(leave(story.group.roster.member(owner).id))
    answer = list(desk.asked.values())[-1]
    assert isinstance(answer, Answer)
    successor = int(answer.active[0])
    (other,) = set(others) - {successor}
    name = story.group.roster.member(successor).id
    behind = LagReport(group=GROUP, member=name, lags=(Lag(Task("0", 0), 1_000_000),))
    for ms, when in zip((1_300, 1_600, 1_700), BATCHES, strict=True):
        desk.is_open = when != BATCHES[0]
        story.at(ms).take(*([behind] if when == batch else []), tick())
    for ms in (1_800, 2_100, 2_200):
        story.at(ms).take(tick())
    assert story.group.target.active.tolist() == [other]


def test_a_group_that_became_small_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small group is placed at once; the next answer counts for all who joined until then."""
    monkeypatch.setattr(placement, "SIZE_MAX", 11)
    desk = Desk()
    story = Slow(desk)
    members = [join(f"W{number}", capacity=number) for number in (1, 2, 3)]
    story.take(config(Subtopology("0", 4)), *members)
    assert story.group.target.asked_ms is not None
    story.at(100).take(leave("W3"))
    assert (story.group.state, story.group.target.asked_ms) == (GroupState.STABLE, None)
    assert story.group.target.placed_ms == story.now_ms
    story.at(9_000).take(join("W4", capacity=4))
    assert story.group.target.asked_ms == story.now_ms
    desk.is_open = True
    for ms in (9_300, 9_400):
        story.at(ms).take(tick())
    assert (story.group.target.active >= 0).all()
    assert story.group.target.active.tolist().count(2) > 0


PROBING_MS = 60_000


def restoring(desk: Desk | None, lookup: Any = registry.get) -> Slow:
    """W1 runs four tasks, and W2 restores learners of two of them."""
    story = Slow(desk, lookup)
    settings = {"assignor": "high-availability", "probing_rebalance_interval_ms": PROBING_MS}
    story.take(config(Subtopology("0", 4, stateful=True), **settings), join("W1"))
    for ms in (300, 600):
        story.at(ms).take(tick())
    story.at(1_000).take(join("W2"))
    for ms in (1_300, 1_600, 1_700, 1_800):
        story.at(ms).take(tick())
    group = story.group
    assert (group.state, group.target.asked_ms) == (GroupState.STABLE, None)
    assert len(group.owned.copies[Role.LEARNER].kept) == 2
    assert group.timers.followup_ms is not None
    return story


def followed_up(story: Slow, follow_ups: int) -> list[GroupSnapshot]:
    """What is published while so many follow-ups become due."""
    published_before = len(story.published)
    for _ in range(follow_ups):
        due_ms = story.group.timers.followup_ms
        assert due_ms is not None
        for ms in (0, 300, 600, 900):
            story.at(due_ms - 1_000_000 + ms).take(tick())
    shots = [each.record for each in story.published[published_before:]]
    return [shot for shot in shots if isinstance(shot, GroupSnapshot)]


def replayed(story: Slow) -> None:
    """A replay of the story gives every record."""
    steps = list(Repetition(Recording(GROUP, list(story.events), story.published)).steps())
    assert [step.difference for step in steps if step.difference] == []
    assert not any(step.began for step in steps)


def test_a_follow_up_that_changes_nothing_opens_no_generation() -> None:
    """Three follow-ups in a row publish what they publish for a small group: a later follow-up."""
    desk = Desk()
    desk.is_open = True
    for asks in (None, desk):
        story = restoring(asks)
        generation, target = story.group.generation, story.group.target.active.tolist()
        shots = followed_up(story, 3)
        assert [shot.generation for shot in shots] == [generation] * 3
        assert [shot.target_generation for shot in shots] == [generation] * 3
        group = story.group
        assert (group.generation, group.target.active.tolist()) == (generation, target)
        assert (group.target.asked_ms, group.target.deferred) == (None, None)
        assert group.timers.followup_ms == story.now_ms - 900 + PROBING_MS
        if asks is not None:
            replayed(story)


def test_a_follow_up_that_changes_something_opens_one() -> None:
    """The answer says so; then a generation is opened and placed as for any other cause."""
    eager = False

    class Sometimes:
        """As `high-availability`; from some time on it waits for no learner."""

        name = "high-availability"

        def assign(self, view: GroupView) -> Placement:
            answer = registry.get("high-availability").assign(view)
            if not eager:
                return answer
            return replace(answer, active=answer.destination, learner=no_pairs())

    desk = Desk()
    desk.is_open = True
    story = restoring(desk, lambda _name: Sometimes())
    generation, asked = story.group.generation, len(desk.asked)
    followed_up(story, 1)
    assert len(desk.asked) == asked + 1
    eager = True
    shots = followed_up(story, 1)
    assert [shot.generation - generation for shot in shots] == [0, 1, 1]
    assert [shot.target_generation - generation for shot in shots] == [0, 0, 1]
    assert shots[-1].cause == "follow-up"
    assert story.group.target.active.tolist().count(1) == 2


def test_a_follow_up_that_fails_changes_nothing() -> None:
    """What ends its child becomes a dead letter; the group stays stable, and asks again later."""
    desk = Desk()
    desk.is_open = True
    story = restoring(desk)
    generation = story.group.generation
    desk.failure = "it took more than 60 s of CPU time"
    published_before, asked = len(story.published), len(desk.asked)
    due_ms = story.group.timers.followup_ms
    assert due_ms is not None
    steps = [story.at(due_ms - 1_000_000 + ms).take(tick()) for ms in (0, 300, 600, 900)]
    letters = [r for step in steps for r in step.records if isinstance(r, Rejected)]
    assert [letter.reason for letter in letters] == [DeadLetter.ASSIGNOR_FAILED]
    assert len(story.published) == published_before + 1  # the time of the next follow-up
    assert (story.group.state, story.group.generation) == (GroupState.STABLE, generation)
    desk.failure = None
    followed_up(story, 1)
    assert len(desk.asked) == asked + 2
    assert (story.group.state, story.group.generation) == (GroupState.STABLE, generation)


@pytest.mark.parametrize("batch", BATCHES[:2])
def test_a_generation_drops_a_follow_up_that_is_computed(batch: str) -> None:
    """W3 joins meanwhile: the assignor is asked about the group that it joined, and that counts."""
    desk = Desk()
    desk.is_open = True
    story = restoring(desk)
    generation, due_ms = story.group.generation, story.group.timers.followup_ms
    assert due_ms is not None
    desk.is_open = False
    at_ms = due_ms - 1_000_000
    story.at(at_ms).take(tick())
    assert (story.group.state, story.group.generation) == (GroupState.STABLE, generation)
    assert story.group.target.asked_ms == due_ms
    desk.is_open = batch == BATCHES[1]
    story.at(at_ms + 300).take(tick())
    assert (story.group.target.deferred is not None) == desk.is_open
    story.at(at_ms + 400).take(join("W3"))
    assert (story.group.state, story.group.generation) == (GroupState.ASSIGNING, generation + 1)
    assert story.group.target.asked_ms == story.now_ms
    desk.is_open = True
    for ms in (700, 800, 1_100):
        story.at(at_ms + ms).take(tick())
    group = story.group
    assert (group.target.generation, group.target.asked_ms) == (generation + 1, None)
    assert group.cause == "W3 joined"
    assert len(group.owned.copies[Role.LEARNER].wanted) == 2
    replayed(story)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_any_delays_end_well_and_are_replayed(seed: int) -> None:
    """Answers come late, lives go on; in the end all tasks are placed, and a replay agrees."""
    rng = random.Random(seed)
    known: dict[Question, Outcome] = {}
    slowness = 0.8

    def desk(question: Question, work: Callable[[], Outcome]) -> Outcome | None:
        if question not in known:
            known[question] = work()
        return None if rng.random() < slowness else known[question]

    story = Slow(desk)
    assignor = rng.choice(("sticky", "high-availability"))
    spacing_ms = rng.choice((600, 9_000))  # in the second case follow-ups become due
    settings = {"assignor": assignor, "probing_rebalance_interval_ms": PROBING_MS}
    story.take(config(replace(TASKS, stateful=rng.random() < 0.5), **settings))
    for turn in range(1, 40):
        events: list[Event] = [tick()]
        group = story.group
        for member in group.roster:
            held = (group.owned.holder == member.slot) & ~group.owned.revoking
            tasks = [str(group.table.task(t)) for t in held.nonzero()[0].tolist()]
            if rng.random() < 0.5:
                events.append(report(member.id, member.revision, *tasks, epoch=member.epoch))
            elif turn < 25 and rng.random() < 0.1:
                events.append(leave(member.id))
        if turn < 25 and rng.random() < 0.3:
            events.append(join(f"W{turn}"))
        if turn < 25 and rng.random() < 0.05:
            events.append(config(replace(TASKS, partitions=rng.randint(8, 16))))
        slowness = 0.8 if turn < 25 else 0.0
        story.at(spacing_ms * turn).take(*events)
    for ms in range(100, 1_000, 100):
        story.at(spacing_ms * turn + ms).take(tick())
    group = story.group
    assert group.target.asked_ms is None
    assert group.generation == group.target.generation
    if len(group.roster):
        assert (group.target.active != -1).all()
    replayed(story)
