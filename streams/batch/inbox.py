"""Packed rows of one lane → events of one group, and dead letters for rows that are no events.

Nothing here raises because of a row. If the key names no group, every row of the lane is a dead
letter; if a value cannot be decoded, only its row is. Heartbeats come by the million and are
decoded in columns.

With signing keys, an event whose signature is refused (`signature_gate`) is a dead letter. If it
names a member, the group gets a `Refused` event instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.errors import DecodeError
from muster.protocol.events import (
    Event,
    Heartbeat,
    Origin,
    Refused,
    Taken,
)
from muster.protocol.framing import KNOWN, PREFIX, Schemas
from muster.protocol.heartbeat_columns import heartbeats
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import Keyring
from muster.protocol.keys import parse_key
from muster.protocol.records import Rejected
from muster.protocol.signature_check import Verdict
from muster.protocol.signing import FIXED_BYTES
from muster.protocol.topics import INPUTS, TopicKind
from muster.state import lost_checkpoint
from muster.state.group import Group
from muster.streams.batch.letter_limits import GROUP_LETTERS_MAX
from muster.streams.batch.replay_guard import ReplayGuard
from muster.streams.batch.signature_gate import Gate
from muster.streams.batch.stored_values import Stored
from muster.streams.batch.work_limits import NO_LIMITS, Budget, Credit, Limits
from muster.streams.source import (
    HEADER,
    LANE_END,
    REFUSED,
    split_lane,
    split_signatures,
    unpack_refused,
)

_TOO_MANY_EVENTS = DecodeError("more events of this group than one batch takes")
_REFUSED = DecodeError("no event: by its key, or by how its value begins")
_HEARTBEATS_AND_TICKS = (PREFIX["Heartbeat"], PREFIX["Tick"])
SMALL_TICK_BYTES = 1_024
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
        credit: the group's, after these events; None = it is whole.
    """

    prefix: str
    group: GroupId | None
    events: list[Taken] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    replay_guard: bytes = b""
    credit: Credit | None = None


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
        inbox.rejected.append(dead_letter(packed, key_start, str(error), topics))
    return inbox


def refuse(
    lane: bytes,
    entries: Sequence[bytes],
    topics: Sequence[str],
    signed: bool,
    reason: DeadLetter,
    message: str,
) -> Inbox:
    """Refuse all these rows, for one reason; `signed`: whether they have room for signatures."""
    prefix, key = split_lane(lane)
    plain = split_signatures(entries)[0] if signed else entries
    letters = [dead_letter(entry, key, message, topics, reason) for entry in plain]
    return Inbox(prefix, None, rejected=letters)


def refuse_quarantined(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], signed: bool, story: str | None
) -> Inbox:
    """Refuse the rows of a group that is quarantined.

    Heartbeats and ticks get no letter, because they come as long as the quarantine lasts. The first
    letter carries the `story`, if there is one; if all rows are such, the first gets that letter.
    """
    values = [
        _value(entry) or b"" for entry in (split_signatures(entries)[0] if signed else entries)
    ]
    quoted = [i for i, value in enumerate(values) if not value.startswith(_HEARTBEATS_AND_TICKS)]
    if story is not None and not quoted:
        quoted = [0]
    quoted_entries = [entries[i] for i in quoted]
    message = "the group is quarantined"
    inbox = refuse(lane, quoted_entries, topics, signed, DeadLetter.QUARANTINED, message)
    if story is not None:
        inbox.rejected[0] = replace(inbox.rejected[0], message=story)
    return inbox


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
        limits: what is known of the group, from which the limits of its events follow.
    """
    signatures: Sequence[bytes] = ()
    if keyring is not None:
        entries, signatures = split_signatures(entries)
    prefix, key = split_lane(lane)
    try:
        parsed = parse_key(key)
        if parsed.member is not None or parsed.part:
            raise DecodeError("the key names more than a group; expected the group id")
    except DecodeError as error:
        letters = [dead_letter(entry, key, str(error), topics) for entry in entries]
        return Inbox(prefix, None, rejected=letters)
    inbox = Inbox(prefix, parsed.group)
    guard = ReplayGuard(replay_guard)
    gate = None if keyring is None else Gate(keyring, parsed.group, key or b"", guard)
    quick = _heartbeats(parsed.group, entries, topics)
    budget = Budget(limits, newest_ms_of(entries))
    doubted = budget if gate is None else Budget(limits)
    reader = _Reader(key, topics, schemas, budget, doubted, gate)
    # Configs are read first, because they raise the limits. The newest one and the newest of what
    # was found are read before the others, which they replace.
    places = [p for p in range(len(entries)) if p not in quick and reader.is_config(entries[p])]
    found = [place for place in reversed(places) if is_found(entries[place])]
    written = [place for place in reversed(places) if not is_found(entries[place])]
    configs = {
        place: reader.config(entries[place], b"" if gate is None else signatures[place])
        for place in (*written[:1], *found[:1], *written[1:], *found[1:])
    }
    for position, entry in enumerate(entries):
        ready = quick.get(position) or configs.get(position)
        signature = b"" if gate is None else signatures[position]
        outcome = reader.read(entry, ready, signature)
        if isinstance(outcome, Rejected):
            inbox.rejected.append(outcome)
        elif outcome is not None:
            inbox.events.append(outcome)
    if gate is not None:
        inbox.rejected += gate.letters
        inbox.replay_guard = guard.to_bytes(newest_ms_of(entries))
    inbox.credit = budget.credit()
    return inbox


def signature_check(
    lane: bytes, topics: Sequence[str], keyring: Keyring | None, replay_guard: bytes
) -> Callable[[bytes], bool]:
    """A function that says whether a packed row may count, by its signature.

    Args:
        lane: see `source`.
        topics: the input topics, ascending.
        keyring: the signing keys; None = the rows have no room for signatures, and each may count.
        replay_guard: the group's, as the last batch left it.
    """
    if keyring is None:
        return lambda entry: True
    key = split_lane(lane)[1]
    try:
        group = parse_key(key).group
    except DecodeError:  # `open_lane` refuses every row of this lane
        return lambda entry: True
    gate = Gate(keyring, group, key or b"", ReplayGuard(replay_guard))

    def may_count(entry: bytes) -> bool:
        (plain,), (signature,) = split_signatures([entry])
        return gate.verdict_on_row(*unpack(plain, topics), signature) is None

    return may_count


def may_get_old_rows(stored: Stored, group: Group | None) -> bool:
    """Whether the rows of a batch may be some that the group took in before, configs apart.

    A start without a checkpoint begins `membership` and `lag` where the slowest group needs it, so
    each other group is given rows again, until the members that were read back have answered.
    """
    if group is None:
        return stored.snapshot is not None and stored.liveness is None
    return lost_checkpoint.is_halted(group)


def old_row_check(
    lane: bytes, topics: Sequence[str], stored: Stored, group: Group | None
) -> Callable[[bytes], bool]:
    """A function that says whether the group took in a packed row before.

    What a start without a checkpoint reads again has counted once: it must not be refused now
    because its key is gone, nor use up what new rows may ask for, and an old config must not
    release the group from quarantine.

    Args:
        lane: see `source`.
        topics: the input topics, ascending.
        stored: what the state store has of the group.
        group: the group if it is in memory.
    """
    through = None if group is None else group.sessions.through

    def is_old(entry: bytes) -> bool:
        nonlocal through
        if through is None:  # the record is read once, and only if there is a row
            through = _through_of_record(lane, stored)
        number, partition, offset = HEADER.unpack_from(entry)[1:4]
        taken: int = through.get((topics[number], partition), -1)
        return bool(offset <= taken)

    return is_old


def _through_of_record(lane: bytes, stored: Stored) -> Mapping[tuple[str, int], int]:
    try:
        record = stored.record(parse_key(split_lane(lane)[1]).group)
    except Exception:  # what takes the rows fails in the same way
        record = None
    return {} if record is None else {(t, p): offset for t, p, offset in record.through}


def is_found(entry: bytes, *, signed: bool = False) -> bool:
    """Whether a packed row of the config topic says what was found for a group's sources.

    `signed`: whether the row has room for a signature.
    """
    at = HEADER.size + (1 + entry[HEADER.size] if signed else 0)
    return entry.startswith(PREFIX["TopicsFound"], at)


def small_ticks(entries: Iterable[bytes], *, signed: bool) -> list[bytes]:
    """The packed rows that are ticks of at most `SMALL_TICK_BYTES`.

    A coordinator that has read a group back writes such a tick for it. It can be decoded where the
    group's events end processes. `signed`: whether the rows have room for signatures.
    """
    return [
        entry
        for entry in entries
        if len(entry) <= SMALL_TICK_BYTES
        and entry.startswith(
            PREFIX["Tick"], HEADER.size + (1 + entry[HEADER.size] if signed else 0)
        )
    ]


def config_order(entry: bytes, *, signed: bool = False) -> tuple[int, int]:
    """Sort key of a packed row of the config topic; the newest config comes last.

    Signed configs are in the order in which they were signed. Of copies with one signature the one
    that was written first is the newest. Any client can write a copy later, and it must not take
    the place of a config that an operator wrote in between.

    `signed`: whether the row has room for a signature.
    """
    at_ms: int = HEADER.unpack_from(entry)[0]
    position = int.from_bytes(entry[: HEADER.size - 1], "big")
    start = HEADER.size + 1
    if not signed or entry[HEADER.size] < FIXED_BYTES:
        return at_ms, position
    return int.from_bytes(entry[start + 2 : start + 10], "big"), -position


def newest_ms_of(entries: Sequence[bytes]) -> int:
    """Broker time of the newest of these sorted packed rows, epoch ms; 0 = there is none."""
    newest_ms: int = HEADER.unpack_from(entries[-1])[0] if entries else 0
    return newest_ms


class _Reader(NamedTuple):
    """Reads the rows of a group in order, within its budget.

    Rows whose signature is refused have a budget of their own (`doubted`): they are decoded to
    find whom they name, and must not use up what the rows that count may ask for.
    """

    key: bytes | None
    topics: Sequence[str]
    schemas: Schemas
    budget: Budget
    doubted: Budget
    gate: Gate | None

    def is_config(self, entry: bytes) -> bool:
        """Whether a row is a config, a deletion, or what was found for a group's sources."""
        return _kind(entry, self.topics) is TopicKind.CONFIG

    def config(self, entry: bytes, signature: bytes) -> Event | DecodeError | Verdict:
        """The config of a row, or why it is refused.

        Only rows that may count use credit up, so a forger cannot keep the operator's configs out.
        """
        if self.gate is not None:
            verdict = self.gate.verdict_on_row(*unpack(entry, self.topics), signature)
            if verdict is not None:
                return verdict
        if not self.budget.has_room_for_config(len(entry)):
            return _TOO_MANY_EVENTS
        event = _decoded(entry, self.key, self.topics, self.schemas, self.budget)
        self.budget.count_config(len(entry), event)
        return event

    def read(
        self, entry: bytes, ready: Event | DecodeError | Verdict | None, signature: bytes
    ) -> Taken | Rejected | None:
        """What the group gets for a row, or its dead letter; None = neither.

        Args:
            entry: the packed row.
            ready: its event, its error or the verdict on its signature, if it is a heartbeat or a
                config, which are read before.
            signature: its signature; empty = it has none.
        """
        if isinstance(ready, Verdict):
            if self.gate is not None:
                self.gate.refuse(*unpack(entry, self.topics), ready)
            return None
        if ready is not None:
            return self._taken(entry, ready, signature)
        kind = _kind(entry, self.topics)
        # With keys, only accepted events count: a forger must not crowd out the members.
        if self.gate is None and not self.budget.has_room(kind):
            return self._beyond(entry)
        budget = self.budget
        if self.gate is not None:
            verdict = self.gate.verdict_on_row(*unpack(entry, self.topics), signature)
            budget = self.budget if verdict is None else self.doubted
        event = _decoded(entry, self.key, self.topics, self.schemas, budget)
        taken = self._taken(entry, event, signature)
        if self.gate is None:
            self.budget.count(kind, event)
            return taken
        if taken is None or isinstance(taken, Rejected | Refused):
            return taken
        if not self.budget.has_room(kind):
            return self._beyond(entry)
        self.budget.count(kind, event)
        return taken

    def _taken(
        self, entry: bytes, event: Event | DecodeError, signature: bytes
    ) -> Taken | Rejected | None:
        if event is _TOO_MANY_EVENTS:
            return self._beyond(entry)
        if isinstance(event, DecodeError):
            return dead_letter(entry, self.key, str(event), self.topics)
        return event if self.gate is None else self.gate.taken(event, _value(entry), signature)

    def _beyond(self, entry: bytes) -> Rejected:
        why = str(_TOO_MANY_EVENTS)
        return dead_letter(entry, self.key, why, self.topics, DeadLetter.TOO_MUCH_AT_ONCE)


def _decoded(
    entry: bytes, key: bytes | None, topics: Sequence[str], schemas: Schemas, budget: Budget
) -> Event | DecodeError:
    """The event of a row, or the error that it has."""
    origin, value = unpack(entry, topics)
    kind = _kind(entry, topics)
    try:
        budget.admit(kind, value or b"")
        event = codec.decode(
            kind, key, value, origin, schemas=schemas, tasks_max=budget.next, heard_max=budget.heard
        )
        budget.take(event)
    except DecodeError as error:
        budget.refused(kind, value or b"")
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


def dead_letter(
    entry: bytes,
    key: bytes | None,
    message: str,
    topics: Sequence[str],
    reason: DeadLetter = DeadLetter.UNDECODABLE,
) -> Rejected:
    """The dead letter of a packed row."""
    origin, value = unpack(entry, topics)
    return Rejected(
        origin=origin, reason=reason, message=message, key=key or b"", value=value or b""
    )
