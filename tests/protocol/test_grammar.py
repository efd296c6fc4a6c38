"""GRAMMAR.md is complete: a reader written from it alone reads what the codec writes.

This file makes `protocol/vectors/` (``UPDATE_VECTORS=1``) and reads the files with that reader.
Readers in other languages check themselves against the same files.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protocol import grammar, wire
from support.protocol.event_vectors import hex64
from support.protocol.wire_vectors import VECTORS, held
from support.suite.examples import examples

from muster.protocol.codec import decode_record
from muster.protocol.digest import Holding
from muster.protocol.errors import DecodeError
from muster.protocol.framing import OWN, PREFIX
from muster.protocol.owner_vectors import encode_owners
from muster.protocol.tasks import TaskSet
from muster.protocol.taskset import UnitRef, decode_set, encode_set, units_of
from muster.protocol.topics import TopicKind

ROOT = Path(__file__).parent.parent.parent / "protocol"
quick = settings(max_examples=examples(80), deadline=None)


# ---- the page agrees with the schemas -------------------------------------------------------


def test_topics() -> None:
    """Every kind of topic has a row."""
    page = (ROOT / "GRAMMAR.md").read_text()
    topics = page[page.index("## 2. Topics") : page.index("## 3. Values")]
    assert set(re.findall(r"^\| `(\w+)` \|", topics, re.M)) == {kind.value for kind in TopicKind}


def spoken(kind: Any) -> str:
    """A type in the notation of the page."""
    if isinstance(kind, list):
        return spoken(next(k for k in kind if k != "null")) + "?"
    if not isinstance(kind, dict):
        return "u64" if kind.endswith("U64") else kind.removeprefix("muster.")
    match kind["type"]:
        case "array":
            return f"[{spoken(kind['items'])}]"
        case "map":
            return f"{{string: {spoken(kind['values'])}}}"
        case "fixed":
            return "u64"
        case "record":
            return kind["name"].removeprefix("muster.")
        case other:
            return other


def records_of(schema: Any) -> dict[str, str]:
    """Every record of a schema, and its line on the page."""
    records = {}
    if isinstance(schema, dict) and schema.get("type") == "record":
        fields = ", ".join(f"{f['name']}: {spoken(f['type'])}" for f in schema["fields"])
        records[schema["name"].removeprefix("muster.")] = fields
        for field in schema["fields"]:
            records |= records_of(field["type"])
    elif isinstance(schema, dict):
        for inner in ("items", "values"):
            records |= records_of(schema.get(inner))
    elif isinstance(schema, list):
        for each in schema:
            records |= records_of(each)
    return records


def test_the_page_lists_every_schema_and_frame() -> None:
    """The page has the fields, types and first ten bytes of every schema."""
    page = " ".join((ROOT / "GRAMMAR.md").read_text().split())
    for name, schema in OWN.items():
        assert f"{PREFIX[name].hex(' ')} {name}" in page
        for record, fields in records_of(schema).items():
            assert f"{record} = {fields}" in page


def test_the_second_reader_has_the_pages_schemas() -> None:
    """The plain reader has the fields of the schemas."""
    for name, fields in grammar.FIELDS.items():
        expected = [
            f"{f['name']}:{spoken(f['type'])}".replace("{string: ", "{")
            for f in _record(name)["fields"]
        ]
        assert fields.split() == expected


def _record(name: str) -> Any:
    if name in OWN:
        return OWN[name]
    for schema in OWN.values():
        for field in schema["fields"]:
            items = field["type"].get("items") if isinstance(field["type"], dict) else None
            if isinstance(items, dict) and items.get("name") == f"muster.{name}":
                return items
    raise AssertionError(name)


# ---- the second reader agrees with the codec ------------------------------------------------


@quick
@given(wire.task_sets())
def test_task_sets_read_from_the_page_alone(tasks: TaskSet) -> None:
    """The plain reader reads every form of task set."""
    units = units_of([tasks])
    assert grammar.task_set(encode_set(tasks, units), list(units)) == [str(t) for t in tasks]


@quick
@given(
    st.integers(0, 1500),
    st.integers(1, 300),
    st.sampled_from(["even", "skewed", "ranges", "turns"]),
    st.integers(0, 2**32 - 1),
)
def test_owner_vectors_read_from_the_page_alone(
    tasks: int, members: int, shape: str, seed: int
) -> None:
    """The plain reader reads every form of owner vector."""
    random = np.random.default_rng(seed)
    owners = {
        "even": random.integers(-1, members, tasks),
        "skewed": np.minimum(random.geometric(0.3, tasks) - 2, members),
        "ranges": np.sort(random.integers(-1, members, tasks)),
        "turns": np.arange(tasks) % members,
    }[shape].astype(np.int32)
    data = encode_owners(owners)
    cursor = grammar.Cursor(data)
    assert grammar.owner_vector(cursor, tasks) == owners.tolist()
    assert cursor.at == len(data)


@quick
@given(wire.holdings)
def test_digests_from_the_page_alone(holding: Holding) -> None:
    """The plain reader computes the digest of any holding, also while it releases tasks."""
    assert grammar.digest(held(holding)) == holding.digest()


# ---- vectors --------------------------------------------------------------------------------


def vectors(name: str) -> list[dict]:
    """A file of vectors."""
    return json.loads((ROOT / "vectors" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_vectors_are_todays_bytes(name: str) -> None:
    """The files have the bytes that the codec writes."""
    file, made = ROOT / "vectors" / f"{name}.json", VECTORS[name]()
    if os.environ.get("UPDATE_VECTORS"):
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in made)
        file.write_text(f"[\n{lines}\n]\n")
    assert vectors(name) == made


def test_vectors_cover_every_form() -> None:
    """The task sets use both codecs, every form, and complements."""
    rows = vectors("tasksets")
    firsts = {bytes.fromhex(row["bytes"])[:2] for row in rows if row["bytes"]}
    assert {first[0] for first in firsts} == {1, 2}
    assert {first[1] & 0x7F for first in firsts if first[0] == 1} == {0, 1, 2, 3, 4}
    assert any(first[1] & 0x80 for first in firsts)


def test_task_set_vectors_read_from_the_page_alone() -> None:
    """The plain reader agrees with the task-set vectors."""
    for row in vectors("tasksets"):
        units = [tuple(unit) for unit in row["units"]]
        assert grammar.task_set(bytes.fromhex(row["bytes"]), units) == row["tasks"]


def test_assignment_vectors_read_from_the_page_alone() -> None:
    """The plain reader reads assignments, also in parts and with a packed dictionary."""
    (dictionary,) = vectors("dictionary")
    _, named = grammar.value(bytes.fromhex(dictionary["value"]))
    known = {named["version"]: [tuple(unit.values()) for unit in named["units"]]}
    assert hex64(named["version"]) == dictionary["version"]
    whole = grammar.joined([bytes.fromhex(each) for _, each in dictionary["parts"]])
    assert whole.hex() == dictionary["value"]
    for row in vectors("assignments"):
        data = bytes.fromhex(row["value"])
        if "parts" in row:
            assert grammar.joined([bytes.fromhex(each) for _, each in row["parts"]]) == data
        name, row_read = grammar.value(data)
        units = [tuple(unit.values()) for unit in row_read["units"]]
        units = units if row_read["dictionary"] is None else known[row_read["dictionary"]]
        for role in ("active", "standby", "learner"):
            row_read[role] = grammar.task_set(row_read[role], units)
        row_read["incarnation"] = hex64(row_read["incarnation"])
        if "next" in row:
            assert grammar.task_set(row_read["extras"]["next"], units) == row["next"]
        del row_read["units"], row_read["dictionary"], row_read["extras"]
        expected = {field: row[field] for field in row_read}
        assert (name, row_read) == ("MemberAssignment", expected)


def test_event_vectors_read_from_the_page_alone() -> None:
    """The plain reader reads a member's events, field by field."""
    for row in vectors("events"):
        name, row_read = grammar.value(bytes.fromhex(row["value"]))
        assert (name, row["key"]) == (row["schema"], "fleet")
        assert as_shown(row_read) == row["fields"], row["name"]


def as_shown(row: dict) -> dict:
    """The fields of an event as the vectors write them."""
    extras = row.pop("extras", {})
    fields = dict(row)
    if "units" in row:
        units = grammar.event_units(row | {"extras": extras})
        del fields["units"]
        for role in {"active", "standby", "learner", "ready", "releasing"} & set(row):
            fields[role] = grammar.task_set(row[role], units)
        fields["lags"] = [
            [grammar.printed(units[lag["unit"]][0], lag["position"]), lag["offsets"]]
            for lag in row["lags"]
        ]
    fields |= {name: hex64(row[name]) for name in ("incarnation", "digest") if name in row}
    if "revision" in row:
        epoch = extras.get("coordinator_epoch")
        fields["coordinator_epoch"] = None if epoch is None else int.from_bytes(epoch, "little")
    return fields


def test_signature_vectors_read_from_the_page_alone() -> None:
    """The plain reader computes the signatures of the file."""
    for row in vectors("signatures"):
        value = None if row["value"] is None else bytes.fromhex(row["value"])
        made = grammar.signature(
            *(row["topic"], row["key"].encode(), value),
            *(row["key_id"], row["algorithm"], bytes.fromhex(row["secret"]), row["signed_ms"]),
        )
        assert made.hex() == row["signature"]
    assert {row["algorithm"] for row in vectors("signatures")} == set(grammar.HASHES)


def test_keyring_vectors_read_from_the_page_alone() -> None:
    """The plain reader chooses the same key of a keyring, or none."""
    for row in vectors("keyrings"):
        signer = grammar.signer(row["keyring"], row["group"], row["at_ms"])
        assert (row["name"], signer) == (row["name"], row["signer"])


def test_hostile_vectors_are_refused() -> None:
    """None of the hostile values decodes as an assignment."""
    for row in vectors("hostile"):
        with pytest.raises(DecodeError):
            decode_record(TopicKind.ASSIGNMENTS, b"fleet|W1", bytes.fromhex(row["value"]))


def test_the_page_names_every_vector_file() -> None:
    """Section 11 lists all files."""
    page = (ROOT / "GRAMMAR.md").read_text()
    named = set(re.findall(r"`(\w+)\.json`", page))
    assert named == set(VECTORS) == {file.stem for file in (ROOT / "vectors").glob("*.json")}


def test_vectors_decode_with_the_codec() -> None:
    """The codec reads its task-set vectors."""
    for row in vectors("tasksets"):
        units = tuple(UnitRef(*unit) for unit in row["units"])
        tasks = decode_set(bytes.fromhex(row["bytes"]), units)
        assert [str(task) for task in tasks] == row["tasks"]
