"""What a hostile or broken client may write to the input topics, one generator for each attack.

Each `Bomb` is a name and records: (topic kind, key, value). The same bombs are thrown at the
operator in process and at the running job.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.digest import Holding
from muster.protocol.events import (
    Drain,
    Event,
    GroupConfig,
    GroupDeleted,
    Heartbeat,
    Join,
    Lag,
    LagReport,
    Leave,
    Origin,
    Report,
    Tick,
)
from muster.protocol.framing import PREFIX
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.records import Rejected
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, Subtopology, TaskSet
from muster.protocol.tick_covers import HEARD_MAX, Cover, Heard
from muster.protocol.topics import TopicKind

Raw = tuple[TopicKind, bytes | None, bytes | None]
HOSTILE = GroupId("hostile")
M, C, L, H = TopicKind.MEMBERSHIP, TopicKind.CONFIG, TopicKind.LAG, TopicKind.HEARTBEATS


class Bomb(NamedTuple):
    """One attack.

    Attributes:
        name: for people and test ids.
        records: what is written, given how many records an attack of many has.
    """

    name: str
    records: Callable[[int], Iterator[Raw]]


def kind_of(event: Event) -> TopicKind:
    """The topic of an event."""
    if isinstance(event, GroupConfig | GroupDeleted):
        return TopicKind.CONFIG
    return TopicKind.LAG if isinstance(event, LagReport) else TopicKind.MEMBERSHIP


def raw(event: Event) -> Raw:
    """An event as it is written."""
    encoded = codec.encode(event)
    return kind_of(event), encoded.key, encoded.value


def _member(number: int) -> MemberId:
    return MemberId(f"m{number}")


def _join(number: int, **more: object) -> Join:
    fields = {"group": HOSTILE, "member": _member(number), "incarnation": number + 1, **more}
    return Join(**fields)  # type: ignore[arg-type]  # by name


def config(
    partitions: int = 8, assignor: str = "sticky", group: GroupId = HOSTILE, **settings: object
) -> GroupConfig:
    """A config of one subtopology; settings with ``_`` for ``.``."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    return configured(group, (Subtopology("0", partitions),), assignor, given)


def configured(
    group: GroupId,
    tasks: tuple[Subtopology | Connector, ...],
    assignor: str = "sticky",
    settings: Mapping[str, object] | None = None,
) -> GroupConfig:
    """A config of any tasks."""
    parsed = parse_settings(settings or {}, assignor)
    return GroupConfig(group=group, assignor=assignor, settings=parsed, tasks=tasks)


def _run(unit: str, size: int) -> TaskSet:
    return TaskSet([(unit, False, np.arange(size, dtype=np.int32))])


def strangers(_: int) -> Iterator[Raw]:
    """A join, and reports, that hold a run of four million tasks of an unknown unit: 50 bytes."""
    held = Holding(active=_run("unknown", 1 << 22))
    yield raw(_join(0))
    yield raw(_join(1, holding=held))
    yield raw(
        Report(group=HOSTILE, member=_member(0), incarnation=1, epoch=0, revision=1, holding=held),
    )


def assignors(_: int) -> Iterator[Raw]:
    """Assignors that end, stop or abort the process that loads them."""
    for number, name in enumerate(("sys:exit", "signal:pause", "os:abort")):
        yield raw(config(assignor=name))
        yield raw(_join(number))
    yield raw(config())


def lags(count: int) -> Iterator[Raw]:
    """Lags of tasks that do not exist, in a unit with a long name."""
    fields = tuple(Lag(Task("x" * 500, n), 5) for n in range(count))
    yield raw(_join(0))
    yield raw(LagReport(group=HOSTILE, member=_member(0), lags=fields))


def groups(count: int) -> Iterator[Raw]:
    """A member joins each of very many groups without a config."""
    for number in range(count):
        group = GroupId(f"flood{number}")
        yield raw(Join(group=group, member=_member(number), incarnation=1))


def unknown_members(count: int) -> Iterator[Raw]:
    """Heartbeats of members that are none."""
    yield raw(config())
    for number in range(count):
        yield raw(Heartbeat(group=HOSTILE, member=_member(number), epoch=1, digest=number))


def huge_config(_: int) -> Iterator[Raw]:
    """A config of sixteen million tasks: 50 bytes."""
    yield raw(_join(0))
    yield raw(config((1 << 24) - 1))


def ticking(count: int) -> Iterator[Raw]:
    """Groups that ask to be woken all the time and whose members say nothing."""
    for number in range(max(count // 100, 1)):
        group = GroupId(f"ticking{number}")
        settings = {"session_timeout_ms": 1_800_000, "heartbeat_interval_ms": 10}
        yield raw(config(group=group, **settings))
        yield raw(Join(group=group, member=_member(0), incarnation=1))


def escapes(_: int) -> Iterator[Raw]:
    """Escape sequences in units, racks and instance ids."""
    bad = "\x1b]0;owned\x07\n"
    unit = Subtopology(f"0{bad}", 2)
    yield raw(configured(HOSTILE, (unit,)))
    yield raw(_join(0, rack=bad))
    yield raw(_join(1, instance_id=bad))
    yield raw(_join(2, holding=Holding(standby=TaskSet([(bad, False, np.arange(2))]))))


def rubbish(count: int) -> Iterator[Raw]:
    """Small random records under random keys."""
    rng = random.Random(7)
    for _ in range(count):
        kind = rng.choice((M, C, L))
        yield kind, rng.randbytes(2), rng.randbytes(rng.randint(0, 40))


def framed_rubbish(count: int) -> Iterator[Raw]:
    """Records that begin as events do and go on at random, under keys that could be groups."""
    rng = random.Random(8)
    kinds = ("Join", "Report", "LagReport", "GroupConfig", "Heartbeat")
    for number in range(count):
        kind = {"LagReport": L, "GroupConfig": C}
        name = rng.choice(kinds)
        value = PREFIX[name] + rng.randbytes(rng.randint(0, 40))
        yield kind.get(name, M), f"framed{number % 50}".encode(), value


def large(_: int) -> Iterator[Raw]:
    """Keys and values as large as Kafka takes them."""
    yield M, b"k" * 900_000, b"v"
    yield C, "ü".encode() * 400_000, PREFIX["GroupConfig"]
    for _number in range(3):
        yield M, HOSTILE.encode(), PREFIX["Join"] + b"\xff" * 900_000
        yield L, HOSTILE.encode(), b"\x00" * 900_000
    names = tuple(Subtopology(f"unit{n}", 1) for n in range(30_000))
    for _number in range(3):
        yield raw(configured(HOSTILE, names))


def megabytes(count: int) -> Iterator[Raw]:
    """Joins of almost a megabyte each, of one group, that cannot be decoded."""
    for _number in range(max(count // 20, 5)):
        yield M, HOSTILE.encode(), PREFIX["Join"] + b"\xff" * 900_000


def packed_configs(count: int) -> Iterator[Raw]:
    """Configs of 4 MiB of names, packed into 600 kB, one after another, all different."""
    yield raw(_join(0))
    for number in range(max(count // 1_000, 2)):
        label = f"{number}{'x' * 500}"
        units = tuple(Subtopology(f"{label}{n}", 1) for n in range(8_000))
        yield raw(configured(HOSTILE, units))
    yield raw(config())


def letters_of_letters(count: int) -> Iterator[Raw]:
    """Dead letters written where events belong, each quoting the one before it.

    The coordinator's letter about one quotes it whole as long as there is room.
    """
    value, key = b"rubbish", HOSTILE.encode()
    for number in range(min(count, 400)):
        origin = Origin("muster.rejected", 0, number, 1)
        letter = Rejected(
            origin=origin, reason=DeadLetter.LEFT_OUT, message="m" * 500, key=key, value=value
        )
        value = codec.encode(letter).value or b""
        yield (M, C, L)[number % 3], key, value


def large_keys(_: int) -> Iterator[Raw]:
    """Keys of a megabyte: one that could be a name, one that is none, one of no text."""
    for key in (b"k" * 1_000_000, b"|" * 1_000_000, b"\xff" * 1_000_000):
        for kind, name in ((M, "Join"), (C, "GroupConfig"), (L, "LagReport")):
            yield kind, key, PREFIX[name] + b"\x00" * 40


def forged(_: int) -> Iterator[Raw]:
    """Leaves, reports, drains, digests and joins in the name of a member of the same group."""
    yield raw(config())
    yield raw(_join(0))
    victim = {"group": HOSTILE, "member": _member(0)}
    held = Holding(active=_run("0", 8))
    for incarnation in (0, 1, 2, 2**64 - 1):
        fields = {**victim, "incarnation": incarnation}
        yield raw(Report(**fields, epoch=2**31 - 1, revision=2**31 - 1, holding=held))  # type: ignore[arg-type]
        yield raw(Join(**fields, holding=held))  # type: ignore[arg-type]
        yield raw(Leave(**fields, temporary=True))  # type: ignore[arg-type]
        yield raw(Leave(**fields))  # type: ignore[arg-type]
    yield raw(Heartbeat(**victim, epoch=2**31 - 1, digest=0))  # type: ignore[arg-type]
    yield raw(Drain(**victim))  # type: ignore[arg-type]


def capacities(count: int) -> Iterator[Raw]:
    """Members of the largest capacity, rebalance timeout and lag there are."""
    yield raw(config(64))
    for number in range(count // 10):
        most = 2**31 - 1
        lag = (Lag(Task("0", 0), 2**62),)
        fields = {"capacity": most, "rebalance_timeout_ms": most, "config_offset": most}
        yield raw(_join(number, lags=lag, **fields))


def of_one_task(count: int) -> Iterator[Raw]:
    """Very many members that all claim, copy and lag behind the same task."""
    yield raw(config(2))
    held = Holding(active=_run("0", 1), standby=TaskSet([("0", False, np.ones(1, dtype=np.int32))]))
    for number in range(count // 4):
        yield raw(_join(number, holding=held, lags=(Lag(Task("0", 1), number),)))


def ticks_of_thousands(count: int) -> Iterator[Raw]:
    """Ticks of 1.4 kB, each with heartbeats of the same twenty thousand members."""
    yield raw(config())
    yield raw(_join(0))
    heard = tuple(Heard("a", 0, 0, 0) for _ in range(HEARD_MAX))
    tick = raw(Tick(group=HOSTILE, cover=Cover(0, 2**62, heard)))
    for _ in range(count // 10):
        yield tick


def joins_at_once(count: int) -> Iterator[Raw]:
    """Members that join a group with hardly any tasks, each of them another one."""
    yield raw(config(2))
    for number in range(count):
        yield raw(_join(number))


def strange_heartbeats(count: int) -> Iterator[Raw]:
    """Heartbeats apart of as many members of one group as there are records, with long names."""
    for number in range(count):
        yield _apart(HOSTILE, f"{number}{'x' * 100}")


def strange_groups(count: int) -> Iterator[Raw]:
    """Heartbeats apart of as many groups as there are records."""
    for number in range(count):
        yield _apart(GroupId(f"strange{number}"), "m0")


def forged_heartbeats(count: int) -> Iterator[Raw]:
    """Heartbeats apart in the name of members: wrong digests, epochs that were never given."""
    yield raw(config())
    yield raw(_join(0, apart=True))
    for number in range(count):
        yield _apart(HOSTILE, "m0", (0, 2**31 - 1, -(2**31))[number % 3], number)


def heartbeat_rubbish(count: int) -> Iterator[Raw]:
    """What is no heartbeat, where heartbeats belong: other events, rubbish, keys, large records."""
    rng = random.Random(9)
    events = [config(), _join(0), Tick(group=HOSTILE, cover=Cover(0, 2**62))]
    others = [codec.encode(event) for event in events]
    for number in range(count):
        other = others[number % len(others)]
        yield H, other.key, other.value
        yield H, rng.randbytes(3), PREFIX["Heartbeat"] + rng.randbytes(rng.randint(0, 40))
        yield H, None, None
    for _ in range(max(count // 100, 3)):
        yield H, HOSTILE.encode(), PREFIX["Heartbeat"] + b"\xff" * 900_000
        yield H, b"k" * 900_000, PREFIX["Heartbeat"]


def _apart(group: GroupId, member: str, epoch: int = 1, digest: int = 7) -> Raw:
    beat = Heartbeat(group=group, member=MemberId(member), epoch=epoch, digest=digest)
    encoded = codec.encode(beat)
    return H, encoded.key, encoded.value


def deletions(count: int) -> Iterator[Raw]:
    """A group that is configured, joined and deleted again and again."""
    for number in range(count // 20):
        yield raw(config(1 + number % 7))
        yield raw(_join(number))
        yield raw(GroupDeleted(group=HOSTILE))
        yield raw(Tick(group=HOSTILE))


BOMBS = tuple(
    Bomb(name, records)
    for name, records in (
        ("strangers", strangers),
        ("assignors", assignors),
        ("lags", lags),
        ("groups", groups),
        ("unknown members", unknown_members),
        ("huge config", huge_config),
        ("ticking", ticking),
        ("escapes", escapes),
        ("rubbish", rubbish),
        ("framed rubbish", framed_rubbish),
        ("large", large),
        ("large keys", large_keys),
        ("megabytes", megabytes),
        ("packed configs", packed_configs),
        ("letters of letters", letters_of_letters),
        ("forged", forged),
        ("capacities", capacities),
        ("of one task", of_one_task),
        ("ticks of thousands", ticks_of_thousands),
        ("joins at once", joins_at_once),
        ("deletions", deletions),
    )
)
"""Attacks through the topics that the coordinator reads."""

APART_BOMBS = tuple(
    Bomb(name, records)
    for name, records in (
        ("strange heartbeats", strange_heartbeats),
        ("strange groups", strange_groups),
        ("forged heartbeats", forged_heartbeats),
        ("heartbeat rubbish", heartbeat_rubbish),
    )
)
"""Attacks through the topic of heartbeats, which the clock reads."""
