"""Golden bytes of every record: every version reads them, and writes the same bytes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.protocol import wire

from muster.protocol.codec import Encoded, decode, decode_record, encode
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
from muster.protocol.framing import OWN, PREFIX, Schemas
from muster.protocol.ids import Role, Task
from muster.protocol.records import (
    CoordinatorClaim,
    CoordinatorRole,
    CoordinatorSign,
    Dictionary,
    Fault,
    GroupSnapshot,
    GroupState,
    MemberAssignment,
    MemberEntry,
    Move,
    Rejected,
    WakeUp,
)
from muster.protocol.settings import parse_settings
from muster.protocol.sources import Found, Source
from muster.protocol.split_records import Joiner, parts
from muster.protocol.tasks import Connector, Subtopology, TaskSet
from muster.protocol.taskset import UnitRef
from muster.protocol.tick_covers import Cover, Heard
from muster.protocol.topics import TopicKind

GOLDEN = Path(__file__).parent.parent / "golden"
_SETS = {
    "active": TaskSet.of(["0_0", "0_1", "0_2", "0_7", "c1", "c1-0", "c1-4"]),
    "standby": TaskSet.of(["1_3"]),
    "learner": TaskSet.of([f"1_{i}" for i in range(4, 90, 2)]),
}
_HOLDING = Holding(**_SETS, ready=TaskSet.of(["1_4"]), releasing=TaskSet.of(["0_7"]))
_LAGS = (Lag(Task("1", 4), 12), Lag(Task("c1", -1, True), 0))
_ORDERS = Source(topics=("orders",), racks="leader")
_UNITS = (
    Subtopology("0", 3, True, 2, ((("r0", "r1"),), (("r1",),), (("r0", "r1"),)), None),
    Connector("c1", 2, 1, 0.5),
)


def _group() -> GroupSnapshot:
    target = np.array([0, 1, -1, 0, 0, 1], dtype=np.int32)
    pair = np.array([[0, 1], [2, 0]], dtype=np.int32)
    return GroupSnapshot(
        group="fleet",
        coordinator_epoch=3,
        generation=7,
        target_generation=6,
        state=GroupState.RECONCILING,
        assignor="high-availability",
        settings=parse_settings({"num.standby.replicas": 1}),
        tasks=_UNITS,
        members=(
            MemberEntry(id="W1", slot=0, incarnation=5, rack="r0", tags=(("zone", "a"),)),
            MemberEntry(id="W2", slot=1, incarnation=6, instance_id="i2", deadline_ms=99),
        ),
        target=target,
        holder=np.array([0, 1, -1, 0, 1, 1], dtype=np.int32),
        revoking=np.array([0, 0, 0, 0, 1, 0], dtype=np.bool_),
        destination=target,
        target_standby=pair,
        standby=pair[:1],
        lags=np.array([[0, 1, 12]], dtype=np.int64),
        lag_ms=np.array([1_700_000_000_000], dtype=np.int64),
        moves=(Move(task="c1", role=Role.ACTIVE, from_member="W2", to_member="W1", reason="why"),),
        cause="W1 joined",
        through=(("muster.membership", 0, 17),),
        clock_ms=1_700_000_000_000,
        next_ms=None,
        memory='{"a":1}',
        recovering=(1,),
    )


def _events() -> dict[str, tuple[TopicKind, object]]:
    ids = {"group": "fleet", "member": "W1", "origin": wire.ORIGIN}
    process = {**ids, "incarnation": 2**63 + 11}
    member = TopicKind.MEMBERSHIP
    return {
        "Join": (
            member,
            Join(
                **process,
                instance_id="i1",
                rack="r0",
                capacity=2,
                tags=(("zone", "a"),),
                protocols=("sessioned",),
                topics=("0",),
                static=("c1",),
                holding=_HOLDING,
                lags=_LAGS,
                config_offset=4,
                rebalance_timeout_ms=60_000,
                make_before_break=False,
            ),
        ),
        "Report": (member, Report(**process, epoch=3, revision=9, holding=_HOLDING, lags=_LAGS)),
        "Report.coordinator_epoch": (
            member,
            Report(**process, epoch=3, revision=9, holding=_HOLDING, coordinator_epoch=2**40),
        ),
        "Heartbeat": (member, Heartbeat(**ids, epoch=300, digest=2**64 - 2)),
        "Leave": (member, Leave(**process, temporary=True)),
        "Drain": (member, Drain(**ids, on=False)),
        "Tick": (member, Tick(group="fleet", origin=wire.ORIGIN)),
        "Tick.published": (
            member,
            Tick(group="fleet", published=Mark(3, 70_000), origin=wire.ORIGIN),
        ),
        "Tick.cover": (
            member,
            Tick(
                group="fleet",
                cover=Cover(70_000, 83_500, (Heard("W1", 3, 300, 2**64 - 2), Heard("W2", 0, 1, 7))),
                origin=wire.ORIGIN,
            ),
        ),
        "Join.apart": (member, Join(**process, apart=True)),
        "LagReport": (TopicKind.LAG, LagReport(**ids, lags=_LAGS)),
        "GroupConfig": (
            TopicKind.CONFIG,
            GroupConfig(
                group="fleet",
                assignor="cooperative",
                settings=parse_settings({"session.timeout.ms": 20_000}, "cooperative"),
                tasks=_UNITS,
                origin=wire.ORIGIN,
            ),
        ),
        **_from_kafka(),
    }


def _from_kafka() -> dict[str, tuple[TopicKind, object]]:
    """A config that declares topics, and what was found."""
    return {
        "GroupConfig.sources": (
            TopicKind.CONFIG,
            GroupConfig(
                group="fleet",
                assignor="sticky",
                settings=parse_settings({}, "sticky"),
                tasks=(Subtopology("own", 2),),
                sources=(_ORDERS, Source(pattern="shop[.].*", measure="lag", stateful=True)),
                origin=wire.ORIGIN,
            ),
        ),
        "TopicsFound": (
            TopicKind.CONFIG,
            TopicsFound(
                group="fleet",
                found=(
                    Found(
                        _ORDERS,
                        (
                            Subtopology(
                                "orders",
                                2,
                                source_racks=((("r1",),), (("r2",),)),
                                weights=(1, 2.5),
                            ),
                        ),
                        (("orders", "AAAAAAAAAAAAAAAAAAAAAQ"),),
                    ),
                ),
                origin=wire.ORIGIN,
            ),
        ),
    }


def _assignments() -> dict[str, tuple[TopicKind, object]]:
    return {
        "MemberAssignment": (
            TopicKind.ASSIGNMENTS,
            MemberAssignment(
                group="fleet",
                member="W1",
                incarnation=2**63 + 11,
                coordinator_epoch=3,
                generation=7,
                epoch=6,
                revision=12,
                **_SETS,
                report=True,
                fault=Fault.FENCED_MEMBER_EPOCH,
                session_timeout_ms=45_000,
                heartbeat_interval_ms=5_000,
                message="W2 joined",
            ),
        ),
        "MemberAssignment.apart": (
            TopicKind.ASSIGNMENTS,
            MemberAssignment(
                group="fleet",
                member="W1",
                incarnation=2**63 + 11,
                coordinator_epoch=3,
                generation=7,
                epoch=6,
                revision=12,
                session_timeout_ms=45_000,
                heartbeat_interval_ms=5_000,
                apart=True,
            ),
        ),
    }


def _records() -> dict[str, tuple[TopicKind, object]]:
    return {
        "Dictionary": (
            TopicKind.GROUPS,
            Dictionary(group="fleet", units=(UnitRef("0_", 9), UnitRef("c1-", 5))),
        ),
        "GroupSnapshot": (TopicKind.GROUPS, _group()),
        "WakeUp": (TopicKind.CLOCK, WakeUp(group="fleet", at_ms=1_700_000_000_000)),
        "WakeUp.published": (
            TopicKind.CLOCK,
            WakeUp(group="fleet", at_ms=1_700_000_000_000, published=Mark(3, 70_000)),
        ),
        "WakeUp.apart": (
            TopicKind.CLOCK,
            WakeUp(group="fleet", at_ms=1_700_000_000_000, apart=True),
        ),
        "WakeUp.agreement": (
            TopicKind.CLOCK,
            WakeUp(
                group="fleet",
                at_ms=1_700_000_000_000,
                agreement=Agreement(1_700_000_580_000, 10_000, 3, 2**64 - 59),
            ),
        ),
        "Rejected": (
            TopicKind.REJECTED,
            Rejected(
                origin=Origin("muster.lag", 1, 2, 3),
                reason="UNDECODABLE",
                message="starts with 7b7d",
                key=b"k",
                value=b"{}",
            ),
        ),
        "CoordinatorClaim": (
            TopicKind.COORDINATOR,
            CoordinatorClaim(job="j", host="h", version="0.1.0"),
        ),
        "CoordinatorClaim.follows": (
            TopicKind.COORDINATOR,
            CoordinatorClaim(job="j", host="h", version="0.1.0", follows=2),
        ),
        "CoordinatorSign": (
            TopicKind.CLOCK,
            CoordinatorSign(
                job="j",
                host="h",
                version="0.1.0",
                role=CoordinatorRole.RUNNING,
                epoch=3,
                interval_ms=1_000,
            ),
        ),
    }


GOLDEN_VALUES = _events() | _assignments() | _records()


@pytest.mark.parametrize("name", sorted(GOLDEN_VALUES))
def test_golden_bytes(name: str) -> None:
    """Stored bytes decode to their value, and the writer gives the same bytes."""
    kind, value = GOLDEN_VALUES[name]
    schema, dot, addition = name.partition(".")
    file = GOLDEN / f"{schema}.{PREFIX[schema][2:].hex()}{dot}{addition}.json"
    if not file.exists() and os.environ.get("UPDATE_GOLDEN"):
        encoded = encode(value)
        content = {"topic": str(kind), "key": encoded.key.decode(), "value": encoded.value.hex()}
        file.write_text(json.dumps(content, indent=2) + "\n")
    golden = json.loads(file.read_text())
    key, data = golden["key"].encode(), bytes.fromhex(golden["value"])
    if kind in (TopicKind.MEMBERSHIP, TopicKind.CONFIG, TopicKind.LAG):
        decoded = decode(kind, key, data, wire.ORIGIN)
    else:
        decoded = decode_record(kind, key, data)
    assert wire.plain(decoded) == wire.plain(value)
    assert encode(value)[:2] == (key, data)


def _large_values() -> dict[str, tuple[TopicKind, object, list[Encoded]]]:
    many = tuple(Connector(f"orders-to-warehouse-{i:02d}", 4) for i in range(40))
    config = GroupConfig(group="fleet", assignor="sticky", settings=parse_settings({}), tasks=many)
    names = Dictionary(group="fleet", units=(UnitRef("o" * 99 + "_", 9), UnitRef("c1-", 5)))
    return {
        "Packed": (TopicKind.CONFIG, replace(config, origin=wire.ORIGIN), [encode(config)]),
        "Part": (TopicKind.GROUPS, names, parts(names, 260)),
    }


@pytest.mark.parametrize("name", ["Packed", "Part"])
def test_golden_bytes_of_large_records(name: str) -> None:
    """Packed and split records decode. Deflated bytes are zlib's and are not compared."""
    kind, value, encoded = _large_values()[name]
    assert {each.value[:10] for each in encoded} == {PREFIX[name]}
    file = GOLDEN / "large" / f"{name}.{PREFIX[name][2:].hex()}.json"
    if not file.exists() and os.environ.get("UPDATE_GOLDEN"):
        rows = [{"key": e.key.decode(), "value": e.value.hex()} for e in encoded]
        file.write_text(json.dumps({"topic": str(kind), "records": rows}, indent=2) + "\n")
    joiner, golden = Joiner(), json.loads(file.read_text())["records"]
    fed = [joiner.feed(row["key"].encode(), bytes.fromhex(row["value"])) for row in golden]
    (whole,) = [each for each in fed if each is not None]
    if kind is TopicKind.CONFIG:
        decoded = decode(kind, whole.key, whole.value, wire.ORIGIN)
    else:
        decoded = decode_record(kind, whole.key, whole.value)
    assert wire.plain(decoded) == wire.plain(value)


def test_every_schema_has_golden_bytes() -> None:
    """Every schema has a golden file, and every file has a value."""
    values = GOLDEN_VALUES
    assert {name.partition(".")[0] for name in values} | set(_large_values()) == set(OWN)
    assert len(list(GOLDEN.glob("*.json"))) == len(values)


@pytest.mark.parametrize("name", [name for name in sorted(GOLDEN_VALUES) if "." in name])
def test_a_downgrade_reads_what_was_added(name: str) -> None:
    """A version from before an addition to `extras` reads all other fields unchanged."""
    _, value = GOLDEN_VALUES[name]
    addition = name.partition(".")[2]
    (_, row), (_, before) = (
        Schemas().read(encode(each).value) for each in (value, replace(value, **{addition: None}))
    )
    assert row.pop("extras").keys() == {addition}
    assert before.pop("extras") == {}
    assert row == before
