"""One group batch: stored bytes and events in, rows for Kafka and new bytes out.

Heartbeats do not change the snapshot. So the snapshot of a quiet group is published again when it
is older than `rebuild_ms` by the group's clock: a lost checkpoint is read back from its offsets.

A group for which the core fails is *parked*: its events of this batch become dead letters, the
first with the error, and its stored state stays. It is also parked when it grows too large, or
breaks a law of `state.invariants` in a batch that is checked. A replay of the batch fails in the
same way, because the core is pure. A group that runs out of memory is quarantined (`quarantine`).

Plug-in assignors run within a time limit (`muster.plugins`). An answer is stored, and the next
batch uses it (`state.assignor_outcome`), so what this batch publishes does not depend on
the time it took.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

from pyspark.sql.types import Row

from muster import plugins
from muster.assignor.model import Assignor
from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, Heartbeat, Refused, Taken, Tick
from muster.protocol.ids import GroupId
from muster.protocol.keyring import Keyring
from muster.protocol.keys import parse_key
from muster.protocol.records import GroupGone, GroupSnapshot, Record, Rejected, WakeUp
from muster.protocol.split_records import Joiner
from muster.protocol.taskset import SET_TASKS_MAX
from muster.protocol.topics import TopicKind, topic_name
from muster.state import deletion, invariants, missed_records
from muster.state.assignor_outcome import Aside
from muster.state.errors import InvariantViolation
from muster.state.group import Group
from muster.state.machine import Step, advance
from muster.streams.batch import byte_limits, outbox
from muster.streams.batch.inbox import Inbox
from muster.streams.batch.letter_limits import LetterBudget
from muster.streams.batch.stored_values import (
    PARKED_FLAG,
    QUARANTINED_FLAG,
    TURN_FLAG,
    Header,
    Parts,
    Stored,
    tag_of,
)
from muster.streams.source import split_lane

PARKED = "the group is parked"
"""Message of the dead letters that follow the one with the error."""
STORY_CHARS_MAX = 8_000
PROBATION_MS = 600_000
"""How long the batches of a released group run in child processes: members answer, tasks move."""


class Rows(NamedTuple):
    """All rows of one lane (topic prefix and record key) in a batch, with their group.

    Attributes:
        lane: see `source`.
        entries: the packed rows, sorted.
        keyring: the signing keys; None = nothing is signed.
        stored: what the state store has of the group.
        group: the group if it is in memory.
        configs: those of the rows that are of the config topic and may count.
        have_waited: whether rows waited (`waiting_rows`): then a wake-up was published that the
            group does not know of.
    """

    lane: bytes
    entries: list[bytes]
    keyring: Keyring | None
    stored: Stored
    group: Group | None
    configs: Sequence[bytes] = ()
    have_waited: bool = False

    @property
    def signed(self) -> bool:
        """Whether the rows have room for signatures."""
        return self.keyring is not None


class Publisher(NamedTuple):
    """Facts about the job that a group batch needs.

    Attributes:
        epoch: coordinator epoch of the group's prefix.
        partitions: topic → number of partitions.
        rebuild_ms: age at which a snapshot is published again.
        unverified_until_ms: a group without stored state that has an event from before this broker
            time is unverified: an older coordinator may know more
            (`checkpoint.unverified_groups`).
        check_share: share of the batches that change a group after which the group is checked.
        assignors: plug-ins that a record may name by ``module:Class``.
        group_bytes_max: most bytes that each of the two stored values of a group may take.
        group_tasks_max: most tasks a group may declare.
        assignor_ms_max: longest time that a plug-in may take for a placement, in milliseconds.
        predecessors_obey: the coordinator before this one obeys its ticks (see
            `state.lost_checkpoint`).
        aside: computes large placements; None = they are computed in the batch.
    """

    epoch: int
    partitions: Mapping[str, int]
    rebuild_ms: int
    unverified_until_ms: int = 0
    check_share: float = 0.0
    assignors: frozenset[str] = frozenset()
    group_bytes_max: int = 32 << 20
    group_tasks_max: int = 1 << 18
    assignor_ms_max: int = 10_000
    predecessors_obey: bool = False
    aside: Aside | None = None

    def assignor(self, name: str) -> Assignor:
        """The assignor that a group's config names.

        Raises:
            UnknownAssignor: there is no such assignor, or it may not be loaded.
        """
        return plugins.from_record(name, self.assignors, self.assignor_ms_max)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one group batch.

    Attributes:
        rows: what goes to Kafka.
        group: the group after the batch; None = do not keep it in memory.
        stored: the stored values after the batch.
    """

    rows: list[Row]
    group: Group | None
    stored: Stored


def restore(
    group: GroupId, stored: Stored, *, unverified: bool = False, predecessors_obey: bool = False
) -> Group:
    """The group as it was stored; without stored values a new one.

    A snapshot without liveness was read back after the checkpoint was lost: its members get fresh
    sessions and are asked what they hold. They are also asked after an upgrade or a rollback, when
    another version of muster wrote the liveness; no task moves because of it. The core's array is
    empty where a quarantine has dropped the group's events (`quarantine`).

    Raises:
        Exception: the stored bytes cannot be read; the caller parks the group.
    """
    record = stored.record(group)
    if record is None:
        return Group.new(group, unverified=unverified)
    parts = stored.parts()
    if parts is not None:
        with suppress(ValueError):  # the core's own part may be from another version, too
            return Group.restore(record, parts.core)
    if stored.liveness is None:
        return Group.recover(record, predecessors_obey=predecessors_obey)
    # With the liveness, records that were read after the snapshot are lost, too.
    is_dropped = parts is not None and not parts.core
    recovered = Group.recover(record, unverified=is_dropped, has_lost_events=is_dropped)
    return missed_records.after(recovered)


def known(rows: Rows, *, predecessors_obey: bool) -> Group | None:
    """The group, restored if it is not in memory, because limits follow from its number of tasks.

    The limits must be the same in a replay, which may find other groups in memory.
    """
    if rows.group is not None or rows.stored.snapshot is None:
        return rows.group
    try:
        return restore(
            parse_key(split_lane(rows.lane)[1]).group,
            rows.stored,
            predecessors_obey=predecessors_obey,
        )
    except MemoryError:
        raise
    except Exception:
        return None  # `take` fails in the same way and parks the group


def tasks_of(group: Group | None, stored: Stored) -> int:
    """Tasks that a group has; for a stored group that cannot be read, the most it may have."""
    if group is not None:
        return len(group.table)
    return 0 if stored.snapshot is None else SET_TASKS_MAX


def take(
    was: Group | None,
    stored: Stored,
    inbox: Inbox,
    publisher: Publisher,
    budget: LetterBudget | None = None,
    *,
    have_waited: bool = False,
) -> BatchResult:
    """Apply a batch's events to a group; any failure except a `MemoryError` parks the group.

    Args:
        was: the group if it is in memory, else None.
        stored: what the state store has of it.
        inbox: the events of the batch; it names a group. Without events, a group that was read back
            asks its members.
        publisher: facts about the job.
        budget: what the batch's dead letters may still take; None = this group has it alone.
        have_waited: see `Rows`.

    Raises:
        MemoryError: there is not enough memory.
    """
    assert inbox.group is not None
    budget = LetterBudget() if budget is None else budget
    try:
        unverified = any(
            event.origin.at_ms < publisher.unverified_until_ms for event in inbox.events
        )
        before = was or restore(
            inbox.group,
            stored,
            unverified=unverified,
            predecessors_obey=publisher.predecessors_obey,
        )
        if stored.is_quarantined or have_waited:
            before.sessions.renew_wake_up()  # the published one was taken back, or replaced
        step = advance(
            before,
            inbox.events,
            coordinator_epoch=publisher.epoch,
            assignors=publisher.assignor,
            aside=publisher.aside,
        )
        if step.group.is_left_to_a_later_one(publisher.epoch):
            return _left(step.group, stored)
        if step.changed and _is_drawn(inbox, publisher.check_share):
            invariants.check(step.group)
        since_ms = _since_ms(inbox, before)
        # The replay guard of a deleted group stays until its signatures are stale. Without it, a
        # copy of the config would bring the group back, or one of the deletion delete it again.
        is_guarded = step.group.dead and bool(inbox.replay_guard)
        if deletion.may_be_forgotten(step.group) and not is_guarded:
            return _forgotten(before, step, stored, inbox, publisher, budget)
        return _went_well(step.group, step.records, stored, inbox, publisher, budget, since_ms)
    except byte_limits.TooLarge as error:
        return _parked(stored, inbox, str(error), publisher, budget, DeadLetter.TOO_LARGE)
    except InvariantViolation as violation:
        story = "\n".join((*violation.story, f"law broken: {violation.law}"))
        return _parked(stored, inbox, story, publisher, budget)
    except (KeyboardInterrupt, MemoryError):
        raise  # after an interrupt Spark replays the batch; too little memory quarantines the group
    except BaseException:
        return _parked(stored, inbox, traceback.format_exc(), publisher, budget)


def _left(group: Group, stored: Stored) -> BatchResult:
    """Publish nothing and store the new liveness, because a later coordinator has the group."""
    if stored.snapshot is None:
        return BatchResult([], None, stored)
    parts = stored.parts()
    if parts is None:
        parts = Parts(Header(0, tag_of(stored.snapshot), group.sessions.clock_ms), b"", b"")
    liveness = parts._replace(core=group.liveness()).to_bytes()
    return BatchResult([], group, stored._replace(liveness=liveness))


def _is_drawn(inbox: Inbox, share: float) -> bool:
    """Whether a batch is checked; only its rows decide, so that a replay decides the same."""
    if not inbox.events:
        return False
    newest = max((event.origin for event in inbox.events), key=lambda origin: origin.sort_key)
    ticket = f"{inbox.group} {newest.topic} {newest.partition} {newest.offset}"
    return crc32(ticket.encode()) < share * 2**32


def _went_well(
    group: Group,
    records: tuple[Record, ...],
    stored: Stored,
    inbox: Inbox,
    publisher: Publisher,
    budget: LetterBudget,
    since_ms: int | None,
) -> BatchResult:
    was = stored.parts()
    flags, tag, clock_ms = Header() if was is None else was.header
    snapshot = stored.snapshot
    published = [r for r in records if isinstance(r, GroupSnapshot)]
    is_old = group.sessions.clock_ms - clock_ms >= publisher.rebuild_ms
    is_released = bool(flags & QUARANTINED_FLAG)
    if not published and snapshot is not None and (is_old or is_released):
        published = [group.snapshot()]
        records = (*records, *published)
    flags &= ~(PARKED_FLAG | QUARANTINED_FLAG)
    flags ^= TURN_FLAG if published else 0
    turn = int(bool(flags & TURN_FLAG))
    rows = written(inbox, records, publisher, budget, turn=turn, since_ms=since_ms)
    if published:
        newest = published[-1]
        snapshot = value_of(newest, inbox.prefix, rows)
        tag = tag_of(snapshot)
        clock_ms = newest.clock_ms
    if snapshot is None:
        return BatchResult(rows, None, Stored())
    until_ms = 0 if was is None else was.probation_until_ms
    now_ms = max((event.origin.at_ms for event in inbox.events), default=group.sessions.clock_ms)
    if is_released:
        until_ms = now_ms + PROBATION_MS
    until_ms = until_ms if now_ms < until_ms else 0
    header = Header(flags, tag, clock_ms)
    parts = Parts(header, inbox.replay_guard, group.liveness(), until_ms, inbox.credit)
    after = Stored(parts.to_bytes(), snapshot)
    byte_limits.check_stored(after, publisher.group_bytes_max)
    return BatchResult(rows, group, after)


def written(
    inbox: Inbox,
    records: Iterable[Record],
    publisher: Publisher,
    budget: LetterBudget,
    *,
    turn: int = 0,
    since_ms: int | None = None,
) -> list[Row]:
    """Rows of records and of the inbox's dead letters; `budget` limits the dead letters."""
    records = list(records)
    refused = [r for r in records if isinstance(r, Rejected)]
    letters = [*_with_bytes(refused, inbox.events), *inbox.rejected]
    others = (r for r in records if not isinstance(r, Rejected))
    admitted = budget.admitted(inbox.prefix, letters)
    published = [*others, *admitted]
    return outbox.rows(inbox.prefix, published, publisher.partitions, turn=turn, since_ms=since_ms)


def _with_bytes(letters: Sequence[Rejected], events: Iterable[Taken]) -> list[Rejected]:
    """The letters with the bytes of the events that they refuse, which the core does not see."""
    bare = {letter.origin: letter for letter in letters if not letter.value}
    if not bare:
        return [*letters]
    encoded = {
        event.origin: codec.encode(event)
        for event in events
        if not isinstance(event, Refused) and event.origin in bare
    }
    return [
        replace(letter, key=encoded[letter.origin].key, value=encoded[letter.origin].value or b"")
        if letter.origin in encoded and not letter.value
        else letter
        for letter in letters
    ]


def _forgotten(
    before: Group,
    step: Step,
    stored: Stored,
    inbox: Inbox,
    publisher: Publisher,
    budget: LetterBudget,
) -> BatchResult:
    """Delete the snapshot and the wake-up of a forgotten group from their topics.

    The core writes the tombstones of its members' assignments when they leave.
    """
    records: list[Record] = []
    records += (r for r in step.records if not isinstance(r, GroupSnapshot | WakeUp))
    if before.generation or step.changed or stored.snapshot is not None:
        records += [GroupGone(group=step.group.id), WakeUp(group=step.group.id, at_ms=None)]
    return BatchResult(written(inbox, records, publisher, budget), None, Stored())


def _since_ms(inbox: Inbox, before: Group) -> int | None:
    """Broker time of the oldest event that asks for an answer; None = there is none.

    Heartbeats, ticks, refused events and events that the group has taken in before do not count.
    """
    through = before.sessions.through
    asking = (
        e.origin.at_ms
        for e in inbox.events
        if not isinstance(e, Heartbeat | Tick | Refused)
        and e.origin.offset > through.get((e.origin.topic, e.origin.partition), -1)
    )
    return min(asking, default=None)


def value_of(newest: GroupSnapshot, prefix: str, rows: list[Row]) -> bytes:
    """The value of a published snapshot: of its row, or joined if the row was split."""
    topic, key = topic_name(TopicKind.GROUPS, prefix), newest.group.encode()
    joiner = Joiner()
    wholes = (joiner.feed(row.key, row.value) for row in rows if row.topic == topic)
    return [whole.value for whole in wholes if whole is not None and whole.key == key][-1] or b""


def _parked(
    stored: Stored,
    inbox: Inbox,
    story: str,
    publisher: Publisher,
    budget: LetterBudget,
    reason: DeadLetter = DeadLetter.GROUP_FAILED,
) -> BatchResult:
    parts = stored.parts()
    flags = 0 if parts is None else parts.header.flags
    letters: list[Rejected] = []
    # A group that stays parked must not flood the topic with heartbeats and the same error.
    first = not flags & PARKED_FLAG
    for event in inbox.events:
        if isinstance(event, Refused):
            continue  # the inbox has its dead letter already
        if first or not isinstance(event, Heartbeat | Tick):
            message = PARKED if letters or flags & PARKED_FLAG else story
            letters.append(_letter(event, message[-STORY_CHARS_MAX:], reason))
        first = False
    rows = written(inbox, letters, publisher, budget)
    if parts is None:
        return BatchResult(rows, None, stored)
    header = parts.header._replace(flags=flags | PARKED_FLAG)
    parked = parts._replace(header=header, credit=inbox.credit)
    return BatchResult(rows, None, Stored(parked.to_bytes(), stored.snapshot))


def _letter(event: Event, message: str, reason: DeadLetter) -> Rejected:
    encoded = codec.encode(event)
    return Rejected(
        origin=event.origin,
        reason=reason,
        message=message,
        key=encoded.key,
        value=encoded.value or b"",
    )
