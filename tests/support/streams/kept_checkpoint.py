"""A checkpoint that a version of muster wrote, stored with all its topics, so it can be resumed.

``tests/golden/checkpoint/*.tar.gz`` holds the checkpoint folder and ``topics.jsonl``: a line for
every record, in the order of its partition, so that it has the same offset where it is written
again. State store and offsets name the topics, so the prefix is fixed: one cluster takes one.
Spark notes in one file where the checkpoint is: a blank, which is filled in where it is resumed.

A file is never changed; a version whose checkpoints differ adds one::

    PYTHONPATH=tests python -m support.streams.kept_checkpoint FILE
"""

from __future__ import annotations

import base64
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from support.kafka.brokers import Topics, create_topics
from support.streams.job import Job
from support.worker.fleet import Fleet

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.protocol.topics import TopicKind
from muster.streams.checkpoint.topic_ids import FILE

PREFIX, GROUP, TASKS = "kept", "g", 6
SETTINGS = {"session.timeout.ms": "60000", "heartbeat.interval.ms": "1000"}
CHECKPOINT, RECORDS = "checkpoint", "topics.jsonl"
OPERATOR = f"{CHECKPOINT}/state/0/_metadata/v2/0"
"""Spark's file that contains the checkpoint's own path."""
BLANK = "@CHECKPOINT@"


@dataclass(frozen=True, slots=True)
class Raw:
    """One record in Kafka.

    Attributes:
        kind: its topic.
        partition: where it is.
        key, value: its bytes; None = none.
        headers: its headers.
    """

    kind: TopicKind
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def records(topics: Topics, kind: TopicKind) -> Iterator[Raw]:
    """All records of a topic, each partition in order."""
    settings = {"group.id": "kept", "enable.partition.eof": True, "enable.auto.commit": False}
    reader = Consumer(topics.clients.librdkafka(settings))
    topic = topics.name(kind)
    left = set(reader.list_topics(topic, timeout=30).topics[topic].partitions)
    reader.assign([TopicPartition(topic, partition, 0) for partition in left])
    while left:
        message = reader.poll(30)
        assert message is not None, f"{topic} cannot be read to its end"
        partition = message.partition() or 0
        if message.error() is not None:
            left.discard(partition)
            continue
        yield Raw(kind, partition, message.key(), message.value(), tuple(message.headers() or ()))
    reader.close()


def write(topics: Topics, raws: Iterator[Raw], *, same_place: bool) -> None:
    """Write stored records, each to the partition of its key or (`same_place`) to its old one."""
    writer = Producer(topics.clients.producer())
    for raw in raws:
        place = {"partition": raw.partition} if same_place else {}
        name = topics.name(raw.kind)
        writer.produce(name, key=raw.key, value=raw.value, headers=list(raw.headers), **place)
    assert writer.flush(30) == 0


def resume(file: Path, address: str, folder: Path) -> tuple[Topics, Path]:
    """Restore the topics on a cluster without them, and the checkpoint; return both."""
    with tarfile.open(file) as tar:
        tar.extractall(folder, filter="data")
    for name in (FILE, f".{FILE}.crc"):  # other topics, the same records at the same offsets
        (folder / CHECKPOINT / name).unlink(missing_ok=True)
    _exchange(folder, BLANK, str(folder / CHECKPOINT))
    create_topics(address, PREFIX)
    topics = Topics(address, PREFIX)
    lines = (folder / RECORDS).read_text().splitlines()
    write(topics, map(_raw, lines), same_place=True)
    return topics, folder / CHECKPOINT


def keep(file: Path) -> None:
    """Let this version of muster serve a group; store its topics and its checkpoint."""
    with tempfile.TemporaryDirectory() as name, EmbeddedKafka() as broker:
        folder = Path(name)
        create_topics(broker.bootstrap_server, PREFIX)
        topics = Topics(broker.bootstrap_server, PREFIX)
        with Job(topics, folder) as job, Fleet(topics, folder, GROUP) as fleet:
            job.start()
            fleet.configure(TASKS, config=SETTINGS)
            fleet.start("W1", "W2")
            fleet.settled()
            assert job.stop() == 0
        raws = [raw for kind in TopicKind for raw in records(topics, kind)]
        (folder / RECORDS).write_text("".join(f"{_line(raw)}\n" for raw in raws))
        _exchange(folder, str(folder / CHECKPOINT), BLANK)
        with tarfile.open(file, "w:gz") as tar:
            for kept in (CHECKPOINT, RECORDS):
                tar.add(folder / kept, kept, filter=_anonymous)
        topics.close()


def _exchange(folder: Path, there: str, wanted: str) -> None:
    """Replace the path in the operator's file, and delete its checksum, which is optional."""
    file = folder / OPERATOR
    text = file.read_text()
    assert there in text, text
    file.write_text(text.replace(there, wanted))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop the owner of a file."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _line(raw: Raw) -> str:
    row: dict[str, Any] = {
        "kind": str(raw.kind),
        "partition": raw.partition,
        "key": _text(raw.key),
        "value": _text(raw.value),
        "headers": [[name, _text(value)] for name, value in raw.headers],
    }
    return json.dumps(row)


def _raw(line: str) -> Raw:
    row = json.loads(line)
    headers = tuple((name, _bytes(value) or b"") for name, value in row["headers"])
    kind = TopicKind(row["kind"])
    return Raw(kind, row["partition"], _bytes(row["key"]), _bytes(row["value"]), headers)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
