"""The session machine: every state with every input, and the stories worth telling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Join, Lag, LagReport, Leave, Report
from muster.protocol.ids import GroupId, MemberId, Role, Task
from muster.protocol.records import Fault, MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet
from muster.worker.chance import JOIN_PAUSE_MAX_MS, mixed63
from muster.worker.exchange import (
    Acknowledged,
    Action,
    AllStopped,
    Assigned,
    Begin,
    CaughtUp,
    ClockMoved,
    End,
    Failed,
    Input,
    Lease,
    LeaveAsked,
    Lose,
    Notice,
    Read,
    Ready,
    Release,
    Released,
    Restored,
    Send,
    Take,
)
from muster.worker.lease import lease_until_ms, stop_ms
from muster.worker.session import Session
from muster.worker.states import FAULTS, TABLE, State

GROUP, MEMBER = GroupId("g"), MemberId("m")
JOIN = Join(group=GROUP, member=MEMBER, incarnation=0, rack="r1")
GONE = Read(MemberGone(group=GROUP, member=MEMBER))
SESSION_MS, BEAT_MS = 10_000, 1_000


class Talk:
    """A session with a clock, and the coordinator's records made easy."""

    def __init__(self, join: Join = JOIN) -> None:
        self.session = Session(join, seed=1)
        self.now_ms = 1_000_000
        self.revision = 0

    def give(self, given: Input) -> list[Action]:
        """One step at the present time."""
        return list(self.session.step(given, self.now_ms))

    def record(self, *active: str, **more) -> MemberAssignment:
        """The next record to the present incarnation."""
        self.revision += 1
        defaults = {
            "incarnation": self.session.incarnation,
            "coordinator_epoch": 3,
            "generation": self.revision,
            "epoch": self.revision,
            "revision": self.revision,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": BEAT_MS,
        }
        sets = {k: TaskSet.of(v) for k, v in more.items() if k in ("standby", "learner")}
        return MemberAssignment(
            group=GROUP, member=MEMBER, active=TaskSet.of(active), **{**defaults, **more, **sets}
        )

    def read(self, *active: str, **more) -> list[Action]:
        """Read the next record."""
        return self.give(Read(self.record(*active, **more)))

    def acknowledge(self, actions: list[Action]) -> list[Action]:
        """Kafka acknowledges everything that was sent; the reader has read all until now."""
        self.give(CaughtUp(self.now_ms))
        return self.acknowledge_only(actions)

    def acknowledge_only(self, actions: list[Action]) -> list[Action]:
        """Kafka acknowledges everything that was sent; nothing is known of the reader."""
        return [a for s in actions if isinstance(s, Send) for a in self.give(Acknowledged(s))]

    def later(self, ms: int) -> list[Action]:
        """Time passes; the clock is looked at."""
        self.now_ms += ms
        return self.give(ClockMoved())

    def joining(self) -> Talk:
        """Bring it to JOINING, its join acknowledged."""
        self.acknowledge(self.give(Begin()))
        return self

    def member(self, *active: str, **more) -> Talk:
        """Bring it to MEMBER, holding tasks."""
        self.joining().read(*active, **more)
        return self

    @property
    def holding(self) -> Holding:
        """What it holds."""
        return self.session.holding


def sent(actions: list[Action]) -> list[object]:
    """The events among actions."""
    return [a.event for a in actions if isinstance(a, Send)]


def kinds(actions: list[Action]) -> list[str]:
    """What actions are, events by their own name."""
    return [type(a.event if isinstance(a, Send) else a).__name__ for a in actions]


# ------------------------------------------------------------------------------------ the table


def in_state(state: State) -> Talk:
    """A talk brought to a state, holding 0_0 where a state can hold."""
    talk = Talk()
    if state is State.NEW:
        return talk
    if state is State.JOINING:
        return talk.joining()
    if state is State.ENDED:
        talk.give(LeaveAsked())
        return talk
    talk.member("0_0", learner=["0_9"])
    if state is State.LOST:
        talk.give(GONE)
    if state is State.LEAVING:
        talk.give(LeaveAsked())
    return talk


INPUTS: dict[type, Input] = {
    Begin: Begin(),
    Read: GONE,
    Acknowledged: Acknowledged(
        Send(Heartbeat(group=GROUP, member=MEMBER, epoch=1, digest=0), mixed63(1), 1_000_500)
    ),
    CaughtUp: CaughtUp(1_000_500),
    Failed: Failed(
        Send(
            Report(
                group=GROUP, member=MEMBER, incarnation=0, epoch=0, revision=0, holding=Holding()
            ),
            mixed63(1),
            0,
        )
    ),
    Released: Released(Role.ACTIVE, TaskSet.of(["0_0"])),
    AllStopped: AllStopped(),
    Ready: Ready(TaskSet.of(["0_9"])),
    Restored: Restored((Lag(Task("0", 9), 5),)),
    LeaveAsked: LeaveAsked(),
    ClockMoved: ClockMoved(),
}

FIRST: dict[type, Input] = {Acknowledged: INPUTS[CaughtUp], CaughtUp: INPUTS[Acknowledged]}
"""A lease needs both; what is given first, so that the second makes a difference."""

EXPECTED: dict[tuple[State, type], tuple[State, list[str]]] = {
    (State.NEW, Begin): (State.JOINING, ["Join"]),
    (State.NEW, LeaveAsked): (State.ENDED, ["End"]),
    (State.JOINING, LeaveAsked): (State.ENDED, ["Leave", "End"]),
    (State.MEMBER, Read): (State.LOST, ["Lose"]),
    (State.MEMBER, Acknowledged): (State.MEMBER, ["Lease"]),
    (State.MEMBER, CaughtUp): (State.MEMBER, ["Lease"]),
    (State.MEMBER, Ready): (State.MEMBER, ["Report"]),
    (State.MEMBER, Restored): (State.MEMBER, ["LagReport"]),
    (State.MEMBER, LeaveAsked): (State.LEAVING, ["Release", "Release"]),
    (State.LOST, AllStopped): (State.JOINING, ["Join"]),
    (State.LEAVING, Read): (State.LOST, ["Lose"]),
    (State.LEAVING, Acknowledged): (State.LEAVING, ["Lease"]),
    (State.LEAVING, CaughtUp): (State.LEAVING, ["Lease"]),
}
"""Where the state or an action comes of it; all other pairs change nothing."""


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("state", State)
def test_table(state: State, kind: type) -> None:
    """Each state takes each input as the table says; what is not listed there changes nothing."""
    talk = in_state(state)
    talk.now_ms += 1
    if kind in FIRST:
        assert talk.give(FIRST[kind]) == []
    actions = talk.give(INPUTS[kind])
    assert (talk.session.state, kinds(actions)) == EXPECTED.get((state, kind), (state, []))


def test_table_names_methods_that_exist() -> None:
    """Every handler named in the table is one of the session's."""
    names = {name for row in TABLE.values() for name in row.values()}
    assert names == {name for name in names if callable(getattr(Session, name, None))}
    assert set(FAULTS) == set(Fault)


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


def test_story_one_report_for_all_releases() -> None:
    """Several roles are released in their own time; one report follows the last."""
    talk = Talk().member("0_0", standby=["0_1"], learner=["0_2"])
    assert kinds(talk.read("0_5")) == ["Assigned", "Lease", "Release", "Release", "Release", "Take"]
    assert talk.give(Released(Role.STANDBY, TaskSet.of(["0_1"]))) == []
    assert talk.give(Released(Role.ACTIVE, TaskSet.of(["0_0"]))) == []
    (report,) = sent(talk.give(Released(Role.LEARNER, TaskSet.of(["0_2"]))))
    assert report.holding == Holding(active=TaskSet.of(["0_5"]))


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


def test_story_a_role_changes() -> None:
    """A learner that becomes active in one record stops restoring first."""
    talk = Talk().member(learner=["0_0"])
    talk.give(Ready(TaskSet.of(["0_0"])))
    assert kinds(talk.read("0_0")) == ["Assigned", "Lease", "Release"]
    actions = talk.give(Released(Role.LEARNER, TaskSet.of(["0_0"])))
    assert kinds(actions) == ["Take", "Report"]
    assert talk.holding == Holding(active=TaskSet.of(["0_0"]))


def test_ready_is_said_once() -> None:
    """A learner that is ready is reported at once, and not again; a stranger never."""
    talk = Talk().member(learner=["0_0"])
    (report,) = sent(talk.give(Ready(TaskSet.of(["0_0", "0_7"]))))
    assert report.holding.ready == TaskSet.of(["0_0"])
    assert talk.give(Ready(TaskSet.of(["0_0", "0_7"]))) == []


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
    [Fault.MEMBER_ID_IN_USE, Fault.UNRELEASED_INSTANCE_ID, Fault.GROUP_MAX_SIZE_REACHED],
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


# ------------------------------------------------------------------------ heartbeats and the lease


def test_heartbeats() -> None:
    """One is due an interval after anything was sent; one in flight is enough; digest of now."""
    talk = Talk().member("0_0")
    assert talk.session.deadline_ms == talk.now_ms + BEAT_MS
    assert talk.later(BEAT_MS - 1) == []
    (beat,) = talk.later(1)
    digest = Holding(active=TaskSet.of(["0_0"])).digest()
    assert beat.event == Heartbeat(group=GROUP, member=MEMBER, epoch=1, digest=digest)
    assert talk.later(2 * BEAT_MS) == []
    assert talk.session.deadline_ms == talk.session.lease_ms
    talk.give(Acknowledged(beat))
    assert kinds(talk.later(0)) == ["Heartbeat"]


def test_a_heartbeat_that_failed() -> None:
    """When Kafka gave one up, the next goes out when it is due."""
    talk = Talk().member("0_0")
    (beat,) = talk.later(BEAT_MS)
    assert talk.give(Failed(beat)) == []
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]


def test_a_report_that_failed() -> None:
    """It is made again in the place of the next heartbeat, with what is held by then."""
    talk = Talk().member("0_0", "0_1", learner=["0_9"])
    (report,) = talk.give(Ready(TaskSet.of(["0_9"])))
    assert talk.give(Failed(report)) == []
    talk.read("0_0", learner=["0_9"])
    (again,) = sent(talk.later(BEAT_MS))
    assert again.holding.releasing == TaskSet.of(["0_1"])
    assert again.holding.ready == TaskSet.of(["0_9"])
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]


def test_lease_is_shorter_than_the_session() -> None:
    """A hundredth for clocks and a tenth, at most 3 s, for stopping are kept."""
    assert lease_until_ms(0, 45_000) == 45_000 - 450 - 3_000
    assert lease_until_ms(0, 10_000) == 10_000 - 100 - 1_000
    assert stop_ms(100) == 10


def test_only_what_kafka_acknowledged_extends_the_lease() -> None:
    """The lease counts from the sending of an acknowledged event, not from its acknowledgement."""
    talk = Talk().member("0_0")
    joined = talk.session.lease_ms
    (beat,) = talk.later(BEAT_MS)
    talk.give(CaughtUp(talk.now_ms + 500))
    assert talk.session.lease_ms == joined
    beat_ms, talk.now_ms = talk.now_ms, talk.now_ms + 700
    assert talk.give(Acknowledged(beat)) == [Lease(lease_until_ms(beat_ms, SESSION_MS), 1_000)]
    assert talk.give(Acknowledged(replace(beat, sent_ms=beat_ms - 1))) == []


def test_story_the_reader_hangs() -> None:
    """Heartbeats are acknowledged, nothing is read: the lease ends as if Kafka were silent."""
    talk = Talk().member("0_0")
    read_ms = talk.now_ms
    while talk.now_ms < read_ms + 8_000:
        assert [a for a in talk.acknowledge_only(talk.later(BEAT_MS)) if isinstance(a, Lease)] == []
    assert talk.session.lease_ms == lease_until_ms(read_ms, SESSION_MS)
    assert talk.later(900) == [Lose("the lease ran out: assignments could not be read in time")]


def test_the_lease_counts_from_what_was_read_last() -> None:
    """Read up to a moment before the newest heartbeat: the lease counts from that moment."""
    talk = Talk().member("0_0")
    talk.acknowledge_only(talk.later(BEAT_MS))
    read_ms = talk.now_ms - 300
    assert talk.give(CaughtUp(read_ms)) == [Lease(lease_until_ms(read_ms, SESSION_MS), 1_000)]
    assert talk.give(CaughtUp(read_ms - 1)) == []
    until_ms = lease_until_ms(talk.now_ms, SESSION_MS)
    assert talk.give(CaughtUp(talk.now_ms)) == [Lease(until_ms, 1_000)]
    assert talk.give(CaughtUp(talk.now_ms + 5_000)) == []  # more needs a newer heartbeat


def test_a_reader_that_is_back_in_time_costs_nothing() -> None:
    """What it reads after a pause is obeyed, and the lease goes on from there."""
    talk = Talk().member("0_0", "0_1")
    for _ in range(8):
        talk.acknowledge_only(talk.later(BEAT_MS))
    assert kinds(talk.read("0_1"))[2:] == ["Release"]
    until_ms = lease_until_ms(talk.now_ms, SESSION_MS)
    assert talk.give(CaughtUp(talk.now_ms)) == [Lease(until_ms, 1_000)]


def test_a_join_answered_late_by_a_reader_that_hung() -> None:
    """Joins are acknowledged all the while, but an answer read a session late gives nothing."""
    talk = Talk()
    talk.acknowledge_only(talk.give(Begin()))
    record = talk.record("0_0")
    first_ms = talk.now_ms
    while talk.now_ms < first_ms + SESSION_MS:
        assert talk.session.deadline_ms is not None
        talk.now_ms = talk.session.deadline_ms
        talk.acknowledge_only(talk.give(ClockMoved()))
    assert kinds(talk.give(Read(record))) == ["Lose"]


@pytest.mark.parametrize("kind", [Leave, LagReport])
def test_what_is_no_sign_of_life(kind: type) -> None:
    """Lags and leaves do not extend the lease, nor what an older session sent."""
    talk = Talk().member("0_0")
    extra = {"lags": ()} if kind is LagReport else {"incarnation": 1}
    event = kind(group=GROUP, member=MEMBER, **extra)
    assert talk.give(Acknowledged(Send(event, talk.session.incarnation, talk.now_ms + 5))) == []
    beat = Heartbeat(group=GROUP, member=MEMBER, epoch=1, digest=0)
    assert talk.give(Acknowledged(Send(beat, 77, talk.now_ms + 5))) == []


def test_story_silence() -> None:
    """Kafka acknowledges nothing: all is lost at the end of the lease; the return is another."""
    talk = Talk().member("0_0", standby=["0_1"])
    (lose,) = talk.later(8_900)[-1:]
    assert isinstance(lose, Lose)
    assert talk.holding == Holding()
    assert talk.session.record is None
    # Nothing is said until everything has stopped.
    assert talk.later(60_000) == []
    leave, join = sent(talk.give(AllStopped()))
    assert leave == Leave(group=GROUP, member=MEMBER, incarnation=mixed63(1), temporary=True)
    assert join == replace(JOIN, incarnation=mixed63(2))
    # What was written to the old session comes late: it gives nothing.
    assert talk.read("0_0", incarnation=mixed63(1)) == []
    assert kinds(talk.read("0_0")) == ["Assigned", "Lease", "Take"]


@pytest.mark.parametrize(
    "given",
    [Ready(TaskSet.of(["0_9"])), Released(Role.ACTIVE, TaskSet.of(["0_0"])), GONE, LeaveAsked()],
)
def test_a_process_that_slept_loses_first(given: Input) -> None:
    """Whatever wakes it, the lease is looked at before anything else."""
    talk = Talk().member("0_0", learner=["0_9"])
    talk.now_ms += SESSION_MS
    assert kinds(talk.give(given))[0] == "Lose"
    assert talk.session.state is State.LOST


def test_a_grant_read_too_late_is_not_taken() -> None:
    """A process that slept after its join reads an old grant: it takes nothing and joins anew."""
    talk = Talk().joining()
    talk.now_ms += SESSION_MS
    assert kinds(talk.read("0_0")) == ["Lose"]
    assert [type(e) for e in sent(talk.give(AllStopped()))] == [Leave, Join]


def test_a_grant_read_after_sleep_and_a_fresh_join_is_not_taken() -> None:
    """Awake, it asks anew, then reads the old grant: the new join does not make that good."""
    talk = Talk().joining()
    talk.now_ms += SESSION_MS
    talk.acknowledge(talk.give(ClockMoved()))
    assert kinds(talk.read("0_0")) == ["Lose"]


def test_joins_that_were_never_a_session_apart_count() -> None:
    """Waiting long for a coordinator is no reason to lose what it gives at last."""
    talk = Talk().joining()
    for _ in range(10):
        assert talk.session.deadline_ms is not None
        talk.now_ms = talk.session.deadline_ms
        talk.acknowledge(talk.give(ClockMoved()))
    assert kinds(talk.read("0_0")) == ["Assigned", "Lease", "Take"]
    assert talk.session.lease_ms == lease_until_ms(talk.now_ms, SESSION_MS)


def test_what_was_acknowledged_before_the_sleep_counts() -> None:
    """An acknowledgement is taken in before the lease is looked at."""
    talk = Talk().member("0_0")
    (beat,) = talk.later(5_000)
    talk.give(CaughtUp(talk.now_ms))
    talk.now_ms += 4_000  # the join's lease is over, the heartbeat's is not
    assert kinds(talk.give(Acknowledged(beat))) == ["Lease"]
    assert kinds(talk.give(ClockMoved())) == ["Heartbeat"]


def test_a_shorter_session_counts_as_soon_as_it_is_read() -> None:
    """The lease follows the session timeout of the newest record."""
    talk = Talk().member("0_0")
    started_ms = talk.now_ms
    talk.now_ms += 100
    actions = talk.read("0_0", session_timeout_ms=2_000)
    assert actions[1] == Lease(lease_until_ms(started_ms, 2_000), 200)


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


def test_story_its_own_shadow_stands_in_the_way() -> None:
    """After a loss the old session is still counted: the member leaves it, and is let in."""
    talk = Talk().member("0_0")
    talk.give(GONE)
    talk.give(AllStopped())
    leave, join = sent(talk.read(fault=Fault.MEMBER_ID_IN_USE))
    assert leave == Leave(group=GROUP, member=MEMBER, incarnation=mixed63(1), temporary=True)
    assert join.incarnation == mixed63(2)
    # Once is enough; from then on it is somebody else.
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


# ----------------------------------------------------------------------------------------- lags


def test_lags_go_with_joins_and_reports() -> None:
    """Lags told before are in the join; those of copies held are in reports, and told at once."""
    talk = Talk()
    talk.give(Restored((Lag(Task("0", 1), 9), Lag(Task("0", 0), 4))))
    (join,) = sent(talk.give(Begin()))
    assert join.lags == (Lag(Task("0", 0), 4), Lag(Task("0", 1), 9))
    talk.read(learner=["0_1"])
    (told,) = sent(talk.give(Restored((Lag(Task("0", 1), 2),))))
    assert told == LagReport(group=GROUP, member=MEMBER, lags=(Lag(Task("0", 1), 2),))
    (report,) = sent(talk.give(Ready(TaskSet.of(["0_1"]))))
    assert report.lags == (Lag(Task("0", 1), 2),)
