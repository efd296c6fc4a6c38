"""The session: joining, holding tasks, losing them, leaving."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from support.worker.talk import (
    BEAT_MS,
    GONE,
    GROUP,
    JOIN,
    MEMBER,
    SESSION_MS,
    Talk,
    in_state,
    kinds,
    sent,
)

from muster.protocol.digest import Holding
from muster.protocol.events import Leave, Origin, Report
from muster.protocol.ids import Role
from muster.protocol.records import Fault, MemberAssignment
from muster.protocol.tasks import TaskSet
from muster.state.group import Group
from muster.state.machine import advance
from muster.worker.session_messages import (
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
from muster.worker.session_steps import GATHER_MS, JOIN_PAUSE_MAX_MS, State, mixed63

# -------------------------------------------------------------------------------------- stories


def test_story_join_take_release_leave() -> None:
    """A member's life from join to leave, with every action compared."""
    talk = Talk()
    # It joins, under an incarnation computed from the seed.
    (join,) = talk.give(Begin())
    assert join == Send(replace(JOIN, incarnation=mixed63(1)), mixed63(1), talk.now_ms)
    # It is granted two tasks. The lease counts from when the join was sent.
    first_ms, talk.now_ms = talk.now_ms, talk.now_ms + 40
    record = talk.record("0_0", "0_1")
    assert talk.give(Read(record)) == [
        Assigned(record),
        Lease(first_ms + 9_900 - 1_000, 1_000),
        Take(Role.ACTIVE, TaskSet.of(["0_0", "0_1"]), record),
    ]
    assert talk.give(Acknowledged(join)) == []  # does not extend the lease
    # A task is revoked: the member stops it, and marks it as releasing from now on.
    record = talk.record("0_1", epoch=1)
    assert talk.give(Read(record))[2:] == [Release(Role.ACTIVE, TaskSet.of(["0_0"]), record)]
    assert talk.holding == Holding(active=TaskSet.of(["0_0", "0_1"]), releasing=TaskSet.of(["0_0"]))
    # The task has stopped: one report, with the revision of the record that revoked it.
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
    """If a record is read during a release, the report has the newer revision."""
    talk = Talk().member("0_0", "0_1")
    talk.read("0_1")
    assert kinds(talk.read("0_1", "0_2")) == ["Assigned", "Lease", "Take"]
    (report,) = sent(talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))))
    assert report.revision == 3
    assert report.holding.active == TaskSet.of(["0_1", "0_2"])


def test_story_a_task_assigned_again_while_stopping() -> None:
    """A task that is assigned again while it stops stays held, and starts when it has stopped."""
    talk = Talk().member("0_0")
    talk.read()
    record = talk.record("0_0")
    assert kinds(talk.give(Read(record))) == ["Assigned", "Lease"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]))
    actions = talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert actions[0] == Take(Role.ACTIVE, TaskSet.of(["0_0"]), record)
    assert sent(actions)[0].holding == Holding(active=TaskSet.of(["0_0"]))


def test_a_requested_report_is_sent_at_once() -> None:
    """A record with `report` set is answered at once, even if it was read before."""
    talk = Talk().member("0_0")
    record = talk.record("0_0", report=True)
    for expected in (["Assigned", "Lease", "Report"], ["Report"], ["Report"]):
        assert kinds(talk.give(Read(record))) == expected


def test_a_requested_report_does_not_replace_that_of_a_release() -> None:
    """A report requested while a task stops still holds the task, and a second report follows."""
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
def test_stale_records_are_ignored(old: dict) -> None:
    """Records for another incarnation, of an older coordinator, or repeated change nothing."""
    talk = Talk().member("0_0")
    assert talk.read("0_1", **old) == []
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]))


def test_a_report_request_with_an_old_revision_revokes_nothing() -> None:
    """After a lost checkpoint the coordinator asks with an old revision; the member reports."""
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


def test_one_notice_if_no_coordinator_answers() -> None:
    """After some unanswered joins there is one notice; then only joins follow."""
    talk = in_state(State.JOINING)
    actions: list[list[str]] = []
    for _ in range(8):
        actions.append(kinds(talk.later(JOIN_PAUSE_MAX_MS * 5 // 4)))
    assert actions == [["Join"], ["Join"], ["Join", "Notice"], *([["Join"]] * 5)]


def test_joins_are_retried_with_growing_pauses() -> None:
    """Without an answer the same join is sent again, with growing pauses up to a maximum."""
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
    """After a temporary refusal there is a notice, and a join under the same incarnation."""
    talk = Talk().joining()
    (notice,) = talk.read(fault=fault, message="W1 is alive")
    assert notice == Notice(f"{fault.value}: W1 is alive; asking again")
    (again,) = sent(talk.later(JOIN_PAUSE_MAX_MS))
    assert again.incarnation == mixed63(1)
    assert kinds(talk.read("0_0"))[2:] == ["Take"]


@pytest.mark.parametrize("fault", [Fault.FENCED_INSTANCE_ID, Fault.INVALID_REQUEST])
def test_refused_for_good(fault: Fault) -> None:
    """A final refusal ends the session, with the coordinator's message."""
    talk = Talk().joining()
    assert talk.read(fault=fault, message="no") == [End(fault, "no")]
    assert talk.session.state is State.ENDED


def test_late_answers_to_an_older_session_are_ignored() -> None:
    """Faults and tombstones for an older session change nothing while joining."""
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
    """The member drops all tasks and joins again; a fenced one leaves its old session first."""
    talk = Talk().member("0_0")
    incarnation = 0 if anyone else talk.session.incarnation
    (lose,) = talk.read(fault=fault, message="why", incarnation=incarnation, revision=0)
    assert lose == Lose(f"{fault.value}: why")
    *leave, join = sent(talk.give(AllStopped()))
    assert [type(e) for e in leave] == ([Leave] if fault is Fault.FENCED_MEMBER_EPOCH else [])
    assert join.incarnation == mixed63(2)


def test_story_the_group_was_deleted() -> None:
    """After the group was deleted the member asks to join until the group exists again.

    The deleted group does not count its old session, so it sends no leave.
    """
    talk = Talk().member("0_0")
    talk.read()
    talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    why = "group deleted by muster config delete"
    actions = talk.read(fault=Fault.GROUP_ID_NOT_FOUND, message=why, revision=0)
    assert actions == [Lose(f"GROUP_ID_NOT_FOUND: {why}")]
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


def test_story_its_own_old_session_is_in_use() -> None:
    """After a loss the old session still counts: the member leaves it and joins again."""
    talk = Talk().member("0_0")
    talk.give(GONE)
    talk.give(AllStopped())
    leave, join = sent(talk.read(fault=Fault.MEMBER_ID_IN_USE))
    assert leave == Leave(group=GROUP, member=MEMBER, incarnation=mixed63(1), temporary=True)
    assert join.incarnation == mixed63(2)
    # Only once: a second refusal concerns the session of another process.
    assert kinds(talk.read(fault=Fault.MEMBER_ID_IN_USE)) == ["Notice"]


def test_story_a_machine_is_restored_twice_from_one_snapshot() -> None:
    """The two processes have all in common, and yet the group admits only one of them.

    Had they the same incarnation, the second join would be the first one again, and both would run
    the member's tasks from then on.
    """
    talk = Talk().member("0_0")
    talk.give(GONE)
    sessions = [talk.session, deepcopy(talk.session)]
    joins = [
        sent(list(session.step(AllStopped(seed), talk.now_ms)))[-1]
        for session, seed in zip(sessions, (5, 6), strict=True)
    ]
    assert [join.incarnation for join in joins] == [mixed63(5), mixed63(6)]
    events = [
        replace(j, origin=Origin("muster.membership", 0, n, 1_000)) for n, j in enumerate(joins)
    ]
    step = advance(Group.new(GROUP), events, coordinator_epoch=4)
    for record in step.records:
        for session in sessions:
            if isinstance(record, MemberAssignment):
                session.step(Read(record), talk.now_ms)
    assert [session.state for session in sessions] == [State.MEMBER, State.JOINING]


def test_a_static_member_that_lost_its_session_leaves_temporarily() -> None:
    """Its leave is temporary, so its tasks wait for it."""
    talk = Talk(replace(JOIN, instance_id="i")).member("0_0")
    talk.later(SESSION_MS)
    leave, _ = sent(talk.give(AllStopped()))
    assert leave.temporary


def test_fenced_for_good_while_holding() -> None:
    """After FENCED_INSTANCE_ID all tasks stop, then the session ends without a leave."""
    talk = Talk().member("0_0")
    assert kinds(talk.read(fault=Fault.FENCED_INSTANCE_ID, message="gone")) == ["Lose"]
    assert talk.give(AllStopped()) == [End(Fault.FENCED_INSTANCE_ID, "gone")]


# -------------------------------------------------------------------------------------- leaving


def test_leaving_keeps_the_session_alive() -> None:
    """While tasks stop, heartbeats go on, and no new tasks are taken."""
    talk = Talk().member("0_0")
    talk.give(LeaveAsked(temporary=True))
    assert talk.read("0_0", "0_1") == []
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]
    leave, _ = talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    assert leave.event.temporary


def test_a_leaving_member_answers_a_new_coordinator() -> None:
    """The group moves no task before every member has answered; the rest of the record is ignored.

    What stops afterwards is reported to the new coordinator, which ignores reports to an older one.
    """
    talk = Talk().member("0_0", "0_1", "0_2")
    talk.read("0_2")
    held = talk.holding
    talk.give(LeaveAsked())
    revision = talk.session.record.revision
    (answer,) = sent(talk.read("0_3", coordinator_epoch=8, report=True, revision=revision + 1))
    assert (answer.holding, answer.revision, answer.coordinator_epoch) == (held, revision, 8)
    assert talk.read("0_3", coordinator_epoch=7, report=True) == []
    talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"])))
    (report,) = sent(talk.later(GATHER_MS))
    assert report.coordinator_epoch == 8


def test_leaving_without_tasks() -> None:
    """A member without tasks leaves at once."""
    assert kinds(Talk().member().give(LeaveAsked())) == ["Leave", "End"]


def test_leaving_while_the_lease_runs_out() -> None:
    """If stopping takes longer than the lease, the tasks are lost; then the member leaves."""
    talk = Talk().member("0_0")
    talk.give(LeaveAsked())
    assert kinds(talk.later(SESSION_MS)) == ["Lose"]
    assert kinds(talk.give(AllStopped())) == ["Leave", "End"]


def test_leaving_after_a_loss() -> None:
    """A member that is closed while lost tasks stop does not join again."""
    talk = Talk().member("0_0")
    talk.give(GONE)
    assert talk.give(LeaveAsked()) == []
    assert kinds(talk.give(AllStopped())) == ["End"]
