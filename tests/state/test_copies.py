"""Copies in a group's life: which are caught up, which come next, and changes of role."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.state import story as stories
from support.state.story import GROUP, Story, join, leave, report, tick

from muster.protocol.codec import decode_record, encode
from muster.protocol.digest import Holding
from muster.protocol.events import Drain, GroupConfig, GroupDeleted, Heartbeat, Lag, LagReport
from muster.protocol.ids import MemberId, Role, Task
from muster.protocol.records import GroupSnapshot, MemberAssignment
from muster.protocol.tasks import Subtopology, TaskSet
from muster.protocol.topics import TopicKind
from muster.state.group import Group
from muster.worker.session import Session
from muster.worker.session_messages import Assigned, Begin, Lease, Read, Take, Wanted

TWO = Subtopology("0", 2, stateful=True)
ONE = Subtopology("0", 1, stateful=True)


def config(*units: Subtopology, **values: object) -> GroupConfig:
    """The default group, which warms copies up before it moves tasks."""
    return stories.config(*units, assignor="high-availability", **values)


def lag(member: str, **offsets: int) -> LagReport:
    """A member's lags: ``lag("W1", t0_1=5)``."""
    lags = tuple(Lag(Task("0", int(name[3:])), behind) for name, behind in offsets.items())
    return LagReport(group=GROUP, member=MemberId(member), lags=lags)


def exchanging() -> Story:
    """W1 runs both tasks; W2 will run 0_1 and restores it as a standby, and 0_0's standby too."""
    story = Story()
    story.take(config(TWO, num_standby_replicas=1), join("W1"))
    assert story.at(100).records(join("W2")) == {"W2": "- | 0_0 0_1 | - @2"}
    return story


@pytest.mark.parametrize("kind", ["ready", "a lag"])
def test_a_standby_that_is_to_take_over_is_treated_as_a_learner(kind: str) -> None:
    """The hand-over begins with the report that it has caught up, not at the next interval."""
    story = exchanging()
    record = story.group.snapshot()
    assert (record.target.tolist(), record.destination.tolist()) == ([0, 0], [0, 1])
    held = {"standby": ["0_0", "0_1"], "epoch": 2}
    event = report("W2", 1, ready=["0_1"], **held) if kind == "ready" else lag("W2", t0_1=10_000)
    records = story.at(20_000).records(event)
    assert story.group.cause == "standby of 0_1 on W2 ready"
    assert records == {"W1": "0_0 | - | - @1"}  # W2 keeps its copy until it is granted the active
    records = story.at(21_000).records(report("W1", 2, "0_0"))
    assert records == {"W1": "0_0 | 0_1 | - @3", "W2": "0_1 | 0_0 | - @3"}


def test_records_name_the_standbys_that_become_active() -> None:
    """The record that grants the copies names it; the one that makes it active does not."""
    story = Story()
    story.take(config(TWO, num_standby_replicas=1), join("W1"))
    step = story.at(100).take(join("W2"))
    (given,) = (r for r in step.records if isinstance(r, MemberAssignment))
    assert (list(map(str, given.standby)), list(map(str, given.next))) == (["0_0", "0_1"], ["0_1"])
    story.at(200).take(report("W2", 1, standby=["0_0", "0_1"], ready=["0_1"], epoch=2))
    step = story.at(300).take(report("W1", 2, "0_0"))
    granted = {r.member: r.next for r in step.records if isinstance(r, MemberAssignment)}
    assert granted.keys() == {"W1", "W2"}
    assert not any(granted.values())


def test_a_record_that_changes_only_next() -> None:
    """W1 gets more threads, then fewer: W2 keeps its copies and gets a new `next`.

    W2 has nothing to do: it sends no report, and its heartbeats agree as before.
    """
    story = Story()
    story.take(config(Subtopology("0", 4, stateful=True), num_standby_replicas=1), join("W1"))
    story.at(100).take(join("W2"))
    session = Session(replace(join("W2"), incarnation=0), seed=1)
    session.step(Begin(), 0)
    held = Holding(standby=TaskSet.of(["0_0", "0_1", "0_2", "0_3"]))
    shown = []
    for after_ms, capacity in ((1_000, 3), (2_000, 1)):
        step = story.at(after_ms).take(join("W1", capacity=capacity))
        records = [record for record in step.records if isinstance(record, MemberAssignment)]
        (record,) = (record for record in records if record.member == "W2")
        assert record.standby == held.standby
        assert (len(record.active), len(record.learner), record.report) == (0, 0, False)
        shown.append(record)
        beat = Heartbeat(
            group=GROUP, member=MemberId("W2"), epoch=record.epoch, digest=held.digest()
        )
        assert story.records(beat, beat, beat) == {}
    assert [[*map(str, record.next)] for record in shown] == [["0_3"], ["0_2", "0_3"]]
    records = [replace(record, incarnation=session.incarnation) for record in shown]
    first, second = (session.step(Read(record), 1_000) for record in records)
    assert [type(action) for action in first] == [Assigned, Lease, Take, Wanted]
    assert [type(action) for action in second] == [Assigned, Lease, Wanted]
    assert second[2] == Wanted(TaskSet.of(["0_2"]), records[1])
    assert session.holding == held


def test_a_standby_that_becomes_a_learner_changes_its_role_at_once() -> None:
    """W1 drains, so W2's standbys become learners: one record, no release, no report."""
    story = exchanging()
    drain = Drain(group=GROUP, member=MemberId("W1"))
    story.at(200).take(report("W2", 1, standby=["0_0", "0_1"], ready=["0_0"], epoch=2))
    records = story.at(300).records(drain)
    assert records["W2"] == "- | 0_0 | 0_1 @3"  # and 0_0 as soon as W1 has stopped it


def test_a_former_owner_keeps_a_caught_up_copy() -> None:
    """W1 gives 0_1 to W2 and keeps a copy, which counts as caught up without a report."""
    story = exchanging()
    story.at(200).take(report("W2", 1, standby=["0_0", "0_1"], ready=["0_1"], epoch=2))
    story.at(300).take(report("W1", 2, "0_0"))
    assert story.group.snapshot().ready.tolist() == [[1, 0]]


def test_a_caught_up_standby_stays_caught_up_without_reports() -> None:
    """B reported lag 0 at 20 s and nothing since; when A crashes at 1,000 s, B runs its task."""
    story = Story()
    long = {"session_timeout_ms": 1_800_000, "heartbeat_interval_ms": 600_000}
    story.take(config(ONE, num_standby_replicas=1, **long), join("A"))
    story.at(1_000).take(join("B"))
    story.at(20_000).take(lag("B", t0_0=0))
    story.at(900_000).take(join("C"))
    story.at(1_000_000).take(leave("A"))
    assert [story.group.roster.by_slot[int(s)].id for s in story.group.target.active] == ["B"]
    assert story.group.timers.followup_ms is None


def test_lags_of_state_on_a_disk_age() -> None:
    """State on C's disk that is not a copy is believed for an interval, then forgotten."""
    story = Story()
    story.take(config(ONE), join("A"), join("C", incarnation=3))
    story.at(1_000).take(lag("C", t0_0=5))
    assert len(story.group.owned.lags.pair) == 1
    story.at(601_001).take(join("D"))
    assert len(story.group.owned.lags.pair) == 0


def test_the_lag_of_a_copy_ends_with_the_copy() -> None:
    """B gives its copy up, so its lag of 0 no longer counts."""
    story = Story()
    story.take(config(ONE, num_standby_replicas=1), join("A"))
    story.at(1_000).take(join("B"))
    story.at(2_000).take(lag("B", t0_0=0))
    assert len(story.group.snapshot().lags) == 1
    story.at(3_000).take(config(ONE))
    story.at(4_000).take(report("B", 2, epoch=2))
    assert len(story.group.owned.copies[Role.STANDBY].kept) == len(story.group.snapshot().lags) == 0


def test_the_newest_report_counts() -> None:
    """A later lag revokes "ready"; "ready" in a report overrides a lag in the same report."""
    story = exchanging()
    held = {"standby": ["0_0", "0_1"], "epoch": 2}
    old = (Lag(Task("0", 0), 50_000),)
    story.at(1_000).take(lag("W2", t0_0=50_000))
    story.at(2_000).take(report("W2", 1, ready=["0_0"], lags=old, **held))
    assert caught_up(story) == [(0, 1)]
    story.at(3_000).take(lag("W2", t0_0=60_000))
    assert caught_up(story) == []
    story.at(4_000).take(report("W2", 1, ready=["0_0"], lags=old, **held))  # no news
    assert caught_up(story) == []
    story.at(5_000).take(lag("W2", t0_0=100))
    assert caught_up(story) == [(0, 1)]


def caught_up(story: Story) -> list[tuple[int, int]]:
    """(task, slot) of the copies that the group counts as caught up."""
    from muster.assignor import registry
    from muster.state import lag as lags
    from muster.state.draft import Draft

    pairs = lags.caught_up(Draft(story.group, 1, registry.get))
    return [(int(p) >> 32, int(p) & 0xFFFFFFFF) for p in pairs]


def test_ready_copies_outlive_a_deletion_that_is_taken_back() -> None:
    """Deleted and configured in one batch: a member tells anew which of its copies are ready."""
    story = exchanging()
    held = {"standby": ["0_0", "0_1"], "epoch": 2}
    story.at(1_000).take(report("W2", 1, ready=["0_0"], **held))
    step = story.at(2_000).take(GroupDeleted(group=GROUP), config(TWO, num_standby_replicas=1))
    (asked,) = [r for r in step.records if isinstance(r, MemberAssignment) and r.report]
    assert asked.member == "W2"
    story.at(2_100).take(report("W2", asked.revision, ready=["0_0"], **held))
    assert caught_up(story) == [(0, 1)]


def test_ready_copies_outlive_the_coordinator() -> None:
    """The snapshot has ready standbys beside the ready learners that older readers know."""
    story = exchanging()
    held = {"standby": ["0_0", "0_1"], "epoch": 2}
    story.at(1_000).take(report("W2", 1, ready=["0_0"], **held))
    value = encode(story.group.snapshot()).value
    read = decode_record(TopicKind.GROUPS, b"g", value)
    assert isinstance(read, GroupSnapshot)
    assert read.ready.tolist() == [[0, 1]]
    story.group, story.epoch = Group.recover(read), 2
    story.at(2_000).take(tick())
    more = {"coordinator_epoch": 2}
    story.at(3_000).take(report("W1", 1, "0_0", "0_1", **more), report("W2", 1, **held, **more))
    assert not story.group.recovery.asked
    assert caught_up(story) == [(0, 1)]


def test_a_snapshot_without_the_extra_is_read() -> None:
    """An older coordinator's snapshot has its ready learners and no ready standbys."""
    story = exchanging()
    plain = replace(story.group.snapshot(), ready=np.empty((0, 2), dtype=np.int32))
    read = decode_record(TopicKind.GROUPS, b"g", encode(plain).value)
    assert isinstance(read, GroupSnapshot)
    assert read.ready.shape == (0, 2)


def test_a_join_that_claims_a_copy_of_a_task_that_it_runs() -> None:
    """The group gave the member the task after it wrote this join: one role of it counts."""
    story = Story()
    story.take(config(TWO), join("W1"))
    for held in (Holding(standby=TaskSet.of(["0_0"])), Holding(learner=TaskSet.of(["0_0"]))):
        records = story.at(100).records(join("W1", holding=held))
        assert records == {"W1": "0_0 0_1 | - | - @1"}
