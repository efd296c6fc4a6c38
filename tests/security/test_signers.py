"""Clients that sign: how they use a key, and what they do when no key of theirs may sign."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from muster.kafka import lasting_producer
from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import LastingProducer
from muster.protocol.events import Join, Mark
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import Caller
from muster.protocol.signature_check import Verifier
from muster.protocol.signing import HEADER
from muster.signing import followed_key_file, rotation
from muster.signing.followed_key_file import KeyFile
from muster.streams.clock import Clock
from muster.streams.heartbeat_covers import Sleeper
from muster.streams.job_settings import job_config
from muster.worker.kafka_link import Link
from muster.worker.session_messages import Failed, Input, Send

G, M = GroupId("g"), MemberId("m")
JOIN = Send(Join(group=G, member=M, incarnation=1), 1, 0)


class Producer:
    """Keeps what is produced."""

    def __init__(self, _config: object = None, **_: object) -> None:
        self.produced: list[dict[str, Any]] = []

    def produce(self, topic: str, **record: Any) -> None:
        """Keep one record."""
        self.produced.append({"topic": topic, **record})

    def flush(self, _timeout_s: float) -> int:
        """Return 0: no record is under way."""
        return 0


def ring(folder: Path, *callers: str) -> KeyFile:
    """A keyring with one key."""
    path = folder / "ring.json"
    rotation.write(path, rotation.new_key({}, 1, callers=callers))
    return KeyFile(str(path))


def believed(keys: KeyFile, record: dict[str, Any], caller: Caller) -> bool:
    """Whether the coordinator would accept the record's signature for this caller."""
    signature = dict(record["headers"])[HEADER]
    verifier = Verifier(keys.current(), "g", record["topic"], record["key"])
    at_ms = int.from_bytes(signature[2:10], "big")
    return verifier.verdict(caller, record["value"], signature, at_ms) is None


@pytest.fixture
def produced(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The records that workers write, without a broker."""
    producer = Producer()
    monkeypatch.setattr(lasting_producer, "Producer", lambda *_, **__: producer)
    return producer.produced


def test_a_worker_signs_what_it_writes(tmp_path: Path, produced: list[dict[str, Any]]) -> None:
    """A worker's join has a signature that counts for a member and not for an operator."""
    keys, heard = ring(tmp_path, "member"), list[Input]()
    link = Link(ClientSettings(), "muster", "g", "m", heard.append, keys)
    link.send(JOIN)
    (record,) = produced
    assert (record["topic"], heard) == ("muster.membership", [])
    assert believed(keys, record, Caller.MEMBER)
    assert not believed(keys, record, Caller.OPERATOR)
    link.close(0)


def test_a_worker_without_a_fitting_key_sends_nothing(
    tmp_path: Path, produced: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """With only an operator's key the join fails, nothing is written, and the log says why."""
    heard: list[Input] = []
    link = Link(ClientSettings(), "muster", "g", "m", heard.append, ring(tmp_path, "operator"))
    with caplog.at_level(logging.ERROR):
        link.send(JOIN)
    assert (produced, heard) == ([], [Failed(JOIN)])
    assert "no signing key for the member part of group 'g' signs now" in caplog.text
    link.close(0)


def test_the_clock_signs_its_ticks_and_is_silent_without_a_key(
    tmp_path: Path, produced: list[dict[str, Any]]
) -> None:
    """With a clock's key the clock signs its ticks; without one it writes no tick."""
    keys = ring(tmp_path, "clock")
    producer = LastingProducer({}, logging.getLogger("test"), lambda _: None)
    sleeper, mark = Sleeper("muster", G), Mark(1, 2)
    Clock(ClientSettings(), ["muster"], keys=keys)._tick(producer, sleeper, mark)
    (record,) = produced
    assert believed(keys, record, Caller.CLOCK)
    keys = ring(tmp_path, "member")
    Clock(ClientSettings(), ["muster"], keys=keys)._tick(producer, sleeper, mark)
    assert produced == [record]


def test_the_job_takes_the_keyring_of_option_or_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The option wins over the variable, and a relative path becomes absolute for executors."""
    monkeypatch.setenv(followed_key_file.VARIABLE, "/of/the/variable")
    assert followed_key_file.keyring_path(None) == "/of/the/variable"
    assert followed_key_file.keyring_path("/of/the/option") == "/of/the/option"
    monkeypatch.setenv(followed_key_file.VARIABLE, "")
    assert followed_key_file.keyring_path(None) is None
    keyring_path = job_config(checkpoint="/c", signing_keys="ring.json").signing_keys
    assert keyring_path == str(Path.cwd() / "ring.json")
    assert job_config(checkpoint="/c").signing_keys is None
