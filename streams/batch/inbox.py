"""Packed rows of one lane → events of one group, and dead letters for rows that are no events.

Nothing here raises because of a row. If the key names no group, every row of the lane is a dead
letter; if a value cannot be decoded, only its row is. Heartbeats come by the million and are
decoded in columns.

With signing keys, an event whose signature is refused (`signatures`) is a dead letter. If it names
a member, the group gets a `Refused` event instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from muster.protocol import codec
from muster.protocol.covers import HEARD_MAX
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import DecodeError
from muster.protocol.events import (
    Event,
    GroupConfig,
    Heartbeat,
    Join,
    LagReport,
    Origin,
    Refused,
    Report,
    Taken,
    Tick,
    TopicsFound,
)
from muster.protocol.framing import KNOWN, PREFIX, Schemas
from muster.protocol.heartbeats import heartbeats
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import parse_key
from muster.protocol.records import Rejected
from muster.protocol.rows import GROUP_TASKS_MAX, HOLDING_SETS
from muster.protocol.signing import Keyring
from muster.protocol.taskset import SET_TASKS_MAX
from muster.protocol.topics import INPUTS, TopicKind
from muster.streams.batch.letter_limits import GROUP_LETTERS_MAX
from muster.streams.batch.replay_guard import ReplayGuard
from muster.streams.batch.signatures import Gate
from muster.streams.source import HEADER, LANE_END, REFUSED, apart, split_lane, unpack_refused

EVENT_TASKS_MIN = 4_096
"""Tasks that a join or report may name in each role, even in a small group..."""
BATCH_TASKS_MIN = 1 << 18
"""...and that all joins and reports of a group in one batch may name together."""
BATCH_LAGS_MIN = 1 << 14
"""Lags that the events of a group in one batch may report, even in a small group; a decoded lag
takes some 300 bytes."""
BATCH_HEARD_MIN = 50_000
"""Heartbeats that the ticks of a group in one batch may carry, even in a small group..."""
BATCH_HEARD = 8
"""...and for each member of a larger one. Reading and taking one in costs microseconds, and a few
hundred bytes can carry thousands."""
BATCH_EVENTS_MIN = 1_000
"""Joins, reports, leaves, drains and ticks that a group may bring into one batch, even a small one,
and as many lag reports. Each costs up to half a millisecond. A larger group may bring one for each
of its members, or for each of its tasks. Heartbeats are cheap and do not count."""
LAGS_MAX = 1 << 22
"""Lags that the events of a group in one batch may report, however many tasks the group has."""
SMALL_BYTES_MAX = 4_096
"""When the lags of a batch are used up, larger events of the group are refused without decoding."""
_TOO_MANY_LAGS = "more lags than the events of a group may report in one batch"
_TOO_MANY_EVENTS = DecodeError("more events of this group than one batch takes")
_REFUSED = DecodeError("no event: by its key, or by how its value begins")
_SIGNS_OF_LIFE = (PREFIX["Heartbeat"], PREFIX["Tick"])
_KINDS = {str(kind): kind for kind in INPUTS}


@dataclass(slots=True)
class Inbox:
    """The decoded rows of one lane in one batch.

    Attributes:
        prefix: topic prefix.
        group: None when the record key names no group.
        events: the events, in order.
        rejected: dead letters of the rows that are no events.
        replay_guard: the group's, after these events.
    """

    prefix: str
    group: GroupId | None
    events: list[Taken] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    replay_guard: bytes = b""


class Limits(NamedTuple):
    """How many tasks the events of one group may name in one batch.

    Attributes:
        group_tasks_max: tasks that a config may declare.
        tasks_known: tasks that the group has; what members may name grows with it.
        members_known: members that the group has; how many events it may bring grows with it.
    """

    group_tasks_max: int = GROUP_TASKS_MAX
    tasks_known: int = 0
    members_known: int = 0


NO_LIMITS = Limits(tasks_known=SET_TASKS_MAX)


class _Budget:
    """What the rest of a batch may bring: events, tasks, lags, and heartbeats in ticks."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = 0
        self._lags = BATCH_LAGS_MIN
        self._heard = max(BATCH_HEARD_MIN, BATCH_HEARD * limits.members_known)
        self._events_max = max(BATCH_EVENTS_MIN, limits.members_known)
        self._events: Counter[TopicKind] = Counter()
        self.each = 0
        self.declare(limits.tasks_known)

    def declare(self, tasks: int) -> None:
        """Raise the limits for a group of that many tasks."""
        self.each = max(self.each, EVENT_TASKS_MIN, 2 * tasks)
        self._left = max(self._left, BATCH_TASKS_MIN, 8 * tasks)
        self._lags = max(self._lags, min(16 * tasks, LAGS_MAX))
        self._events_max = max(self._events_max, tasks)

    def has_room(self, kind: TopicKind) -> bool:
        """Whether the batch takes one more event of a topic; of configs it does (`share`)."""
        return self._events[kind] < self._events_max or kind is TopicKind.CONFIG

    def count(self, kind: TopicKind) -> None:
        """Count an event that the group gets."""
        self._events[kind] += 1

    @property
    def heard(self) -> int:
        """Heartbeats that the next tick may carry."""
        return min(HEARD_MAX, max(self._heard, 0))

    @property
    def next(self) -> int:
        """Tasks that the next event may name in each role."""
        return min(self.each, max(self._left, 0))

    def admit(self, kind: TopicKind, size: int) -> None:
        """Refuse a large event without decoding it when the lags of the batch are used up.

        Decoding a lag takes microseconds, so a batch full of lags would make all other groups wait.

        Raises:
            DecodeError: the event is refused.
        """
        if self._lags <= 0 and size > SMALL_BYTES_MAX and kind is not TopicKind.CONFIG:
            raise DecodeError(_TOO_MANY_LAGS)

    def take(self, event: Event) -> None:
        """Count the tasks and lags of an event.

        Raises:
            DecodeError: a config declares too many tasks, or the batch reports too many lags.
        """
        if isinstance(event, Join | Report | LagReport):
            if len(event.lags) > max(self._lags, 0):
                self._lags = 0
                raise DecodeError(_TOO_MANY_LAGS)
            self._lags -= len(event.lags)
        if isinstance(event, Join | Report):
            self._left -= sum(len(getattr(event.holding, name)) for name in HOLDING_SETS)
        elif isinstance(event, Tick) and event.cover is not None:
            self._heard -= len(event.cover.heard)
        elif isinstance(event, GroupConfig | TopicsFound):
            tasks = _tasks_of(event)
            most = self._limits.group_tasks_max
            if tasks > most:
                raise DecodeError(f"a group of {tasks} tasks; muster.group.tasks.max is {most}")
            self.declare(tasks)


def _tasks_of(event: GroupConfig | TopicsFound) -> int:
    """How many tasks an event declares."""
    if isinstance(event, GroupConfig):
        return sum(unit.size for unit in event.tasks)
    return sum(unit.size for each in event.found for unit in each.units)


def read_refused(lane: bytes, entries: Sequence[bytes], topics: Sequence[str]) -> Inbox | None:
    """Read the rows that the query has refused; None = the lane holds no such rows.

    Only the rows that get a dead letter are decoded to find the reason.
    """
    prefix, key = split_lane(lane)
    if LANE_END + (key or b"") != REFUSED:
        return None
    inbox = Inbox(prefix, None)
    for number, entry in enumerate(entries):
        key_start, packed = unpack_refused(entry)
        error = _why(key_start, packed, topics) if number < GROUP_LETTERS_MAX else _REFUSED
        inbox.rejected.append(_dead(packed, key_start, error, topics))
    return inbox


def refuse_new_group(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], signed: bool
) -> Inbox:
    """Refuse the rows of a new group in a batch that has too many new groups."""
    return _all_dead(
        *(lane, entries, topics, signed, DeadLetter.TOO_MANY_GROUPS),
        "a group without a config, behind too many such in this batch",
    )


def refuse_beyond_share(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], signed: bool
) -> Inbox:
    """Refuse the rows beyond a group's share of the batch (`share`)."""
    return _all_dead(
        *(lane, entries, topics, signed, DeadLetter.TOO_MUCH_AT_ONCE),
        "larger events of this group than one batch takes",
    )


def refuse_quarantined(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], signed: bool, story: str | None
) -> Inbox:
    """Refuse the rows of a group that is quarantined.

    Heartbeats and ticks get no letter, because they come as long as the quarantine lasts. The first
    letter carries the `story`, if there is one; if all rows are such, the first gets that letter.
    """
    values = [_value(entry) or b"" for entry in (apart(entries)[0] if signed else entries)]
    quoted = [i for i, value in enumerate(values) if not value.startswith(_SIGNS_OF_LIFE)]
    if story is not None and not quoted:
        quoted = [0]
    inbox = _all_dead(
        *(lane, [entries[i] for i in quoted], topics, signed, DeadLetter.QUARANTINED),
        "the group is quarantined",
    )
    if story is not None:
        inbox.rejected[0] = replace(inbox.rejected[0], message=story)
    return inbox


def refuse_failed(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], signed: bool, story: str
) -> Inbox:
    """Refuse rows whose processing failed or ended the process."""
    return _all_dead(lane, entries, topics, signed, DeadLetter.GROUP_FAILED, story)


def _all_dead(
    lane: bytes,
    entries: Sequence[bytes],
    topics: Sequence[str],
    signed: bool,
    reason: DeadLetter,
    message: str,
) -> Inbox:
    prefix, key = split_lane(lane)
    plain = apart(entries)[0] if signed else entries
    letters: list[Rejected] = []
    for entry in plain:
        origin, value = unpack(entry, topics)
        letters.append(
            Rejected(
                origin=origin, reason=reason, message=message, key=key or b"", value=value or b""
            )
        )
    return Inbox(prefix, None, rejected=letters)


def _why(key: bytes | None, entry: bytes, topics: Sequence[str]) -> DecodeError:
    origin, value = unpack(entry, topics)
    try:
        codec.decode(_KINDS[origin.topic.rpartition(".")[2]], key, value, origin, tasks_max=0)
    except DecodeError as error:
        return error
    return _REFUSED


def open_lane(
    lane: bytes,
    entries: Sequence[bytes],
    topics: Sequence[str],
    schemas: Schemas = KNOWN,
    keyring: Keyring | None = None,
    replay_guard: bytes = b"",
    limits: Limits = NO_LIMITS,
) -> Inbox:
    """Decode the rows of a lane.

    Args:
        lane: see `source`.
        entries: packed rows, sorted.
        topics: the input topics, ascending.
        schemas: muster's own schemas and those of other writers.
        keyring: the signing keys; None = the rows have no room for signatures.
        replay_guard: the group's, as the last batch left it.
        limits: how many tasks the events may name.
    """
    signatures: Sequence[bytes] = ()
    if keyring is not None:
        entries, signatures = apart(entries)
    prefix, key = split_lane(lane)
    try:
        parsed = parse_key(key)
        if parsed.member is not None or parsed.part:
            raise DecodeError("the key names more than a group; expected the group id")
    except DecodeError as error:
        return Inbox(prefix, None, rejected=[_dead(entry, key, error, topics) for entry in entries])
    inbox = Inbox(prefix, parsed.group)
    guard = ReplayGuard(replay_guard)
    gate = None if keyring is None else Gate(keyring, parsed.group, key or b"", guard)
    quick = _heartbeats(parsed.group, entries, topics)
    budget = _Budget(limits)
    configs: dict[int, Event | DecodeError] = {}  # first: they raise the limits for the others
    for position, entry in enumerate(entries):
        if position not in quick and _kind(entry, topics) is TopicKind.CONFIG:
            configs[position] = _decoded(entry, key, topics, schemas, budget)
    reader = _Reader(key, topics, schemas, budget, gate)
    for position, entry in enumerate(entries):
        ready = quick.get(position) or configs.get(position)
        signature = b"" if gate is None else signatures[position]
        found = reader.read(entry, ready, signature)
        if isinstance(found, Rejected):
            inbox.rejected.append(found)
        elif found is not None:
            inbox.events.append(found)
    if gate is not None:
        inbox.rejected += gate.letters
        inbox.replay_guard = guard.to_bytes(HEADER.unpack_from(entries[-1])[0] if entries else 0)
    return inbox


class _Reader(NamedTuple):
    """Reads the rows of a group in order, within its budget."""

    key: bytes | None
    topics: Sequence[str]
    schemas: Schemas
    budget: _Budget
    gate: Gate | None

    def read(
        self, entry: bytes, ready: Event | DecodeError | None, signature: bytes
    ) -> Taken | Rejected | None:
        """What the group gets for a row, or its dead letter; None = neither.

        Args:
            entry: the packed row.
            ready: its event or error, if it is a heartbeat or a config, which are read before.
            signature: its signature; empty = it has none.
        """
        if ready is not None:
            return self._taken(entry, ready, signature)
        kind = _kind(entry, self.topics)
        # With keys, only accepted events count: a forger must not crowd out the members.
        if self.gate is None and not self.budget.has_room(kind):
            return self._beyond(entry)
        event = _decoded(entry, self.key, self.topics, self.schemas, self.budget)
        taken = self._taken(entry, event, signature)
        if taken is None or isinstance(taken, Rejected | Refused):
            return taken
        if not self.budget.has_room(kind):
            return self._beyond(entry)
        self.budget.count(kind)
        return taken

    def _taken(
        self, entry: bytes, event: Event | DecodeError, signature: bytes
    ) -> Taken | Rejected | None:
        if isinstance(event, DecodeError):
            return _dead(entry, self.key, event, self.topics)
        return event if self.gate is None else self.gate.taken(event, _value(entry), signature)

    def _beyond(self, entry: bytes) -> Rejected:
        return _dead(entry, self.key, _TOO_MANY_EVENTS, self.topics, DeadLetter.TOO_MUCH_AT_ONCE)


def _decoded(
    entry: bytes, key: bytes | None, topics: Sequence[str], schemas: Schemas, budget: _Budget
) -> Event | DecodeError:
    """The event of a row, or the error that it has."""
    origin, value = unpack(entry, topics)
    kind = _kind(entry, topics)
    try:
        budget.admit(kind, len(value or b""))
        event = codec.decode(
            kind, key, value, origin, schemas=schemas, tasks_max=budget.next, heard_max=budget.heard
        )
        budget.take(event)
    except DecodeError as error:
        return error
    except (RecursionError, MemoryError):
        return DecodeError("the value asks for more than can be given")
    return event


def _kind(entry: bytes, topics: Sequence[str]) -> TopicKind:
    return _KINDS[topics[HEADER.unpack_from(entry)[1]].rpartition(".")[2]]


def unpack(entry: bytes, topics: Sequence[str]) -> tuple[Origin, bytes | None]:
    """Origin and value of a packed row; the value of a tombstone is None."""
    at_ms, topic, partition, offset, _ = HEADER.unpack_from(entry)
    return Origin(topics[topic], partition, offset, at_ms), _value(entry)


def _value(entry: bytes) -> bytes | None:
    return entry[HEADER.size :] if entry[HEADER.size - 1] else None


def _heartbeats(
    group: GroupId, entries: Sequence[bytes], topics: Sequence[str]
) -> dict[int, Event]:
    """The well-formed heartbeats on membership topics, by position."""
    columns = heartbeats([entry[HEADER.size :] for entry in entries])
    quick: dict[int, Event] = {}
    for position, member, epoch, digest in zip(
        columns.position.tolist(),
        columns.members,
        columns.epoch.tolist(),
        columns.digest.tolist(),
        strict=True,
    ):
        at_ms, topic, partition, offset, _ = HEADER.unpack_from(entries[position])
        name = topics[topic]
        if name.endswith(TopicKind.MEMBERSHIP):
            origin = Origin(name, partition, offset, at_ms)
            quick[position] = Heartbeat(
                group=group, member=MemberId(member), epoch=epoch, digest=digest, origin=origin
            )
    return quick


def _dead(
    entry: bytes,
    key: bytes | None,
    error: DecodeError,
    topics: Sequence[str],
    reason: DeadLetter = DeadLetter.UNDECODABLE,
) -> Rejected:
    origin, value = unpack(entry, topics)
    return Rejected(
        origin=origin,
        reason=reason,
        message=str(error),
        key=key or b"",
        value=value or b"",
    )
