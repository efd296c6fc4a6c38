"""Frames: the id of a value's schema, and the Avro body behind it.

A value is ``C3 01``, the CRC-64-AVRO fingerprint of its schema (8 bytes, little endian) and the
Avro body (Avro's single-object encoding). If the operator configured a schema by its registry id,
``00``, the id (4 bytes, big endian) and the body are read too (Confluent's form).

A body is resolved to our schema of the same name by Avro's rules. Reading takes time and memory in
proportion to the real bytes, whatever lengths and counts the value claims, because in our schemas
every item takes at least one byte.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from io import BytesIO
from typing import Any, TypeAlias, cast

from fastavro import (
    parse_schema,
    schemaless_reader,  # pyright: ignore[reportUnknownVariableType]  # fastavro's stubs
    schemaless_writer,  # pyright: ignore[reportUnknownVariableType]  # the same
)
from fastavro.schema import fingerprint, to_parsing_canonical_form

from muster.protocol.bits import inflate
from muster.protocol.errors import DecodeError, EncodeError, UnknownRecord

MARKER = b"\xc3\x01"
CONFLUENT_MARKER = 0
FRAME_BYTES = 10
"""Marker and fingerprint."""
INT_MAX = 2**31 - 1
VALUE_BYTES_MAX = 64 << 20
"""Limit of a value, also after joining and inflating."""

INFLATION_MAX = 32
"""A `Packed` may inflate to at most this many times its bytes, which bounds the memory."""
_PACKED_BYTES_MIN = 512
_SAMPLE = 4096

Schema: TypeAlias = Mapping[str, Any]
_Writer: TypeAlias = tuple[str, Schema]
"""A record name without namespace, and the schema of a writer; it is read as ours of that name."""
Row: TypeAlias = dict[str, Any]
"""A record as fastavro reads and writes it: field name → value."""


def fingerprint_of(schema: object) -> bytes:
    """CRC-64-AVRO of a schema's parsing canonical form, little endian, 8 bytes."""
    # fastavro gives the bytes in the order of the wire.
    canonical = to_parsing_canonical_form(schema)  # type: ignore[arg-type]  # any parsed schema
    return bytes.fromhex(fingerprint(canonical, "CRC-64-AVRO"))


def load(folder: Traversable) -> tuple[dict[str, Schema], tuple[Schema, ...]]:
    """Read a folder of schemas.

    Returns:
        The schemas written today, by record name (``Join.avsc``), and those of older versions
        (such as ``Join.1.avsc``), which stay readable.
    """
    today: dict[str, Schema] = {}
    older: list[Schema] = []
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        name, _, version = file.name.removesuffix(".avsc").partition(".")
        if not file.name.endswith(".avsc"):
            continue
        parsed: Any = parse_schema(json.loads(file.read_text(encoding="utf-8")))
        if version:
            older.append(parsed)
        else:
            _default_to_bytes(parsed)
            today[name] = parsed
    return today, tuple(older)


def _default_to_bytes(schema: Row) -> None:
    """Turn the defaults of bytes and fixed fields, which JSON gives as text, into bytes."""
    fixed = {"bytes"}
    field: dict[str, Any]
    for field in schema["fields"]:
        declared: Any = field["type"]
        kind = cast("Row", declared) if isinstance(declared, dict) else Row(type=declared)
        if kind["type"] == "fixed":
            fixed.add(kind["name"])
        named: object = kind.get("name", kind["type"])
        if isinstance(named, str) and named in fixed:
            field["default"] = field["default"].encode("latin-1")
        inner: Row = kind.get("items", kind) if isinstance(kind.get("items", kind), dict) else {}
        if inner.get("type") == "record":
            _default_to_bytes(inner)
            if inner is kind:
                field["default"] = {part["name"]: part["default"] for part in inner["fields"]}


_TODAY, _OLDER = load(files("muster.protocol") / "schemas")
OWN: Mapping[str, Schema] = _TODAY
"""Our schemas by record name."""
_INTS = {
    name: tuple(field["name"] for field in schema["fields"] if field["type"] == "int")
    for name, schema in OWN.items()
}
PREFIX: Mapping[str, bytes] = {name: MARKER + fingerprint_of(s) for name, s in OWN.items()}
"""The first `FRAME_BYTES` of a value, by record name."""


class Schemas:
    """The schemas a reader knows; immutable.

    Args:
        writers: schemas of older or newer writers, as parsed JSON.
        confluent: registry id → schema, as parsed JSON.

    Raises:
        DecodeError: a schema's record name is not one of ours.
    """

    def __init__(
        self, writers: tuple[Schema, ...] = (), confluent: Mapping[int, Schema] | None = None
    ) -> None:
        self._by_prefix: dict[bytes, _Writer] = {
            PREFIX[name]: (name, schema) for name, schema in OWN.items()
        }
        for schema in (*_OLDER, *writers):
            self._by_prefix.setdefault(MARKER + fingerprint_of(schema), _writer(schema))
        self._by_id = {number: _writer(schema) for number, schema in (confluent or {}).items()}

    @property
    def prefixes(self) -> frozenset[bytes]:
        """The first `FRAME_BYTES` of every readable value, except those with registry ids."""
        return frozenset(self._by_prefix)

    @property
    def reads_ids(self) -> bool:
        """Whether values in Confluent's framing are readable."""
        return bool(self._by_id)

    def read(self, value: bytes, inflated_max: int = VALUE_BYTES_MAX) -> tuple[str, Row]:
        """Read a framed value; a `Packed` one is inflated first, to at most `inflated_max` bytes.

        Returns:
            Record name, and the row in the shape of our schema of that name.

        Raises:
            UnknownRecord: the frame is valid, but its schema is not known.
            DecodeError: the bytes are not valid for any other reason.
        """
        if len(value) > VALUE_BYTES_MAX:
            raise DecodeError(f"a value of {len(value)} bytes; {VALUE_BYTES_MAX} are accepted")
        name, row = self._read(value)
        if name != "Packed":
            return name, row
        size, deflated = row["size"], row["deflated"]
        if not 0 <= size <= min(inflated_max, INFLATION_MAX * len(deflated)):
            raise DecodeError(f"{len(deflated)} bytes that claim to inflate to {size}")
        inner, end = inflate(deflated, 0, size)
        if len(inner) != size or end != len(deflated):
            raise DecodeError(f"inflated to {len(inner)} bytes; {size} were announced")
        name, row = self._read(inner)
        if name == "Packed":
            raise DecodeError("a Packed within a Packed")
        return name, row

    def _read(self, value: bytes) -> tuple[str, Row]:
        (name, schema), start = self._writer_of(value)
        body = BytesIO(value)
        body.seek(start)
        own_schema = OWN[name]
        reader = None if schema is own_schema else own_schema
        try:
            row = schemaless_reader(body, schema, reader)  # type: ignore[arg-type]
        except Exception as error:
            # Hostile bytes make fastavro raise exceptions of any type.
            reason = str(error) or "the value ends too early"
            raise DecodeError(f"not a {name}: {reason}"[:300], body.tell()) from None
        if body.tell() != len(value):
            trailing = len(value) - body.tell()
            raise DecodeError(f"{trailing} bytes behind the {name}", body.tell())
        _check_ints(name, cast("Row", row))
        return name, row  # type: ignore[return-value]  # our schemas are all records

    def _writer_of(self, value: bytes) -> tuple[_Writer, int]:
        writer = self._by_prefix.get(value[:FRAME_BYTES])
        if writer is not None:
            return writer, FRAME_BYTES
        if self._by_id and len(value) >= 5 and value[0] == CONFLUENT_MARKER:
            number = int.from_bytes(value[1:5], "big")
            if number not in self._by_id:
                raise UnknownRecord(f"schema id {number} is not configured", 1)
            return self._by_id[number], 5
        if value[:2] != MARKER[: len(value)]:
            raise DecodeError(f"starts with {value[:2].hex()}; expected {MARKER.hex()}")
        if len(value) < FRAME_BYTES:
            raise DecodeError("the value ends within its frame", len(value))
        raise UnknownRecord(f"unknown schema fingerprint {value[2:FRAME_BYTES].hex()}", 2)


def _check_ints(name: str, row: Row) -> None:
    # fastavro reads an int like a long, without the bounds of 32 bits.
    for field in _INTS[name]:
        if not -INT_MAX - 1 <= row[field] <= INT_MAX:
            raise DecodeError(f"{field} is {row[field]}; expected a 32-bit number")


def _writer(schema: Schema) -> _Writer:
    parsed: Any = parse_schema(dict(schema))
    name = str(parsed.get("name", "")).rpartition(".")[2]
    if name not in OWN:
        raise DecodeError(f"a schema for {name!r}; expected one of {', '.join(OWN)}")
    return name, parsed


KNOWN = Schemas()
"""The schemas that a reader knows without configuration."""


def write(name: str, row: Row) -> bytes:
    """The framed value of a row.

    Raises:
        EncodeError: the row does not fit the schema.
    """
    out = BytesIO()
    out.write(PREFIX[name])
    try:
        schemaless_writer(out, OWN[name], row)  # type: ignore[arg-type]  # a parsed schema
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError) as error:
        raise EncodeError(f"cannot write a {name}: {error}") from error
    return out.getvalue()


def pack(value: bytes) -> bytes:
    """The value as a `Packed` record if that saves at least an eighth, else unchanged."""
    if len(value) < _PACKED_BYTES_MIN:
        return value
    if len(value) > 16 * _SAMPLE:
        # A large value is mostly task vectors, which are entropy-coded already: try a sample first.
        step = len(value) // 4
        sample = b"".join(value[at : at + _SAMPLE] for at in range(0, 4 * step, step))
        if 8 * len(zlib.compress(sample, 1)) > 7 * len(sample):
            return value
    deflated = zlib.compress(value, 6)
    if len(value) > INFLATION_MAX * len(deflated):
        # Beyond the reader's limit. A Huffman code alone needs at least one bit for a byte.
        huffman = zlib.compressobj(6, strategy=zlib.Z_HUFFMAN_ONLY)
        deflated = huffman.compress(value) + huffman.flush()
    if 8 * len(deflated) > 7 * len(value):
        return value
    return write("Packed", {"size": len(value), "deflated": deflated})
