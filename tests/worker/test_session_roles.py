"""The session machine: tasks that stop one by one, copies that change their role, and lags."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.talk import BEAT_MS, GROUP, MEMBER, Talk, kinds, sent

from muster.protocol.digest import Holding
from muster.protocol.events import Lag, LagReport
from muster.protocol.ids import Role, Task
from muster.protocol.tasks import TaskSet
from muster.worker.exchange import Begin, Read, Ready, Released, Restored, Take, Wanted
from muster.worker.letters import LAGS_MAX
from muster.worker.session import GATHER_MS

# ------------------------------------------------------------------------------------- releases


def test_story_a_release_is_reported_while_others_stop() -> None:
    """What has stopped within 50 ms is one report; what takes longer has one of its own."""
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
    """The last to stop is reported at once, and with it all others."""
    tasks = [f"0_{n}" for n in range(100)]
    talk = Talk().member(*tasks)
    talk.read()
    said = [e for task in tasks for e in sent(talk.give(Released(Role.ACTIVE, TaskSet.of([task]))))]
    assert [report.holding for report in said] == [Holding()]
    assert sent(talk.later(GATHER_MS)) == []


def test_a_release_is_reported_beside_a_heartbeat_in_flight() -> None:
    """A heartbeat that waits for Kafka does not hold the report up."""
    talk = Talk().member("0_0", "0_1")
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]
    talk.read()
    talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert talk.session.deadline_ms == talk.now_ms + GATHER_MS
    assert kinds(talk.later(GATHER_MS)) == ["Report"]


def test_story_one_report_for_all_releases() -> None:
    """Several roles are released in their own time; a report follows the last at once."""
    talk = Talk().member("0_0", standby=["0_1"], learner=["0_2"])
    assert kinds(talk.read("0_5")) == ["Assigned", "Lease", "Release", "Release", "Release", "Take"]
    assert talk.give(Released(Role.STANDBY, TaskSet.of(["0_1"]))) == []
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))) == []
    (report,) = sent(talk.give(Released(Role.LEARNER, TaskSet.of(["0_2"]))))
    assert report.holding == Holding(active=TaskSet.of(["0_5"]))


# ---------------------------------------------------------------------------------------- roles


@pytest.mark.parametrize("role", ["learner", "standby"])
def test_story_a_copy_becomes_active(role: str) -> None:
    """Nothing is released and nothing reported: the task is started where its copy is."""
    talk = Talk().member(**{role: ["0_0"]})
    talk.give(Ready(TaskSet.of(["0_0"])))
    record = talk.record("0_0", "0_1")
    both = TaskSet.of(["0_0", "0_1"])
    assert talk.give(Read(record))[2:] == [Take(Role.ACTIVE, both, record)]
    assert talk.holding == Holding(active=both)


def test_story_a_standby_becomes_a_learner_and_back() -> None:
    """The copy goes on as it is, and so does what was said of it."""
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
    """It stops first; that is reported with the copy that follows."""
    talk = Talk().member("0_0")
    assert kinds(talk.read(standby=["0_0"])) == ["Assigned", "Lease", "Release"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]), releasing=TaskSet.of(["0_0"]))
    actions = talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert kinds(actions) == ["Take", "Report"]
    assert talk.holding == Holding(standby=TaskSet.of(["0_0"]))


def test_story_a_copy_that_stops_becomes_active() -> None:
    """It was to be given up and has not stopped yet: it starts when it has."""
    talk = Talk().member(standby=["0_0"])
    talk.read()
    assert kinds(talk.read("0_0")) == ["Assigned", "Lease"]
    assert talk.holding == Holding(standby=TaskSet.of(["0_0"]), releasing=TaskSet.of(["0_0"]))
    actions = talk.give(Released(Role.STANDBY, TaskSet.of(["0_0"])))
    assert kinds(actions) == ["Take", "Report"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]))


@pytest.mark.parametrize("role", ["learner", "standby"])
def test_ready_is_said_once(role: str) -> None:
    """A copy that is ready is reported at once, and not again; a stranger never."""
    talk = Talk().member(**{role: ["0_0"]})
    (report,) = sent(talk.give(Ready(TaskSet.of(["0_0", "0_7"]))))
    assert report.holding.ready == TaskSet.of(["0_0"])
    assert talk.give(Ready(TaskSet.of(["0_0", "0_7"]))) == []


def test_story_copies_that_are_wanted() -> None:
    """Which copies are to take over is told once each, also when nothing else is news."""
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
    """Lags told before are in the join; those of tasks held are in reports, and told at once."""
    talk = Talk()
    talk.give(Restored((Lag(Task("0", 1), 9), Lag(Task("0", 0), 4))))
    (join,) = sent(talk.give(Begin()))
    assert join.lags == (Lag(Task("0", 0), 4), Lag(Task("0", 1), 9))
    talk.read(learner=["0_1"])
    (told,) = sent(talk.give(Restored((Lag(Task("0", 1), 2),))))
    assert told == LagReport(group=GROUP, member=MEMBER, lags=(Lag(Task("0", 1), 2),))
    (report,) = sent(talk.give(Ready(TaskSet.of(["0_1"]))))
    assert report.lags == (Lag(Task("0", 1), 2),)


def test_a_lag_of_an_active_is_what_was_said_since_it_is_one() -> None:
    """That of the copy it was is forgotten; an active that still restores says its own."""
    talk = Talk().member(learner=["0_0"])
    talk.give(Restored((Lag(Task("0", 0), 900),)))
    (report,) = sent(talk.read("0_0", report=True))
    assert report.lags == ()
    (told,) = sent(talk.give(Restored((Lag(Task("0", 0), 700),))))
    assert told.lags == (Lag(Task("0", 0), 700),)
    (report,) = sent(talk.read("0_0", report=True))
    assert report.lags == (Lag(Task("0", 0), 700),)


def test_lags_of_very_many_copies_are_several_events() -> None:
    """No event grows past what a record has room for."""
    talk = Talk().member()
    lags = tuple(Lag(Task("0", n), n) for n in range(LAGS_MAX + 5))
    said = sent(talk.give(Restored(lags)))
    assert [len(event.lags) for event in said] == [LAGS_MAX, 5]
    assert tuple(lag for event in said for lag in event.lags) == lags
