"""Packed rows of one lane → events of one group, and dead letters for all that is none.

Nothing here raises for what is in a row. A key that names no group condemns every row of its lane;
a value that cannot be decoded condemns its row alone. Heartbeats, which come by the million, are
read in columns.

With signing keys an event that is not believed (`signatures`) is a dead letter, and the group is
told that there was one in a member's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import DecodeError
from muster.protocol.events import Event, GroupConfig, Heartbeat, Join, Origin, Report, Taken
from muster.protocol.framing import KNOWN, Schemas
from muster.protocol.heartbeats import heartbeats
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import parse_key
from muster.protocol.records import Rejected
from muster.protocol.rows import GROUP_TASKS_MAX, HOLDING_SETS
from muster.protocol.signing import Keyring
from muster.protocol.taskset import SET_TASKS_MAX
from muster.protocol.topics import INPUTS, TopicKind
from muster.streams.counted import Counted
from muster.streams.letters import GROUP_LETTERS_MAX
from muster.streams.signatures import Gate
from muster.streams.source import HEADER, LANE_END, REFUSED, apart, split_lane, unpack_refused

EVENT_TASKS_MIN = 4_096
"""So many tasks in each role a join or report may name in any case..."""
BATCH_TASKS_MIN = 1 << 18
"""...and all those of a group in one batch together."""
_REFUSED = DecodeError("no event: by its key, or by how its value begins")
_KINDS = {str(kind): kind for kind in INPUTS}


@dataclass(slots=True)
class Inbox:
    """What one batch brought for one lane.

    Attributes:
        prefix: topic prefix.
        group: None when the record key names no group.
        events: in order.
        rejected: rows that are no events.
        counted: signatures that have counted in the group by now (`counted`).
    """

    prefix: str
    group: GroupId | None
    events: list[Taken] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    counted: bytes = b""


class Limits(NamedTuple):
    """What the events of one group may ask for in one batch.

    Attributes:
        group_tasks_max: tasks a config may declare.
        tasks_known: tasks the group has; members may name so many, and a few more.
    """

    group_tasks_max: int = GROUP_TASKS_MAX
    tasks_known: int = 0


NO_LIMITS = Limits(tasks_known=SET_TASKS_MAX)


class _Budget:
    """Tasks that joins and reports of a batch may still name: a few bytes can name millions."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._left = 0
        self.each = 0
        self.declare(limits.tasks_known)

    def declare(self, tasks: int) -> None:
        """The group may have that many tasks."""
        self.each = max(self.each, EVENT_TASKS_MIN, 2 * tasks)
        self._left = max(self._left, BATCH_TASKS_MIN, 8 * tasks)

    @property
    def next(self) -> int:
        """Tasks the next event may name in each role."""
        return min(self.each, max(self._left, 0))

    def take(self, event: Event) -> None:
        """Count an event, and refuse what declares too much.

        Raises:
            DecodeError: a config of more tasks than a group may have.
        """
        if isinstance(event, Join | Report):
            self._left -= sum(len(getattr(event.holding, name)) for name in HOLDING_SETS)
        elif isinstance(event, GroupConfig):
            tasks = sum(unit.size for unit in event.tasks)
            most = self._limits.group_tasks_max
            if tasks > most:
                raise DecodeError(f"a group of {tasks} tasks; muster.group.tasks.max is {most}")
            self.declare(tasks)


def refused_lane(lane: bytes, entries: Sequence[bytes], topics: Sequence[str]) -> Inbox | None:
    """Read the rows that the query has refused already; None = this is another lane.

    Of rows that get no letter the reason is not looked for: they are counted.
    """
    prefix, key = split_lane(lane)
    if LANE_END + (key or b"") != REFUSED:
        return None
    inbox = Inbox(prefix, None)
    for number, entry in enumerate(entries):
        found, packed = unpack_refused(entry)
        error = _why(found, packed, topics) if number < GROUP_LETTERS_MAX else _REFUSED
        inbox.rejected.append(_dead(packed, found, error, topics))
    return inbox


def turned_away(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], signed: bool
) -> Inbox:
    """Refuse the rows of a group that is one new group too many."""
    return _all_dead(
        *(lane, entries, topics, signed, DeadLetter.TOO_MANY_GROUPS),
        "a group without a config, behind too many such in this batch",
    )


def failed(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], signed: bool, story: str
) -> Inbox:
    """Refuse rows that could not even be looked at."""
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


def is_config(entry: bytes, topics: Sequence[str]) -> bool:
    """Whether a packed row is of the config topic."""
    return _kind(entry, topics) is TopicKind.CONFIG


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
    counted: bytes = b"",
    limits: Limits = NO_LIMITS,
) -> Inbox:
    """Read what came for a lane.

    Args:
        lane: see `source`.
        entries: packed rows, sorted.
        topics: the input topics, ascending.
        schemas: what is known beside our own schemas.
        keyring: whose signatures count; None = there are no signatures in the rows.
        counted: signatures that have counted in the group (`counted`).
        limits: what the events may ask for.
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
    known = Counted(counted)
    gate = None if keyring is None else Gate(keyring, parsed.group, key or b"", known)
    quick = _heartbeats(parsed.group, entries, topics)
    budget = _Budget(limits)
    configs: dict[int, Event | DecodeError] = {}  # read first: they say what may be named
    for position, entry in enumerate(entries):
        if position not in quick and _kind(entry, topics) is TopicKind.CONFIG:
            configs[position] = _decoded(entry, key, topics, schemas, budget)
    for position, entry in enumerate(entries):
        event: Event | DecodeError | None = quick.get(position) or configs.get(position)
        if event is None:
            event = _decoded(entry, key, topics, schemas, budget)
        if isinstance(event, DecodeError):
            inbox.rejected.append(_dead(entry, key, event, topics))
            continue
        taken: Taken | None = event
        if gate is not None:
            taken = gate.taken(event, _value(entry), signatures[position])
        if taken is not None:
            inbox.events.append(taken)
    if gate is not None:
        inbox.rejected += gate.letters
        inbox.counted = known.to_bytes(HEADER.unpack_from(entries[-1])[0] if entries else 0)
    return inbox


def _decoded(
    entry: bytes, key: bytes | None, topics: Sequence[str], schemas: Schemas, budget: _Budget
) -> Event | DecodeError:
    """The event of a row, or what is wrong with it."""
    origin, value = unpack(entry, topics)
    try:
        event = codec.decode(
            _kind(entry, topics), key, value, origin, schemas=schemas, tasks_max=budget.next
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
    """Origin and value of a packed row."""
    at_ms, topic, partition, offset, _ = HEADER.unpack_from(entry)
    return Origin(topics[topic], partition, offset, at_ms), _value(entry)


def _value(entry: bytes) -> bytes | None:
    return entry[HEADER.size :] if entry[HEADER.size - 1] else None


def _heartbeats(
    group: GroupId, entries: Sequence[bytes], topics: Sequence[str]
) -> dict[int, Event]:
    """The clean heartbeats on membership topics, by position."""
    found = heartbeats([entry[HEADER.size :] for entry in entries])
    quick: dict[int, Event] = {}
    for position, member, epoch, digest in zip(
        found.position.tolist(),
        found.members,
        found.epoch.tolist(),
        found.digest.tolist(),
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


def _dead(entry: bytes, key: bytes | None, error: DecodeError, topics: Sequence[str]) -> Rejected:
    origin, value = unpack(entry, topics)
    return Rejected(
        origin=origin,
        reason=DeadLetter.UNDECODABLE,
        message=str(error),
        key=key or b"",
        value=value or b"",
    )
