"""The session machine: stories worth telling, from joining to leaving."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.talk import BEAT_MS, GONE, GROUP, JOIN, MEMBER, SESSION_MS, Talk, in_state, kinds, sent

from muster.protocol.digest import Holding
from muster.protocol.events import Leave, Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault
from muster.protocol.tasks import TaskSet
from muster.worker.chance import JOIN_PAUSE_MAX_MS, mixed63
from muster.worker.exchange import (
    Acknowledged,
    AllStopped,
    Assigned,
    Begin,
    ClockMoved,
    End,
    Lease,
    LeaveAsked,
    Lose,
    Notice,
    Read,
    Release,
    Released,
    Send,
    Take,
)
from muster.worker.states import State

# -------------------------------------------------------------------------------------- stories


def test_story_join_take_release_leave() -> None:
    """One member's life, every action compared."""
    talk = Talk()
    # It says who it is, under an incarnation drawn from the seed.
    (join,) = talk.give(Begin())
    assert join == Send(replace(JOIN, incarnation=mixed63(1)), mixed63(1), talk.now_ms)
    # It is given two tasks: the lease counts from the join, sent earlier.
    first_ms, talk.now_ms = talk.now_ms, talk.now_ms + 40
    record = talk.record("0_0", "0_1")
    assert talk.give(Read(record)) == [
        Assigned(record),
        Lease(first_ms + 9_900 - 1_000, 1_000),
        Take(Role.ACTIVE, TaskSet.of(["0_0", "0_1"]), record),
    ]
    assert talk.give(Acknowledged(join)) == []  # says nothing new
    # A task is asked back: it is stopped, and counts as given up from now on.
    record = talk.record("0_1", epoch=1)
    assert talk.give(Read(record))[2:] == [Release(Role.ACTIVE, TaskSet.of(["0_0"]), record)]
    assert talk.holding == Holding(active=TaskSet.of(["0_0", "0_1"]), releasing=TaskSet.of(["0_0"]))
    # It has stopped: one report, with the revision of the record that asked.
    (report,) = sent(talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))))
    assert report == Report(
        group=GROUP,
        member=MEMBER,
        incarnation=mixed63(1),
        epoch=1,
        revision=2,
        holding=Holding(active=TaskSet.of(["0_1"])),
        coordinator_epoch=3,
    )
    # It leaves: everything stops first.
    assert kinds(talk.give(LeaveAsked())) == ["Release"]
    leave, end = talk.give(Released(Role.ACTIVE, TaskSet.of(["0_1"])))
    assert leave.event == Leave(group=GROUP, member=MEMBER, incarnation=mixed63(1))
    assert end == End(None, "left")
    assert talk.session.state is State.ENDED
    assert talk.session.deadline_ms is None


def test_story_a_newer_record_while_stopping() -> None:
    """A record read during a release: the one report carries the newest revision."""
    talk = Talk().member("0_0", "0_1")
    talk.read("0_1")
    assert kinds(talk.read("0_1", "0_2")) == ["Assigned", "Lease", "Take"]
    (report,) = sent(talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))))
    assert report.revision == 3
    assert report.holding.active == TaskSet.of(["0_1", "0_2"])


def test_story_a_task_given_back_while_stopping() -> None:
    """A task that is wanted again while it stops is held all along, and started anew after."""
    talk = Talk().member("0_0")
    talk.read()
    record = talk.record("0_0")
    assert kinds(talk.give(Read(record))) == ["Assigned", "Lease"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]))
    actions = talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert actions[0] == Take(Role.ACTIVE, TaskSet.of(["0_0"]), record)
    assert sent(actions)[0].holding == Holding(active=TaskSet.of(["0_0"]))


def test_a_report_is_asked_for() -> None:
    """`report` is answered at once, also when the record is the one already read."""
    talk = Talk().member("0_0")
    record = talk.record("0_0", report=True)
    for expected in (["Assigned", "Lease", "Report"], ["Report"], ["Report"]):
        assert kinds(talk.give(Read(record))) == expected


def test_a_report_during_a_release_does_not_stand_for_it() -> None:
    """Asked while a task stops: the answer still holds it, and a second report follows."""
    talk = Talk().member("0_0")
    (report,) = sent(talk.read(report=True))
    assert report.holding == Holding(active=TaskSet.of(["0_0"]), releasing=TaskSet.of(["0_0"]))
    (report,) = sent(talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))))
    assert report.holding == Holding()


@pytest.mark.parametrize(
    "old",
    [
        {"incarnation": 5},
        {"coordinator_epoch": 2},
        {"revision": 1},
        {"revision": 0},
        {"incarnation": 5, "fault": Fault.FENCED_MEMBER_EPOCH},
        {"coordinator_epoch": 2, "fault": Fault.FENCED_MEMBER_EPOCH},
    ],
)
def test_records_that_are_not_for_us_now(old: dict) -> None:
    """Another incarnation's, an older coordinator's and repeated records change nothing."""
    talk = Talk().member("0_0")
    assert talk.read("0_1", **old) == []
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]))


def test_a_coordinator_that_forgot_asks_and_takes_nothing_back() -> None:
    """After a lost checkpoint a later coordinator asks under an older revision: only answered."""
    talk = Talk().member("0_0")
    talk.read("0_0", "0_1")
    assert kinds(talk.read("0_0", coordinator_epoch=4, revision=1, report=True)) == ["Report"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0", "0_1"]))
    assert talk.read("0_2", coordinator_epoch=3, revision=9) == []
    assert kinds(talk.read("0_0", "0_1", "0_2", coordinator_epoch=4, revision=9)) == [
        "Assigned",
        "Lease",
        "Take",
    ]


# --------------------------------------------------------------------------------------- joining


def test_a_coordinator_that_does_not_answer_is_mentioned_once() -> None:
    """After some joins the user is told what to look at; then it goes on asking in silence."""
    talk = in_state(State.JOINING)
    said: list[list[str]] = []
    for _ in range(8):
        said.append(kinds(talk.later(JOIN_PAUSE_MAX_MS * 5 // 4)))
    assert said == [["Join"], ["Join"], ["Join", "Notice"], *([["Join"]] * 5)]


def test_joins_are_retried_with_growing_pauses() -> None:
    """Without an answer the same join goes out again, ever more rarely, never too rarely."""
    talk = Talk()
    (first,) = sent(talk.give(Begin()))
    pauses = []
    for _ in range(8):
        assert talk.give(ClockMoved()) == []
        assert talk.session.deadline_ms is not None
        pauses.append(talk.session.deadline_ms - talk.now_ms)
        assert sent(talk.later(pauses[-1])) == [first]
    assert pauses[0] < 1_300
    assert pauses[2] > 2_000
    assert max(pauses) <= JOIN_PAUSE_MAX_MS * 5 // 4


@pytest.mark.parametrize(
    "fault",
    [
        Fault.MEMBER_ID_IN_USE,
        Fault.UNRELEASED_INSTANCE_ID,
        Fault.GROUP_MAX_SIZE_REACHED,
        Fault.GROUP_ID_NOT_FOUND,
    ],
)
def test_refused_for_now(fault: Fault) -> None:
    """A member that is not admitted yet says why, and asks again under the same incarnation."""
    talk = Talk().joining()
    (notice,) = talk.read(fault=fault, message="W1 is alive")
    assert notice == Notice(f"{fault.value}: W1 is alive; asking again")
    (again,) = sent(talk.later(JOIN_PAUSE_MAX_MS))
    assert again.incarnation == mixed63(1)
    assert kinds(talk.read("0_0"))[2:] == ["Take"]


@pytest.mark.parametrize("fault", [Fault.FENCED_INSTANCE_ID, Fault.INVALID_REQUEST])
def test_refused_for_good(fault: Fault) -> None:
    """A join that can never be accepted ends the session with the coordinator's words."""
    talk = Talk().joining()
    assert talk.read(fault=fault, message="no") == [End(fault, "no")]
    assert talk.session.state is State.ENDED


def test_a_late_answer_to_an_older_session() -> None:
    """Faults and tombstones of what was before do not disturb a join."""
    talk = Talk().joining()
    assert talk.read(fault=Fault.UNKNOWN_MEMBER_ID, incarnation=0) == []
    assert talk.give(GONE) == []
    assert talk.session.state is State.JOINING


# --------------------------------------------------------------------------------------- losing


@pytest.mark.parametrize(
    "fault", [Fault.UNKNOWN_MEMBER_ID, Fault.FENCED_MEMBER_EPOCH, Fault.INVALID_REQUEST]
)
@pytest.mark.parametrize("anyone", [True, False])
def test_faults_that_take_everything(fault: Fault, anyone: bool) -> None:
    """The member drops everything and joins anew; one that was fenced leaves its session first."""
    talk = Talk().member("0_0")
    incarnation = 0 if anyone else talk.session.incarnation
    (lose,) = talk.read(fault=fault, message="why", incarnation=incarnation, revision=0)
    assert lose == Lose(f"{fault.value}: why")
    *leave, join = sent(talk.give(AllStopped()))
    assert [type(e) for e in leave] == ([Leave] if fault is Fault.FENCED_MEMBER_EPOCH else [])
    assert join.incarnation == mixed63(2)


def test_story_the_group_was_deleted() -> None:
    """The member has stopped all, is told why, and asks until there is a group again.

    Its older session is none that stands in the way: it leaves nothing.
    """
    talk = Talk().member("0_0")
    talk.read()
    talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    why = "group deleted by muster config delete"
    told = talk.read(fault=Fault.GROUP_ID_NOT_FOUND, message=why, revision=0)
    assert told == [Lose(f"GROUP_ID_NOT_FOUND: {why}")]
    assert talk.give(GONE) == []
    asks = talk.give(AllStopped())
    (join,) = sent(asks)
    for _ in range(3):
        talk.acknowledge(asks)
        notice = talk.read(fault=Fault.GROUP_ID_NOT_FOUND, message=why, revision=0)
        assert notice == [Notice(f"GROUP_ID_NOT_FOUND: {why}; asking again")]
        asks = talk.later(JOIN_PAUSE_MAX_MS * 5 // 4)
        assert sent(asks) == [join]
    assert "Take" in kinds(talk.read("0_0"))


def test_story_its_own_shadow_stands_in_the_way() -> None:
    """After a loss the old session is still counted: the member leaves it, and is let in."""
    talk = Talk().member("0_0")
    talk.give(GONE)
    talk.give(AllStopped())
    leave, join = sent(talk.read(fault=Fault.MEMBER_ID_IN_USE))
    assert leave == Leave(group=GROUP, member=MEMBER, incarnation=mixed63(1), temporary=True)
    assert join.incarnation == mixed63(2)
    # Once is enough; from then on it is another process.
    assert kinds(talk.read(fault=Fault.MEMBER_ID_IN_USE)) == ["Notice"]


def test_a_static_member_that_lost_its_session_comes_back() -> None:
    """Its leave is temporary: its tasks wait for it."""
    talk = Talk(replace(JOIN, instance_id="i")).member("0_0")
    talk.later(SESSION_MS)
    leave, _ = sent(talk.give(AllStopped()))
    assert leave.temporary


def test_fenced_for_good_while_holding() -> None:
    """FENCED_INSTANCE_ID: everything stops, then the session ends without a word."""
    talk = Talk().member("0_0")
    assert kinds(talk.read(fault=Fault.FENCED_INSTANCE_ID, message="gone")) == ["Lose"]
    assert talk.give(AllStopped()) == [End(Fault.FENCED_INSTANCE_ID, "gone")]


# -------------------------------------------------------------------------------------- leaving


def test_leaving_keeps_the_session_alive() -> None:
    """While tasks stop, heartbeats go on and new tasks are not taken."""
    talk = Talk().member("0_0")
    talk.give(LeaveAsked(temporary=True))
    assert talk.read("0_0", "0_1") == []
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]
    leave, _ = talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert leave.event.temporary


def test_leaving_with_empty_hands() -> None:
    """Nothing to stop: it leaves at once."""
    assert kinds(Talk().member().give(LeaveAsked())) == ["Leave", "End"]


def test_leaving_while_the_lease_runs_out() -> None:
    """Tasks that took too long are lost; then it leaves all the same."""
    talk = Talk().member("0_0")
    talk.give(LeaveAsked())
    assert kinds(talk.later(SESSION_MS)) == ["Lose"]
    assert kinds(talk.give(AllStopped())) == ["Leave", "End"]


def test_leaving_after_a_loss() -> None:
    """Asked to leave while lost tasks stop: no new join."""
    talk = Talk().member("0_0")
    talk.give(GONE)
    assert talk.give(LeaveAsked()) == []
    assert kinds(talk.give(AllStopped())) == ["End"]
