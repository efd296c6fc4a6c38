"""Rows of a group's sources and of what was found for them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from muster.protocol import rows
from muster.protocol.errors import ConfigError, DecodeError
from muster.protocol.framing import Row
from muster.protocol.ids import check_names
from muster.protocol.sources import SOURCES_MAX, Found, Source, source_from, source_json
from muster.protocol.tasks import Subtopology, Unit

SOURCES = "sources"
"""Extra of configs and snapshots: the declared sources, as JSON."""
FOUND = "found"
"""Extra of snapshots: for each source [its place in `sources`, names of its units, topic ids]."""
ID_CHARS_MAX = 64


def sources_row(sources: Sequence[Source]) -> Row:
    """The extra ``sources``."""
    if not sources:
        return {}
    return {"extras": {SOURCES: rows.json_bytes([source_json(each) for each in sources])}}


def sources_from(extras: Row) -> tuple[Source, ...]:
    """Read what `sources_row` wrote, checked."""
    entries = rows.json_from(extras, SOURCES)
    if entries is None:
        return ()
    if not isinstance(entries, list) or len(entries) > SOURCES_MAX:
        raise DecodeError(f"sources that are not a list of at most {SOURCES_MAX}")
    return tuple(_source(each) for each in entries)


def _source(entry: object) -> Source:
    try:
        return source_from(entry)
    except ConfigError as error:
        raise DecodeError(str(error)) from None


def found_from(source_rows: Sequence[Row], units: Sequence[Unit]) -> tuple[Found, ...]:
    """What was found for each source, from the rows of the event and its units."""
    if len(source_rows) > SOURCES_MAX:
        raise DecodeError(f"{len(source_rows)} sources; at most {SOURCES_MAX} are accepted")
    taken: set[int] = set()
    result: list[Found] = []
    for row in source_rows:
        try:
            source = _source(json.loads(row["source"]))
        except (ValueError, RecursionError) as error:
            raise DecodeError(f"a source that is not JSON: {error}") from None
        places = row["units"]
        if not all(0 <= place < len(units) for place in places) or taken & set(places):
            raise DecodeError("units of a source that are not there, or of two sources")
        taken |= set(places)
        own = tuple(_subtopology(units[place]) for place in places)
        result.append(Found(source, own, _ids(row["ids"])))
    return tuple(result)


def _ids(by_topic: Row) -> tuple[tuple[str, str], ...]:
    check_names("a topic", by_topic.keys())
    check_names("a topic id", by_topic.values(), ID_CHARS_MAX)
    return tuple(sorted(by_topic.items()))


def _subtopology(unit: Unit) -> Subtopology:
    if not isinstance(unit, Subtopology):
        raise DecodeError("a connector among what was found")
    return unit


def group_found_row(sources: Sequence[Source], found: Sequence[Found]) -> Row:
    """The extras ``sources`` and ``found`` of a snapshot, whose tasks have the units."""
    place = {source: number for number, source in enumerate(sources)}
    known = [
        [place[each.source], [unit.name for unit in each.units], dict(each.ids)]
        for each in found
        if each.source in place
    ]
    row = {"extras": {FOUND: rows.json_bytes(known)}} if known else {}
    return rows.with_extras(sources_row(sources), row)


def group_found_from(
    extras: Row, sources: Sequence[Source], tasks: Sequence[Unit]
) -> tuple[Found, ...]:
    """Read the extra ``found``, checked."""
    entries = rows.json_from(extras, FOUND)
    if entries is None:
        return ()
    units = {unit.name: unit for unit in tasks if isinstance(unit, Subtopology)}
    try:
        return tuple(
            Found(sources[number], tuple(units[name] for name in names), _ids(ids))
            for number, names, ids in entries
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DecodeError(f"malformed found topics: {error}") from None
