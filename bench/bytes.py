"""Bytes on the wire: muster beside the information-theoretic floor and Kafka's own forms.

python bench/bytes.py [--short] [--members-sampled N]

Three tables and the speeds. *Members*: the average record of one member: its task set (floor: log2
of the number of sets of this size) and its whole value, beside Kafka's forms of the same: the
consumer protocol, Streams' AssignmentInfo v11 within it, the KIP-1071 heartbeat response, Connect's
plain structs; then JSON and roaring bitmaps. "bound" is Kafka's best form divided by the floor: no
encoding could do better. *Groups*: the owner vector (floor: log2 of the number of placements with
these counts) and the whole snapshot, beside the records that the broker keeps for a streams group.
*Everything*: the group's record and one for every member, as values, with keys, and with headers,
beside the broker's target and current records and a heartbeat response for every member. Kafka's
sizes follow from its published layouts (S3-F13, E-03, E-04, KIP-848, KIP-1071), with a topic of 24
and a member id of 36 characters.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from math import lgamma, log

import numpy as np
from pyroaring import BitMap

from muster.protocol.codec import Encoded, encode
from muster.protocol.events import Heartbeat
from muster.protocol.heartbeat_columns import heartbeats
from muster.protocol.owner_vectors import decode_owners, encode_owners
from muster.protocol.records import GroupSnapshot, GroupState, MemberAssignment, MemberEntry
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology, TaskTable
from muster.protocol.taskset import decode_segment, encode_segment, encode_set, units_of

TOPIC_CHARS, MEMBER_CHARS, GROUP_CHARS = 24, 36, 12
SIZES = [
    *((10, 2), (100, 3), (100, 10), (1_000, 2), (1_000, 10), (1_000, 100)),
    *((10_000, 2), (10_000, 100), (10_000, 1_000), (100_000, 100), (100_000, 1_000)),
    *((1_000_000, 2), (1_000_000, 100), (1_000_000, 10_000)),
]
SHORT = [(100, 3), (10_000, 100)]
_TIMED_S = 0.01


# ---------------------------------------------------------------- placements


def random_placement(tasks: int, members: int) -> np.ndarray:
    """Even shares of tasks drawn at random."""
    return np.random.default_rng(tasks + members).permutation(np.arange(tasks) % members)


def contiguous(tasks: int, members: int) -> np.ndarray:
    """Even shares, each a range."""
    return np.sort(np.arange(tasks) % members)


def round_robin(tasks: int, members: int) -> np.ndarray:
    """Even shares, assigned in turn."""
    return np.arange(tasks) % members


def skewed(tasks: int, members: int) -> np.ndarray:
    """Shares of 1, 1/2, 1/3, …, with tasks drawn at random."""
    share = 1 / np.arange(1, members + 1)
    return np.random.default_rng(tasks + members).choice(members, tasks, p=share / share.sum())


def after_churn(tasks: int, members: int) -> np.ndarray:
    """Ranges, then a tenth of the members is replaced one by one, as sticky would."""
    owners = contiguous(tasks, members)
    random = np.random.default_rng(tasks * members)
    for leaver in random.permutation(members)[: max(1, members // 10)]:
        lost = np.flatnonzero(owners == leaver)
        others = np.delete(np.arange(members), leaver)
        owners[lost] = np.resize(random.permutation(others), len(lost)) if len(others) else leaver
        taken = random.choice(tasks, len(lost), replace=False)
        owners[taken] = leaver
    return owners


PLACEMENTS: dict[str, Callable[[int, int], np.ndarray]] = {
    "random": random_placement,
    "after churn": after_churn,
    "contiguous": contiguous,
    "round robin": round_robin,
    "skewed": skewed,
}


# ---------------------------------------------------------------- floors and Kafka's forms


def set_floor(tasks: int, count: int) -> float:
    """Fewest bytes for a set of this size, on average over all such sets."""
    return (lgamma(tasks + 1) - lgamma(count + 1) - lgamma(tasks - count + 1)) / log(2) / 8


def group_floor(counts: np.ndarray) -> float:
    """Fewest bytes for a placement with these counts."""
    return (lgamma(int(counts.sum()) + 1) - sum(lgamma(int(c) + 1) for c in counts)) / log(2) / 8


def uvarint(number: int) -> int:
    """Bytes of a number as Kafka's unsigned varint."""
    return max(1, -(-number.bit_length() // 7))


def streams_v11(count: int) -> int:
    """AssignmentInfo v11 within ConsumerProtocolAssignment, no standbys, no host maps."""
    info = 8 + 4 + 12 * count + 4 + 4 + 4 + 4 + 12
    return consumer_protocol(count) + info


def consumer_protocol(count: int) -> int:
    """ConsumerProtocolAssignment: 4 bytes a partition."""
    return 2 + 4 + (2 + TOPIC_CHARS + 4 + 4 * count if count else 0) + 4


def connect(count: int) -> int:
    """Connect V1/V2 with one connector of a 24-character name (S3-F13)."""
    return 28 + MEMBER_CHARS + 40 + (6 + TOPIC_CHARS + 4 * count if count else 0)


def task_ids(count: int) -> int:
    """KIP-1071's TaskIds of one subtopology."""
    return uvarint(2) + (2 + uvarint(count + 1) + 4 * count + 1 if count else 0)


def kip1071(count: int) -> int:
    """StreamsGroupHeartbeat response that carries the assignment."""
    return 32 + MEMBER_CHARS + task_ids(count)


def broker_records(counts: np.ndarray) -> int:
    """Target records of a streams group in ``__consumer_offsets``, keys included."""
    key = 6 + GROUP_CHARS + MEMBER_CHARS
    return sum(key + 2 + task_ids(int(c)) + 2 + 1 for c in counts) + key


def broker_total(counts: np.ndarray) -> int:
    """All bytes that a placement makes a broker write and send: records and responses."""
    key = 6 + GROUP_CHARS + MEMBER_CHARS
    # A current record: two epochs and a state; tasks of one role, none of five other kinds.
    current = sum(key + 2 + 9 + task_ids(int(c)) + 5 + 1 for c in counts)
    return broker_records(counts) + current + sum(kip1071(int(c)) for c in counts)


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Case:
    """One placement."""

    name: str
    tasks: int
    members: int
    owners: np.ndarray


def cases(sizes: list[tuple[int, int]]) -> Iterator[Case]:
    """Every placement at every size."""
    for name, place in PLACEMENTS.items():
        for tasks, members in sizes:
            yield Case(name, tasks, members, place(tasks, members).astype(np.int32))


def member_value(table: TaskTable, positions: np.ndarray) -> tuple[int, Encoded]:
    """Bytes of a member's task set, and the member's record."""
    active = table.set_of(positions.astype(np.int32))
    record = MemberAssignment(
        group="g" * GROUP_CHARS,
        member="m" * MEMBER_CHARS,
        incarnation=2**62,
        coordinator_epoch=100,
        generation=1000,
        epoch=1000,
        revision=1000,
        active=active,
        session_timeout_ms=45_000,
        heartbeat_interval_ms=5_000,
    )
    return len(encode_set(active, units_of([active]))), encode(record)


def shares(case: Case, sampled: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The tasks of at most `sampled` members, and how many members each of them stands for.

    Where shares are skewed the first members have most tasks, so the sample is dense there.
    """
    order = np.argsort(case.owners, kind="stable")
    ends = np.searchsorted(case.owners[order], np.arange(case.members), side="right")
    chosen = np.arange(case.members)
    if case.members > sampled:
        chosen = np.unique(np.geomspace(1, case.members, sampled).round().astype(int)) - 1
    between = (chosen[1:] + chosen[:-1] + 1) / 2
    weights = np.diff(np.concatenate([[0], between, [case.members]]))
    has = [order[ends[member - 1] if member else 0 : ends[member]] for member in chosen.tolist()]
    return has, weights


def member_row(case: Case, sampled: int) -> list[object]:
    """Averages over the members, or over a sample of `sampled` members."""
    table = TaskTable([Subtopology("0", case.tasks)])
    sums, worst = np.zeros(10), 0.0
    for positions, weight in zip(*shares(case, sampled), strict=True):
        count = len(positions)
        floor = set_floor(case.tasks, count)
        ours, record = member_value(table, positions)
        value = len(record.value or b"")
        bitmap = BitMap(positions.tolist())
        bitmap.run_optimize()
        worst = max(worst, ours - 1.03 * floor)
        forms = (consumer_protocol(count), streams_v11(count), kip1071(count), connect(count))
        printed = json.dumps([f"0_{p}" for p in positions.tolist()], separators=(",", ":"))
        others = (min(forms), len(printed), len(bitmap.serialize()))
        sums += weight * np.array([floor, ours, value, *forms, *others])
    floor, ours, value, *rest = (sums / case.members).tolist()
    best = rest[4]
    name = [case.name, case.tasks, case.members]
    tail = [
        f"{best / value:.1f}",
        f"{best / max(floor, 1):.1f}",
        *(f"{r:.0f}" for r in (*rest[:4], *rest[5:])),
    ]
    return [*name, f"{floor:.1f}", f"{ours:.1f}", f"{worst:.1f}", f"{value:.1f}", *tail]


def everything_row(case: Case, sampled: int) -> list[object]:
    """The group's record and all members' records, extrapolated from a sample."""
    table = TaskTable([Subtopology("0", case.tasks)])
    chosen, weights = shares(case, sampled)
    each = np.array([parts_of(member_value(table, positions)[1]) for positions in chosen])
    group = np.array(parts_of(encode(snapshot(case))))
    sums = (group + weights @ each).cumsum().astype(int).tolist()
    kafka = broker_total(np.bincount(case.owners, minlength=case.members))
    ratios = (f"{kafka / ours:.1f}" for ours in sums)
    return [case.name, case.tasks, case.members, *sums, kafka, *ratios]


def parts_of(record: Encoded) -> tuple[int, int, int]:
    """Bytes of value, key and headers."""
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.value or b""), len(record.key), headers


def group_row(case: Case) -> list[object]:
    """The owner vector and the snapshot of a group."""
    counts = np.bincount(case.owners, minlength=case.members)
    data = encode_owners(case.owners)
    owners, _ = decode_owners(data, 0, case.tasks)
    assert np.array_equal(owners, case.owners)
    written = _best(lambda: encode_owners(case.owners))
    read = _best(lambda: decode_owners(data, 0, case.tasks))
    floor, kafka = group_floor(counts), broker_records(counts)
    whole = encode(snapshot(case)).value or b""
    return [
        *(case.name, case.tasks, case.members, f"{floor:.0f}", len(data)),
        f"{len(data) / max(floor, 1):.3f}",
        kafka,
        f"{kafka / len(data):.1f}",
        len(whole),
        f"{case.tasks / written / 1e6:.1f}",
        f"{case.tasks / read / 1e6:.1f}",
    ]


def snapshot(case: Case) -> GroupSnapshot:
    """The whole group: settled, with members of random incarnations."""
    random = np.random.default_rng(0)
    members = tuple(
        MemberEntry(id=f"{i:036d}", slot=i, incarnation=int(random.integers(2**62)), epoch=9)
        for i in range(case.members)
    )
    return GroupSnapshot(
        group="g" * GROUP_CHARS,
        coordinator_epoch=100,
        generation=9,
        target_generation=9,
        state=GroupState.STABLE,
        assignor="sticky",
        settings=parse_settings({}),
        tasks=(Subtopology("0", case.tasks),),
        members=members,
        target=case.owners,
        holder=case.owners,
        revoking=np.zeros(case.tasks, dtype=np.bool_),
        destination=case.owners,
    )


def speeds() -> list[list[object]]:
    """Millions a second, best of five."""
    random = np.random.default_rng(0)
    gaps = np.flatnonzero(random.random(20_000_000) < 0.05)
    data = encode_segment(gaps, 20_000_000)
    owners = random_placement(1_000_000, 100).astype(np.int32)
    vector = encode_owners(owners)
    beats = [
        encode(Heartbeat(group="g", member=f"member-{i % 5000:015d}", epoch=i, digest=i)).value
        for i in range(200_000)
    ]
    rows = [
        ("gaps, encode", len(gaps), lambda: encode_segment(gaps, 20_000_000)),
        ("gaps, decode", len(gaps), lambda: decode_segment(data, 0, 20_000_000)),
        ("owner vector, encode", len(owners), lambda: encode_owners(owners)),
        ("owner vector, decode", len(owners), lambda: decode_owners(vector, 0, len(owners))),
        ("heartbeats, decode", len(beats), lambda: heartbeats(beats)),
    ]
    return [[name, f"{count / _best(call) / 1e6:.2f}"] for name, count, call in rows]


def _best(call: Callable[[], object]) -> float:
    """CPU seconds of a call, the least of five runs."""
    taken = []
    for _ in range(5):
        # The clock of CPU time is too coarse for one call of a small case.
        calls, started = 0, time.process_time()
        while (spent := time.process_time() - started) < _TIMED_S or not calls:
            call()
            calls += 1
        taken.append(spent / calls)
    return min(taken)


def show(title: str, columns: list[str], rows: Iterator[list[object]] | list) -> None:
    """Print a table, each line as soon as it is computed."""
    print(f"\n{title}")
    widths = [max(len(c), 8) + 1 for c in columns]
    widths[0] = max(widths[0], 21)
    for row in chain([columns], rows):
        padded = (f"{cell!s:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        print(f"{row[0]!s:<{widths[0]}}" + "".join(padded), flush=True)


MEMBER_COLUMNS = [
    *("placement", "tasks", "members", "floor", "set", "over", "value", "kafka/ours", "bound"),
    *("consumer", "streams", "kip1071", "connect", "json", "roaring"),
]
GROUP_COLUMNS = [
    *("placement", "tasks", "members", "floor", "vector", "x floor", "broker", "kafka/ours"),
    *("snapshot", "enc M/s", "dec M/s"),
]
EVERYTHING_COLUMNS = [
    *("placement", "tasks", "members", "values", "with keys", "with headers", "kafka"),
    *("kafka/values", "/with keys", "/with headers"),
]


def main() -> None:
    """Print all tables and the speeds."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="two sizes instead of all")
    parser.add_argument("--members-sampled", type=int, default=200, metavar="N")
    args = parser.parse_args()
    sizes = SHORT if args.short else SIZES
    title = "Members: bytes of one member's record, average ('over': worst of set - 1.03 x floor)"
    rows = (member_row(case, args.members_sampled) for case in cases(sizes))
    show(title, MEMBER_COLUMNS, rows)
    show("Groups: bytes of the whole placement", GROUP_COLUMNS, map(group_row, cases(sizes)))
    title = "Everything: bytes of the group's record and one for each member"
    rows = (everything_row(case, args.members_sampled) for case in cases(sizes))
    show(title, EVERYTHING_COLUMNS, rows)
    show("Speed: millions a second on one core", ["what", "M/s"], speeds())


if __name__ == "__main__":
    main()
