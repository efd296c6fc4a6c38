"""Older and newer writers, other framings, and the bytes of every version.

`tests/golden/*.json` holds values and their bytes for every schema that this version writes. Files
are only added, never changed: ``UPDATE_GOLDEN=1`` writes the missing ones.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import fastavro
import pytest
from support.protocol import wire
from support.state.snapshots import orders

from muster.protocol.codec import decode, decode_record
from muster.protocol.errors import DecodeError, UnknownRecord
from muster.protocol.events import (
    Drain,
    Leave,
)
from muster.protocol.framing import MARKER, OWN, Schemas, fingerprint_of, load, write
from muster.protocol.records import GroupSnapshot, GroupState
from muster.protocol.settings import parse_settings
from muster.protocol.snapshot import snapshot_row
from muster.protocol.topics import TopicKind
from muster.state.group import Group


def schema_of(name: str) -> dict:
    """Our schema as plain JSON, for changes."""
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
    """So a writer may leave out any field, and every reader fills it in."""
    fields = [(field["name"], "default" in field) for field in schema_of(name)["fields"]]
    assert [field for field, has in fields if not has] == []
    assert decode_or_error(name)


def decode_or_error(name: str) -> bool:
    """Read a row of default values, or return the error; other exceptions fail the test."""
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
    """Once a newer schema is known, it is read without its additions."""
    newer = schema_of("Leave")
    newer["fields"].insert(1, {"name": "mood", "type": "string", "default": "calm"})
    newer["fields"].append({"name": "will_return_ms", "type": "long", "default": 0})
    row = {"member": "m", "mood": "glad", "incarnation": b"\x05" + bytes(7), "temporary": True}
    value = written(newer, row)
    with pytest.raises(UnknownRecord, match="fingerprint"):
        decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)
    decoded = decode(
        TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN, schemas=Schemas(writers=(newer,))
    )
    assert decoded == Leave(
        group="g", member="m", incarnation=5, temporary=True, origin=wire.ORIGIN
    )


@pytest.mark.parametrize("name", sorted(set(OWN) - {"Packed", "Part", "Heartbeat"}))
def test_extras_of_a_newer_writer_need_no_schema(name: str) -> None:
    """A newer version's entries in `extras` keep the schema, and older readers read on."""
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


def test_a_group_of_a_newer_coordinator_can_be_read() -> None:
    """A snapshot with a setting, a value and a state that only newer versions know.

    After a rollback the group is not parked, and not forgotten: it goes on with what is known. A
    config with such a setting is refused, because its writer can be told.
    """
    known = {"session.timeout.ms": "20000"}
    newer = {**known, "a.newer": "1", "rack.aware.assignment.strategy": "a-newer-word"}
    row = {**snapshot_row(orders()), "state": "Resting", "settings": newer}
    record = decode_record(TopicKind.GROUPS, b"g", write("GroupSnapshot", row))
    assert isinstance(record, GroupSnapshot)
    assert record.state is GroupState.UNKNOWN
    assert record.settings == parse_settings(known, "sticky")
    assert Group.recover(record).roster.by_id.keys() == {"W1", "W2"}
    config = write("GroupConfig", {"assignor": "sticky", "settings": newer})
    with pytest.raises(DecodeError, match=r"a\.newer"):
        decode(TopicKind.CONFIG, b"g", config, wire.ORIGIN)


@pytest.mark.parametrize("name", ["Join", "Report", "MemberAssignment", "GroupSnapshot"])
def test_rows_an_older_writer_did_not_know(name: str) -> None:
    """Fields that an older schema lacks are filled in from the defaults."""
    older = schema_of(name)
    # A row that defines a type others use by name cannot be missing.
    dropped = {"capacity", "rack", "message", "epoch", "ready", "cause", "memory", "report"}
    older["fields"] = [f for f in older["fields"] if f["name"] not in dropped]
    assert len(older["fields"]) < len(schema_of(name)["fields"])
    _, row = Schemas().read(write(name, {}))
    assert Schemas(writers=(older,)).read(written(older, row)) == (name, row)


def test_a_schema_that_was_replaced_is_kept_beside(tmp_path: Path) -> None:
    """``Leave.1.avsc`` beside ``Leave.avsc``: one is written, both are read."""
    today, older = schema_of("Leave"), schema_of("Leave")
    older["fields"] = older["fields"][:2]
    (tmp_path / "Leave.avsc").write_text(json.dumps(today))
    (tmp_path / "Leave.1.avsc").write_text(json.dumps(older))
    (tmp_path / "README.md").write_text("not a schema")
    own, before = load(tmp_path)
    assert list(own) == ["Leave"]
    assert [fingerprint_of(schema) for schema in before] == [fingerprint_of(older)]


def test_confluent_framing_where_configured() -> None:
    """``00``, schema id, body is read if the id is configured, and refused if not."""
    body = write("Drain", {"member": "m", "on": False})[10:]
    value = b"\x00\x00\x00\x00\x2a" + body
    with pytest.raises(DecodeError, match="starts with 0000"):
        decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)
    known = Schemas(confluent={42: schema_of("Drain")})
    decoded = decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN, schemas=known)
    assert decoded == Drain(group="g", member="m", on=False, origin=wire.ORIGIN)
    with pytest.raises(UnknownRecord, match="schema id 43 is not configured"):
        decode(TopicKind.MEMBERSHIP, b"g", b"\x00\x00\x00\x00\x2b", wire.ORIGIN, schemas=known)


def test_a_schema_of_something_else_is_refused() -> None:
    """A configured schema must have the name of one of our records."""
    with pytest.raises(DecodeError, match="'Cat'"):
        Schemas(writers=({"type": "record", "name": "Cat", "fields": []},))


def test_framing_fingerprint_is_avros() -> None:
    """The fingerprint of ``"null"`` as in the Avro specification's implementations."""
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
    """A packed value must inflate to the size it claims, which is limited."""
    value = write("Packed", {"size": size, "deflated": deflated})
    with pytest.raises(DecodeError, match=reason):
        decode_record(TopicKind.GROUPS, b"g", value)


def test_a_bomb_is_not_inflated_beyond_its_claim() -> None:
    """A stream with more bytes than it claims is not inflated further."""
    import zlib

    deflated = zlib.compress(bytes(100_000_000), 9)
    value = write("Packed", {"size": 1000, "deflated": deflated})
    with pytest.raises(DecodeError, match="more than 1000 bytes"):
        decode_record(TopicKind.GROUPS, b"g", value)


def test_events_are_never_packed() -> None:
    """Only configs may be packed; other packed events are refused."""
    import zlib

    inner = write("Tick", {})
    value = write("Packed", {"size": len(inner), "deflated": zlib.compress(inner)})
    with pytest.raises(DecodeError, match="claim to inflate"):
        decode(TopicKind.MEMBERSHIP, b"g", value, wire.ORIGIN)
