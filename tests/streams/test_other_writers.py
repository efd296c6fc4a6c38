"""Values of other writers on the input topics: accepted if their schema is configured."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import fastavro
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import Row
from support.streams.packed_rows import pack

from muster.protocol.codec import decode_record, encode
from muster.protocol.errors import ConfigError
from muster.protocol.events import Join, Origin
from muster.protocol.framing import KNOWN, MARKER, fingerprint_of
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import Rejected
from muster.protocol.topics import TOPICS, TopicKind
from muster.schemas import read_schemas
from muster.streams import processor
from muster.streams.batch.group_batch import Publisher
from muster.streams.job_settings import job_config
from muster.streams.processor import GroupProcessor
from muster.streams.source import input_topics, lane_of

INPUT = input_topics(["muster"])
PARTITIONS = {topic.name(): 2 for topic in TOPICS}
LANE = lane_of("muster", b"g")
SCHEMAS = Path(__file__).parents[2] / "protocol" / "schemas"


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """The schema of a writer whose Join has one more field."""
    schema = json.loads((SCHEMAS / "Join.avsc").read_text())
    schema["fields"].insert(1, {"name": "mood", "type": "string", "default": "calm"})
    file = tmp_path / "Join.avsc"
    file.write_text(json.dumps(schema))
    return file


def body(file: Path) -> tuple[bytes, bytes]:
    """The frame and the body of a Join, written with the schema of a file."""
    schema = fastavro.parse_schema(json.loads(file.read_text()))
    joined = encode(Join(group=GroupId("g"), member=MemberId("m"), incarnation=5))
    _, row = KNOWN.read(joined.value or b"")
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, {**row, "mood": "glad"})
    return MARKER + fingerprint_of(schema), out.getvalue()


def members(conf: str, value: bytes) -> list[str] | str:
    """The group's members after a batch of this one value, or why the value was rejected."""
    processor._cache.clear()
    writers = job_config(checkpoint="/c", conf=[conf] if conf else []).writers
    publisher = Publisher(1, PARTITIONS, 600_000)
    operator = GroupProcessor({"muster": publisher}, INPUT, writers)
    entry = pack(Origin("muster.membership", 0, 0, 1_000), value, INPUT)
    rows = TwsTester(operator).test(LANE, [Row(lane=LANE, entry=entry)])
    records = [decode_record(TopicKind(r.topic.rpartition(".")[2]), r.key, r.value) for r in rows]
    rejected = [record.message for record in records if isinstance(record, Rejected)]
    snapshots = [record for record in records if hasattr(record, "members")]
    return rejected[0] if rejected else [m.id for m in snapshots[-1].members]


def test_a_newer_writer(newer: Path) -> None:
    """A value with an unknown schema is rejected until that schema is configured."""
    frame, rest = body(newer)
    assert "unknown schema fingerprint" in members("", frame + rest)
    assert members(f"muster.schemas={newer}", frame + rest) == ["m"]


def test_confluent_framing(newer: Path) -> None:
    """A value in Confluent's framing is read if the schema of its registry id is configured."""
    _, rest = body(newer)
    value = b"\0\0\0\0\x2a" + rest
    assert "starts with 0000" in members("", value)
    conf = f"muster.schemas=42={newer},{SCHEMAS / 'Leave.avsc'}"
    assert members(conf, value) == ["m"]
    assert "schema id 43 is not configured" in members(conf, b"\0\0\0\0\x2b" + rest)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("x=Join.avsc", "the ID a number"),
        ("Nowhere.avsc", "can be read"),
        ("Cat.avsc", "'Cat'"),
        ("text.avsc", "as JSON"),
        ("odd.avsc", "as JSON"),
    ],
)
def test_files_that_are_no_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    """A file that is no schema of muster is refused; the error gives the key and the file."""
    monkeypatch.chdir(tmp_path)
    Path("Cat.avsc").write_text('{"type": "record", "name": "Cat", "fields": []}')
    Path("text.avsc").write_text("hello")
    Path("odd.avsc").write_text('{"type": "no such thing"}')
    with pytest.raises(ConfigError, match=expected) as caught:
        read_schemas("muster.schemas", [given])
    assert (caught.value.key, caught.value.value) == ("muster.schemas", given)
