"""GRAMMAR.md is enough by itself: a reader written from it alone reads what the codec writes.

The files of `protocol/vectors/` are made here (``UPDATE_VECTORS=1``) and read back by that reader;
readers in other languages check themselves against the same files.
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
from support import grammar, wire
from support.event_vectors import hex64
from support.examples import examples
from support.wire_vectors import VECTORS, held

from muster.protocol.codec import decode_record
from muster.protocol.digest import Holding
from muster.protocol.errors import DecodeError
from muster.protocol.framing import OWN, PREFIX
from muster.protocol.owners import encode_owners
from muster.protocol.tasks import TaskSet
from muster.protocol.taskset import UnitRef, decode_set, encode_set, units_of
from muster.protocol.topics import TopicKind

ROOT = Path(__file__).parent.parent.parent / "protocol"
quick = settings(max_examples=examples(80), deadline=None)


# ---- the page agrees with the schemas -------------------------------------------------------


def spoken(kind: Any) -> str:
    """A type as the page writes it."""
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
    """Every record a schema defines, and its line on the page."""
    found = {}
    if isinstance(schema, dict) and schema.get("type") == "record":
        fields = ", ".join(f"{f['name']}: {spoken(f['type'])}" for f in schema["fields"])
        found[schema["name"].removeprefix("muster.")] = fields
        for field in schema["fields"]:
            found |= records_of(field["type"])
    elif isinstance(schema, dict):
        for inner in ("items", "values"):
            found |= records_of(schema.get(inner))
    elif isinstance(schema, list):
        for each in schema:
            found |= records_of(each)
    return found


def test_the_page_lists_every_schema_and_frame() -> None:
    """Fields with their types and the first ten bytes of every schema stand on the page."""
    page = " ".join((ROOT / "GRAMMAR.md").read_text().split())
    for name, schema in OWN.items():
        assert f"{PREFIX[name].hex(' ')} {name}" in page
        for record, fields in records_of(schema).items():
            assert f"{record} = {fields}" in page


def test_the_second_reader_has_the_pages_schemas() -> None:
    """The fields the plain reader was given are those of the schemas."""
    for name, fields in grammar.FIELDS.items():
        wanted = [
            f"{f['name']}:{spoken(f['type'])}".replace("{string: ", "{")
            for f in _record(name)["fields"]
        ]
        assert fields.split() == wanted


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
    """Every form of task set, read by the plain reader."""
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
    """Every form of owner vector, read by the plain reader."""
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
    """The digest of any holding, tasks being given up included."""
    assert grammar.digest(held(holding)) == holding.digest()


# ---- vectors --------------------------------------------------------------------------------


def vectors(name: str) -> list[dict]:
    """A file of vectors."""
    return json.loads((ROOT / "vectors" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_vectors_are_todays_bytes(name: str) -> None:
    """The files say what today's codec writes."""
    file, made = ROOT / "vectors" / f"{name}.json", VECTORS[name]()
    if os.environ.get("UPDATE_VECTORS"):
        lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in made)
        file.write_text(f"[\n{lines}\n]\n")
    assert vectors(name) == made


def test_vectors_cover_every_form() -> None:
    """Between them the task sets use both codecs, every form, and complements."""
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
    """The plain reader reads assignments, through parts and a packed dictionary."""
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
        name, found = grammar.value(data)
        units = [tuple(unit.values()) for unit in found["units"]]
        units = units if found["dictionary"] is None else known[found["dictionary"]]
        for role in ("active", "standby", "learner"):
            found[role] = grammar.task_set(found[role], units)
        found["incarnation"] = hex64(found["incarnation"])
        if "next" in row:
            assert grammar.task_set(found["extras"]["next"], units) == row["next"]
        del found["units"], found["dictionary"], found["extras"]
        expected = {field: row[field] for field in found}
        assert (name, found) == ("MemberAssignment", expected)


def test_event_vectors_read_from_the_page_alone() -> None:
    """The plain reader reads what a member writes, field by field."""
    for row in vectors("events"):
        name, found = grammar.value(bytes.fromhex(row["value"]))
        assert (name, row["key"]) == (row["schema"], "fleet")
        assert as_shown(found) == row["fields"], row["name"]


def as_shown(row: dict) -> dict:
    """The fields of an event as the vectors write them."""
    extras = row.pop("extras", {})
    found = dict(row)
    if "units" in row:
        units = grammar.event_units(row | {"extras": extras})
        del found["units"]
        for role in {"active", "standby", "learner", "ready", "releasing"} & set(row):
            found[role] = grammar.task_set(row[role], units)
        found["lags"] = [
            [grammar.printed(units[lag["unit"]][0], lag["position"]), lag["offsets"]]
            for lag in row["lags"]
        ]
    found |= {name: hex64(row[name]) for name in ("incarnation", "digest") if name in row}
    if "revision" in row:
        told = extras.get("coordinator_epoch")
        found["coordinator_epoch"] = None if told is None else int.from_bytes(told, "little")
    return found


def test_signature_vectors_read_from_the_page_alone() -> None:
    """The plain reader makes the same signatures of topic, key, value, time and secret."""
    for row in vectors("signatures"):
        value = None if row["value"] is None else bytes.fromhex(row["value"])
        made = grammar.signature(
            *(row["topic"], row["key"].encode(), value),
            *(row["key_id"], row["algorithm"], bytes.fromhex(row["secret"]), row["signed_ms"]),
        )
        assert made.hex() == row["signature"]
    assert {row["algorithm"] for row in vectors("signatures")} == set(grammar.HASHES)


def test_keyring_vectors_read_from_the_page_alone() -> None:
    """The plain reader signs with the same key of a keyring, or with none."""
    for row in vectors("keyrings"):
        found = grammar.signer(row["keyring"], row["group"], row["at_ms"])
        assert (row["name"], found) == (row["name"], row["signer"])


def test_hostile_vectors_are_refused() -> None:
    """None of the hostile values is an assignment."""
    for row in vectors("hostile"):
        with pytest.raises(DecodeError):
            decode_record(TopicKind.ASSIGNMENTS, b"fleet|W1", bytes.fromhex(row["value"]))


def test_the_page_names_every_vector_file() -> None:
    """Section 11 lists the files there are."""
    page = (ROOT / "GRAMMAR.md").read_text()
    named = set(re.findall(r"`(\w+)\.json`", page))
    assert named == set(VECTORS) == {file.stem for file in (ROOT / "vectors").glob("*.json")}


def test_vectors_decode_with_the_codec() -> None:
    """And the codec itself reads its task-set vectors."""
    for row in vectors("tasksets"):
        units = tuple(UnitRef(*unit) for unit in row["units"])
        found = decode_set(bytes.fromhex(row["bytes"]), units)
        assert [str(task) for task in found] == row["tasks"]
