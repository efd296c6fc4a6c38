"""Print records of muster's topics, one JSON object per line.

Reads a topic with --topic; without it, standard input or --file: the bytes of one value, or lines
of {"key": "…", "value": "<hex or base64>"}, or lines of hex or base64 (a known key and a tab may
precede it). A value's first bytes tell its type. Records that were split are joined first. A record
that cannot be decoded is printed with "error"; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import base64
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from typing import cast

from muster.cli.options import add_kafka, add_repeatable, group_id, kafka_settings
from muster.documents.json_files import STDIN, opened
from muster.documents.record_json import Json, as_json
from muster.errors import BadInput
from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row, read
from muster.output import json_line
from muster.protocol.codec import EVENTS, RECORDS, decode, decode_record
from muster.protocol.errors import DecodeError, UnknownDictionary
from muster.protocol.events import Event, Origin
from muster.protocol.framing import MARKER, Schemas
from muster.protocol.keys import DICTIONARY_PART, key_of, parse_key
from muster.protocol.records import Dictionary, Record, Rejected
from muster.protocol.split_records import Joiner
from muster.protocol.taskset import UnitRef
from muster.protocol.topics import INPUTS, TopicKind, kind_of, topic_name
from muster.schemas import read_schemas, schemas_of
from muster.state.printable import cut
from muster.worker.groups_topic import Dictionaries, dictionaries_in

_KIND_OF_SCHEMA = {name: kind for kind, name in (*EVENTS, *RECORDS)} | {
    "MemberAssignment": TopicKind.ASSIGNMENTS
}
BY_CHARS_MAX = 200
_UNKEYED = "-"
"""The group and member id of a value without a key; it is not printed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--topic", metavar="T", help="read this topic, from its beginning")
    parser.add_argument(
        "--group",
        type=group_id,
        metavar="G",
        help="only records of this group, and dead letters of its events",
    )
    parser.add_argument(
        "--file", metavar="FILE", default=STDIN, help="a file; - = standard input (default: -)"
    )
    add_repeatable(
        parser,
        "--schema",
        "[ID=]FILE.avsc",
        "a further writer's schema; with a registry id, Confluent's framing of it is read too",
    )
    add_kafka(parser)


def run(args: argparse.Namespace) -> int:
    """Print every record; 1 if one could not be decoded."""
    prefix, failed = args.topic_prefix, False
    if args.topic is not None and args.file != STDIN:
        raise BadInput("--topic and --file: give one of them")
    schemas = schemas_of(read_schemas("--schema", args.schema))
    if args.topic is None:
        items, reader = _from_file(args.file), _Reader(schemas, lambda group: {}, prefix)
    else:
        settings = kafka_settings(args)
        items = _from_topic(settings, args.topic, args.group)
        reader = _Reader(schemas, lambda group: _dictionaries(settings, prefix, group), prefix)
    for item in items:
        shown = reader.shown(item)
        if shown is None or (args.group and not _is_about(item, shown, args.group)):
            continue
        failed = failed or "error" in shown
        print(json_line(shown))
    return 1 if failed else 0


class _Reader:
    """Joins parts, decodes records and remembers dictionaries, in the order of the input.

    `look_up` reads a group's dictionaries when the input has not given them.
    """

    def __init__(
        self, schemas: Schemas, look_up: Callable[[str], Dictionaries], prefix: str
    ) -> None:
        self._schemas = schemas
        self._prefix = prefix
        self._look_up = look_up
        self._joiners: dict[tuple[str, int], Joiner] = {}
        self._dictionaries: dict[int, tuple[UnitRef, ...]] = {}

    def shown(self, item: Row) -> Json | None:
        """The object to print; None for a part of a record that is not complete yet."""
        kind = kind_of(item.topic, self._prefix)
        shown: Json = {}
        if item.topic:
            shown |= {"topic": item.topic, "partition": item.partition, "offset": item.offset}
            shown["timestamp_ms"] = item.at_ms
        if item.by:
            shown["by"] = cut(item.by.decode(errors="backslashreplace"), BY_CHARS_MAX)
        if item.key is not None:
            shown["key"] = item.key.decode(errors="backslashreplace")
        try:
            decoded = self._decoded(item, kind)
        except DecodeError as error:
            return shown | {"error": str(error)}
        if decoded is None:
            return None
        shown |= {"type": type(decoded).__name__, "value": as_json(decoded)}
        for name in ("group", "member"):
            if shown["value"].get(name) == _UNKEYED:
                del shown["value"][name]
        return shown

    def _decoded(self, item: Row, kind: TopicKind | None) -> Event | Record | None:
        key, value = item.key, item.value
        if key is not None and kind in (None, TopicKind.ASSIGNMENTS, TopicKind.GROUPS):
            place = (item.topic, item.partition)
            whole = self._joiners.setdefault(place, Joiner()).feed(key, value)
            if whole is None:
                return None
            key, value = whole
        if kind is None:
            if value is None:
                raise DecodeError("a tombstone; what it means depends on its topic")
            name, _ = self._schemas.read(value)
            kind = _KIND_OF_SCHEMA.get(name)
            if kind is None:
                raise DecodeError(f"a {name} without its key; with keys, parts are joined")
        if key is None:
            key = key_of(_UNKEYED, _UNKEYED if kind == TopicKind.ASSIGNMENTS else None)
        if kind in INPUTS:
            origin = Origin(item.topic, item.partition, item.offset, item.at_ms)
            return decode(kind, key, value, origin, schemas=self._schemas)
        return self._record(kind, key, value)

    def _record(self, kind: TopicKind, key: bytes, value: bytes | None) -> Record:
        decoded = partial(decode_record, kind, key, value, schemas=self._schemas)
        try:
            record = decoded(dictionaries=self._dictionaries)
        except UnknownDictionary:
            self._dictionaries |= self._look_up(parse_key(key).group)
            record = decoded(dictionaries=self._dictionaries)
        if isinstance(record, Dictionary):
            self._dictionaries[record.version] = record.units
        return record


def _from_topic(settings: ClientSettings, topic: str, group: str | None) -> Iterator[Row]:
    has_longer_keys = topic.endswith((TopicKind.ASSIGNMENTS, TopicKind.REJECTED))
    return read(settings, topic, key=None if group is None or has_longer_keys else key_of(group))


def _is_about(item: Row, shown: Json, group: str) -> bool:
    """Whether a record is of this group: by its key, a dead letter by that of its event."""
    if shown.get("type") == Rejected.__name__:
        return Row(shown["value"]["key"].encode(), None).is_of(group)
    return item.is_of(group)


def _dictionaries(settings: ClientSettings, prefix: str, group: str) -> Dictionaries:
    topic, wanted = topic_name(TopicKind.GROUPS, prefix), key_of(group, part=DICTIONARY_PART)
    return dictionaries_in(read(settings, topic, key=wanted), group)


def _from_file(path: str) -> Iterator[Row]:
    with opened(path) as stream:
        try:
            yield from _items(cast("BufferedReader", stream), path)
        except OSError as error:  # for example a directory as standard input
            raise BadInput(f"{path}: cannot be read ({error.strerror})") from None


def _items(stream: BufferedReader, path: str) -> Iterator[Row]:
    if stream.peek(2).startswith((MARKER, b"\0")):
        yield Row(None, stream.read())
        return
    for number, line in enumerate(stream, 1):
        text = line.removeprefix(BOM_UTF8 if number == 1 else b"").decode(errors="replace")
        if text.strip():
            yield _from_line(text, f"{path}, line {number}")


def _from_line(line: str, where: str) -> Row:
    if not line.lstrip().startswith("{"):
        key, tab, text = line.rpartition("\t")
        return Row(key.encode() if tab else None, _bytes(text.strip(), where))
    try:
        parsed_line = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise BadInput(f"{where}: nested too deep; expected 'key' and 'value'") from None
    except ValueError as error:  # a number of thousands of digits
        raise BadInput(f"{where}: not JSON ({error})") from None
    key, value = parsed_line.get("key"), parsed_line.get("value", parsed_line.get("payload"))
    if not {"value", "payload"} & set(parsed_line):
        raise BadInput(f"{where}: expected an object with 'key' and 'value'; there is no 'value'")
    if not isinstance(key, str | None) or not isinstance(value, str | None):
        raise BadInput(f"{where}: expected an object whose 'key' and 'value' are texts")
    topic = parsed_line.get("topic", "")
    return Row(
        # JSON can contain half of a surrogate pair; it becomes bytes that are not UTF-8.
        None if key is None else key.encode(errors="surrogatepass"),
        None if value is None else _bytes(value, where),
        topic if isinstance(topic, str) else "",
        partition=_number(parsed_line.get("partition")),
        offset=_number(parsed_line.get("offset")),
        at_ms=_number(parsed_line.get("timestamp_ms", parsed_line.get("ts"))),
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _bytes(text: str, where: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        pass
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise BadInput(
            f"{where}: expected hexadecimal or base64, or an object with 'key' and 'value', "
            f"not {text[:40]!r}"
        ) from None
