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

from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.events import Event, Heartbeat, Origin, Taken
from muster.protocol.framing import KNOWN, Schemas
from muster.protocol.heartbeats import heartbeats
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import parse_key
from muster.protocol.records import Rejected
from muster.protocol.signing import Keyring
from muster.protocol.topics import INPUTS, TopicKind
from muster.streams.counted import Counted
from muster.streams.signatures import Gate
from muster.streams.source import HEADER, apart, split_lane

UNDECODABLE = "UNDECODABLE"
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


def open_lane(
    lane: bytes,
    entries: Sequence[bytes],
    topics: Sequence[str],
    schemas: Schemas = KNOWN,
    keyring: Keyring | None = None,
    counted: bytes = b"",
) -> Inbox:
    """Read what came for a lane.

    Args:
        lane: see `source`.
        entries: packed rows, sorted.
        topics: the input topics, ascending.
        schemas: what is known beside our own schemas.
        keyring: whose signatures count; None = there are no signatures in the rows.
        counted: signatures that have counted in the group (`counted`).
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
    for position, entry in enumerate(entries):
        event = quick.get(position)
        if event is None:
            origin, value = unpack(entry, topics)
            kind = _KINDS[origin.topic.rpartition(".")[2]]
            try:
                event = codec.decode(kind, key, value, origin, schemas=schemas)
            except DecodeError as error:
                inbox.rejected.append(_dead(entry, key, error, topics))
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
        reason=UNDECODABLE,
        message=str(error),
        key=key or b"",
        value=value or b"",
    )
