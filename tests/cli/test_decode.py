"""`muster decode` prints muster's records from a topic, a file or standard input as JSON lines."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from confluent_kafka import Producer
from support.kafka.mock_kafka import mock_kafka

from muster.cli.main import main
from muster.protocol.codec import encode
from muster.protocol.events import Drain, Heartbeat, Origin
from muster.protocol.framing import FRAME_BYTES
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keys import partition_of
from muster.protocol.records import Dictionary, MemberAssignment, Rejected
from muster.protocol.split_records import parts
from muster.protocol.tasks import Connector, TaskSet, TaskTable
from muster.protocol.taskset import units_of_table
from muster.protocol.topics import TopicKind, topic_name

GOLDEN = Path(__file__).parent.parent / "golden"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    """The printed JSON lines."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_golden_record_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each golden record prints under the name of its type, with the group from its key."""
    golden = [json.loads(file.read_text()) for file in sorted(GOLDEN.glob("*.json"))]
    file = tmp_path / "records.jsonl"
    file.write_text(
        "".join(json.dumps({"key": g["key"], "value": g["value"]}) + "\n" for g in golden)
    )
    assert main(["decode", "--file", str(file)]) == 0
    names = [path.name.partition(".")[0] for path in sorted(GOLDEN.glob("*.json"))]
    printed = lines(capsys)
    assert [line["type"] for line in printed] == names
    ungrouped = ("CoordinatorClaim", "CoordinatorSign", "Rejected")
    grouped = [line for line in printed if line["type"] not in ungrouped]
    assert {line["value"]["group"] for line in grouped} == {"fleet"}


def test_every_topic_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The golden records of every topic print, those in parts and packed ones included."""
    files = sorted(GOLDEN.rglob("*.json"))
    golden = [(f, json.loads(f.read_text())) for f in files if f.parent.name != "state"]
    expected: dict[str, list[str]] = {}
    with mock_kafka() as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        for file, records in golden:
            topic = f"muster.{records['topic']}"
            name = file.name.partition(".")[0]
            whole = {"Packed": "GroupConfig", "Part": "Dictionary"}.get(name, name)
            expected.setdefault(topic, []).append(whole)
            for row in records.get("records", [records]):
                key = row["key"].encode()
                place = partition_of(key, 4) if records["topic"] != "rejected" else 0
                producer.produce(topic, bytes.fromhex(row["value"]), key, place)
        assert producer.flush(10) == 0
        printed = {}
        for topic in expected:
            assert main(["decode", "--topic", topic, "--bootstrap-server", bootstrap]) == 0
            shown = lines(capsys)
            assert {line["topic"] for line in shown} == {topic}
            printed[topic] = sorted(line["type"] for line in shown)
    assert printed == {topic: sorted(names) for topic, names in expected.items()}
    heartbeats = topic_name(TopicKind.HEARTBEATS)  # has the same records as membership
    assert set(expected) == {topic_name(kind) for kind in TopicKind} - {heartbeats}


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Put bytes on standard input."""
    stdin = SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data)))
    monkeypatch.setattr("sys.stdin", stdin)


@pytest.mark.parametrize("form", ["raw", "hex", "base64", "keyed"])
def test_a_value_in_every_form(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One heartbeat decodes from raw bytes, hex, base64, and hex after its key and a tab."""
    event = Heartbeat(group="g", member="m", epoch=3, digest=0xABC)
    value = encode(event).value
    data = {
        "raw": value,
        "hex": value.hex().encode(),
        "base64": base64.b64encode(value),
        "keyed": b"g\t" + value.hex().encode(),
    }[form]
    feed(monkeypatch, data)
    assert main(["decode"]) == 0
    shown = {"member": "m", "epoch": 3, "digest": "0000000000000abc"}
    expected = {"type": "Heartbeat", "value": shown}
    if form == "keyed":
        expected = {"key": "g", "type": "Heartbeat", "value": {"group": "g", **shown}}
    assert lines(capsys) == [expected]


def test_what_cannot_be_decoded_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken value prints its error and gives exit code 1; later lines still print."""
    drain = encode(Drain(group="g", member="m")).value.hex()
    feed(monkeypatch, f"g\tc301\ng\t{drain}\n".encode())
    assert main(["decode"]) == 1
    assert lines(capsys) == [
        {"key": "g", "error": "the value ends within its frame (at byte 2)"},
        {"key": "g", "type": "Drain", "value": {"group": "g", "member": "m", "on": True}},
    ]


def test_input_that_is_no_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that is neither hex, base64 nor JSON gives exit code 2, and the error names it."""
    feed(monkeypatch, b"\nhello?\n")
    assert main(["decode"]) == 2
    assert "-, line 2: expected hexadecimal or base64" in capsys.readouterr().err
    feed(monkeypatch, b'{"key": "k", "value": "00", "offset": ' + b"9" * 5_000 + b"}\n")
    assert main(["decode"]) == 2
    assert "-, line 1: not JSON (Exceeds the limit" in capsys.readouterr().err
    feed(monkeypatch, b'{"assignor": "sticky", "tasks": []}\n')
    assert main(["decode"]) == 2
    assert "'key' and 'value'; there is no 'value'" in capsys.readouterr().err


def test_parts_and_dictionaries_of_the_input_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dictionary in parts is joined, and names the tasks of the assignments after it."""
    dictionary, record = named_group()
    before = encode(record)
    cut = [before, *parts(dictionary, 400), before]
    file = tmp_path / "records.jsonl"
    rows = ({"key": part.key.decode(), "value": part.value.hex()} for part in cut)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["decode", "--file", str(file)]) == 1
    first, names, last = lines(capsys)
    assert f"unknown dictionary {dictionary.version:016x}" in first["error"]
    assert len(names["value"]["units"]) == 100
    assert last["value"]["active"] == [str(task) for task in record.active]


def named_group() -> tuple[Dictionary, MemberAssignment]:
    """A dictionary of many long names, and an assignment that refers to it."""
    table = TaskTable(Connector(f"orders-to-warehouse-{i:03d}", 1) for i in range(100))
    dictionary = Dictionary(group="g", units=units_of_table(table))
    record = MemberAssignment(
        group="g",
        member="m",
        incarnation=1,
        coordinator_epoch=0,
        generation=1,
        epoch=1,
        revision=1,
        active=table.set_of(np.arange(0, 200, 10, dtype=np.int32)),
        session_timeout_ms=1,
        heartbeat_interval_ms=1,
        dictionary=dictionary,
    )
    return dictionary, record


def test_a_topic_with_dictionaries_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """An assignment's dictionary is found, in parts, on the groups topic."""
    dictionary, record = named_group()
    other = replace(record, group="other", active=TaskSet.of(["0_0"]))
    with mock_kafka() as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        sent = [("muster.groups", part) for part in parts(dictionary, 400)]
        sent += [("muster.assignments", encode(each)) for each in (record, other)]
        for topic, each in sent:
            place = partition_of(each.key, 4)
            producer.produce(topic, each.value, each.key, place, headers=list(each.headers))
        assert producer.flush(10) == 0
        where = ["--bootstrap-server", bootstrap]
        assert main(["decode", "--topic", "muster.assignments", *where]) == 0
        shown = {line["key"]: line["value"]["active"] for line in lines(capsys)}
        assert shown == {"g|m": [str(task) for task in record.active], "other|m": ["0_0"]}
        assert main(["decode", "--topic", "muster.assignments", "--group", "other", *where]) == 0
        assert [line["key"] for line in lines(capsys)] == ["other|m"]
        assert main(["decode", "--topic", "muster.groups", "--group", "g", *where]) == 0
        (names,) = lines(capsys)
        assert (names["key"], names["type"]) == ("g||names", "Dictionary")


def test_the_dead_letters_of_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    """Their own keys name a place; the group is that of the event."""
    place = Origin("muster.membership", 1, 5, 1_000)
    with mock_kafka() as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 2})
        for key in (b"g", b"other", b"\xff"):
            letter = encode(Rejected(origin=place, reason="UNKNOWN_KEY", message="no", key=key))
            producer.produce("muster.rejected", letter.value, letter.key)
        assert producer.flush(10) == 0
        words = ["decode", "--topic", "muster.rejected", "--group", "g"]
        assert main([*words, "--bootstrap-server", bootstrap]) == 0
        assert [line["value"]["key"] for line in lines(capsys)] == ["g"]


def test_a_file_with_a_byte_order_mark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows' tools write one in front of the first line."""
    drain = encode(Drain(group="g", member="m")).value.hex()
    feed(monkeypatch, f"\ufeff{json.dumps({'key': 'g', 'value': drain})}\r\n".encode())
    assert main(["decode"]) == 0
    assert [line["type"] for line in lines(capsys)] == ["Drain"]


def test_confluent_framing_with_a_schema(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value in Confluent's framing is read with the schema that --schema gives for its id."""
    schema = Path(__file__).parent.parent.parent / "protocol" / "schemas" / "Drain.avsc"
    body = encode(Drain(group="g", member="m")).value[FRAME_BYTES:]
    feed(monkeypatch, b"\x00\x00\x00\x00\x07" + body)
    assert main(["decode", "--schema", f"7={schema}"]) == 0
    assert lines(capsys) == [{"type": "Drain", "value": {"member": "m", "on": True}}]


def test_a_file_that_is_no_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON of another kind as a schema: the error says what a schema has."""
    (tmp_path / "g.json").write_text('{"assignor": "sticky"}')
    assert main(["decode", "--schema", str(tmp_path / "g.json")]) == 2
    assert "expected an Avro schema as JSON, with the key 'type'" in capsys.readouterr().err


def test_a_saved_record_keeps_its_place_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `muster replay --save` wrote, and the names of kcat's JSON; no time is made up."""
    record = encode(Drain(group=GroupId("g"), member=MemberId("m")))
    line = {"topic": "muster.membership", "partition": 2, "offset": 7, "key": "g",
            "value": (record.value or b"").hex()}  # fmt: skip
    file = tmp_path / "records.jsonl"
    times = ({"timestamp_ms": 1_700_000_000_123}, {"ts": 5}, {})
    file.write_text("".join(json.dumps(line | time) + "\n" for time in times))
    assert main(["decode", "--file", str(file)]) == 0
    shown = lines(capsys)
    assert [each["timestamp_ms"] for each in shown] == [1_700_000_000_123, 5, -1]
    assert {(each["partition"], each["offset"]) for each in shown} == {(2, 7)}


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="only Linux has such a file")
def test_a_file_that_opens_and_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of the disk is one line that names the file."""
    assert main(["decode", "--file", "/proc/self/mem"]) == 2
    error = capsys.readouterr().err
    assert error == "muster decode: /proc/self/mem: cannot be read (Input/output error)\n"


def test_a_topic_and_a_file_are_not_read_together(capsys: pytest.CaptureFixture[str]) -> None:
    """The file was ignored."""
    assert main(["decode", "--topic", "muster.groups", "--file", "x"]) == 2
    assert capsys.readouterr().err == "muster decode: --topic and --file: give one of them\n"
