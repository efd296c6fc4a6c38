"""The session: heartbeats, the lease, and processes that were suspended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.worker.talk import BEAT_MS, GONE, GROUP, JOIN, MEMBER, SESSION_MS, Talk, kinds, sent

from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Join, LagReport, Leave
from muster.protocol.ids import Role
from muster.protocol.tasks import TaskSet
from muster.worker.lease import lease_until_ms, session_until_ms, stop_ms
from muster.worker.session_messages import (
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
from muster.worker.session_steps import State, mixed63

# ------------------------------------------------------------------------ heartbeats and the lease


def test_heartbeats() -> None:
    """A heartbeat is due one interval after the last event, if no other is in flight."""
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
    """After a failed heartbeat the next one is sent when it is due."""
    talk = Talk().member("0_0")
    (beat,) = talk.later(BEAT_MS)
    assert talk.give(Failed(beat)) == []
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]


def test_a_report_that_failed() -> None:
    """A failed report replaces the next heartbeat, with the holding of that time."""
    talk = Talk().member("0_0", "0_1", learner=["0_9"])
    (report,) = talk.give(Ready(TaskSet.of(["0_9"])))
    assert talk.give(Failed(report)) == []
    talk.read("0_0", learner=["0_9"])
    (again,) = sent(talk.later(BEAT_MS))
    assert again.holding.releasing == TaskSet.of(["0_1"])
    assert again.holding.ready == TaskSet.of(["0_9"])
    assert kinds(talk.later(BEAT_MS)) == ["Heartbeat"]


def test_lease_is_shorter_than_the_session() -> None:
    """The lease is shorter by 1 % for clock drift and a tenth, at most 3 s, for stopping."""
    assert lease_until_ms(0, 45_000) == 45_000 - 450 - 3_000
    assert lease_until_ms(0, 10_000) == 10_000 - 100 - 1_000
    assert stop_ms(100) == 10


def test_only_what_kafka_acknowledged_extends_the_lease() -> None:
    """The lease counts from when an acknowledged event was sent, not from its acknowledgement."""
    talk = Talk().member("0_0")
    joined = talk.session.lease_ms
    (beat,) = talk.later(BEAT_MS)
    talk.give(CaughtUp(talk.now_ms + 500))
    assert talk.session.lease_ms == joined
    beat_ms, talk.now_ms = talk.now_ms, talk.now_ms + 700
    assert talk.give(Acknowledged(beat)) == [Lease(lease_until_ms(beat_ms, SESSION_MS), 1_000)]
    assert talk.give(Acknowledged(replace(beat, sent_ms=beat_ms - 1))) == []


@pytest.mark.parametrize(("after_ms", "counts"), [(-1, True), (0, False)])
def test_an_acknowledgement_that_comes_after_the_session_extends_nothing(
    after_ms: int, counts: bool
) -> None:
    """The event may be stored behind the end of the session, where the tasks are given away."""
    talk = Talk().member("0_0")
    end_ms = session_until_ms(talk.now_ms, SESSION_MS)
    (beat,) = talk.later(BEAT_MS)
    talk.give(CaughtUp(talk.now_ms))
    beat_ms, talk.now_ms = talk.now_ms, end_ms + after_ms  # the process is suspended
    talk.give(Acknowledged(beat))
    assert (talk.session.lease_ms == lease_until_ms(beat_ms, SESSION_MS)) == counts


def test_story_the_reader_hangs() -> None:
    """Acknowledged heartbeats do not extend the lease if nothing is read."""
    talk = Talk().member("0_0")
    read_ms = talk.now_ms
    while talk.now_ms < read_ms + 8_000:
        assert [a for a in talk.acknowledge_only(talk.later(BEAT_MS)) if isinstance(a, Lease)] == []
    assert talk.session.lease_ms == lease_until_ms(read_ms, SESSION_MS)
    assert talk.later(900) == [Lose("the lease ran out: assignments could not be read in time")]


def test_the_lease_counts_from_the_last_complete_read() -> None:
    """If all was read up to a moment before the newest heartbeat, the lease counts from it."""
    talk = Talk().member("0_0")
    talk.acknowledge_only(talk.later(BEAT_MS))
    read_ms = talk.now_ms - 300
    assert talk.give(CaughtUp(read_ms)) == [Lease(lease_until_ms(read_ms, SESSION_MS), 1_000)]
    assert talk.give(CaughtUp(read_ms - 1)) == []
    until_ms = lease_until_ms(talk.now_ms, SESSION_MS)
    assert talk.give(CaughtUp(talk.now_ms)) == [Lease(until_ms, 1_000)]
    assert talk.give(CaughtUp(talk.now_ms + 5_000)) == []  # more needs a newer heartbeat


def test_a_reader_that_pauses_briefly() -> None:
    """After a pause shorter than the lease records are obeyed and the lease is extended."""
    talk = Talk().member("0_0", "0_1")
    for _ in range(8):
        talk.acknowledge_only(talk.later(BEAT_MS))
    assert kinds(talk.read("0_1"))[2:] == ["Release"]
    until_ms = lease_until_ms(talk.now_ms, SESSION_MS)
    assert talk.give(CaughtUp(talk.now_ms)) == [Lease(until_ms, 1_000)]


def test_a_join_answered_late_by_a_reader_that_hung() -> None:
    """An answer that is read a session late grants nothing, although joins were acknowledged."""
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
def test_events_that_do_not_extend_the_lease(kind: type) -> None:
    """Lag reports, leaves, and events of an older session do not extend the lease."""
    talk = Talk().member("0_0")
    extra = {"lags": ()} if kind is LagReport else {"incarnation": 1}
    event = kind(group=GROUP, member=MEMBER, **extra)
    assert talk.give(Acknowledged(Send(event, talk.session.incarnation, talk.now_ms + 5))) == []
    beat = Heartbeat(group=GROUP, member=MEMBER, epoch=1, digest=0)
    assert talk.give(Acknowledged(Send(beat, 77, talk.now_ms + 5))) == []


def test_story_silence() -> None:
    """If Kafka acknowledges nothing, all tasks are lost with the lease; then it joins again."""
    talk = Talk().member("0_0", standby=["0_1"])
    (lose,) = talk.later(8_900)[-1:]
    assert isinstance(lose, Lose)
    assert talk.holding == Holding()
    assert talk.session.record is None
    # It sends nothing until every task has stopped.
    assert talk.later(60_000) == []
    leave, join = sent(talk.give(AllStopped()))
    assert leave == Leave(group=GROUP, member=MEMBER, incarnation=mixed63(1), temporary=True)
    assert join == replace(JOIN, incarnation=mixed63(2))
    # A late record to the old session grants nothing.
    assert talk.read("0_0", incarnation=mixed63(1)) == []
    assert kinds(talk.read("0_0")) == ["Assigned", "Lease", "Take"]


@pytest.mark.parametrize(
    "given",
    [Ready(TaskSet.of(["0_9"])), Released(Role.ACTIVE, TaskSet.of(["0_0"])), GONE, LeaveAsked()],
)
def test_a_resumed_process_checks_its_lease_first(given: Input) -> None:
    """After a suspension the lease is checked before any input is handled."""
    talk = Talk().member("0_0", learner=["0_9"])
    talk.now_ms += SESSION_MS
    assert kinds(talk.give(given))[0] == "Lose"
    assert talk.session.state is State.LOST


def test_a_grant_read_too_late_is_not_taken() -> None:
    """A process suspended after its join ignores the old grant and joins again."""
    talk = Talk().joining()
    talk.now_ms += SESSION_MS
    assert kinds(talk.read("0_0")) == ["Lose"]
    assert [type(e) for e in sent(talk.give(AllStopped()))] == [Leave, Join]


def test_a_new_join_does_not_renew_an_old_grant() -> None:
    """A process that resumes, joins again and then reads the old grant does not take it."""
    talk = Talk().joining()
    talk.now_ms += SESSION_MS
    talk.acknowledge(talk.give(ClockMoved()))
    assert kinds(talk.read("0_0")) == ["Lose"]


def test_joins_less_than_a_session_apart_count() -> None:
    """After a long wait with regular joins, the lease counts from the newest join."""
    talk = Talk().joining()
    for _ in range(10):
        assert talk.session.deadline_ms is not None
        talk.now_ms = talk.session.deadline_ms
        talk.acknowledge(talk.give(ClockMoved()))
    assert kinds(talk.read("0_0")) == ["Assigned", "Lease", "Take"]
    assert talk.session.lease_ms == lease_until_ms(talk.now_ms, SESSION_MS)


def test_an_acknowledgement_from_before_a_suspension_counts() -> None:
    """An acknowledgement is handled before the lease is checked."""
    talk = Talk().member("0_0")
    (beat,) = talk.later(5_000)
    talk.give(CaughtUp(talk.now_ms))
    talk.now_ms += 4_000  # the join's lease has ended, the heartbeat's has not
    assert kinds(talk.give(Acknowledged(beat))) == ["Lease"]
    assert kinds(talk.give(ClockMoved())) == ["Heartbeat"]


# ---------------------------------------------------------------------- a changed session timeout

SHORTER = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 500}


def slow() -> Talk:
    """A member with a long timeout, whose newest event and proof are 19 s old."""
    talk = Talk().member("0_0", session_timeout_ms=60_000, heartbeat_interval_ms=20_000)
    talk.now_ms += 19_000
    return talk


def test_a_shorter_timeout_counts_from_the_report_on() -> None:
    """What was sent before had the rhythm of the longer timeout, and proves the session by that."""
    talk = slow()
    actions = talk.read("0_0", report=True, **SHORTER)
    assert kinds(actions) == ["Assigned", "Lease", "Lease", "Report"]
    reported_ms = talk.now_ms
    assert talk.session.lease_ms == lease_until_ms(reported_ms, 2_000)
    talk.now_ms += 40
    assert talk.acknowledge(actions) == []  # the report is what the lease counts from already
    talk.now_ms = reported_ms + 500
    talk.acknowledge(talk.give(ClockMoved()))
    assert talk.session.lease_ms == lease_until_ms(talk.now_ms, 2_000)


def test_a_shorter_timeout_is_reported_unasked() -> None:
    """Until it sends a report the member counts the longer timeout; so it sends one."""
    assert kinds(slow().read("0_0", **SHORTER)) == ["Assigned", "Lease", "Lease", "Report"]


def test_a_report_on_a_shorter_timeout_that_is_not_acknowledged() -> None:
    """The coordinator may have the report and count the shorter timeout from it."""
    talk = slow()
    talk.read("0_0", report=True, **SHORTER)
    talk.give(CaughtUp(talk.now_ms))
    assert kinds(talk.later(lease_until_ms(0, 2_000) - 1)) == ["Heartbeat"]
    assert kinds(talk.later(1)) == ["Lose"]


def test_what_was_sent_before_the_report_counts_by_the_longer_timeout() -> None:
    """The report may not arrive; so a session that ends sooner by the longer timeout ends then."""
    talk = slow()
    talk.now_ms += 60_000 * 99 // 100 - 6_000 - 19_000 + 2_900
    joined_ms = talk.now_ms - 60_000 * 99 // 100 + 3_100
    assert talk.session.lease_ms == lease_until_ms(joined_ms, 60_000)
    talk.now_ms = lease_until_ms(joined_ms, 60_000) - 1
    talk.read("0_0", report=True, session_timeout_ms=50_000)
    assert talk.session.lease_ms == session_until_ms(joined_ms, 60_000) - stop_ms(50_000)


def test_timeouts_that_change_again_before_the_report_is_acknowledged() -> None:
    """The first report counts: the coordinator may have used each timeout from then on."""
    talk = slow()
    talk.read("0_0", report=True, session_timeout_ms=10_000)
    reported_ms = talk.now_ms
    talk.now_ms += 100
    talk.read("0_0", report=True, session_timeout_ms=5_000)
    assert talk.session.lease_ms == lease_until_ms(reported_ms, 5_000)
    talk.read("0_0", report=True, session_timeout_ms=8_000)
    assert talk.session.lease_ms == lease_until_ms(reported_ms, 8_000)
    talk.read("0_0", report=True, session_timeout_ms=60_000)
    assert talk.session.lease_ms == lease_until_ms(reported_ms - 19_000, 60_000)


def test_a_timeout_that_changes_again_after_the_report_is_acknowledged() -> None:
    """The next shorter timeout counts from its own report."""
    talk = slow()
    talk.acknowledge(talk.read("0_0", report=True, session_timeout_ms=10_000))
    talk.now_ms += 4_000
    talk.read("0_0", report=True, **SHORTER)
    assert talk.session.lease_ms == lease_until_ms(talk.now_ms, 2_000)


def test_a_longer_timeout_counts_at_once() -> None:
    """The coordinator counts it from when it read the config."""
    talk = Talk().member("0_0")
    talk.read("0_0", session_timeout_ms=20_000)
    assert talk.session.lease_ms == lease_until_ms(talk.now_ms, 20_000)
