"""Hypothesis strategies for all records and events, and equality of whole values."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import strategies as st

from muster.protocol.digest import Holding
from muster.protocol.events import (
    Drain,
    GroupConfig,
    Heartbeat,
    Join,
    Lag,
    LagReport,
    Leave,
    Mark,
    Origin,
    Report,
    Tick,
    TopicsFound,
)
from muster.protocol.expected_heartbeats import Agreement
from muster.protocol.ids import Role, Task
from muster.protocol.records import (
    CoordinatorClaim,
    CoordinatorRole,
    CoordinatorSign,
    Fault,
    GroupSnapshot,
    GroupState,
    MemberAssignment,
    MemberEntry,
    MemberState,
    Move,
    Quarantine,
    Rejected,
    WakeUp,
)
from muster.protocol.settings import parse_settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Connector, IntArray, Subtopology, TaskSet, TaskTable
from muster.protocol.tick_covers import Cover, Heard

ORIGIN = Origin("muster.membership", 3, 17, 1_700_000_000_000)

texts = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="|"), min_size=1, max_size=12
)
names = st.one_of(st.integers(0, 30).map(str), texts)
u64s = st.integers(0, 2**64 - 1)
counts = st.integers(0, 2**31 - 1)
longs = st.integers(0, 2**62)


def optional(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """None, or a value."""
    return st.one_of(st.none(), strategy)


@st.composite
def task_sets(draw: st.DrawFn) -> TaskSet:
    """Task sets of every form that the codec has."""
    units = draw(st.lists(st.tuples(names, st.booleans()), max_size=4, unique=True))
    parts = []
    for name, connector in units:
        size = draw(st.sampled_from([1, 2, 7, 64, 500]))
        density = draw(st.sampled_from([0.01, 0.2, 0.38, 0.5, 0.8, 1.0]))
        seed = draw(st.integers(0, 2**32 - 1))
        numbers = np.flatnonzero(np.random.default_rng(seed).random(size) < density)
        parts.append((name, connector, (numbers - connector).astype(np.int32)))
    return TaskSet(parts)


tasks = st.one_of(
    st.builds(Task, names, st.integers(0, 2**31 - 3), st.just(False)),
    st.builds(Task, names, st.integers(-1, 2**31 - 4), st.just(True)),
)
lags = st.lists(st.builds(Lag, tasks, longs), max_size=4).map(tuple)
holdings = st.builds(
    Holding,
    active=task_sets(),
    standby=task_sets(),
    learner=task_sets(),
    ready=task_sets(),
    releasing=task_sets(),
)
tag_maps = st.dictionaries(texts, texts, max_size=3).map(lambda d: tuple(sorted(d.items())))
name_lists = st.lists(texts, max_size=3).map(tuple)
settings = st.sampled_from(
    [
        parse_settings({}),
        parse_settings({}, "cooperative"),
        parse_settings({"session.timeout.ms": 20_000, "num.standby.replicas": 2}),
        parse_settings(
            {
                "rack.aware.assignment.tags": "zone,cluster",
                "learner.partial.rebalance": "false",
                "stream.imbalance.percentage": 12.5,
                "rack.aware.assignment.traffic_cost": 7,
            }
        ),
    ]
)
assignors = st.sampled_from(["high-availability", "cooperative", "eager", "my.module:Mine"])


@st.composite
def rack_lists(draw: st.DrawFn, partitions: int) -> tuple | None:
    """Replica racks of some partitions, or unknown."""
    each = st.lists(st.lists(texts, max_size=3).map(tuple), max_size=2).map(tuple)
    return draw(optional(st.lists(each, min_size=partitions, max_size=partitions).map(tuple)))


@st.composite
def unit_lists(draw: st.DrawFn) -> tuple:
    """Declared tasks that form a table: names that print differently."""
    chosen = draw(st.lists(st.integers(0, 20), max_size=4, unique=True))
    weights = st.sampled_from([1, 0.5, 3])
    units = []
    for number in chosen:
        size = draw(st.integers(0, 6))
        if draw(st.booleans()):
            units.append(Connector(f"c{number}", size, draw(weights), draw(weights)))
            continue
        racks = draw(rack_lists(size)), draw(rack_lists(size))
        units.append(Subtopology(str(number), size, draw(st.booleans()), draw(weights), *racks))
    return tuple(units)


_who = {"group": texts, "member": texts}
_process = {**_who, "incarnation": u64s, "origin": st.just(ORIGIN)}
joins = st.builds(
    Join,
    **_process,
    instance_id=optional(texts),
    rack=optional(texts),
    capacity=st.integers(1, 1000),
    tags=tag_maps,
    protocols=name_lists,
    topics=optional(name_lists),
    static=name_lists,
    holding=holdings,
    lags=lags,
    config_offset=optional(st.integers(-1, 2**40)),
    rebalance_timeout_ms=optional(counts),
    make_before_break=st.booleans(),
    apart=st.booleans(),
)
reports = st.builds(Report, **_process, epoch=counts, revision=longs, holding=holdings, lags=lags)
heartbeats = st.builds(
    Heartbeat, **_who, epoch=st.integers(-2, 2**31 - 1), digest=u64s, origin=st.just(ORIGIN)
)
leaves = st.builds(Leave, **_process, temporary=st.booleans())
drains = st.builds(Drain, **_who, on=st.booleans(), origin=st.just(ORIGIN))
marks = optional(st.builds(Mark, longs, longs))
heard = st.builds(Heard, texts, st.integers(0, 255), st.integers(-(2**31), 2**31 - 1), u64s)
spans = st.tuples(longs, longs).map(sorted)
covers = st.builds(
    lambda span, members: Cover(*span, tuple(members)), spans, st.lists(heard, max_size=40)
)
ticks = st.builds(
    Tick, group=texts, published=marks, cover=optional(covers), origin=st.just(ORIGIN)
)
membership = st.one_of(joins, reports, heartbeats, leaves, drains, ticks)
lag_reports = st.builds(LagReport, **_who, lags=lags, origin=st.just(ORIGIN))
configs = st.builds(
    GroupConfig,
    group=texts,
    assignor=assignors,
    settings=settings,
    tasks=unit_lists(),
    sources=st.lists(st.deferred(lambda: sources), max_size=3).map(tuple),
    origin=st.just(ORIGIN),
)
_topics = st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True)
sources = st.one_of(
    st.builds(
        Source,
        topics=st.lists(_topics, min_size=1, max_size=3, unique=True).map(tuple),
        stateful=st.booleans(),
        measure=st.sampled_from(["", "bytes", "records", "lag"]),
        racks=st.sampled_from(["replicas", "leader"]),
    ),
    st.builds(
        Source,
        topics=st.lists(_topics, min_size=1, max_size=3, unique=True).map(tuple),
        co_partitioned=st.just(True),
        name=_topics,
        weight=st.integers(0, 100),
    ),
    st.builds(Source, pattern=st.sampled_from([".*", "orders[.].*"])),
)


@st.composite
def _topics_found(draw: st.DrawFn) -> TopicsFound:
    """What was found: each unit belongs to one source."""
    declared = draw(st.lists(sources, max_size=3, unique=True))
    names = draw(st.lists(_topics, max_size=6, unique=True))
    units = [
        Subtopology(name, size, weights=draw(optional(st.just((2.5,) * size))))
        for name in sorted(names)
        for size in [draw(st.integers(0, 5))]
    ]
    step = max(len(declared), 1)
    entries = tuple(
        Found(source, tuple(units[i::step]), tuple((u.name, "AAAAAQ") for u in units[i::step]))
        for i, source in enumerate(declared)
    )
    return TopicsFound(group=draw(texts), found=entries, origin=ORIGIN)


topics_found = _topics_found()
assignments = st.builds(
    MemberAssignment,
    **_who,
    incarnation=u64s,
    coordinator_epoch=longs,
    generation=counts,
    epoch=counts,
    revision=longs,
    active=task_sets(),
    standby=task_sets(),
    learner=task_sets(),
    next=task_sets(),
    report=st.booleans(),
    fault=optional(st.sampled_from(Fault)),
    session_timeout_ms=counts,
    heartbeat_interval_ms=counts,
    apart=st.booleans(),
    message=texts,
)
agreements = st.builds(
    Agreement,
    until_ms=st.integers(0, 2**63 - 1),
    silence_ms=st.integers(0, 2**32 - 1),
    members=st.integers(1, 2**32 - 1),
    checksum=st.integers(0, 2**64 - 1),
)
wake_ups = st.one_of(
    st.builds(
        WakeUp,
        group=texts,
        at_ms=longs,
        published=marks,
        apart=st.booleans(),
        agreement=st.none() | agreements,
    ),
    st.builds(WakeUp, group=texts, at_ms=st.none()),
)
rejected = st.builds(
    Rejected,
    origin=st.builds(Origin, texts, counts, longs, longs),
    reason=texts,
    message=texts,
    key=st.binary(max_size=20),
    value=st.binary(max_size=50),
)
claims = st.builds(
    CoordinatorClaim,
    job=texts,
    host=texts,
    version=texts,
    follows=st.none() | st.integers(-1, 2**62),
    alone=st.booleans(),
)
signs = st.builds(
    CoordinatorSign,
    job=st.text("0123456789abcdef", min_size=1, max_size=12),
    host=texts,
    version=texts,
    role=st.sampled_from(CoordinatorRole),
    epoch=longs,
    interval_ms=longs,
)
moves = st.builds(
    Move,
    task=texts,
    role=st.sampled_from(Role),
    from_member=optional(texts),
    to_member=optional(texts),
    reason=texts,
)


@st.composite
def member_entries(draw: st.DrawFn) -> MemberEntry:
    """One member of a snapshot."""
    return draw(
        st.builds(
            MemberEntry,
            id=texts,
            slot=st.integers(0, 5),
            incarnation=u64s,
            instance_id=optional(texts),
            rack=optional(texts),
            capacity=st.integers(1, 9),
            tags=tag_maps,
            protocols=name_lists,
            topics=optional(name_lists),
            static=name_lists,
            config_offset=optional(longs),
            rebalance_timeout_ms=optional(counts),
            make_before_break=st.booleans(),
            epoch=counts,
            previous_epoch=counts,
            revision=longs,
            revoke_revision=longs,
            state=st.sampled_from(MemberState),
            joined_ms=longs,
            draining=st.booleans(),
            away=st.booleans(),
            session_timeout_ms=counts,
            deadline_ms=optional(longs),
        )
    )


@st.composite
def snapshots(draw: st.DrawFn) -> GroupSnapshot:
    """Group snapshots with vectors that fit their tasks."""
    units = draw(unit_lists())
    count = len(TaskTable(units))
    members = draw(st.lists(member_entries(), max_size=4))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def vector() -> np.ndarray:
        return random.integers(-1, max(len(members), 1), count).astype(np.int32)

    def pairs() -> np.ndarray:
        some = random.integers(0, max(count, 1), (random.integers(0, 4) if count else 0, 2))
        return np.unique(some.astype(np.int32), axis=0)

    lag_pairs = pairs().astype(np.int64)
    offsets = random.integers(0, 2**40, len(lag_pairs))
    target = vector()
    places = st.lists(st.tuples(texts, counts, longs), max_size=3).map(tuple)
    return GroupSnapshot(
        group=draw(texts),
        coordinator_epoch=draw(longs),
        generation=draw(counts),
        target_generation=draw(counts),
        state=draw(st.sampled_from(GroupState)),
        assignor=draw(assignors),
        settings=draw(settings),
        tasks=units,
        members=tuple(members),
        target=target,
        holder=vector(),
        revoking=random.random(count) < 0.3,
        destination=draw(st.sampled_from([target, vector()])),
        target_standby=pairs(),
        target_learner=pairs(),
        standby=pairs(),
        learner=pairs(),
        standby_revoking=pairs(),
        learner_revoking=pairs(),
        ready=pairs(),
        lags=np.column_stack((lag_pairs, offsets)).astype(np.int64),
        lag_ms=random.integers(0, 2**45, len(lag_pairs)),
        moves=tuple(draw(st.lists(moves, max_size=3))),
        cause=draw(texts),
        through=draw(places),
        clock_ms=draw(longs),
        next_ms=draw(optional(longs)),
        followup_ms=draw(optional(longs)),
        delay_until_ms=draw(optional(longs)),
        generation_ms=draw(longs),
        memory=draw(texts),
        recovering=tuple(draw(st.lists(st.integers(0, 5), max_size=3))),
        **{
            flag: tuple(sorted({m.slot for m in members if random.random() < 0.5}))
            for flag in ("apart", "fenced", "drained")
        },
        quarantine=draw(optional(st.builds(Quarantine, longs, texts, places))),
    )


def settled_group(owners: IntArray | None = None) -> GroupSnapshot:
    """A settled group; by default one member with two tasks.

    Args:
        owners: int32[T], the slot of each task's owner; the snapshot then has no members.
    """
    members = () if owners is not None else (MemberEntry(id="m", slot=0, incarnation=1),)
    owners = np.zeros(2, dtype=np.int32) if owners is None else owners
    return GroupSnapshot(
        group="g",
        coordinator_epoch=0,
        generation=1,
        target_generation=1,
        state=GroupState.STABLE,
        assignor="sticky",
        settings=parse_settings({}),
        tasks=(Subtopology("0", len(owners)),),
        members=members,
        target=owners,
        holder=owners,
        revoking=np.zeros(len(owners), dtype=np.bool_),
        destination=owners,
    )


def plain(value: object) -> object:
    """A record as nested tuples, arrays with their dtype, for comparing whole values."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tolist())
    if hasattr(value, "__dataclass_fields__"):
        return (type(value), *((f.name, plain(getattr(value, f.name))) for f in fields(value)))
    return value
