"""Heartbeats per second that the coordinator sustains on two cores, and the cost of one.

For 1, 100 and 2,000 groups: members join, a backlog of their heartbeats is written while the
coordinator is stopped, then the coordinator starts and processes it. Every heartbeat goes the whole
way: it is read, decoded and compared with the group's liveness, and the state is written. Rows per
second are Spark's count over the full batches; CPU is that of the job's whole process tree over the
same time.

With ``--signed`` each case runs a second time with the same heartbeats, signed, and with signatures
required.

``python bench/throughput.py [--groups 1 100 2000] [--heartbeats 600000] [--signed] [--json]``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

from bench_system import BenchSystem, Coordinator, configured, cpu_s
from confluent_kafka import Producer

from muster.kafka.lasting_producer import produce
from muster.output import wall_ms
from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Join, Report
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import MemberAssignment
from muster.protocol.topics import TopicKind, topic_name
from muster.signing import rotation
from muster.signing.followed_key_file import KeyFile, signed

MEMBERS = 1_000
"""Members in all groups together; each group has at least one."""
BATCH_ROWS = 100_000
REFUSED = "muster_rejected_events_total"
AIMS = {1: 30_000, 100: 30_000, 2_000: 15_000}


def fill(system: BenchSystem, prefix: str, groups: int) -> list[Heartbeat]:
    """Configure groups, let members join and settle; return a heartbeat of each member."""
    names = [GroupId(f"{prefix}-{number}") for number in range(groups)]
    each = max(MEMBERS // groups, 1)
    reader = system.tail(topic_name(TopicKind.ASSIGNMENTS))
    quiet = {"session.timeout.ms": 1_800_000}
    system.write(TopicKind.CONFIG, *(configured(name, 4 * each, quiet) for name in names))
    joins = [
        Join(group=name, member=MemberId(f"member-{number}"), incarnation=1)
        for name in names
        for number in range(each)
    ]
    system.write(TopicKind.MEMBERSHIP, *joins)
    newest: dict[tuple[str, str], MemberAssignment] = {}
    quiet_since = time.monotonic()
    while len(newest) < len(joins) or time.monotonic() - quiet_since < 3:
        if time.monotonic() - quiet_since > 120:
            raise TimeoutError(f"{len(newest)} of {len(joins)} members were answered")
        for record in _assignments(reader.consume(10_000, 0.2)):
            newest[record.group, record.member] = record
            quiet_since = time.monotonic()
            system.write(TopicKind.MEMBERSHIP, _report(record))
    reader.close()
    return [_heartbeat(record) for record in newest.values()]


def _assignments(messages: list) -> Iterator[MemberAssignment]:
    for message in messages:
        if message.error() is None:
            record = codec.decode_record(TopicKind.ASSIGNMENTS, message.key(), message.value())
            if isinstance(record, MemberAssignment) and record.fault is None:
                yield record


def _report(record: MemberAssignment) -> Report:
    return Report(
        group=record.group,
        member=record.member,
        incarnation=record.incarnation,
        epoch=record.epoch,
        revision=record.revision,
        holding=Holding(active=record.active),
    )


def _heartbeat(record: MemberAssignment) -> Heartbeat:
    return Heartbeat(
        group=record.group,
        member=record.member,
        epoch=record.epoch,
        digest=Holding(active=record.active).digest(),
    )


def backlog(system: BenchSystem, beats: list[Heartbeat], count: int, keys: KeyFile | None) -> None:
    """Write heartbeats of all members in turn; each member's heartbeat is signed once."""
    settings = {"linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(system.clients.producer(settings))
    topic = topic_name(TopicKind.MEMBERSHIP)
    written = [signed(keys, codec.encode(beat), beat, topic) for beat in beats]
    for number in range(count):
        while True:
            try:
                produce(producer, topic, written[number % len(beats)])
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()


def work_off(coordinator: Coordinator, count: int) -> dict[str, float]:
    """Watch a newly started coordinator process a backlog.

    Returns:
        Rows per second and CPU per row from the end of the first full batch, which warms the JVM
        up, to the end of the last; and the longest batch.
    """
    ends: list[tuple[float, float, float]] = []
    rows = 0.0
    while rows < count:
        seen = coordinator.metrics().get("muster_rows_total", 0.0)
        if seen > rows:
            rows = seen
            if rows > BATCH_ROWS / 2:  # a small batch may come before the first full one
                ends.append((time.perf_counter(), rows, cpu_s(coordinator.process.pid)))
        if coordinator.process.poll() is not None:
            raise RuntimeError("the coordinator ended")
        time.sleep(0.02)
    (began, first, cpu_began), (ended, last, cpu_ended) = ends[0], ends[-1]
    return {
        "rows per second": (last - first) / (ended - began),
        "CPU µs per row": 1e6 * (cpu_ended - cpu_began) / (last - first),
        "longest batch, s": max(after[0] - before[0] for before, after in pairwise(ends)),
        "rows counted": last - first,
    }


def measure(groups: int, heartbeats: int, *, is_signed: bool = False) -> dict[str, float]:
    """One case, on its own broker and coordinator.

    Raises:
        RuntimeError: the coordinator ended, or refused a heartbeat.
    """
    with BenchSystem() as system:
        coordinator = system.coordinate()
        beats = fill(system, f"load{groups}", groups)
        coordinator.process.stop(60)
        keys = keyring(system) if is_signed else None
        backlog(system, beats, heartbeats, keys)
        working = system.coordinate(
            f"muster.batch.rows.max={BATCH_ROWS}", page="/metrics", signing_keys=keys and keys.path
        )
        figures = work_off(working, heartbeats)
        refused = {k: n for k, n in working.metrics().items() if k.startswith(REFUSED) and n}
        if refused:
            raise RuntimeError(f"events were refused: {refused}")
        return figures


def keyring(system: BenchSystem) -> KeyFile:
    """A keyring that requires signatures of every event from now on."""
    now_ms = wall_ms()
    file = system.folder / "keys.json"
    rotation.write(file, rotation.required(rotation.new_key({}, now_ms), ("*",), now_ms))
    return KeyFile(str(file))


def main() -> int:
    """Measure and print; exit code 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description="Heartbeats per second on two cores.")
    parser.add_argument("--groups", type=int, nargs="+", default=list(AIMS))
    parser.add_argument("--heartbeats", type=int, default=600_000, help="default: 600000")
    parser.add_argument("--signed", action="store_true", help="each once more, with session keys")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.heartbeats < 3 * BATCH_ROWS:
        parser.error(f"--heartbeats: expected at least three full batches, {3 * BATCH_ROWS}")
    by_groups = {str(groups): measure(groups, args.heartbeats) for groups in args.groups}
    missed = [g for g, f in by_groups.items() if f["rows per second"] < AIMS.get(int(g), 0)]
    for groups in args.groups if args.signed else ():
        plain = by_groups[str(groups)]
        figures = measure(groups, args.heartbeats, is_signed=True)
        for figure in ("rows per second", "CPU µs per row"):
            figures[f"{figure}, signed to plain"] = figures[figure] / plain[figure]
        by_groups[f"{groups} signed"] = figures
    if args.json:
        print(json.dumps(by_groups, indent=1))
    else:
        for case, figures in by_groups.items():
            shown = (f"{key} {value:,.2f}  " for key, value in figures.items())
            print(f"{case:>12} groups:", *shown)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
