"""The session: tasks that stop one by one, copies that change their role, and lags."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.worker.talk import BEAT_MS, GROUP, MEMBER, Talk, kinds, sent

from muster.protocol.digest import Holding
from muster.protocol.events import Lag, LagReport, Leave
from muster.protocol.ids import Role, Task
from muster.protocol.tasks import TaskSet
from muster.worker.joins_and_reports import LAGS_MAX
from muster.worker.session_messages import (
    Begin,
    LagsKnown,
    LeaveAsked,
    Read,
    Ready,
    Released,
    Take,
    Wanted,
)
from muster.worker.session_steps import GATHER_MS

# ------------------------------------------------------------------------------------- releases


def test_story_a_release_is_reported_while_others_stop() -> None:
    """Tasks that stop within 50 ms share a report; tasks that take longer get another."""
    talk = Talk().member("0_0", "0_1", "0_2", "0_3")
    talk.read("0_3")
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))) == []
    first_ms, talk.now_ms = talk.now_ms, talk.now_ms + GATHER_MS - 10
    assert talk.session.deadline_ms == first_ms + GATHER_MS
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_1"]))) == []
    (report,) = sent(talk.later(10))
    left, slow = TaskSet.of(["0_2", "0_3"]), TaskSet.of(["0_2"])
    assert report.revision == 2
    assert report.holding == talk.holding == Holding(active=left, releasing=slow)
    assert talk.later(GATHER_MS) == []
    (report,) = sent(talk.give(Released(Role.ACTIVE, slow)))
    assert report.holding == Holding(active=TaskSet.of(["0_3"]))
    assert sent(talk.later(GATHER_MS)) == []


def test_a_hundred_quick_stops_are_one_event() -> None:
    """When the last task stops, one report is sent at once."""
    tasks = [f"0_{n}" for n in range(100)]
    talk = Talk().member(*tasks)
    talk.read()
    said = [e for task in tasks for e in sent(talk.give(Released(Role.ACTIVE, TaskSet.of([task]))))]
    assert [report.holding for report in said] == [Holding()]
    assert sent(talk.later(GATHER_MS)) == []


def test_a_report_does_not_wait_for_a_heartbeat_in_flight() -> None:
    """A heartbeat that Kafka has not acknowledged does not delay a report."""
    talk = Talk().member("0_0", "0_1")
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]
    talk.read()
    talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert talk.session.deadline_ms == talk.now_ms + GATHER_MS
    assert kinds(talk.later(GATHER_MS)) == ["Report"]


def test_story_one_report_for_all_releases() -> None:
    """Tasks of several roles stop at different times; a report follows the last one at once."""
    talk = Talk().member("0_0", standby=["0_1"], learner=["0_2"])
    assert kinds(talk.read("0_5")) == ["Assigned", "Lease", "Release", "Release", "Release", "Take"]
    assert talk.give(Released(Role.STANDBY, TaskSet.of(["0_1"]))) == []
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))) == []
    (report,) = sent(talk.give(Released(Role.LEARNER, TaskSet.of(["0_2"]))))
    assert report.holding == Holding(active=TaskSet.of(["0_5"]))


# ---------------------------------------------------------------------------------------- roles


@pytest.mark.parametrize("role", ["learner", "standby"])
def test_story_a_copy_becomes_active(role: str) -> None:
    """The task starts where its copy is; nothing is released or reported."""
    talk = Talk().member(**{role: ["0_0"]})
    talk.give(Ready(TaskSet.of(["0_0"])))
    record = talk.record("0_0", "0_1")
    both = TaskSet.of(["0_0", "0_1"])
    assert talk.give(Read(record))[2:] == [Take(Role.ACTIVE, both, record)]
    assert talk.holding == Holding(active=both)


def test_story_a_standby_becomes_a_learner_and_back() -> None:
    """The copy stays as it is, and so does its readiness."""
    talk = Talk().member(standby=["0_0"])
    talk.give(Ready(TaskSet.of(["0_0"])))
    assert kinds(talk.read(learner=["0_0"])) == ["Assigned", "Lease", "Wanted"]
    assert talk.holding == Holding(learner=TaskSet.of(["0_0"]), ready=TaskSet.of(["0_0"]))
    assert kinds(talk.read(standby=["0_0"])) == ["Assigned", "Lease"]
    (report,) = sent(talk.read(standby=["0_0"], report=True))
    assert report.holding == Holding(standby=TaskSet.of(["0_0"]), ready=TaskSet.of(["0_0"]))
    assert kinds(talk.read()) == ["Assigned", "Lease", "Release"]
    (report,) = sent(talk.give(Released(Role.STANDBY, TaskSet.of(["0_0"]))))
    assert report.holding == Holding()


def test_story_an_active_becomes_a_standby() -> None:
    """It stops first; one report has the release and the copy that follows."""
    talk = Talk().member("0_0")
    assert kinds(talk.read(standby=["0_0"])) == ["Assigned", "Lease", "Release"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]), releasing=TaskSet.of(["0_0"]))
    actions = talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert kinds(actions) == ["Take", "Report"]
    assert talk.holding == Holding(standby=TaskSet.of(["0_0"]))


def test_story_a_copy_that_is_being_released_becomes_active() -> None:
    """The task starts as active when the copy has stopped."""
    talk = Talk().member(standby=["0_0"])
    talk.read()
    assert kinds(talk.read("0_0")) == ["Assigned", "Lease"]
    assert talk.holding == Holding(standby=TaskSet.of(["0_0"]), releasing=TaskSet.of(["0_0"]))
    actions = talk.give(Released(Role.STANDBY, TaskSet.of(["0_0"])))
    assert kinds(actions) == ["Take", "Report"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]))


@pytest.mark.parametrize("role", ["learner", "standby"])
def test_ready_is_said_once(role: str) -> None:
    """A ready copy is reported once, at once; a task that is not held is not reported."""
    talk = Talk().member(**{role: ["0_0"]})
    (report,) = sent(talk.give(Ready(TaskSet.of(["0_0", "0_7"]))))
    assert report.holding.ready == TaskSet.of(["0_0"])
    assert talk.give(Ready(TaskSet.of(["0_0", "0_7"]))) == []


def test_story_copies_that_are_wanted() -> None:
    """Each copy that will take over is named once, even if nothing else changes."""
    talk = Talk().member(standby=["0_0", "0_1"])
    record = talk.record(standby=["0_0", "0_1"], learner=["0_2"], next=TaskSet.of(["0_1"]))
    wanted = TaskSet.of(["0_1", "0_2"])
    assert talk.give(Read(record))[2:] == [
        Take(Role.LEARNER, TaskSet.of(["0_2"]), record),
        Wanted(wanted, record),
    ]
    assert kinds(talk.give(Read(replace(record, revision=3)))) == ["Assigned", "Lease"]
    talk.revision = 3
    record = talk.record("0_1", "0_2", standby=["0_0"], next=TaskSet.of(["0_0"]))
    assert kinds(talk.give(Read(record)))[2:] == ["Take", "Wanted"]


# ----------------------------------------------------------------------------------------- lags


def test_lags_go_with_joins_and_reports() -> None:
    """Known lags are in the join. Lags of held tasks are sent at once, and are in reports."""
    talk = Talk()
    talk.give(LagsKnown((Lag(Task("0", 1), 9), Lag(Task("0", 0), 4))))
    (join,) = sent(talk.give(Begin()))
    assert join.lags == (Lag(Task("0", 0), 4), Lag(Task("0", 1), 9))
    talk.read(learner=["0_1"])
    (event,) = sent(talk.give(LagsKnown((Lag(Task("0", 1), 2),))))
    assert event == LagReport(group=GROUP, member=MEMBER, lags=(Lag(Task("0", 1), 2),))
    (report,) = sent(talk.read(learner=["0_1"], report=True))
    assert report.lags == (Lag(Task("0", 1), 2),)
    (report,) = sent(talk.give(Ready(TaskSet.of(["0_1"]))))
    assert report.lags == (Lag(Task("0", 1), 0),)


def test_an_active_does_not_keep_the_lag_of_its_copy() -> None:
    """The copy's lag is forgotten; an active that still restores reports its own."""
    talk = Talk().member(learner=["0_0"])
    talk.give(LagsKnown((Lag(Task("0", 0), 900),)))
    (report,) = sent(talk.read("0_0", report=True))
    assert report.lags == ()
    (event,) = sent(talk.give(LagsKnown((Lag(Task("0", 0), 700),))))
    assert event.lags == (Lag(Task("0", 0), 700),)
    (report,) = sent(talk.read("0_0", report=True))
    assert report.lags == (Lag(Task("0", 0), 700),)


def test_lags_of_very_many_copies_are_several_events() -> None:
    """No event is larger than a record may be."""
    talk = Talk().member()
    lags = tuple(Lag(Task("0", n), n) for n in range(LAGS_MAX + 5))
    said = sent(talk.give(LagsKnown(lags)))
    assert [len(event.lags) for event in said] == [LAGS_MAX, 5]
    assert tuple(lag for event in said for lag in event.lags) == lags


def test_a_copy_that_falls_behind_and_catches_up() -> None:
    """A lag takes `ready` back; `ready` after it is reported, with a lag of 0."""
    talk, copies = Talk().member(learner=["0_1", "0_2"]), TaskSet.of(["0_1", "0_2"])
    talk.give(Ready(copies))
    talk.give(LagsKnown((Lag(Task("0", 1), 50_000), Lag(Task("0", 2), 0))))
    assert talk.holding.ready == TaskSet.of(["0_2"])
    assert talk.give(Ready(copies)) == []
    (report,) = sent(talk.later(GATHER_MS))
    assert report.holding.ready == copies
    assert set(report.lags) == {Lag(Task("0", 1), 0), Lag(Task("0", 2), 0)}


def test_what_was_revoked_before_a_leave_is_reported_as_it_stops() -> None:
    """The rest is not reported: it goes with the leave."""
    talk = Talk().member("0_0", "0_1", "0_2", "0_3")
    talk.read("0_2", "0_3")
    talk.give(LeaveAsked())
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_2"]))) == []
    assert talk.later(GATHER_MS) == []
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))) == []
    (report,) = sent(talk.later(GATHER_MS))
    left = TaskSet.of(["0_1", "0_3"])
    assert report.holding == Holding(active=left, releasing=TaskSet.of(["0_1"]))
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_3"]))) == []
    (leave,) = sent(talk.give(Released(Role.ACTIVE, TaskSet.of(["0_1"]))))
    assert isinstance(leave, Leave)
