"""The operator without a JVM never raises: bugs, corrupt bytes, plug-ins, lost checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import plugin_assignors
from support.streams.operator import (
    ALLOWED,
    LANE,
    PARTITIONS,
    REBUILD_MS,
    G,
    M,
    Operator,
    config,
    join,
    of_kind,
    record_of,
)

from muster import plugins
from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Drain, Tick
from muster.protocol.ids import MemberId
from muster.protocol.records import (
    GroupSnapshot,
    MemberAssignment,
    Rejected,
)
from muster.protocol.split_records import parts
from muster.streams import processor
from muster.streams.batch import group_batch, outbox
from muster.streams.batch.group_batch import Publisher
from muster.streams.batch.inbox import Inbox
from muster.streams.batch.stored_values import Stored

pytestmark = pytest.mark.usefixtures("nothing_in_memory")


def test_a_bug_parks_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the core raises, events become dead letters, the first with the exception's text.

    The stored snapshot stays, and the group continues once the core works again.
    """
    operator = Operator()
    operator.feed(1_000, config(), join())
    liveness, snapshot = operator.stored(LANE)
    with monkeypatch.context() as broken:
        broken.setattr(group_batch, "advance", _fail)
        first = operator.feed(2_000, join("n"), Tick(group=G))
        second = operator.feed(3_000, Tick(group=G), join("o"))
    assert [(type(r), r.reason) for r in first] == [(Rejected, DeadLetter.GROUP_FAILED)] * 1
    assert "ZeroDivisionError: the story" in first[0].message
    assert [(r.reason, r.origin.offset) for r in second] == [(DeadLetter.GROUP_FAILED, 4)]
    assert "ZeroDivisionError" not in second[0].message
    assert operator.stored(LANE)[1] == snapshot
    assert liveness is not None
    records = operator.feed(4_000, join("p"))
    (newest,) = of_kind(records, GroupSnapshot)[-1:]
    assert sorted(member.id for member in newest.members) == ["m", "p"]
    assert of_kind(operator.feed(5_000, Tick(group=G)), Rejected) == []


def test_a_record_too_large_keeps_the_last_good_generation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A snapshot that readers would refuse is not published; a dead letter gives its size."""
    operator = Operator()
    operator.feed(1_000, config(), join())
    _, snapshot = operator.stored(LANE)
    with monkeypatch.context() as limited:
        # Every snapshot must be split, and readers accept no more than 100 bytes.
        most = {GroupSnapshot: 200}
        limited.setattr("muster.protocol.split_records.VALUE_BYTES_MAX", 100)
        limited.setattr(
            outbox, "parts", lambda r, turn: parts(r, most.get(type(r), 10_000), turn=turn)
        )
        (letter,) = operator.feed(2_000, join("n"))
    assert (type(letter), letter.reason) == (Rejected, DeadLetter.GROUP_FAILED)
    assert "bytes; 100 are accepted" in letter.message
    assert operator.stored(LANE)[1] == snapshot
    (newest,) = of_kind(operator.feed(3_000, join("n")), GroupSnapshot)[-1:]
    assert sorted(member.id for member in newest.members) == ["m", "n"]


def _fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError("the story")


HANGS = "support.plugin_assignors:Hangs"


@pytest.fixture
def released() -> Iterator[None]:
    """End a hanging plug-in after the test, and wait until it has ended: the next test calls it."""
    plugin_assignors.RELEASE.clear()
    yield
    plugin_assignors.RELEASE.set()
    guard = plugins.get(HANGS)
    assert isinstance(guard, plugins.Guarded)
    assert guard._hanging is None or guard._hanging.ends_within(10)


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("Raises", "ZeroDivisionError: oops"),
        ("Hangs", "took more than 20 ms"),
        ("Exits", "SystemExit: 3"),
    ],
)
def test_a_plugin_harms_no_group(plugin: str, message: str) -> None:
    """If a plug-in raises, hangs or exits, a dead letter says so and the target stays.

    A new member still joins, and the next assignor gives it tasks.
    """
    operator = Operator()
    operator.feed(1_000, config(), join())
    patience = {"assignor.timeout.ms": 20}
    bad = config(settings=patience, assignor=f"support.plugin_assignors:{plugin}")
    assert of_kind(operator.feed(2_000, bad, join("n")), Rejected) == []
    records = operator.feed(2_001, Tick(group=G))
    (letter,) = of_kind(records, Rejected)
    assert letter.reason == "ASSIGNOR_FAILED"
    assert message in letter.message
    (snapshot,) = of_kind(records, GroupSnapshot)
    assert sorted(member.id for member in snapshot.members) == ["m", "n"]
    given = {r.member: len(r.active) for r in of_kind(records, MemberAssignment)}
    assert (given.get("m", 4), given.get("n", 0)) == (4, 0)
    after = operator.feed(3_000, config())
    assert of_kind(after, Rejected) == []
    assert {r.member: len(r.active) for r in of_kind(after, MemberAssignment)}[M] == 2


@pytest.mark.usefixtures("released")
def test_the_job_limits_a_plugin() -> None:
    """A group may allow its plug-in an hour; the job's limit ends the wait of all other groups."""
    operator = Operator(assignor_ms_max=30)
    patience = {"assignor.timeout.ms": 3_600_000}
    bad = config(settings=patience, assignor=HANGS)
    operator.feed(1_000, bad, join())
    (letter,) = of_kind(operator.feed(1_001, Tick(group=G)), Rejected)
    assert "took more than 30 ms" in letter.message


@pytest.mark.usefixtures("released")
def test_another_attempt_of_a_batch_says_the_same() -> None:
    """Two attempts of a batch agree, even if the plug-in is in time in only one of them.

    Two attempts of the next batch agree as well, because the stored bytes decide.
    """
    operator = Operator()
    operator.feed(1_000, config(), join())
    before = Stored(*operator.stored(LANE))
    bad = operator.at(config(settings={"assignor.timeout.ms": 20}, assignor=HANGS), 2_000)
    inbox = Inbox("muster", G, [bad, operator.at(join("n"), 2_000)])
    tick = Inbox("muster", G, [operator.at(Tick(group=G), 2_001)])
    publisher = Publisher(7, PARTITIONS, REBUILD_MS, assignors=ALLOWED)
    late = group_batch.take(None, before, inbox, publisher)
    plugin_assignors.RELEASE.set()
    guard = plugins.get(HANGS)
    assert isinstance(guard, plugins.Guarded)
    assert guard._hanging is not None
    assert guard._hanging.ends_within(10)
    early = group_batch.take(None, before, inbox, publisher)
    assert late.rows == early.rows
    for tried, letters in ((late, 1), (early, 0)):
        records = [group_batch.take(None, tried.stored, tick, publisher).rows for _ in range(2)]
        assert records[0] == records[1]
        assert len(of_kind([record_of(row) for row in records[0]], Rejected)) == letters


def spoilt(name: str) -> Operator:
    """An operator with an unreadable stored value."""
    operator = Operator()
    operator.feed(1_000, config(), join())
    value = operator.stored(LANE)[name == "snapshot"]
    assert value is not None
    operator.tester.updateValueState(name, LANE, (value[:20] + b"\xff" * 7,))
    processor._cache.clear()
    return operator


def test_an_unreadable_snapshot_parks_the_group() -> None:
    """A stored snapshot that cannot be read gives a dead letter and does not raise."""
    records = spoilt("snapshot").feed(2_000, join("n"))
    assert [r.reason for r in of_kind(records, Rejected)] == [DeadLetter.GROUP_FAILED]


def test_an_unreadable_liveness_is_asked_for() -> None:
    """If the stored liveness cannot be read, the member keeps its tasks and is asked to report."""
    records = spoilt("liveness").feed(2_000, join("n"))
    assert of_kind(records, Rejected) == []
    asked = {r.member: (r.report, len(r.active)) for r in of_kind(records, MemberAssignment)}
    assert asked[M] == (True, 4)


def test_a_lost_checkpoint() -> None:
    """A group that starts from its snapshot keeps the member's tasks and asks for a report."""
    before = Operator(epoch=7)
    before.feed(1_000, config(), join())
    _, snapshot = before.stored(LANE)
    assert snapshot is not None
    after = Operator(epoch=8, initial=[(LANE, snapshot)])
    after._offsets = dict(before._offsets)
    records = after.feed(2_000, Tick(group=G))
    (assignment,) = of_kind(records, MemberAssignment)
    assert (assignment.report, assignment.coordinator_epoch) == (True, 8)
    assert len(assignment.active) == 4


def test_a_group_that_is_not_stored_may_have_had_a_coordinator() -> None:
    """Just after a lost checkpoint the member of a new group is asked; later it is not.

    Event times decide, so a replay decides the same; another prefix is not affected.
    """
    for at_ms, prefix, asked in (
        (1_999, "muster", True),
        (2_000, "muster", False),
        (1, "other", False),
    ):
        operator = Operator(unverified_until_ms=2_000)
        (assignment,) = of_kind(
            operator.feed(at_ms, config(), join(), prefix=prefix), MemberAssignment
        )
        assert (assignment.report, len(assignment.active)) == (asked, 0 if asked else 4)


def test_a_refused_event_is_in_its_dead_letter() -> None:
    """The state refuses a drain of a member that is not there: the letter carries the drain."""
    operator = Operator()
    operator.feed(1_000, join("m"))
    drain = Drain(group=G, member=MemberId("absent"))
    (letter,) = of_kind(operator.feed(1_001, drain), Rejected)
    assert letter.reason == DeadLetter.UNKNOWN_MEMBER_ID
    sent = codec.encode(drain)
    assert (letter.key, letter.value) == (sent.key, sent.value)
