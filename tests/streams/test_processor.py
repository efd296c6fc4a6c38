"""The operator without a JVM: stored bytes, groups in memory, and rows in any order."""

from __future__ import annotations

import pytest
from support.streams.operator import (
    INPUT,
    LANE,
    REBUILD_MS,
    G,
    M,
    Operator,
    config,
    join,
    of_kind,
)
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.events import Event, Heartbeat, Leave, Tick
from muster.protocol.records import (
    GroupSnapshot,
    MemberAssignment,
    WakeUp,
)
from muster.streams import processor
from muster.streams.batch.outbox import SINCE

pytestmark = pytest.mark.usefixtures("nothing_in_memory")


def test_a_member_gets_its_tasks() -> None:
    """A config and a join in one batch give an assignment, a snapshot and a wake-up."""
    records = Operator().feed(1_000, config(), join())
    (assignment,) = of_kind(records, MemberAssignment)
    assert (assignment.member, len(assignment.active), assignment.coordinator_epoch) == (M, 4, 7)
    assert [s.members[0].id for s in of_kind(records, GroupSnapshot)] == [M]
    assert len(of_kind(records, WakeUp)) == 1


def test_a_snapshot_says_how_old_its_question_was() -> None:
    """A snapshot's header is the time of the batch's oldest join; a tick does not count."""
    operator = Operator()
    operator.feed(1_000, config())
    late, early = operator.at(join("n"), 5_000), operator.at(join("m"), 4_000)
    tick = operator.at(Tick(group=G), 3_500)
    encoded = [codec.encode(event) for event in (late, early, tick)]
    entries = [
        pack(event.origin, each.value, INPUT)
        for event, each in zip((late, early, tick), encoded, strict=True)
    ]
    operator.written.clear()
    operator.batch(LANE, entries)
    since_headers = {
        row.topic: [value for name, value in row.headers or () if name == SINCE]
        for row in operator.written
    }
    assert since_headers["muster.groups"] == [b"4000"]
    assert [values for topic, values in since_headers.items() if topic != "muster.groups"] == [
        [],
        [],
    ]


def test_repeated_events_do_not_count_for_the_header() -> None:
    """A batch that repeats answered events takes its header from the first new event."""
    operator = Operator()
    old = [operator.at(config(), 1_000), operator.at(join("m"), 2_000)]
    new = operator.at(join("n"), 900_000)
    since_headers = []
    for events in (old, [*old, new]):
        operator.written.clear()
        operator.batch(LANE, [pack(e.origin, codec.encode(e).value, INPUT) for e in events])
        headers = [row.headers for row in operator.written if row.topic == "muster.groups"]
        since_headers += [value for each in headers for name, value in each or () if name == SINCE]
    assert since_headers == [b"1000", b"900000"]


def live(operator: Operator, *, forget: bool = False) -> None:
    """Feed a group's short life in batches; `forget` clears the memory before each batch."""
    batches: list[tuple[Event, ...]] = [
        (config(), join()),
        (join("n"),),
        (Heartbeat(group=G, member=M, epoch=1, digest=1),),
        (Heartbeat(group=G, member=M, epoch=1, digest=1), Tick(group=G)),
        (Leave(group=G, member=M, incarnation=5),),
        (config(6),),
        (Tick(group=G),),
    ]
    for number, events in enumerate(batches):
        if forget:
            processor._cache.clear()
        operator.feed(1_000 * (number + 1), *events)


def test_memory_changes_nothing() -> None:
    """A group in memory and a group read from the store before each batch write equal records."""
    remembered, forgotten = Operator(), Operator()
    live(remembered)
    live(forgotten, forget=True)
    assert len(remembered.written) > 7
    assert remembered.written == forgotten.written
    assert remembered.stored(LANE) == forgotten.stored(LANE)


def test_memory_of_another_store_is_not_trusted() -> None:
    """Two operators with their own stores do not use each other's groups in memory."""
    mine, other = Operator(), Operator()
    mine.feed(1_000, config(), join())
    other.feed(1_000, config(2), join("stranger"))
    records = mine.feed(2_000, join("n"))
    (snapshot,) = of_kind(records, GroupSnapshot)[-1:]
    assert sorted(member.id for member in snapshot.members) == ["m", "n"]


def test_the_order_of_rows_does_not_matter() -> None:
    """A replay by Spark with its rows in another order gives the same records."""
    answers = []
    for turned in (False, True):
        operator = Operator()
        events = [operator.at(e, 1_000 + i) for i, e in enumerate([config(), join(), join("n")])]
        entries = [pack(e.origin, codec.encode(e).value, INPUT) for e in events]
        operator.batch(LANE, entries[::-1] if turned else entries)
        answers.append(operator.written)
        processor._cache.clear()
    assert answers[0] == answers[1]


def test_prefixes_are_apart() -> None:
    """Groups of the same name under two topic prefixes are independent."""
    operator = Operator()
    operator.feed(1_000, config(), join())
    records = operator.feed(1_000, config(2), join("n"), prefix="other")
    (assignment,) = of_kind(records, MemberAssignment)
    assert (assignment.member, len(assignment.active)) == ("n", 2)


def test_a_heartbeat_does_not_touch_the_snapshot() -> None:
    """A matching heartbeat changes only the liveness; after `REBUILD_MS` it renews the snapshot."""
    operator = Operator()
    (assignment,) = of_kind(operator.feed(1_000, config(), join()), MemberAssignment)
    liveness, snapshot = operator.stored(LANE)
    digest = codec_digest(assignment)
    beat = Heartbeat(group=G, member=M, epoch=assignment.epoch, digest=digest)
    assert of_kind(operator.feed(2_000, beat), GroupSnapshot) == []
    after, same = operator.stored(LANE)
    assert (after != liveness, same) == (True, snapshot)
    (renewed,) = of_kind(
        operator.feed(1_000 + REBUILD_MS, Heartbeat(group=G, member=M, epoch=1, digest=digest)),
        GroupSnapshot,
    )
    assert renewed.clock_ms == 1_000 + REBUILD_MS
    assert {(t, p): o for t, p, o in renewed.through}["muster.membership", 0] == 2


def codec_digest(assignment: MemberAssignment) -> int:
    """The digest of a member that holds exactly what it was assigned."""
    from muster.protocol.digest import Holding

    return Holding(active=assignment.active).digest()


def test_a_group_without_members_is_not_remembered() -> None:
    """Ticks and heartbeats of a group that does not exist leave nothing in the store."""
    operator = Operator()
    operator.feed(1_000, Tick(group=G), Heartbeat(group=G, member=M, epoch=3, digest=9))
    assert operator.stored(LANE) == (None, None)
