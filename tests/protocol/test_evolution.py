"""Older and newer writers, other framings, and the bytes of every version for ever.

`tests/golden/*.json` holds, for every schema this version writes, bytes as they were written and
what they mean. A file is never changed, only added: ``UPDATE_GOLDEN=1`` writes what is missing.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import fastavro
import numpy as np
import pytest
from support import wire

from muster.protocol.codec import Encoded, decode, decode_record, encode
from muster.protocol.digest import Holding
from muster.protocol.errors import DecodeError, UnknownRecord
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
)
from muster.protocol.framing import MARKER, OWN, PREFIX, Schemas, fingerprint_of, load, write
from muster.protocol.ids import Role, Task
from muster.protocol.parts import Joiner, parts
from muster.protocol.records import (
    CoordinatorClaim,
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
from muster.protocol.tasks import Connector, Subtopology, TaskSet
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import TopicKind

GOLDEN = Path(__file__).parent.parent / "golden"


def schema_of(name: str) -> dict:
    """Our schema as plain JSON, to be changed."""
    folder = Path(__file__).parent.parent.parent / "protocol" / "schemas"
    return json.loads((folder / f"{name}.avsc").read_text())


def written(schema: dict, row: dict) -> bytes:
    """A framed value of another writer."""
    parsed = fastavro.parse_schema(schema)
    body = BytesIO()
    fastavro.schemaless_writer(body, parsed, row)
    return MARKER + fingerprint_of(parsed) + body.getvalue()


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_field_has_a_default(name: str) -> None:
    """So a writer may leave out any row, and a reader of any age fills it in."""
    fields = [(field["name"], "default" in field) for field in schema_of(name)["fields"]]
    assert [field for field, has in fields if not has] == []
    assert decode_or_error(name)


def decode_or_error(name: str) -> bool:
    """A row of nothing but defaults is read, or refused with a reason; never anything else."""
    value = write(name, {})
    for kind in TopicKind:
        for read in (
            lambda kind=kind: decode(kind, b"g", value, wire.ORIGIN),
            lambda kind=kind: decode_record(kind, b"g|m", value),
        ):
            try:
                read()
            except DecodeError:
                continue
    return True


def test_rows_added_by_a_newer_writer() -> None:
    """A newer schema is read once it is known, its additions are passed over."""
    newer = schema_of("Leave")
    newer["fields"].insert(1, {"name": "mood", "type": "string", "default": "calm"})
    newer["fields"].append({"name": "will_return_ms", "type": "long", "default": 0})
    row = {"member": "m", "mood": "glad", "incarnation": b"\x05" + bytes(7), "temporary": True}
    value = written(newer, row)
    with pytest.raises(UnknownRecord, match="fingerprint"):
        decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)
    found = decode(
        TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN, schemas=Schemas(writers=(newer,))
    )
    assert found == Leave(group="g", member="m", incarnation=5, temporary=True, origin=wire.ORIGIN)


@pytest.mark.parametrize("name", sorted(set(OWN) - {"Packed", "Part", "Heartbeat"}))
def test_extras_of_a_newer_writer_need_no_schema(name: str) -> None:
    """Rows that a newer version puts into `extras` keep the schema: every reader goes on."""
    value = write(name, {"extras": {"mood": b"glad", "since": b"\x01"}})
    plain = write(name, {})
    assert value[:10] == plain[:10]
    for kind in TopicKind:
        for read in (
            lambda v, kind=kind: decode(kind, b"g", v, wire.ORIGIN),
            lambda v, kind=kind: decode_record(kind, b"g|m", v),
        ):
            outcomes = []
            for each in (plain, value):
                try:
                    outcomes.append(wire.plain(read(each)))
                except DecodeError as error:
                    outcomes.append(error.reason)
            assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["Join", "Report", "MemberAssignment", "GroupSnapshot"])
def test_rows_an_older_writer_did_not_know(name: str) -> None:
    """An older schema, here with rows missing, is filled in from the defaults."""
    older = schema_of(name)
    # A row that defines a type others use by name cannot be missing.
    dropped = {"capacity", "rack", "message", "epoch", "ready", "cause", "memory", "report"}
    older["fields"] = [f for f in older["fields"] if f["name"] not in dropped]
    assert len(older["fields"]) < len(schema_of(name)["fields"])
    _, row = Schemas().read(write(name, {}))
    assert Schemas(writers=(older,)).read(written(older, row)) == (name, row)


def test_a_schema_that_was_replaced_is_kept_beside(tmp_path: Path) -> None:
    """``Leave.1.avsc`` beside ``Leave.avsc``: one is written today, both are read."""
    today, older = schema_of("Leave"), schema_of("Leave")
    older["fields"] = older["fields"][:2]
    (tmp_path / "Leave.avsc").write_text(json.dumps(today))
    (tmp_path / "Leave.1.avsc").write_text(json.dumps(older))
    (tmp_path / "README.md").write_text("not a schema")
    own, before = load(tmp_path)
    assert list(own) == ["Leave"]
    assert [fingerprint_of(schema) for schema in before] == [fingerprint_of(older)]


def test_confluent_framing_where_configured() -> None:
    """``00``, schema id, body is read when the id's schema is known, and refused when not."""
    body = write("Drain", {"member": "m", "on": False})[10:]
    value = b"\x00\x00\x00\x00\x2a" + body
    with pytest.raises(DecodeError, match="starts with 0000"):
        decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)
    known = Schemas(confluent={42: schema_of("Drain")})
    found = decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN, schemas=known)
    assert found == Drain(group="g", member="m", on=False, origin=wire.ORIGIN)
    with pytest.raises(UnknownRecord, match="schema id 43 is not configured"):
        decode(TopicKind.MEMBERSHIP, b"g", b"\x00\x00\x00\x00\x2b", wire.ORIGIN, schemas=known)


def test_a_schema_of_something_else_is_refused() -> None:
    """A configured schema must be for a record of ours."""
    with pytest.raises(DecodeError, match="'Cat'"):
        Schemas(writers=({"type": "record", "name": "Cat", "fields": []},))


def test_framing_fingerprint_is_avros() -> None:
    """The fingerprint bytes of ``"null"`` as the Avro specification's implementations give them."""
    assert fingerprint_of("null") == (0x63DD24E7CC258F8A).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("size", "deflated", "reason"),
    [
        (2**40, b"x" * 100, "claim to inflate"),
        (3300, b"x" * 100, "claim to inflate"),
        (10, b"x" * 100, "do not inflate"),
    ],
)
def test_compression_bombs(size: int, deflated: bytes, reason: str) -> None:
    """A packed value may claim only so many times its bytes, and must inflate to what it claims."""
    value = write("Packed", {"size": size, "deflated": deflated})
    with pytest.raises(DecodeError, match=reason):
        decode_record(TopicKind.GROUPS, b"g", value)


def test_a_bomb_is_not_inflated_beyond_its_claim() -> None:
    """A stream that holds more than it claims is cut off there."""
    import zlib

    deflated = zlib.compress(bytes(100_000_000), 9)
    value = write("Packed", {"size": 1000, "deflated": deflated})
    with pytest.raises(DecodeError, match="more than 1000 bytes"):
        decode_record(TopicKind.GROUPS, b"g", value)


def test_events_are_never_packed() -> None:
    """Only configs grow large; nothing else on an input topic may inflate."""
    import zlib

    inner = write("Tick", {})
    value = write("Packed", {"size": len(inner), "deflated": zlib.compress(inner)})
    with pytest.raises(DecodeError, match="claim to inflate"):
        decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)


# ---- golden bytes ---------------------------------------------------------------------------

_SETS = {
    "active": TaskSet.of(["0_0", "0_1", "0_2", "0_7", "c1", "c1-0", "c1-4"]),
    "standby": TaskSet.of(["1_3"]),
    "learner": TaskSet.of([f"1_{i}" for i in range(4, 90, 2)]),
}
_HOLDING = Holding(**_SETS, ready=TaskSet.of(["1_4"]), releasing=TaskSet.of(["0_7"]))
_LAGS = (Lag(Task("1", 4), 12), Lag(Task("c1", -1, True), 0))
_UNITS = (
    Subtopology("0", 3, True, 2, ((("r0", "r1"),), (("r1",),), (("r0", "r1"),)), None),
    Connector("c1", 2, 1, 0.5),
)


def _golden_values() -> dict[str, tuple[TopicKind, object]]:
    who = {"group": "fleet", "member": "W1", "origin": wire.ORIGIN}
    process = {**who, "incarnation": 2**63 + 11}
    target = np.array([0, 1, -1, 0, 0, 1], dtype=np.int32)
    pair = np.array([[0, 1], [2, 0]], dtype=np.int32)
    snapshot = GroupSnapshot(
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
        "Heartbeat": (member, Heartbeat(**who, epoch=300, digest=2**64 - 2)),
        "Leave": (member, Leave(**process, temporary=True)),
        "Drain": (member, Drain(**who, on=False)),
        "Tick": (member, Tick(group="fleet", origin=wire.ORIGIN)),
        "Tick.published": (
            member,
            Tick(group="fleet", published=Mark(3, 70_000), origin=wire.ORIGIN),
        ),
        "LagReport": (TopicKind.LAG, LagReport(**who, lags=_LAGS)),
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
        "Dictionary": (
            TopicKind.GROUPS,
            Dictionary(group="fleet", units=(UnitRef("0_", 9), UnitRef("c1-", 5))),
        ),
        "GroupSnapshot": (TopicKind.GROUPS, snapshot),
        "WakeUp": (TopicKind.CLOCK, WakeUp(group="fleet", at_ms=1_700_000_000_000)),
        "WakeUp.published": (
            TopicKind.CLOCK,
            WakeUp(group="fleet", at_ms=1_700_000_000_000, published=Mark(3, 70_000)),
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
    }


@pytest.mark.parametrize("name", sorted(_golden_values()))
def test_golden_bytes(name: str) -> None:
    """Bytes once written decode for ever to what they meant; today's writer writes the same."""
    kind, value = _golden_values()[name]
    schema, dot, addition = name.partition(".")
    file = GOLDEN / f"{schema}.{PREFIX[schema][2:].hex()}{dot}{addition}.json"
    if not file.exists() and os.environ.get("UPDATE_GOLDEN"):
        encoded = encode(value)
        content = {"topic": str(kind), "key": encoded.key.decode(), "value": encoded.value.hex()}
        file.write_text(json.dumps(content, indent=2) + "\n")
    golden = json.loads(file.read_text())
    key, data = golden["key"].encode(), bytes.fromhex(golden["value"])
    if kind in (TopicKind.MEMBERSHIP, TopicKind.CONFIG, TopicKind.LAG):
        found = decode(kind, key, data, wire.ORIGIN)
    else:
        found = decode_record(kind, key, data)
    assert wire.plain(found) == wire.plain(value)
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
    """Records once packed or cut are read for ever. What deflate writes is zlib's, not compared."""
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
        found = decode(kind, whole.key, whole.value, wire.ORIGIN)
    else:
        found = decode_record(kind, whole.key, whole.value)
    assert wire.plain(found) == wire.plain(value)


def test_every_schema_has_golden_bytes() -> None:
    """No schema is without a golden file, and no file without the value it means."""
    values = _golden_values()
    assert {name.partition(".")[0] for name in values} | set(_large_values()) == set(OWN)
    assert len(list(GOLDEN.glob("*.json"))) == len(values)


@pytest.mark.parametrize("name", [name for name in sorted(_golden_values()) if "." in name])
def test_a_downgrade_reads_what_was_added(name: str) -> None:
    """A version from before an addition to `extras` finds every other field as it was."""
    _, value = _golden_values()[name]
    addition = name.partition(".")[2]
    (_, row), (_, before) = (
        Schemas().read(encode(each).value) for each in (value, replace(value, **{addition: None}))
    )
    assert row.pop("extras").keys() == {addition}
    assert before.pop("extras") == {}
    assert row == before
