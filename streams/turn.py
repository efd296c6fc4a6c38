"""One group's turn in a batch: stored bytes and events in, rows and new bytes out. Never raises.

The two stored values of a group (`processor` says why two):

``liveness``  version (1 byte), flags (1 byte), tag of the snapshot (8 bytes), its clock (8 bytes),
              then the core's own packed array of who was heard when. Version 2 is for groups with
              signatures that have counted (`counted`): their length (4 bytes) and they come before
              the array.
``snapshot``  the group's published record, framed.

Heartbeats change no snapshot, so in a quiet group the published one grows old, and with it the
offsets from which a lost checkpoint would have to be made good. It is published again when it has
grown older than `rebuild_ms` by the group's own clock.

A group for which the core fails is *parked*: its events of this batch become dead letters, the
first with the story, what is stored stays, and the next batch tries anew. The core is pure, so the
same batch, replayed, fails the same way. So is a group that breaks a law of `state.invariants` in a
batch that is checked; which ones are follows from their rows.

Assignors that are plug-ins run behind a guard (`muster.plugins`): one that fails or hangs costs its
group the new target and `assignor.timeout.ms` of the batch, no more. What a batch publishes does
not depend on whether it was in time: its answer is stored, and taken by the next (`state.outcome`).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from pyspark.sql.types import Row

from muster import plugins
from muster.assignor.model import Assignor
from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, Heartbeat, Refused, Tick
from muster.protocol.framing import PREFIX
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupGone, GroupSnapshot, Record, Rejected, WakeUp
from muster.protocol.settings import DEFAULT_ASSIGNOR
from muster.protocol.taskset import SET_TASKS_MAX
from muster.protocol.topics import TopicKind, topic_name
from muster.state import config, invariants
from muster.state.errors import InvariantViolation
from muster.state.group import Group
from muster.state.machine import Step, advance
from muster.streams import outbox
from muster.streams.inbox import Inbox
from muster.streams.letters import Post

PARKED = "the group is parked"
"""What the dead letters say that follow the one with the story."""
STORY_CHARS_MAX = 8_000

_HEADER = Struct(">BB8sq")
_PLAIN, _SIGNED = 1, 2
"""Versions of the liveness."""
_PARKED = 1
_TURN = 2
"""Flips with every snapshot published: its parts must not overwrite those of the one before."""


class TooLarge(Exception):
    """What a group has become takes more room than a group may have."""


class Stored(NamedTuple):
    """What the state store has of a group; None = nothing."""

    liveness: bytes | None = None
    snapshot: bytes | None = None


class Publisher(NamedTuple):
    """What a turn must know of the job.

    Attributes:
        epoch: coordinator epoch of the group's prefix.
        partitions: topic → number of partitions.
        rebuild_ms: age at which a snapshot is published again.
        wary_until_ms: of a group that nothing is stored of and that was written to before this
            broker time, a coordinator before may know more (`recovery.wary_until_ms`).
        check_share: of the batches that change a group, the share after which it is checked.
        assignors: plug-ins that a record may name by ``module:Class``.
        group_bytes_max: most bytes each of the two stored values of a group may take.
        group_tasks_max: most tasks a group may declare.
    """

    epoch: int
    partitions: Mapping[str, int]
    rebuild_ms: int
    wary_until_ms: int = 0
    check_share: float = 0.0
    assignors: frozenset[str] = frozenset()
    group_bytes_max: int = 32 << 20
    group_tasks_max: int = 1 << 18

    def assignor(self, name: str) -> Assignor:
        """The assignor that a group's config names.

        Raises:
            UnknownAssignor: there is none, or it may not be loaded.
        """
        return plugins.from_record(name, self.assignors)


class _Header(NamedTuple):
    flags: int = 0
    tag: bytes = b""
    clock_ms: int = 0


class _Parts(NamedTuple):
    """What a liveness is made of."""

    header: _Header
    counted: bytes
    core: bytes

    def to_bytes(self) -> bytes:
        if not self.counted:
            return _HEADER.pack(_PLAIN, *self.header) + self.core
        length = len(self.counted).to_bytes(4, "big")
        return _HEADER.pack(_SIGNED, *self.header) + length + self.counted + self.core


@dataclass(frozen=True, slots=True)
class Turn:
    """What one batch did to one group.

    Attributes:
        rows: what goes to Kafka.
        group: as it is now; None = nothing of it is to be kept.
        stored: the values as they are now.
    """

    rows: list[Row]
    group: Group | None
    stored: Stored


def restore(group: GroupId, stored: Stored, *, wary: bool = False) -> Group:
    """The group as it was stored; `wary` if nothing was: perhaps a checkpoint was lost.

    A snapshot without liveness was read back after the checkpoint was lost: its members get fresh
    sessions and are asked what they hold. So is one whose liveness another version of muster wrote,
    after an upgrade or a rollback: what it says need not outlive that, and no task moves for it.

    Raises:
        Exception: stored bytes that cannot be read; the caller parks the group.
    """
    if stored.snapshot is None:
        return Group.new(group, wary=wary)
    record = codec.decode_record(TopicKind.GROUPS, group.encode(), stored.snapshot)
    assert isinstance(record, GroupSnapshot)  # only `take` and recovery write it
    parts = _parts(stored)
    if parts is not None:
        with suppress(ValueError):  # the core's own part may be of another version, too
            return Group.restore(record, parts.core)
    return Group.recover(record)


def counted(stored: Stored) -> bytes:
    """The signatures that have counted in a group, as `counted.Counted` keeps them."""
    parts = _parts(stored)
    return b"" if parts is None else parts.counted


def tasks_of(group: Group | None, stored: Stored) -> int:
    """Tasks that a group has; of one that is not in memory as many as any may have."""
    if group is not None:
        return len(group.table)
    return 0 if stored.snapshot is None else SET_TASKS_MAX


def take(
    was: Group | None,
    stored: Stored,
    inbox: Inbox,
    publisher: Publisher,
    post: Post | None = None,
) -> Turn:
    """Let a group take its events.

    Args:
        was: the group, when it is in memory.
        stored: what the state store has of it.
        inbox: what the batch brought; it has a group.
        publisher: the job.
        post: the dead letters of the batch; None = of this group alone.
    """
    assert inbox.group is not None
    post = Post() if post is None else post
    try:
        wary = any(event.origin.at_ms < publisher.wary_until_ms for event in inbox.events)
        before = restore(inbox.group, stored, wary=wary) if was is None else was
        step = advance(
            before,
            inbox.events,
            coordinator_epoch=publisher.epoch,
            assignors=publisher.assignor,
        )
        if step.changed and _is_drawn(inbox, publisher.check_share):
            invariants.check(step.group)
        since_ms = _since_ms(inbox, before)
        if _is_forgotten(step.group):
            return _forgotten(before, step, inbox, publisher, post)
        return _went_well(step.group, step.records, stored, inbox, publisher, post, since_ms)
    except TooLarge as error:
        return _parked(stored, inbox, str(error), publisher, post, DeadLetter.TOO_LARGE)
    except InvariantViolation as violation:
        story = "\n".join((*violation.story, f"law broken: {violation.law}"))
        return _parked(stored, inbox, story, publisher, post)
    except KeyboardInterrupt:
        raise  # the process is to end; the batch comes again
    except BaseException:
        return _parked(stored, inbox, traceback.format_exc(), publisher, post)


def _is_drawn(inbox: Inbox, share: float) -> bool:
    """Whether a batch is among those checked: a replay of it must say the same."""
    newest = max((event.origin for event in inbox.events), key=lambda origin: origin.sort_key)
    ticket = f"{inbox.group} {newest.topic} {newest.partition} {newest.offset}"
    return crc32(ticket.encode()) < share * 2**32


def _went_well(
    group: Group,
    records: tuple[Record, ...],
    stored: Stored,
    inbox: Inbox,
    publisher: Publisher,
    post: Post,
    since_ms: int | None,
) -> Turn:
    was = _parts(stored)
    flags, tag, clock_ms = _Header() if was is None else was.header
    flags &= ~_PARKED
    snapshot = stored.snapshot
    published = [r for r in records if isinstance(r, GroupSnapshot)]
    is_old = group.soft.clock_ms - clock_ms >= publisher.rebuild_ms
    if not published and snapshot is not None and is_old:
        published = [group.snapshot()]
        records = (*records, *published)
    flags ^= _TURN if published else 0
    written = _written(
        inbox,
        records,
        publisher,
        post,
        turn=int(bool(flags & _TURN)),
        since_ms=since_ms if published else None,
    )
    if published:
        newest = published[-1]
        snapshot = _value(newest, inbox, written)
        tag = blake2b(snapshot, digest_size=8).digest()
        clock_ms = newest.clock_ms
    if snapshot is None:
        return Turn(written, None, Stored())
    parts = _Parts(_Header(flags, tag, clock_ms), inbox.counted, group.liveness())
    after = Stored(parts.to_bytes(), snapshot)
    for what, value in zip(("liveness", "snapshot"), after, strict=True):
        size, most = len(value or b""), publisher.group_bytes_max
        if size > most:
            raise TooLarge(f"a {what} of {size} bytes; muster.group.bytes.max is {most}")
    return Turn(written, group, after)


def _written(
    inbox: Inbox,
    records: Iterable[Record],
    publisher: Publisher,
    post: Post,
    *,
    turn: int = 0,
    since_ms: int | None = None,
) -> list[Row]:
    """Rows of records and of the inbox' letters, of letters no more than is allowed."""
    letters = [*(r for r in records if isinstance(r, Rejected)), *inbox.rejected]
    others = (r for r in records if not isinstance(r, Rejected))
    admitted = post.admitted(inbox.prefix, letters)
    found = [*others, *admitted]
    return outbox.rows(inbox.prefix, found, publisher.partitions, turn=turn, since_ms=since_ms)


def _is_forgotten(group: Group) -> bool:
    """Whether nothing of a group is worth keeping: no member is left, nobody has configured it.

    One that was deleted is kept for its generations, unless it never had any.
    """
    if group.dead:
        return not group.roster and max(group.generation, group.floor) == 0
    return (
        not (group.roster or len(group.table))
        and group.assignor == DEFAULT_ASSIGNOR
        and config.offset_of(group.soft.through) < 0
    )


def _forgotten(before: Group, step: Step, inbox: Inbox, publisher: Publisher, post: Post) -> Turn:
    """Take back what a group has published that never had a generation with tasks.

    What its members were told is taken back as they go; here go its snapshot and its wake-up.
    """
    records: list[Record] = []
    records += (r for r in step.records if not isinstance(r, GroupSnapshot | WakeUp))
    if before.generation or step.changed:
        records += [GroupGone(group=step.group.id), WakeUp(group=step.group.id, at_ms=None)]
    return Turn(_written(inbox, records, publisher, post), None, Stored())


def _since_ms(inbox: Inbox, before: Group) -> int | None:
    """Broker time of the oldest event that asks for an answer; heartbeats and ticks do not.

    Nor does what the group has taken before: after a lost checkpoint it is all read again.
    """
    through = before.soft.through
    asking = (
        e.origin.at_ms
        for e in inbox.events
        if not isinstance(e, Heartbeat | Tick | Refused)
        and e.origin.offset > through.get((e.origin.topic, e.origin.partition), -1)
    )
    return min(asking, default=None)


def _value(newest: GroupSnapshot, inbox: Inbox, written: list[Row]) -> bytes:
    """The value of a snapshot, which is among what is written unless it was split."""
    topic, key = topic_name(TopicKind.GROUPS, inbox.prefix), newest.group.encode()
    value: bytes = [row.value for row in written if row.topic == topic and row.key == key][-1]
    return codec.encode(newest).value or b"" if value.startswith(PREFIX["Part"]) else value


def _parked(
    stored: Stored,
    inbox: Inbox,
    story: str,
    publisher: Publisher,
    post: Post,
    reason: DeadLetter = DeadLetter.GROUP_FAILED,
) -> Turn:
    parts = _parts(stored)
    flags = 0 if parts is None else parts.header.flags
    letters: list[Rejected] = []
    # A group that stays parked is not to flood the topic with heartbeats and the same story.
    first = not flags & _PARKED
    for event in inbox.events:
        if isinstance(event, Refused):
            continue  # its letter is among the inbox' own
        if first or not isinstance(event, Heartbeat | Tick):
            message = PARKED if letters or flags & _PARKED else story
            letters.append(_letter(event, message[-STORY_CHARS_MAX:], reason))
        first = False
    written = _written(inbox, letters, publisher, post)
    if parts is None:
        return Turn(written, None, stored)
    parked = parts._replace(header=parts.header._replace(flags=flags | _PARKED))
    return Turn(written, None, Stored(parked.to_bytes(), stored.snapshot))


def _parts(stored: Stored) -> _Parts | None:
    """A liveness taken apart; None = there is none, or it is another version's."""
    data = stored.liveness
    if data is None or data[0] not in (_PLAIN, _SIGNED):
        return None
    version, *header = _HEADER.unpack_from(data)
    at = _HEADER.size
    length = 0
    if version == _SIGNED:
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
    return _Parts(_Header(*header), data[at : at + length], data[at + length :])


def _letter(event: Event, message: str, reason: DeadLetter) -> Rejected:
    encoded = codec.encode(event)
    return Rejected(
        origin=event.origin,
        reason=reason,
        message=message,
        key=encoded.key,
        value=encoded.value or b"",
    )
