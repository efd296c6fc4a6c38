"""Quarantine: a group that ends the operator's process is set aside until an operator releases it.

A batch that a killed or failed job left unfinished is repeated with each group batch in a child
process (`child_process`). A group whose child gives no answer is *quarantined*: its events become
dead letters (heartbeats and ticks leave none), its published snapshot says so, and its tasks stay
with the members that have them. The state store and the published snapshot keep the quarantine.

A record on the config topic releases the group, unless the quarantine has read it before: a start
without a checkpoint reads that topic from its beginning (`Quarantine.through`). The group batch of
the release runs in a child process, too:

1. First with the rows of the quarantine, which may not have been the cause.
2. If the child gives no answer, without these rows; the coordinator asks every member for a report,
   and the group is unverified for a session (`state.lost_checkpoint`).
3. If that gives no answer either, the group stays quarantined.

A coordinator that reads a tick of a later one in the quarantine leaves the group to that one, as
it does with any other group (`state.superseded`).

The heartbeats of the quarantine are lost, so each member's session begins with the release.

Where rows that an earlier version kept have a topic of another prefix now (`kept_rows`), step 1 is
left out. It may still be wrong if the topics of two prefixes sort among each other (``a`` and
``a.d``).

For `PROBATION_MS` after the release the group's batches still run in child processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql.types import Row

from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.events import GroupConfig, GroupDeleted
from muster.protocol.keys import parse_key
from muster.protocol.records import GroupGone, Quarantine, Record, WakeUp
from muster.protocol.topics import TopicKind
from muster.state.group import Group
from muster.streams.batch import group_batch, outbox
from muster.streams.batch.group_batch import BatchResult, Publisher
from muster.streams.batch.inbox import Inbox, refuse_quarantined
from muster.streams.batch.kept_rows import MARK, ROWS_BYTES_MAX, Kept, successor_in
from muster.streams.batch.letter_limits import LetterBudget
from muster.streams.batch.stored_values import (
    QUARANTINED_FLAG,
    TURN_FLAG,
    Header,
    Parts,
    Stored,
    tag_of,
)
from muster.streams.source import HEADER, Packing, split_lane

STORY_CHARS_MAX = 1_000

READ_BACK = Parts(Header(QUARANTINED_FLAG), b"", MARK).to_bytes()
"""The liveness of a quarantined group whose checkpoint was lost, and with it the rows."""


Places = Mapping[tuple[str, int], int]
"""Topic and partition → offset."""


def releases(inbox: Inbox, has_read: Places) -> bool:
    """Whether the inbox has an event that releases a group; only an operator may write one.

    `has_read`: see `configs_read`.
    """
    return any(
        isinstance(event, GroupConfig | GroupDeleted)
        and event.origin.offset > has_read.get((event.origin.topic, event.origin.partition), -1)
        for event in inbox.events
    )


def configs_read(lane: bytes, stored: Stored) -> Places:
    """The newest records of config that were read in a group's quarantine."""
    record = stored.record(parse_key(split_lane(lane)[1]).group)
    if record is None or record.quarantine is None:
        return {}
    return {(topic, partition): offset for topic, partition, offset in record.quarantine.through}


def unread(entries: Sequence[bytes], topics: Sequence[str], has_read: Places) -> list[bytes]:
    """The packed rows without the configs that were read in the quarantine."""
    places = (HEADER.unpack_from(entry)[1:4] for entry in entries)
    return [
        entry
        for entry, (topic, partition, offset) in zip(entries, places, strict=True)
        if offset > has_read.get((topics[topic], partition), -1)
    ]


def successor_of(stored: Stored) -> int:
    """Greatest epoch of a later coordinator that a tick has named in a quarantine; -1 = none."""
    parts = stored.parts()
    return -1 if parts is None else successor_in(parts.core)


def left_to(stored: Stored, successor: int, now: Packing) -> Stored:
    """A quarantined group that a tick of a later coordinator was read for.

    Args:
        stored: what the state store has of it.
        successor: the later coordinator's epoch.
        now: how this run packs rows; it holds for kept rows that do not say how they are packed.
    """
    parts = stored.parts()
    assert parts is not None  # it is quarantined
    if successor <= successor_in(parts.core):
        return stored
    kept = Kept.from_bytes(parts.core)
    kept = kept._replace(successor=successor, packing=kept.packing or now)
    return Stored(parts._replace(core=kept.to_bytes()).to_bytes(), stored.snapshot)


def names_a_group(lane: bytes) -> bool:
    """Whether the key of a lane names a group; only a group can be quarantined."""
    try:
        parsed = parse_key(split_lane(lane)[1])
    except DecodeError:
        return False
    return parsed.member is None and not parsed.part


def begin(
    lane: bytes,
    entries: Sequence[bytes],
    topics: Sequence[str],
    stored: Stored,
    publisher: Publisher,
    budget: LetterBudget,
    signed: bool,
    story: str,
) -> BatchResult:
    """Quarantine a group whose child process gave no answer.

    Args:
        lane: see `source`; its key names a group.
        entries: the group's rows in this batch, sorted; at least one.
        topics: the input topics, ascending.
        stored: what the state store has of the group. If the group is quarantined already, what is
            kept for its release stays.
        publisher: facts about the job.
        budget: what the batch's dead letters may still take.
        signed: whether the rows have room for signatures.
        story: how the child ended, one sentence.
    """
    prefix, key = split_lane(lane)
    group = parse_key(key).group
    since_ms: int = HEADER.unpack_from(entries[-1])[0]
    story = story[:STORY_CHARS_MAX]
    before = stored.record(group)
    record = replace(
        before or Group.new(group).snapshot(),
        coordinator_epoch=publisher.epoch,
        quarantine=Quarantine(since_ms, story, _through(lane, entries, topics, stored)),
    )
    inbox = refuse_quarantined(lane, entries, topics, signed, f"the group is quarantined: {story}")
    parts = stored.parts() or Parts(Header(), b"", b"")
    for_release = parts.core
    if not stored.is_quarantined:
        epoch = None if before is None else before.coordinator_epoch
        few = sum(map(len, entries)) <= ROWS_BYTES_MAX
        packing = Packing(tuple(topics), signed)
        for_release = Kept(epoch, parts.core, list(entries) if few else None, packing).to_bytes()
    flags = (parts.header.flags | QUARANTINED_FLAG) ^ TURN_FLAG
    records: list[Record] = [record, WakeUp(group=group, at_ms=None)]
    rows = group_batch.written(inbox, records, publisher, budget, turn=int(bool(flags & TURN_FLAG)))
    snapshot = group_batch.value_of(record, prefix, rows)
    header = Header(flags, tag_of(snapshot), record.clock_ms)
    after = Parts(header, parts.replay_guard, for_release)  # no probation
    return BatchResult(rows, None, Stored(after.to_bytes(), snapshot))


def _through(
    lane: bytes, entries: Sequence[bytes], topics: Sequence[str], stored: Stored
) -> tuple[tuple[str, int, int], ...]:
    """`Quarantine.through` after these rows; see `begin`."""
    newest = dict(configs_read(lane, stored))
    for entry in entries:
        number, partition, offset = HEADER.unpack_from(entry)[1:4]
        place = topics[number], partition
        if place[0].endswith(f".{TopicKind.CONFIG}"):
            newest[place] = max(offset, newest.get(place, -1))
    return tuple(
        (topic, partition, offset) for (topic, partition), offset in sorted(newest.items())
    )


def before(lane: bytes, stored: Stored, now: Packing) -> tuple[Stored, list[bytes]] | None:
    """A quarantined group as it was before the rows that were set aside, and these rows.

    The rows are packed as `now` says. None = they took too many bytes to be kept, the checkpoint
    was lost since, or the job does not read their topics any more.
    """
    parts = stored.parts()
    assert parts is not None  # it is quarantined
    for_release = Kept.from_bytes(parts.core)
    rows = for_release.rows_as(now, split_lane(lane)[0])
    if rows is None:
        return None
    if for_release.epoch is None:
        return Stored(), rows
    record = stored.record(parse_key(split_lane(lane)[1]).group)
    assert record is not None  # it has an epoch
    as_it_was = replace(record, coordinator_epoch=for_release.epoch, quarantine=None)
    value = codec.encode(as_it_was).value
    return Stored(parts._replace(core=for_release.core).to_bytes(), value), rows


def forgotten(lane: bytes, publisher: Publisher) -> list[Row]:
    """Rows that delete the snapshot and the wake-up of a forgotten group from their topics."""
    prefix, key = split_lane(lane)
    group = parse_key(key).group
    tombstones = (GroupGone(group=group), WakeUp(group=group, at_ms=None))
    return outbox.rows(prefix, tombstones, publisher.partitions)
