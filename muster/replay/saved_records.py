"""Records of a group in a file: one JSON object per line, its value in hexadecimal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from muster.errors import BadInput
from muster.kafka.reader import Row
from muster.output import json_line


def from_file(path: str) -> Iterator[Row]:
    """Read records that `save` wrote.

    Raises:
        BadInput: the file cannot be read, or a line has another form than `save` writes.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({getattr(error, 'strerror', error)})") from None
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            yield Row(
                key=row["key"].encode(),
                value=None if row["value"] is None else bytes.fromhex(row["value"]),
                topic=str(row["topic"]),
                partition=int(row["partition"]),
                offset=int(row["offset"]),
                at_ms=int(row["timestamp_ms"]),
                signature=bytes.fromhex(row.get("signature", "")),
                generation=int(row.get("generation", -1)),
            )
        except (
            ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError
        ):  # fmt: skip
            raise BadInput(
                f"{path}, line {number}: not a record that `muster replay --save` wrote; expected "
                "JSON with topic, partition, offset, timestamp_ms, key and value (hexadecimal)"
            ) from None


def save(path: str, items: Iterable[Row]) -> None:
    """Write one record per line, its value in hexadecimal; `muster decode --file` reads it too.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        with Path(path).open("w", encoding="utf-8") as stream:
            for item in items:
                row: dict[str, object] = {
                    "topic": item.topic,
                    "partition": item.partition,
                    "offset": item.offset,
                    "timestamp_ms": item.at_ms,
                    "key": (item.key or b"").decode(),
                    "value": None if item.value is None else item.value.hex(),
                }
                if item.signature:
                    row["signature"] = item.signature.hex()
                if item.generation >= 0:
                    row["generation"] = item.generation
                stream.write(json_line(row) + "\n")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written ({error.strerror})") from None
