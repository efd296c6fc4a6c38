"""The embedded Kafka, with a real JVM."""

from __future__ import annotations

import socket
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from muster.broker.embedded_kafka import EmbeddedKafka, free_port
from muster.broker.errors import BrokerFailed

pytestmark = pytest.mark.broker


def write(kafka: EmbeddedKafka, value: bytes) -> None:
    """Append one record to topic t, which is created if it does not exist."""
    address = {"bootstrap.servers": kafka.bootstrap_server, "log_level": 0}
    admin = AdminClient(address)
    if "t" not in admin.list_topics(timeout=30).topics:
        for made in admin.create_topics([NewTopic("t", 1, 1)]).values():
            made.result(30)
    producer = Producer(address)
    failures: list[object] = []
    producer.produce("t", value, on_delivery=lambda e, _: failures.append(e) if e else None)
    assert (producer.flush(30), failures) == (0, [])


def read(kafka: EmbeddedKafka, count: int) -> list[bytes]:
    """The first records of topic t."""
    address = {"bootstrap.servers": kafka.bootstrap_server, "log_level": 0}
    consumer = Consumer({**address, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition("t", 0, 0)])
    values = [m.value() for m in consumer.consume(count, 30)]
    consumer.close()
    return values


def test_stopped_crashed_and_started_again(tmp_path: Path) -> None:
    """It keeps port and data over a stop, a SIGKILL and a new owner; no process stays."""
    with EmbeddedKafka(tmp_path / "kafka") as kafka:
        port, first_pid = kafka.port, kafka.pid
        assert first_pid is not None
        write(kafka, b"1")
        kafka.stop()
        assert not kafka.running
        assert not psutil.pid_exists(first_pid)
        kafka.start()
        write(kafka, b"2")
        kafka.kill()
        assert kafka.start() is kafka
        assert kafka.port == port
        write(kafka, b"3")
    with EmbeddedKafka(tmp_path / "kafka", port=port) as again:
        assert read(again, 3) == [b"1", b"2", b"3"]
        assert again.bootstrap_server == f"127.0.0.1:{port}"
    assert not again.running


def test_two_at_once_and_nothing_left() -> None:
    """Two brokers choose different ports; a broker removes its temporary data directory."""
    with EmbeddedKafka() as one, EmbeddedKafka() as two:
        write(one, b"one")
        write(two, b"two")
        assert (read(one, 1), read(two, 1)) == ([b"one"], [b"two"])
        dirs = [one.data_dir, two.data_dir]
        assert all(d.is_dir() for d in dirs)
    assert not any(d.exists() for d in dirs)


def test_extra_properties_reach_the_broker() -> None:
    """The caller's properties override the built-in ones; ports are filled in."""
    listeners = "PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
    with EmbeddedKafka(
        properties={"auto.create.topics.enable": "true", "listeners": listeners}
    ) as kafka:
        address = {"bootstrap.servers": kafka.bootstrap_server, "log_level": 0}
        producer = Producer({**address, "allow.auto.create.topics": True})
        producer.produce("t", b"made by itself")
        assert producer.flush(30) == 0
        assert read(kafka, 1) == [b"made by itself"]


def test_a_failed_start_shows_the_log(tmp_path: Path) -> None:
    """A property that Kafka refuses is an error with Kafka's message; no process stays."""
    kafka = EmbeddedKafka(tmp_path, properties={"num.network.threads": "none"})
    with pytest.raises(BrokerFailed) as error:
        kafka.start()
    assert "num.network.threads" in str(error.value)
    assert str(tmp_path / "kafka.log") in str(error.value)
    assert not kafka.running


def test_a_taken_port_is_an_error() -> None:
    """A given port that another process uses is an error with Kafka's message."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BrokerFailed, match="already in use"):
            EmbeddedKafka(port=port).__enter__()


def test_another_broker_on_the_port_is_an_error() -> None:
    """A port on which another Kafka answers is an error."""
    with EmbeddedKafka() as other:
        with pytest.raises(BrokerFailed, match="already in use"):
            EmbeddedKafka(port=other.port).__enter__()
        assert other.running


def test_another_port_is_chosen_when_one_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """When another process takes the chosen port before Kafka does, it starts on another."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lost = [taken.getsockname()[1]]
        monkeypatch.setattr(
            "muster.broker.embedded_kafka.free_port",
            lambda besides=None: lost.pop() if lost else free_port(besides),
        )
        with EmbeddedKafka() as kafka:
            write(kafka, b"here")
            assert read(kafka, 1) == [b"here"]


OWNER = """
import time
from muster.broker.embedded_kafka import EmbeddedKafka
kafka = EmbeddedKafka().start()
print(kafka.pid, kafka.data_dir, flush=True)
time.sleep(600)
"""


def test_no_orphan_when_the_owner_is_killed() -> None:
    """SIGKILL of the process that started it ends the JVM and removes its temporary data."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        pid, data_dir = owner.stdout.readline().split()
        jvm = psutil.Process(int(pid))
        guard = jvm.parent()
        assert guard is not None
        owner.kill()
        owner.wait()
    _, alive = psutil.wait_procs([jvm, guard], timeout=60)
    assert alive == []
    assert not Path(data_dir).exists()


def test_muster_broker_in_the_foreground(tmp_path: Path) -> None:
    """`muster broker` says where it listens, serves, and on SIGTERM ends with exit code 0."""
    command = [sys.executable, "-m", "muster.cli.main", "broker", "--port", "0"]
    running = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    with running.stdout:
        said = running.stdout.readline()
        address = said.split(" on ")[1].split(";")[0]
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        assert len(admin.list_topics(timeout=30).brokers) == 1
        running.terminate()
        assert running.wait(60) == 0
    assert f"data in {tmp_path}" in said
    assert (tmp_path / "server.properties").stat().st_mode & 0o777 == 0o600
