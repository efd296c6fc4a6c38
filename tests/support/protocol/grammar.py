"""A reader written from `protocol/GRAMMAR.md` alone: no numpy, no fastavro, nothing of muster.

It is the second witness: what it reads must be what the codec wrote. Slow and plain on purpose, the
way a reader in another language would start.
"""

from __future__ import annotations

import hmac
import zlib
from fnmatch import fnmatchcase
from hashlib import sha256
from struct import pack, unpack
from typing import Any

FIELDS = {
    "UnitRef": "label:string size:int",
    "Lag": "unit:int position:int offsets:long",
    "Leave": "member:string incarnation:u64 temporary:boolean extras:{bytes}",
    "Heartbeat": "member:string epoch:int digest:u64",
    "Report": "member:string incarnation:u64 epoch:int revision:long units:[UnitRef] active:bytes"
    " standby:bytes learner:bytes ready:bytes releasing:bytes lags:[Lag] extras:{bytes}",
    "LagReport": "member:string units:[UnitRef] lags:[Lag] extras:{bytes}",
    "Join": "member:string incarnation:u64 instance_id:string? rack:string? capacity:int"
    " tags:{string} protocols:[string] topics:[string]? static:[string] units:[UnitRef]"
    " active:bytes standby:bytes learner:bytes ready:bytes releasing:bytes lags:[Lag]"
    " config_offset:long? rebalance_timeout_ms:long? make_before_break:boolean extras:{bytes}",
    "MemberAssignment": "incarnation:u64 coordinator_epoch:long generation:int epoch:int"
    " revision:long dictionary:u64? units:[UnitRef] active:bytes standby:bytes learner:bytes"
    " report:boolean fault:string session_timeout_ms:int heartbeat_interval_ms:int"
    " message:string extras:{bytes}",
    "Dictionary": "version:u64 units:[UnitRef] extras:{bytes}",
    "Packed": "size:long deflated:bytes",
    "Part": "id:u64 index:int count:int size:long slice:bytes",
}
FRAMES = {
    "c3013b834dd00c1483f0": "Join",
    "c301cd5c45241620def1": "Report",
    "c30184d7c1ae25d0c22b": "Heartbeat",
    "c301b6ed0ef0d77c19a9": "Leave",
    "c301998f442585c60269": "LagReport",
    "c30183a7063d7eeccdd7": "MemberAssignment",
    "c301ed277f4d4d8871a9": "Dictionary",
    "c3011d988ce4a267a731": "Packed",
    "c3013d34d0b96921618b": "Part",
}
M64 = 2**64 - 1


class Cursor:
    """Bytes and a position in them."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def byte(self) -> int:
        """One byte."""
        self.at += 1
        return self.data[self.at - 1]

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        assert 0 <= count <= len(self.data) - self.at
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        """An unsigned number."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def zigzag(self) -> int:
        """A signed number."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def field(self, kind: str) -> object:
        """A field of one of section 3's types; ``{X}`` is a map to X."""
        if kind.endswith("?"):
            return self.field(kind[:-1]) if self.zigzag() == 1 else None
        if kind[0] in "[{":
            return self._blocks(kind)
        if kind in ("int", "long"):
            return self.zigzag()
        if kind == "boolean":
            return self.byte() == 1
        if kind == "u64":
            return int.from_bytes(self.take(8), "little")
        if kind == "double":
            return unpack("<d", self.take(8))[0]
        if kind in ("string", "bytes"):
            data = self.take(self.zigzag())
            return data.decode() if kind == "string" else data
        return self.record(kind)

    def _blocks(self, kind: str) -> object:
        items: list = []
        while count := self.zigzag():
            if count < 0:
                self.zigzag()
            for _ in range(abs(count)):
                key = self.field("string") if kind[0] == "{" else None
                item = self.field(kind[1:-1])
                items.append(item if key is None else (key, item))
        return dict(items) if kind[0] == "{" else items

    def record(self, name: str) -> dict:
        """A record's fields."""
        pairs = (field.split(":") for field in FIELDS[name].split())
        return {field: self.field(kind) for field, kind in pairs}


def value(data: bytes) -> tuple[str, dict]:
    """Sections 3 and 4: a framed value."""
    name = FRAMES[data[:10].hex()]
    cursor = Cursor(data, 10)
    row = cursor.record(name)
    assert cursor.at == len(data)
    if name == "Packed":
        assert row["size"] <= 32 * len(row["deflated"])
        return value(zlib.decompress(row["deflated"]))
    return name, row


def event_units(row: dict) -> list[tuple[str, int]]:
    """Section 5: the units of an event, as rows or as the extra."""
    if "units" not in row["extras"]:
        return [(unit["label"], unit["size"]) for unit in row["units"]]
    lines = zlib.decompress(row["extras"]["units"]).decode().splitlines()
    return [(label, int(size)) for label, size in (line.split("\0") for line in lines)]


def joined(values: list[bytes]) -> bytes:
    """Section 4: the whole of parts in any order."""
    rows = sorted((value(each)[1] for each in values), key=lambda row: row["index"])
    whole = b"".join(row["slice"] for row in rows)
    assert [row["index"] for row in rows] == list(range(rows[0]["count"]))
    assert int.from_bytes(sha256(whole).digest()[:8], "little") == rows[0]["id"]
    return whole


class Bits:
    """Section 5: bits from the lowest up."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor, self._left, self._byte = cursor, 0, 0

    def bit(self) -> int:
        """One bit."""
        if self._left == 0:
            self._byte, self._left = self._cursor.byte(), 8
        bit = self._byte & 1
        self._byte >>= 1
        self._left -= 1
        return bit

    def rice(self, count: int, k: int) -> list[int]:
        """A list of values of Rice k."""
        if k == 32:
            return [0] * count
        high = []
        for _ in range(count):
            zeros = 0
            while not self.bit():
                zeros += 1
            high.append(zeros)
        return [h << k | sum(self.bit() << i for i in range(k)) for h in high]


def segment(cursor: Cursor, size: int) -> list[int]:
    """Section 5: the positions of a segment."""
    first = cursor.byte()
    positions = _FORMS[first & 0x7F](cursor, size)
    assert all(0 <= position < size for position in positions)
    return positions if first < 0x80 else sorted(set(range(size)) - set(positions))


def _nothing(cursor: Cursor, size: int) -> list[int]:
    return []


def _runs(cursor: Cursor, size: int) -> list[int]:
    count, k, m = cursor.varint(), cursor.byte(), cursor.byte()
    bits = Bits(cursor)
    distances, lengths = bits.rice(count, k), bits.rice(count, m)
    positions: list[int] = []
    end = -1
    for distance, length in zip(distances, lengths, strict=True):
        start = end + 1 + distance
        end = start + length + 1
        positions += range(start, end)
    return positions


def _gaps(cursor: Cursor, size: int) -> list[int]:
    count, position = cursor.varint(), cursor.varint()
    positions = [position]
    if count > 1:
        base, k = cursor.varint(), cursor.byte()
        for gap in Bits(cursor).rice(count - 1, k):
            position += 1 + base + gap
            positions.append(position)
    return positions


def _triplets(cursor: Cursor, size: int) -> list[int]:
    bits = Bits(cursor)
    classes = [bits.bit() + 2 * bits.bit() for _ in range(-(-size // 3))]
    symbols = [0 if c == 0 else 2 * c - 1 + bits.bit() for c in classes]
    symbols = [6 + bits.bit() if s == 6 else s for s in symbols]
    members = {0: (), 1: (0,), 2: (1,), 3: (2,), 4: (0, 1), 5: (0, 2), 6: (1, 2), 7: (0, 1, 2)}
    return [3 * i + j for i, s in enumerate(symbols) for j in members[s]]


def _bitmap(cursor: Cursor, size: int) -> list[int]:
    bits = Bits(cursor)
    return [position for position in range(size) if bits.bit()]


_FORMS = {0: _nothing, 1: _runs, 2: _gaps, 3: _triplets, 4: _bitmap}


def task_set(data: bytes, units: list[tuple[str, int]]) -> list[str]:
    """Section 5: printed ids of a set's tasks, in the order of the units."""
    if not data:
        return []
    cursor = Cursor(data)
    if cursor.byte() == 1:
        positions = segment(cursor, sum(size for _, size in units))
        ids, start = [], 0
        for label, size in units:
            ids += [printed(label, p - start) for p in positions if start <= p < start + size]
            start += size
    else:
        assert data[0] == 2
        ids = [printed(label, p) for label, size in units for p in segment(cursor, size)]
    assert cursor.at == len(data)
    return ids


def printed(label: str, position: int) -> str:
    """Section 5: a task id from label and position."""
    if label.endswith("_"):
        return f"{label}{position}"
    return label[:-1] if position == 0 else f"{label}{position - 1}"


def digest(held: list[tuple[str, int, int]]) -> int:
    """Section 7, of (label, number, role number) triples."""
    total = 0
    for label, number, role in held:
        name = 0xCBF29CE484222325
        for byte in label.encode():
            name = ((name ^ byte) * 0x100000001B3) & M64
        x = (name + (number + 1) * 0x9E3779B97F4A7C15 + role * 0xD1B54A32D192ED03) & M64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
        total += x ^ (x >> 31)
    return total & M64


def owner_vector(cursor: Cursor, tasks: int) -> list[int]:
    """Section 9: slots by task, -1 = no member."""
    assert cursor.byte() == 1
    if tasks == 0:
        return []
    form = cursor.byte()
    alphabet = segment(cursor, cursor.varint())
    count = len(alphabet)
    if form == 0:
        indexes = [0] * tasks
    elif form == 1:
        runs, k = cursor.varint(), cursor.byte()
        lengths = Bits(cursor).rice(runs, k)
        owners = _radix(cursor, runs, count)
        pairs = zip(owners, lengths, strict=True)
        indexes = [owner for owner, length in pairs for _ in range(length + 1)]
    elif form == 2:
        indexes = _radix(cursor, tasks, count)
    elif form == 3:
        indexes = _rans(cursor, tasks, count)
    else:
        width = 1 if count <= 256 else 2 if count <= 65536 else 4
        stream = zlib.decompressobj()
        raw = stream.decompress(cursor.data[cursor.at :])
        cursor.at = len(cursor.data) - len(stream.unused_data)
        indexes = [int.from_bytes(raw[i : i + width], "little") for i in range(0, len(raw), width)]
    assert len(indexes) == tasks
    return [alphabet[index] - 1 for index in indexes]


def _radix(cursor: Cursor, count: int, base: int) -> list[int]:
    choices = [(max(1, (base**g - 1).bit_length()), g) for g in range(1, 57)]
    bits, group = min(
        ((b, g) for b, g in choices if b <= 56 or g == 1), key=lambda c: (c[0] / c[1], c[1])
    )
    words = -(-count // group)
    stream = int.from_bytes(cursor.take(-(-words * bits // 8)), "little")
    symbols = []
    for word in range(words):
        rest = stream >> word * bits & ((1 << bits) - 1)
        for _ in range(group):
            rest, index = divmod(rest, base)
            symbols.append(index)
    return symbols[:count]


def _rans(cursor: Cursor, count: int, owners: int) -> list[int]:
    k = cursor.byte()
    counts = [c + 1 for c in Bits(cursor).rice(owners, k)]
    lanes = 1
    while 2 * lanes * 512 <= count and lanes < 4096:
        lanes *= 2
    states = [int.from_bytes(cursor.take(4), "little") for _ in range(lanes)]
    words = [int.from_bytes(cursor.take(2), "little") for _ in range(cursor.varint())]
    frequency = [max(1, c * 65536 // count) for c in counts]
    while excess := sum(frequency) - 65536:
        largest = frequency.index(max(frequency))
        frequency[largest] -= min(excess, frequency[largest] // 2)
    owner_of = [owner for owner, f in enumerate(frequency) for _ in range(f)]
    starts = [sum(frequency[:owner]) for owner in range(owners)]
    symbols, taken = [], 0
    for i in range(count):
        lane = i % lanes
        slot = states[lane] & 0xFFFF
        owner = owner_of[slot]
        symbols.append(owner)
        states[lane] = frequency[owner] * (states[lane] >> 16) + slot - starts[owner]
        if states[lane] < 65536:
            states[lane] = states[lane] << 16 | words[taken]
            taken += 1
    assert taken == len(words)
    assert set(states) == {65536}
    return symbols


HASHES = {"HmacSHA256": (1, "sha256"), "HmacSHA384": (2, "sha384"), "HmacSHA512": (3, "sha512")}


def signature(
    topic: str,
    key: bytes,
    value: bytes | None,
    key_id: str,
    algorithm: str,
    secret: bytes,
    signed_ms: int,
) -> bytes:
    """Section 10: the header of a signed record."""
    number, name = HASHES[algorithm]
    head = pack(">BBqB", 1, number, signed_ms, len(key_id)) + key_id.encode("ascii")
    where = topic.encode()
    signed = b"muster" + pack(">i", len(where)) + where + pack(">i", len(key)) + key
    signed += head + (b"\x00" if value is None else b"\x01" + value)
    return head + hmac.new(secret, signed, name).digest()


def signer(keyring: dict[str, Any], group: str, at_ms: int) -> str | None:
    """Section 10: the id of the key that signs for a member of a group."""

    def fits(key: dict[str, Any]) -> bool:
        until_ms = key.get("until_ms")
        patterns = key.get("groups", ["*"])
        return (
            key.get("from_ms", 0) <= at_ms
            and (until_ms is None or until_ms >= at_ms)
            and "member" in key.get("callers", ["member"])
            and any(fnmatchcase(group, pattern) for pattern in patterns)
        )

    keys = [(key.get("from_ms", 0), key["id"]) for key in keyring["keys"] if fits(key)]
    return max(keys)[1] if keys else None
