"""The unit list of an event: rows if it is short, a deflated text if it is long.

An event cannot be split, because its parts could be read in different batches. So a member that
holds tasks of very many units lists them in the extra ``units``, a zlib stream of the text from
which a dictionary's version is computed. The reader counts its lines first, which bounds memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from muster.protocol.bits import inflate
from muster.protocol.errors import DecodeError
from muster.protocol.framing import Row
from muster.protocol.ids import UNIT_CHARS_MAX, check_names
from muster.protocol.taskset import UnitRef, check_units, units_text

UNITS_MAX = 1 << 18
"""Limit of the units of a group and of an event."""
EXTRA = "units"
_ROWS_CHARS_MAX = 1 << 16
"""Unit lists whose labels take more characters are deflated."""
_TEXT_BYTES_MAX = 16 << 20
_DEFLATED_BYTES_MAX = 600_000
"""Limit of the extra, which leaves room in an event for its task sets."""


def units_fields(units: Sequence[UnitRef]) -> Row:
    """The field ``units`` of an event, or its extra if the list is long and fits."""
    deflated = _deflated(units) if _are_many(units) else ""
    if isinstance(deflated, str):
        return {"units": [unit._asdict() for unit in units]}
    return {"units": [], "extras": {EXTRA: deflated}}


def units_from(row: Row, units_max: int = UNITS_MAX) -> tuple[UnitRef, ...]:
    """The units of an event, at most `units_max` of them, checked."""
    deflated = row["extras"].get(EXTRA)
    if deflated is None:
        units = tuple(UnitRef(unit["label"], unit["size"]) for unit in row["units"])
    elif row["units"]:
        raise DecodeError("units as a field and as an extra; expected one of them")
    else:
        units = _read(deflated, min(units_max, UNITS_MAX))
    if len(units) > units_max:
        raise DecodeError(f"{len(units)} units; {units_max} are accepted")
    check_units(units)
    check_names("a unit", (unit.name for unit in units), UNIT_CHARS_MAX)
    return units


def names_fault(units: Sequence[UnitRef]) -> str | None:
    """Why a member could not list all these units in one event; None if it can."""
    deflated = _deflated(units) if _are_many(units) else b""
    return deflated if isinstance(deflated, str) else None


def _are_many(units: Sequence[UnitRef]) -> bool:
    return sum(len(unit.label) for unit in units) > _ROWS_CHARS_MAX


def _deflated(units: Sequence[UnitRef]) -> bytes | str:
    """The extra, or the reason in words why there is none."""
    names = f"{len(units)} subtopologies and connectors"
    if len(units) > UNITS_MAX:
        return f"{names}; {UNITS_MAX} are accepted"
    text = units_text(units)
    if text.count(b"\n") + text.count(b"\0") > 2 * len(units):
        return f"names of {names} with a line feed or a zero byte among them"
    if len(text) > _TEXT_BYTES_MAX:
        return f"names of {names} that take {len(text)} bytes; {_TEXT_BYTES_MAX} are accepted"
    deflated = zlib.compress(text, 6)
    if len(deflated) > _DEFLATED_BYTES_MAX:
        size = f"names of {names} that take {len(deflated)} bytes when deflated"
        return f"{size}; {_DEFLATED_BYTES_MAX} are accepted"
    return deflated


def _read(deflated: bytes, units_max: int) -> tuple[UnitRef, ...]:
    data, end = inflate(deflated, 0, _TEXT_BYTES_MAX)
    if end != len(deflated):
        raise DecodeError(f"{len(deflated) - end} bytes behind the units", end)
    count = data.count(b"\n")
    if count > units_max:
        raise DecodeError(f"{count} units; {units_max} are accepted")
    try:
        lines = data.decode().split("\n")
        pairs = [line.split("\0") for line in lines[:-1]]
        if lines[-1] or any(not _is_size(size) for _, size in pairs):
            raise ValueError(lines[-1])
    except ValueError:
        raise DecodeError("units that are no lines of a label, a zero byte and a size") from None
    return tuple(UnitRef(label, int(size)) for label, size in pairs)


def _is_size(text: str) -> bool:
    return 1 <= len(text) <= 10 and text.isascii() and text.isdigit()
