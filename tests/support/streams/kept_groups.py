"""A group as the state store has it, and states of groups recorded for later versions.

``python -m support.streams.kept_groups FILE`` (from ``tests/``) writes the moments of this version,
for ``tests/golden/state``: once for each new format of the liveness.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

from support.state.story import GROUP, beat, config, join, leave, report, tick
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import Drain, Event, GroupConfig, Mark, Origin, Report, Tick
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberAssignment, Record, Rejected, WakeUp
from muster.protocol.tasks import Connector, Subtopology, TaskSet, TaskTable
from muster.protocol.tick_covers import Cover, Heard
from muster.protocol.topics import TOPICS, TopicKind
from muster.streams.batch import group_batch
from muster.streams.batch.group_batch import Publisher
from muster.streams.batch.inbox import open_lane
from muster.streams.batch.stored_values import Stored
from muster.streams.source import input_topics, lane_of

INPUT = input_topics(["muster"])
NOTHING = Stored()
PARTITIONS = {topic.name("muster"): 1 for topic in TOPICS}


class KeptGroup:
    """A group that is read from its stored bytes in every batch, and members that obey.

    Attributes:
        stored: what the state store has.
        published: every record.
        epoch: of the coordinator.
        now_ms: broker time.
    """

    def __init__(
        self,
        group: GroupId = GROUP,
        stored: Stored = NOTHING,
        now_ms: int = 1_000_000,
        offset: int = -1,
    ) -> None:
        """A group as it is stored.

        Args:
            group: its id.
            stored: what the state store has.
            now_ms: broker time.
            offset: newest offset written.
        """
        self.group = group
        self.stored = stored
        self.published: list[Record] = []
        self.epoch = 50
        self.now_ms = now_ms
        self._offset = offset

    def take(self, *events: Event, obey: bool = True) -> KeptGroup:
        """Take one batch, 100 ms later, and the batches of the members' answers."""
        while events:
            records = self._batch(events)
            events = tuple(self._answer(record) for record in records) if obey else ()
        return self

    def _batch(self, events: Sequence[Event]) -> list[MemberAssignment]:
        self.now_ms += 100
        entries = []
        for event in events:
            self._offset += 1
            kind = TopicKind.CONFIG if isinstance(event, GroupConfig) else TopicKind.MEMBERSHIP
            origin = Origin(f"muster.{kind}", 0, self._offset, self.now_ms)
            entries.append(pack(origin, codec.encode(event).value, INPUT))
        inbox = open_lane(lane_of("muster", self.group.encode()), entries, INPUT)
        publisher = Publisher(self.epoch, PARTITIONS, 600_000, assignors=frozenset([PLUGIN]))
        taken = group_batch.take(None, self.stored, inbox, publisher)
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
        snapshot = codec.decode_record(TopicKind.GROUPS, key, self.stored.snapshot)
        assert isinstance(snapshot, GroupSnapshot)
        return snapshot

    def members(self) -> list[str]:
        """The members of the group."""
        return sorted(str(member.id) for member in self.snapshot.members)

    def holders(self) -> dict[str, str]:
        """Task → the member that holds it."""
        snapshot = self.snapshot
        table, name = TaskTable(snapshot.tasks), {m.slot: str(m.id) for m in snapshot.members}
        return {
            str(table.task(index)): name[slot]
            for index, slot in enumerate(snapshot.holder.tolist())
            if slot in name
        }


NINE = Subtopology("0", 9)
STATEFUL = Subtopology("0", 6, stateful=True)
PLUGIN = "support.plugin_assignors:FirstTakesAll"


def _two(assignor: str = "sticky") -> KeptGroup:
    return KeptGroup().take(config(NINE, assignor=assignor), join("W1"), join("W2"))


def _recovering() -> KeptGroup:
    kept = _two()
    kept.stored, kept.epoch = Stored(None, kept.stored.snapshot), 51
    return kept.take(tick(), obey=False).take(report("W1", 1, *_of(kept, "W1")), obey=False)


def _of(kept: KeptGroup, member: str) -> list[str]:
    return [task for task, holder in kept.holders().items() if holder == member]


def _quiet() -> KeptGroup:
    """Both members heartbeat apart and agree, so the clock writes no ticks for minutes."""
    kept = KeptGroup().take(config(NINE), join("W1", apart=True), join("W2", apart=True))
    kept.take(Tick(group=GROUP, cover=Cover(0, 0)))
    holders = kept.holders()
    held = {
        member: Holding(active=TaskSet.of(task for task in holders if holders[task] == member))
        for member in ("W1", "W2")
    }
    heard = tuple(Heard(member, 0, 1, holding.digest()) for member, holding in held.items())
    wake_up = next(r for r in reversed(kept.published) if isinstance(r, WakeUp))
    cover = Cover(0, kept.now_ms, heard)
    return kept.take(Tick(group=GROUP, published=wake_up.published, cover=cover), obey=False)


def _two_owners() -> KeptGroup:
    kept = _two()
    claimed = Holding(active=TaskTable((NINE,)).set_of(range(2)))
    return kept.take(join("W3", holding=claimed), obey=False)


MOMENTS: dict[str, Callable[[], KeptGroup]] = {
    "stable": lambda: _two().take(join("W3")),
    "releasing": lambda: _two().take(join("W3"), obey=False),
    "releasing, the time runs": lambda: (
        _two()
        .take(join("W3"), obey=False)
        .take(Tick(group=GROUP, published=Mark(50, 1_000)), obey=False)
    ),
    "a task claimed twice": _two_owners,
    "a task that left the table": lambda: _two().take(config(Subtopology("0", 7)), obey=False),
    "silent member": lambda: _two().take(beat("W1", 1), obey=False),
    "learners": lambda: (
        KeptGroup().take(config(STATEFUL, assignor="learner"), join("W1")).take(join("W2"))
    ),
    "connect, a worker awaited": lambda: (
        KeptGroup()
        .take(config(Connector("a", 4), Connector("b", 2), assignor="cooperative"))
        .take(join("W1"), join("W2"), join("W3"))
        .take(leave("W3"))
    ),
    "static member away": lambda: (
        KeptGroup()
        .take(config(NINE), join("W1"), join("W2", instance_id="two"))
        .take(leave("W2", temporary=True))
    ),
    "draining": lambda: _two().take(Drain(group=GROUP, member=MemberId("W2"), on=True), obey=False),
    "recovering": _recovering,
    "a plug-in's answer kept": lambda: _two().take(config(NINE, assignor=PLUGIN), obey=False),
    "heartbeats apart": lambda: (
        KeptGroup()
        .take(config(NINE), join("W1", apart=True), join("W2"))
        .take(Tick(group=GROUP, cover=Cover(0, 0)))
        .take(Tick(group=GROUP, cover=Cover(0, 2**40, (Heard("W1", 0, 1, 1),))), obey=False)
    ),
    "quiet, no tick for minutes": _quiet,
    "empty": lambda: _two().take(leave("W1"), leave("W2")),
}


def record(file: Path) -> None:
    """Write the states as this version stores them."""
    rows = []
    for name, lived in MOMENTS.items():
        kept = lived()
        assert kept.stored.liveness is not None
        assert kept.stored.snapshot is not None
        row = {
            "name": name,
            "key": kept.group,
            "state": kept.snapshot.state.value,
            "generation": kept.snapshot.generation,
            "members": kept.members(),
            "holders": kept.holders(),
            "clock_ms": kept.now_ms,
            "snapshot": b64encode(kept.stored.snapshot).decode(),
            "liveness": b64encode(kept.stored.liveness).decode(),
        }
        rows.append(row)
    file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
