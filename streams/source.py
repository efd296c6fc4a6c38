"""Kafka → rows of two columns: the lane (topic prefix and record key), and the packed row.

One source subscribes to every input topic: Spark asks sources for their offsets one after another,
so each further one costs as much as the first. Within a batch the order of a group's rows is not
defined and may change in a replay, so the operator sorts them before it uses them.

Every column of a row costs Python about 1 µs, and a timestamp 3 µs. So the query packs a row into
one binary column, laid out so that sorting the bytes sorts the rows by `Origin.sort_key`::

    at_ms   8 bytes  broker timestamp, epoch milliseconds    ┐
    topic   1 byte   position among the sorted input topics  │ big endian, never negative
    part    4 bytes  partition                               │
    offset  8 bytes                                          ┘
    value   1 byte   0 = the record had none (a tombstone), 1 = it follows

Only with signing keys the query reads the record headers, too. Then the record's signature stands
between this header and the value: its length in one byte (0 = it has none), then its bytes.

The *lane* is the topic prefix, a zero byte and the record key; without a key it is the prefix
alone. What was found for a group's sources has the key ``group||found`` and the group's lane. Rows
with equal lanes are those of one group, and one call of the operator gets them all.

Each lane costs a call and up to two reads of the state store. So all rows of a prefix that cannot
be events, by their key or by the first bytes of their value, share one lane, `REFUSED`: a hundred
thousand of them cost no more than a hundred thousand rows of one group. They carry only the first
bytes of key and value, for the dead letter to quote; the key stands behind the header::

    key     2 bytes  its length, big endian; FFFF = the record had none
            n bytes  the key
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from muster.protocol.framing import CONFLUENT_MARKER, FRAME_BYTES, KNOWN, Schemas
from muster.protocol.ids import GROUP_ID_CHARS_MAX, SEPARATOR
from muster.protocol.keys import FOUND_PART
from muster.protocol.signing import HEADER as SIGNATURE
from muster.protocol.signing import SIGNATURE_BYTES_MAX
from muster.protocol.topics import INPUTS, TopicKind, topic_name
from muster.schemas import schemas_of
from muster.streams.job_settings import JobConfig

HEADER = Struct(">qBiqB")
TOPIC_AT = 8
"""Where in a packed row the number of its topic is."""
LANE_END = b"\0"
"""Between prefix and key; no topic name contains it."""

REFUSED = LANE_END + b"\0refused"
"""End of the lane of rows that cannot be events; no valid record key gives such a lane."""
NO_KEY = 0xFFFF
QUOTED_KEY_BYTES = 1_024
QUOTED_VALUE_BYTES = 16_384
"""Bytes of a refused row's key and value that the query passes to Python."""
KEY_BYTES_MAX = 4 * GROUP_ID_CHARS_MAX

EARLIEST = -2
"""Spark's number for the oldest retained offset."""


class Packing(NamedTuple):
    """What the packed rows of one run of the job have in common.

    Attributes:
        topics: the input topics, ascending; rows number them.
        signed: whether the rows have room for signatures.
    """

    topics: tuple[str, ...]
    signed: bool


def input_topics(prefixes: Sequence[str]) -> tuple[str, ...]:
    """Every topic that the source reads, ascending; packed rows number them in this order."""
    return tuple(sorted(topic_name(kind, prefix) for prefix in prefixes for kind in INPUTS))


def lane_of(prefix: str, key: bytes | None) -> bytes:
    """The lane of a record key."""
    return prefix.encode() + (b"" if key is None else LANE_END + key)


def split_lane(lane: bytes) -> tuple[str, bytes | None]:
    """Prefix and record key of a lane."""
    prefix, end, key = lane.partition(LANE_END)
    return prefix.decode(), key if end else None


def unpack_refused(entry: bytes) -> tuple[bytes | None, bytes]:
    """The key of a refused row, and the packed row without the key."""
    at = HEADER.size + 2
    length = int.from_bytes(entry[HEADER.size : at], "big")
    if length == NO_KEY:
        return None, entry[: HEADER.size] + entry[at:]
    return entry[at : at + length], entry[: HEADER.size] + entry[at + length :]


def split_signatures(entries: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Packed rows with signatures → packed rows without them, and the signatures."""
    at = HEADER.size
    plain: list[bytes] = []
    signatures: list[bytes] = []
    for entry in entries:
        end = at + 1 + entry[at]
        signatures.append(entry[at + 1 : end])
        plain.append(entry[:at] + entry[end:])
    return plain, signatures


def repacked(entries: Sequence[bytes], was: Packing, now: Packing) -> list[bytes]:
    """Rows that an earlier run has packed, as this run packs them; their order stays.

    A row has no signature if the earlier run had no signing keys.

    Raises:
        LookupError: this run does not read the topic of a row.
    """
    numbers = {topic: number for number, topic in enumerate(now.topics)}
    if was.signed and not now.signed:
        entries = split_signatures(entries)[0]
    room = b"\0" if now.signed and not was.signed else b""
    end = HEADER.size
    return [
        b"".join(
            (
                entry[:TOPIC_AT],
                bytes((numbers[was.topics[entry[TOPIC_AT]]],)),
                entry[TOPIC_AT + 1 : end],
                room,
                entry[end:],
            )
        )
        for entry in entries
    ]


def read(
    spark: SparkSession, config: JobConfig, starting: Mapping[str, Mapping[int, int]] | None
) -> DataFrame:
    """The stream of packed rows.

    With a new checkpoint it starts at `starting` (topic → partition → offset), else at the oldest
    retained offset. Spark ignores `starting` when there is a checkpoint.
    """
    topics = input_topics(config.prefixes)
    options = {
        # Spark asks for end offsets on a connection with a fetch in flight, and waits behind it.
        # It fetches only offsets that exist, so a fetch never needs to wait for records.
        "kafka.fetch.max.wait.ms": "1",
        # Records that retention removed are lost in any case, and refusing to start would not
        # help. Members whose events were in the gap are asked for a report.
        "failOnDataLoss": "false",
        "maxOffsetsPerTrigger": str(config.rows_per_batch_max),
        **config.clients.spark(),
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest" if starting is None else _offsets_json(starting),
    }
    if config.signing_keys is not None:
        options["includeHeaders"] = "true"
    rows = spark.readStream.format("kafka").options(**options).load()
    schemas = schemas_of(config.writers)
    frame = _packed(rows, topics, config.signing_keys is not None, schemas)
    # With one shuffle partition the same task reads and processes the rows. An exchange would add
    # a stage, with files between the two: a fifth of an event's latency.
    alone = spark.conf.get("spark.sql.shuffle.partitions") == "1"
    return frame.coalesce(1) if alone else frame


def _offsets_json(starting: Mapping[str, Mapping[int, int]]) -> str:
    return json.dumps(
        {topic: {str(p): o for p, o in offsets.items()} for topic, offsets in starting.items()}
    )


def _packed(
    frame: DataFrame, topics: Sequence[str], signed: bool, schemas: Schemas = KNOWN
) -> DataFrame:
    frame = frame.withColumn("key", expr(_group_key(topics)))
    frame = frame.withColumn(
        "refused", expr(f"NOT coalesce({_may_be_event(topics, schemas)}, false)")
    )
    lane = " ".join(
        f"WHEN '{topic}' THEN X'{topic.rpartition('.')[0].encode().hex()}'" for topic in topics
    )
    number = " ".join(f"WHEN '{topic}' THEN X'{i:02x}'" for i, topic in enumerate(topics))
    if signed:
        value = f"get(filter(headers, h -> h.key = '{SIGNATURE}'), 0).value"
        cut = f"coalesce(substring({value}, 1, {SIGNATURE_BYTES_MAX}), X'')"
        frame = frame.withColumn("signature", expr(cut))
    signature = "cast(cast(length(signature) AS tinyint) AS binary), signature, " if signed else ""
    header = (
        f"cast(unix_millis(timestamp) AS binary), CASE topic {number} END, "
        "cast(partition AS binary), cast(offset AS binary), if(value IS NULL, X'00', X'01')"
    )
    # `least` ignores NULL, so `if` checks first whether the record has a key.
    size = f"cast(cast(least(length(key), {QUOTED_KEY_BYTES}) AS smallint) AS binary)"
    length = f"if(key IS NULL, X'{NO_KEY:04x}', {size})"
    return frame.selectExpr(
        f"concat(CASE topic {lane} END, if(refused, X'{REFUSED.hex()}', "
        "coalesce(concat(X'00', key), X''))) AS lane",
        f"if(refused, concat({header}, {length}, "
        f"coalesce(substring(key, 1, {QUOTED_KEY_BYTES}), X''), "
        f"coalesce(substring(value, 1, {QUOTED_VALUE_BYTES}), X'')), "
        f"concat({header}, {signature}coalesce(value, X''))) AS entry",
    )


def _group_key(topics: Sequence[str]) -> str:
    """SQL expression: a row's key; of what was found for a group's sources, the group's key.

    A tombstone keeps its key: under the group's it would delete the group.
    """
    end = f"{2 * SEPARATOR}{FOUND_PART}".encode()
    return (
        f"if(value IS NOT NULL AND topic IN ({_configs(topics)}) "
        f"AND endswith(key, X'{end.hex()}'), substring(key, 1, length(key) - {len(end)}), key)"
    )


def _configs(topics: Sequence[str]) -> str:
    return ", ".join(f"'{t}'" for t in topics if t.endswith(f".{TopicKind.CONFIG}"))


def _may_be_event(topics: Sequence[str], schemas: Schemas) -> str:
    """SQL expression: whether a row's key may name a group and its value may be an event.

    In doubt it says yes, because Python decodes the rows that pass.
    """
    key = (
        f"length(key) BETWEEN 1 AND {KEY_BYTES_MAX} AND is_valid_utf8(cast(key AS string)) "
        r"AND cast(key AS string) NOT RLIKE '[|\\p{Cc}]'"
    )
    frames = ", ".join(f"X'{prefix.hex()}'" for prefix in sorted(schemas.prefixes))
    value = f"substring(value, 1, {FRAME_BYTES}) IN ({frames})"
    if schemas.reads_ids:
        value = f"({value} OR substring(value, 1, 1) = X'{CONFLUENT_MARKER:02x}')"
    return f"({key}) AND if(value IS NULL, topic IN ({_configs(topics)}), {value})"
