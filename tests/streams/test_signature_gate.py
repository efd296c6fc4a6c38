"""Signed rows: which events a group accepts and which become dead letters; without Spark."""

from __future__ import annotations

from dataclasses import replace

from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Join,
    LagReport,
    Leave,
    Origin,
    Refused,
    Report,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import WINDOW_MS, Keyring, Requirement, SigningKey, caller_of
from muster.protocol.records import Rejected
from muster.protocol.settings import Settings
from muster.protocol.signing import Subject, sign
from muster.protocol.tasks import Subtopology
from muster.protocol.tick_covers import Cover, Heard
from muster.protocol.topics import TOPICS as ALL_TOPICS
from muster.state.group import Group
from muster.streams.batch import group_batch
from muster.streams.batch.group_batch import Publisher
from muster.streams.batch.inbox import Inbox, open_lane
from muster.streams.batch.replay_guard import KEPT_MAX, SLACK_MS, ReplayGuard
from muster.streams.batch.signature_gate import LETTERS_MAX
from muster.streams.batch.stored_values import Stored
from muster.streams.source import HEADER, input_topics, lane_of

TOPICS = input_topics(["muster"])
G, M, N = GroupId("g"), MemberId("m"), MemberId("n")
KEY = SigningKey(id="k", secret=b"x" * 32)
RING = Keyring(keys=(KEY,), required=(Requirement(("*",)),))
FORGER = Keyring(keys=(replace(KEY, secret=b"y" * 32),))
PUBLISHER = Publisher(1, {topic.name("muster"): 1 for topic in ALL_TOPICS}, 600_000)
NO_TASKS = Holding()


def at(offset: int, kind: str = "membership") -> Origin:
    """An origin on an input topic."""
    return Origin(f"muster.{kind}", 0, offset, 1_000 + offset)


def row(event: Event, by: Keyring | None = RING) -> bytes:
    """An event as the source packs it, signed or not."""
    key, value, _ = codec.encode(event)
    if by is None:
        return pack(event.origin, value, TOPICS, b"")
    subject = Subject(event.origin.topic, key, value)
    signature = sign(by, event.group, caller_of(event), subject, event.origin.at_ms)
    return pack(event.origin, value, TOPICS, signature)


def opened(*rows: bytes, ring: Keyring = RING) -> Inbox:
    """The inbox that the operator makes of the rows."""
    return open_lane(lane_of("muster", b"g"), sorted(rows), TOPICS, keyring=ring)


def config(offset: int, partitions: int = 2) -> GroupConfig:
    """A group with a few tasks, placed without delay."""
    tasks, settings = (Subtopology("0", partitions),), Settings(initial_rebalance_delay_ms=0)
    return GroupConfig(
        group=G, assignor="sticky", settings=settings, tasks=tasks, origin=at(offset, "config")
    )


def test_every_kind_of_event_passes_when_signed_and_not_when_forged() -> None:
    """Each kind of event passes if signed and becomes a dead letter if forged or unsigned."""
    events: list[Event] = [
        Join(group=G, member=M, incarnation=5, origin=at(1)),
        Heartbeat(group=G, member=M, epoch=1, digest=7, origin=at(2)),
        Report(
            group=G, member=M, incarnation=5, epoch=1, revision=1, holding=NO_TASKS, origin=at(3)
        ),
        Leave(group=G, member=M, incarnation=5, origin=at(4)),
        Drain(group=G, member=M, origin=at(5)),
        Tick(group=G, origin=at(6)),
        LagReport(group=G, member=M, lags=(), origin=at(7, "lag")),
        config(8),
        GroupDeleted(group=G, origin=at(9, "config")),
    ]
    signed = opened(*map(row, events))
    assert (signed.events, signed.rejected) == (events, [])
    for by, reason in ((FORGER, "WRONG_SIGNATURE"), (None, "UNSIGNED")):
        inbox = opened(*(row(event, by) for event in events))
        assert inbox.events == [Refused(group=G, member=M, origin=at(1))]
        assert [(r.origin, r.reason, r.key, r.value) for r in inbox.rejected] == [
            (event.origin, reason, b"g", codec.encode(event).value or b"") for event in events
        ]


def test_heartbeats_apart_count_where_no_signature_is_required() -> None:
    """Where one is, a signed tick counts, but not what it has heard."""
    heard = tuple(Heard(name, 0, 1, 7) for name in ("m", "n", "o", "p", "q", "r"))
    tick = Tick(group=G, cover=Cover(10, 900, heard), origin=at(1))
    free = Keyring(keys=(KEY,), required=())
    assert (opened(row(tick), ring=free).events, opened(row(tick), ring=free).rejected) == (
        [tick],
        [],
    )
    inbox = opened(row(tick), row(replace(tick, origin=at(2))))
    assert inbox.events == [replace(t, refused=True) for t in (tick, replace(tick, origin=at(2)))]
    assert {letter.reason for letter in inbox.rejected} == {"UNSIGNED"}
    assert inbox.rejected[0].message.startswith("heartbeats of m, n, o, p, q and 1 more in this")


def test_heartbeats_from_before_a_requirement_get_no_letter() -> None:
    """The first tick behind its beginning may carry them; they do not count, and are no fault."""
    ring = Keyring(keys=(KEY,), required=(Requirement(("*",), from_ms=50_000),))
    for youngest_s, reasons in ((3, []), (1, ["UNSIGNED"])):
        heard = (Heard("m", 9, 1, 7), Heard("n", youngest_s, 1, 7))
        origin = Origin("muster.membership", 0, 1, 52_500)
        tick = Tick(group=G, cover=Cover(40_000, 52_000, heard), origin=origin)
        inbox = opened(row(tick, ring), ring=ring)
        assert inbox.events == [replace(tick, refused=True)]
        assert [letter.reason for letter in inbox.rejected] == reasons


def test_a_forgery_beside_the_real_one_changes_nothing() -> None:
    """Forged rows do not change the members, tasks and assignments that signed rows give."""
    real = [row(config(1)), row(Join(group=G, member=M, incarnation=5, origin=at(2)))]
    forged = [
        row(config(3, 50), FORGER),
        row(Join(group=G, member=N, incarnation=6, origin=at(4)), FORGER),
        row(Leave(group=G, member=M, incarnation=5, origin=at(5)), FORGER),
        row(Drain(group=G, member=M, origin=at(6)), FORGER),
        row(GroupDeleted(group=G, origin=at(7, "config")), None),
    ]
    alone = group_batch.take(None, Stored(), opened(*real), PUBLISHER)
    beside = group_batch.take(None, Stored(), opened(*real, *forged), PUBLISHER)
    assert alone.group is not None
    assert beside.group is not None
    members = [(m.id, str(m.state), m.draining) for m in beside.group.snapshot().members]
    assert members == [(m.id, str(m.state), m.draining) for m in alone.group.snapshot().members]
    assert beside.group.snapshot().tasks == alone.group.snapshot().tasks
    letters = [row for row in beside.rows if row.topic == "muster.rejected"]
    assert len(letters) == len(forged)
    assert [r for r in beside.rows if r.topic == "muster.assignments"] == [
        r for r in alone.rows if r.topic == "muster.assignments"
    ]


def test_a_forgery_alone_makes_no_group() -> None:
    """Forged rows alone give dead letters and store nothing."""
    inbox = opened(row(Join(group=G, member=M, incarnation=1, origin=at(1)), FORGER))
    taken = group_batch.take(None, Stored(), inbox, PUBLISHER)
    assert (taken.stored, taken.group) == (Stored(), None)
    assert [row.topic for row in taken.rows] == ["muster.rejected"]


def test_a_flood_of_forgeries_causes_few_dead_letters() -> None:
    """Of a thousand forgeries the first get dead letters; the last letter counts the others."""
    beats = [Heartbeat(group=G, member=M, epoch=1, digest=n, origin=at(n)) for n in range(1, 1_001)]
    inbox = opened(*(row(beat, FORGER) for beat in beats))
    assert inbox.events == [Refused(group=G, member=M, origin=at(1))]
    assert [letter.origin for letter in inbox.rejected] == [
        at(n) for n in range(1, LETTERS_MAX + 1)
    ]
    assert "980 more events of this batch were refused" in inbox.rejected[-1].message
    assert "more" not in inbox.rejected[0].message


def test_a_refusal_is_reported_again_after_an_event_that_counts() -> None:
    """The group gets the first refusal, and the first one after an accepted event."""
    beats = [Heartbeat(group=G, member=M, epoch=1, digest=n, origin=at(n)) for n in range(1, 5)]
    by = [FORGER, FORGER, RING, FORGER]
    inbox = opened(*(row(beat, keys) for beat, keys in zip(beats, by, strict=True)))
    first, last = (Refused(group=G, member=M, origin=at(n)) for n in (1, 4))
    assert inbox.events == [first, beats[2], last]


def test_where_signatures_are_optional_only_wrong_ones_are_refused() -> None:
    """Where signatures are optional, unsigned events count and forged events are refused."""
    optional = Keyring(keys=(KEY,))
    bare = Join(group=G, member=M, incarnation=1, origin=at(1))
    forged = Join(group=G, member=N, incarnation=2, origin=at(2))
    inbox = opened(row(bare, None), row(forged, FORGER), ring=optional)
    assert inbox.events == [bare, Refused(group=G, member=N, origin=at(2))]


def test_rubbish_is_undecodable_even_when_signed() -> None:
    """Undecodable bytes are rejected as UNDECODABLE, also with a signature."""
    rubbish = pack(at(1), b"rubbish", TOPICS, b"sig")
    (letter,) = opened(rubbish).rejected
    assert isinstance(letter, Rejected)
    assert (letter.reason, letter.value) == ("UNDECODABLE", b"rubbish")


def test_a_batch_again_under_the_rotated_keys_is_the_same_batch() -> None:
    """A batch gives the same events under the keyring before and during a rotation of keys.

    Two attempts may read different keyrings, which agree on rows from before the new key's start.
    """
    old, new = KEY, replace(KEY, id="new", secret=b"z" * 32, from_ms=1_500)
    files = [
        Keyring(keys=(old,), required=RING.required),
        Keyring(keys=(new, replace(old, until_ms=1_900)), required=RING.required),
    ]
    rows = [
        row(Join(group=G, member=M, incarnation=1, origin=at(1))),
        row(Heartbeat(group=G, member=M, epoch=1, digest=7, origin=at(2)), FORGER),
        row(Leave(group=G, member=N, incarnation=2, origin=at(3)), None),
    ]
    first, second = (opened(*rows, ring=ring) for ring in files)
    assert (first.events, first.rejected) == (second.events, second.rejected)
    assert [type(event) for event in first.events] == [Join, Refused, Refused]


class Life:
    """A group over several batches, read from its stored bytes before each."""

    def __init__(self) -> None:
        self.stored = Stored()

    def batch(self, *rows: bytes, ring: Keyring | None = RING) -> Inbox:
        """Process a batch and return its inbox."""
        lane = lane_of("muster", b"g")
        inbox = open_lane(
            lane, sorted(rows), TOPICS, keyring=ring, replay_guard=self.stored.replay_guard
        )
        self.stored = group_batch.take(None, self.stored, inbox, PUBLISHER).stored
        return inbox

    @property
    def group(self) -> Group:
        """The stored group."""
        return group_batch.restore(G, self.stored)

    def holders(self) -> set[str]:
        """Members that hold a task."""
        snapshot = self.group.snapshot()
        name = {entry.slot: str(entry.id) for entry in snapshot.members}
        return {name[slot] for slot in snapshot.holder.tolist() if slot in name}


def again(row: bytes, offset: int) -> bytes:
    """A copy of a row at a later offset; its signature stays valid."""
    was = HEADER.unpack_from(row)
    return HEADER.pack(1_000 + offset, was[1], was[2], offset, was[4]) + row[HEADER.size :]


def test_a_join_said_again_does_not_free_what_a_fenced_member_still_runs() -> None:
    """A repeated join is rejected and does not take the tasks of a fenced member."""
    life = Life()
    joined = row(Join(group=G, member=M, incarnation=5, origin=at(2)))
    life.batch(row(config(1)), joined)
    life.batch(row(Heartbeat(group=G, member=M, epoch=99, digest=1, origin=at(3))))
    life.batch(row(Join(group=G, member=N, incarnation=6, origin=at(4))))
    assert life.holders() == {"m"}
    records = life.batch(again(joined, 5))
    assert life.holders() == {"m"}
    assert [(r.reason, r.origin.offset) for r in records.rejected] == [("REPEATED_SIGNATURE", 5)]


def test_nothing_that_changes_a_group_counts_twice() -> None:
    """A repeated event that changes the group becomes a dead letter, in any later batch too.

    Heartbeats, ticks and lags count again, and a repeat gives no `Refused` event.
    """
    once: list[Event] = [
        Join(group=G, member=M, incarnation=5, origin=at(1)),
        Report(
            group=G, member=M, incarnation=5, epoch=1, revision=1, holding=NO_TASKS, origin=at(2)
        ),
        Leave(group=G, member=M, incarnation=5, origin=at(3)),
        Drain(group=G, member=M, origin=at(4)),
        config(5),
    ]
    often: list[Event] = [
        Heartbeat(group=G, member=M, epoch=1, digest=7, origin=at(6)),
        Tick(group=G, origin=at(7)),
        LagReport(group=G, member=M, lags=(), origin=at(8, "lag")),
    ]
    rows = [row(event) for event in [*once, *often]]
    life = Life()
    for batch in (1, 2, 3):
        captured = [again(row, 100 * batch + n) for n, row in enumerate(rows)]
        records = life.batch(*(rows if batch == 1 else ()), *captured)
        assert records.events == [
            *([*once, *often] if batch == 1 else ()),
            *(
                replace(e, origin=at(100 * batch + 5 + n, kind))
                for n, (e, kind) in enumerate(
                    zip(often, ("membership", "membership", "lag"), strict=True)
                )
            ),
        ]
        letters = [(letter.reason, letter.origin.offset) for letter in records.rejected]
        assert letters == [("REPEATED_SIGNATURE", 100 * batch + n) for n in range(5)]


def test_signature_gate_are_remembered_while_they_could_count_and_no_longer() -> None:
    """Signatures are stored until they are stale, or until keys are turned off."""
    life = Life()
    life.batch(row(config(1)), row(Join(group=G, member=M, incarnation=5, origin=at(2))))
    assert len(life.stored.replay_guard) == 2 * 16
    life.batch(row(Heartbeat(group=G, member=M, epoch=1, digest=7, origin=at(WINDOW_MS))))
    assert len(life.stored.replay_guard) == 2 * 16
    late = WINDOW_MS + SLACK_MS + 2
    life.batch(row(Tick(group=G, origin=at(late))))
    assert len(life.stored.replay_guard) == 16
    life.batch(row(Tick(group=G, origin=at(late + 1))))
    assert life.stored.replay_guard == b""
    life.batch(row(Join(group=G, member=M, incarnation=5, origin=at(late + 2))))
    bare = pack(at(late + 3), codec.encode(Tick(group=G)).value, TOPICS)
    life.batch(bare, ring=None)
    assert life.stored.replay_guard == b""


def test_what_is_remembered_stands_before_the_groups_own_bytes() -> None:
    """The stored value is a header with its version, the signatures, then the core's bytes.

    A batch whose group cannot be read keeps the signatures.
    """
    life = Life()
    life.batch(row(config(1)), row(Join(group=G, member=M, incarnation=5, origin=at(2))))
    kept, stored = life.stored.replay_guard, life.stored.liveness or b""
    assert stored[0] == 2
    assert stored[18:] == len(kept).to_bytes(4, "big") + kept + life.group.liveness()
    broken = Stored(life.stored.liveness, b"no snapshot")
    inbox = opened(row(Heartbeat(group=G, member=M, epoch=1, digest=7, origin=at(3))))
    parked = group_batch.take(None, broken, inbox, PUBLISHER)
    assert {row.topic for row in parked.rows} == {"muster.rejected"}
    assert parked.stored.replay_guard == kept


def test_a_group_remembers_so_many_signatures() -> None:
    """A group stores at most `KEPT_MAX` signatures and forgets the oldest first."""
    known = ReplayGuard()
    made = [n.to_bytes(8, "big") for n in range(KEPT_MAX + 5)]
    assert all(known.is_first(mark, 1_000 + n) for n, mark in enumerate(made))
    kept = known.to_bytes(0)
    assert len(kept) == 16 * KEPT_MAX
    guard = ReplayGuard(kept)
    assert [guard.is_first(mark, 0) for mark in made[:6]] == [True] * 5 + [False]
