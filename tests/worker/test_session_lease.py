"""The session machine: heartbeats, the lease, and what a process that slept may not believe."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.talk import BEAT_MS, GONE, GROUP, JOIN, MEMBER, SESSION_MS, Talk, kinds, sent

from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Join, LagReport, Leave
from muster.protocol.ids import Role
from muster.protocol.tasks import TaskSet
from muster.worker.chance import mixed63
from muster.worker.exchange import (
    Acknowledged,
    AllStopped,
    Begin,
    CaughtUp,
    ClockMoved,
    Failed,
    Input,
    Lease,
    LeaveAsked,
    Lose,
    Read,
    Ready,
    Released,
    Send,
)
from muster.worker.lease import lease_until_ms, stop_ms
from muster.worker.states import State

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
