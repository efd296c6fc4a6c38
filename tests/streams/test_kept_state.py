"""State that another version of muster wrote: groups go on from it, and no task moves for it.

``tests/golden/state/*.json`` holds what the state store had of groups in all kinds of moments,
as a version wrote it: liveness and snapshot, byte for byte, with what they meant. A file is never
changed; a new format of the liveness adds one.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import Event, Heartbeat, Join, Origin, Report, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState, MemberAssignment, Record, Rejected
from muster.protocol.tasks import TaskTable
from muster.protocol.topics import TOPICS, TopicKind
from muster.streams import turn
from muster.streams.inbox import open_lane
from muster.streams.source import input_topics, lane_of, pack
from muster.streams.turn import Publisher, Stored

FOLDER = Path(__file__).parent.parent / "golden" / "state"
KEPT = [
    pytest.param(moment, id=f"{file.stem}, {moment['name']}")
    for file in sorted(FOLDER.glob("*.json"))
    for moment in json.loads(file.read_text())
]
INPUT = input_topics(["muster"])
MEMBERSHIP = "muster.membership"
PUBLISHER = Publisher(50, {topic.name("muster"): 1 for topic in TOPICS}, 600_000)
LATER = 1_000_000
"""Offset of what happens after the upgrade."""


class Upgraded:
    """A group that is read from its stored bytes in every batch, and a fleet that obeys.

    Attributes:
        stored: what the state store has.
        published: every record.
    """

    def __init__(self, moment: dict[str, Any], liveness: bytes | None = None) -> None:
        self.group = GroupId(moment["key"])
        kept = b64decode(moment["liveness"]) if liveness is None else liveness
        self.stored = Stored(kept, b64decode(moment["snapshot"]))
        self.published: list[Record] = []
        self._now_ms = moment["clock_ms"]
        self._offset = LATER

    def take(self, *events: Event) -> None:
        """One batch a little later, and all that follows: members do what they are told."""
        while events:
            told = self._batch(events)
            events = tuple(self._answer(record) for record in told)

    def _batch(self, events: Sequence[Event]) -> list[MemberAssignment]:
        self._now_ms += 100
        entries = []
        for event in events:
            self._offset += 1
            origin = Origin(MEMBERSHIP, 0, self._offset, self._now_ms)
            entries.append(pack(origin, codec.encode(event).value, INPUT))
        lane = lane_of("muster", self.group.encode())
        taken = turn.take(None, self.stored, open_lane(lane, entries, INPUT), PUBLISHER)
        self.stored = taken.stored
        records = []
        for row in taken.rows:
            kind = TopicKind(row.topic.rpartition(".")[2])
            records.append(codec.decode_record(kind, row.key, row.value))
        assert [r for r in records if isinstance(r, Rejected)] == []
        self.published += records
        return [r for r in records if isinstance(r, MemberAssignment) and r.fault is None]

    def _answer(self, record: MemberAssignment) -> Report:
        return Report(
            group=self.group,
            member=record.member,
            incarnation=record.incarnation,
            epoch=record.epoch,
            revision=record.revision,
            holding=Holding(record.active, record.standby, record.learner),
        )

    @property
    def snapshot(self) -> GroupSnapshot:
        """The group as it is stored."""
        assert self.stored.snapshot is not None
        key = self.group.encode()
        found = codec.decode_record(TopicKind.GROUPS, key, self.stored.snapshot)
        assert isinstance(found, GroupSnapshot)
        return found

    def holders(self) -> dict[str, str]:
        """Task → the member that has it."""
        snapshot = self.snapshot
        table, name = TaskTable(snapshot.tasks), {m.slot: str(m.id) for m in snapshot.members}
        return {
            str(table.task(index)): name[slot]
            for index, slot in enumerate(snapshot.holder.tolist())
            if slot in name
        }


def members(snapshot: GroupSnapshot) -> list[str]:
    """Who is in the group."""
    return sorted(str(member.id) for member in snapshot.members)


def goes_on(group: Upgraded, moment: dict[str, Any]) -> None:
    """Nobody is lost, nothing moves that was not on its way, and a newcomer is taken in."""
    group.take(Tick(group=group.group))
    # A digest that disagrees twice is asked about: so those who owe a release report it now.
    for entry in 2 * group.snapshot.members:
        group.take(Heartbeat(group=group.group, member=entry.id, epoch=entry.epoch, digest=1))
    assert members(group.snapshot) == moment["members"]
    if moment["state"] in ("Stable", "Empty"):
        assert group.holders() == moment["holders"]
    else:  # somebody was asked to release, and now has
        assert group.holders().keys() == moment["holders"].keys()
        assert group.snapshot.state is GroupState.STABLE
    generation = group.snapshot.generation
    group.take(Join(group=group.group, member=MemberId("W9"), incarnation=99))
    assert members(group.snapshot) == [*moment["members"], "W9"]
    assert group.snapshot.generation > generation


@pytest.mark.parametrize("moment", KEPT)
def test_goes_on_from_what_another_version_stored(moment: dict[str, Any]) -> None:
    """Every kept moment is read, batch for batch from its bytes."""
    goes_on(Upgraded(moment), moment)


@pytest.mark.parametrize("moment", KEPT)
@pytest.mark.parametrize("place", ["the job's part", "the core's part"])
def test_goes_on_from_a_liveness_nobody_can_read(moment: dict[str, Any], place: str) -> None:
    """A version of the liveness from the future (a rollback): its members are asked instead."""
    liveness = bytearray(b64decode(moment["liveness"]))
    liveness[0 if place == "the job's part" else turn._HEADER.size] = 250
    group = Upgraded(moment, bytes(liveness))
    goes_on(group, moment)
    asked = {r.member for r in group.published if isinstance(r, MemberAssignment) and r.report}
    away = {m.id for m in group.snapshot.members if m.instance_id is not None}
    assert {MemberId(name) for name in moment["members"]} - away <= asked


def test_there_is_something_to_read() -> None:
    """Moments of rest, of hand-over, of a silent and an absent member, of every assignor's kind."""
    assert {"stable", "releasing", "silent member", "learners", "draining", "empty"} <= {
        moment.values[0]["name"] for moment in KEPT
    }
