"""The workers in other languages agree with the vectors, and work on a real Kafka."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from support.kafka.brokers import PARTITIONS, Topics, new_topics
from support.suite.waiting import PATIENCE_S
from support.worker.languages import LANGUAGES, Language, Running
from support.worker.ring import Ring
from support.worker.scripted_coordinator import ScriptedCoordinator, eventually

from muster.broker.embedded_kafka import EmbeddedKafka
from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Join, Leave, Report
from muster.protocol.keyring import Caller
from muster.protocol.keys import key_of, partition_of
from muster.protocol.records import Dictionary, Fault
from muster.protocol.signature_check import Verifier
from muster.protocol.tasks import Connector, Subtopology, TaskSet, TaskTable
from muster.protocol.taskset import units_of_table
from muster.protocol.topics import TopicKind
from muster.signing import keyring_file
from muster.signing.followed_key_file import VARIABLE

pytestmark = pytest.mark.broker
VECTORS = Path(__file__).parents[2] / "protocol/vectors"


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Language:
    """Each worker, built."""
    made: Language = LANGUAGES[request.param](tmp_path_factory.mktemp(request.param))
    return made


@contextmanager
def working(
    language: Language,
    kafka: Topics,
    folder: Path,
    session_timeout_ms: int = 4_000,
    member: str = "m",
    **environment: str,
) -> Iterator[tuple[ScriptedCoordinator, Running]]:
    """A coordinator for a group named after the folder, and a worker of that group."""
    group = folder.name
    with ScriptedCoordinator(
        kafka.address, group, prefix=kafka.prefix, session_timeout_ms=session_timeout_ms
    ) as coordinator:
        running = Running(language, kafka, group, member, folder / "out", **environment)
        try:
            yield coordinator, running
        finally:
            running.close()


def given(coordinator: ScriptedCoordinator, worker: Running, *tasks: str) -> Join:
    """The join that a worker's first assignment answers, once these tasks run."""
    join = coordinator.wait_for(Join)
    coordinator.assign(join, tasks)
    eventually(lambda: worker.held() == set(tasks))
    return join


@pytest.fixture
def both(
    language: Language, kafka: Topics, tmp_path: Path
) -> Iterator[tuple[ScriptedCoordinator, Running]]:
    """A coordinator and a worker of a new group with short sessions."""
    with working(language, kafka, tmp_path) as made:
        yield made


def test_vectors(language: Language) -> None:
    """Its codec agrees with every shared vector, including the hostile ones."""
    done = subprocess.run(
        [*language.vectors, str(VECTORS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vectors agree" in done.stdout


def test_life(both: tuple[ScriptedCoordinator, Running]) -> None:
    """Join, take, heartbeat with digest, release and report, learn, answer a request, leave."""
    coordinator, worker = both
    join = coordinator.wait_for(Join)
    assert join.member == "m"
    many = [f"orders_{n}" for n in range(0, 900, 7)]
    coordinator.assign(join, [*many, "c1", "c1-0", "c1-7"], standby=["0_1"])
    holding = Holding(active=TaskSet.of([*many, "c1", "c1-0", "c1-7"]), standby=TaskSet.of(["0_1"]))
    coordinator.wait_for(Heartbeat, lambda h: h.epoch == 1 and h.digest == holding.digest())
    coordinator.assign(join, [*many[3:], "c1", "c1-0"], learner=["0_1"], generation=2)
    report = coordinator.wait_for(Report, lambda r: r.revision == 2 and not r.holding.releasing)
    coordinator.wait_for(Report, lambda r: r.holding.ready == TaskSet.of(["0_1"]))
    assert report.holding.active == TaskSet.of([*many[3:], "c1", "c1-0"])
    eventually(lambda: worker.held() == {*many[3:], "c1", "c1-0", "0_1"})
    coordinator.assign(join, [], generation=3, report=True)
    coordinator.wait_for(Report, lambda r: r.revision == 3 and len(r.holding) == 0)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(PATIENCE_S) == 0
    assert coordinator.wait_for(Leave).incarnation == join.incarnation


def test_waits_for_longer_than_a_session(language: Language, kafka: Topics, tmp_path: Path) -> None:
    """It is admitted by its fourth join, and takes its tasks; then copies change their roles.

    A copy is ready at once; when it becomes active nothing is released and nothing reported.
    """
    with working(language, kafka, tmp_path, 5_000) as (coordinator, worker):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, fault=Fault.MEMBER_ID_IN_USE, message="W1 is alive")
        eventually(lambda: len(coordinator.events) == 4)
        assert set(map(type, coordinator.events)) == {Join}
        coordinator.assign(join, ["0_0"], standby=["0_1"], learner=["0_2"])
        copies = TaskSet.of(["0_1", "0_2"])
        coordinator.wait_for(Report, lambda r: r.holding.ready == copies)
        events_before = len(coordinator.events)
        coordinator.assign(join, ["0_0", "0_2"], learner=["0_1"], generation=2)
        held = Holding(active=TaskSet.of(["0_0", "0_2"]), learner=TaskSet.of(["0_1"]))
        coordinator.wait_for(Heartbeat, lambda h: h.epoch == 2 and h.digest == held.digest())
        coordinator.assign(join, ["0_0", "0_1", "0_2"], generation=3)
        run = ("0_1", "active")
        eventually(lambda: (worker.lines()[-1]["task"], worker.lines()[-1]["role"]) == run)
        coordinator.wait_for(Heartbeat, lambda h: h.epoch == 3)
        assert set(map(type, coordinator.events[events_before:])) == {Heartbeat}
        assert worker.held() == {"0_0", "0_1", "0_2"}


def test_a_record_that_cannot_be_read(language: Language, kafka: Topics, tmp_path: Path) -> None:
    """It may revoke a task, so it counts as not read: the lease ends, and the worker rejoins."""
    with working(language, kafka, tmp_path, 3_000) as (coordinator, worker):
        join = given(coordinator, worker, "0_0")
        coordinator.garble(join.member)
        again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
        assert coordinator.wait_for(Leave).temporary
        assert worker.held() == set()
        coordinator.assign(again, ["0_1"], generation=2)
        eventually(lambda: worker.held() == {"0_1"})


def test_large_groups(language: Language, kafka: Topics, tmp_path: Path) -> None:
    """Records in parts are joined; the dictionary is found in any partition, behind a bad one."""
    # The session is long because 167 tasks start at once.
    with working(language, kafka, tmp_path, 30_000) as (coordinator, worker):
        units = (Subtopology("orders-by-region" * 30, 500), Connector("c", 9))
        coordinator.garble_names(beside=1)
        names = coordinator.publish_names(*units, beside=1)
        join = coordinator.wait_for(Join)
        unit = names.units[0].label.removesuffix("_")
        coordinator.assign(join, [f"{unit}_{n}" for n in range(0, 500, 3)], bytes_max=700)
        eventually(lambda: len(worker.held()) == 167)
        coordinator.assign(join, [f"{unit}_1", "c-8"], dictionary=names, generation=2)
        eventually(lambda: worker.held() == {f"{unit}_1", "c-8"})


def write_markers(kafka: Topics, kind: TopicKind, name: str) -> None:
    """Let every partition of a topic end with a transaction's marker, which no consumer gets."""
    producer = Producer({**kafka.clients.producer(), "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(kafka.name(kind), key=b"x|", value=b"", partition=partition)
    producer.commit_transaction(30)


def test_a_marker_at_the_end(
    both: tuple[ScriptedCoordinator, Running], kafka: Topics, tmp_path: Path
) -> None:
    """The last offset of its partition has no record: it counts as read, and the tasks stay."""
    coordinator, worker = both
    given(coordinator, worker, "0_0")
    write_markers(kafka, TopicKind.ASSIGNMENTS, tmp_path.name)
    end_ms = coordinator.events[-1].origin.at_ms + 2 * coordinator.session_timeout_ms
    eventually(lambda: coordinator.events[-1].origin.at_ms > end_ms)
    assert [line["event"] for line in worker.lines()] == ["start"]


def test_a_dictionary_that_is_missing(language: Language, kafka: Topics, tmp_path: Path) -> None:
    """Its record is skipped, also where the last offsets of the topic have no record."""
    write_markers(kafka, TopicKind.GROUPS, tmp_path.name)
    with working(language, kafka, tmp_path, 30_000) as (coordinator, worker):
        join = coordinator.wait_for(Join)
        units = units_of_table(TaskTable((Subtopology("orders" * 90, 3),)))
        unwritten = Dictionary(group=coordinator.group, units=units)
        coordinator.assign(join, [f"{'orders' * 90}_1"], dictionary=unwritten)
        coordinator.assign(join, ["0_0"], generation=2)
        eventually(lambda: worker.held() == {"0_0"})


def test_a_report_that_is_not_written(
    language: Language, kafka: Topics, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says so and reports again; meanwhile no key signs. One of its brokers does not answer."""
    ring, said = Ring(tmp_path / "ring.json"), [""]
    signing = ring.file.read_text()
    two = Topics(f"127.0.0.1:1,{kafka.address}", kafka.prefix)

    def failures() -> int:
        said[0] += capfd.readouterr().err
        return said[0].count("not written")

    keys = {VARIABLE: str(ring.file)}
    with working(language, two, tmp_path, 20_000, **keys) as (coordinator, worker):
        join = given(coordinator, worker, "0_0", "0_1")
        ring.file.write_text(signing.replace('"*"', '"other"'))
        eventually(lambda: failures() > 0)
        coordinator.assign(join, ["0_0"], generation=2)
        eventually(lambda: worker.held() == {"0_0"})
        before = failures()
        eventually(lambda: failures() > before + 1)  # the report, after a heartbeat perhaps
        ring.file.write_text(signing)
        coordinator.wait_for(Report, lambda r: r.holding.active == TaskSet.of(["0_0"]))


def test_ends_while_kafka_is_away(
    language: Language, own_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Its tasks stop, and the process ends with an error; the group waits for the session's end."""
    kafka = new_topics(own_broker.bootstrap_server)
    with working(language, kafka, tmp_path, 60_000) as (coordinator, worker):
        given(coordinator, worker, "0_0")
        own_broker.kill()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == 1
        assert worker.held() == set()


def test_fences_itself(both: tuple[ScriptedCoordinator, Running]) -> None:
    """Suspended for a session it loses its tasks and joins under a new incarnation."""
    coordinator, worker = both
    join = given(coordinator, worker, "0_0")
    coordinator.wait_for(Heartbeat)
    worker.process.send_signal(signal.SIGSTOP)
    last = [e for e in coordinator.events if isinstance(e, Heartbeat)][-1]
    end_ms = last.origin.at_ms + coordinator.session_timeout_ms
    eventually(lambda: time.time() * 1000 > end_ms)
    coordinator.assign(join, ["0_0", "0_1"], generation=2)  # late: the worker must not take it
    worker.process.send_signal(signal.SIGCONT)
    again = coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
    assert worker.held() == set()
    coordinator.assign(again, ["0_2"], generation=3)
    eventually(lambda: worker.held() == {"0_2"})
    assert "0_1" not in {line["task"] for line in worker.lines()}


def test_tombstone(both: tuple[ScriptedCoordinator, Running]) -> None:
    """After a tombstone all tasks stop, and it joins again."""
    coordinator, worker = both
    join = given(coordinator, worker, "0_0")
    coordinator.let_go("m")
    coordinator.wait_for(Join, lambda j: j.incarnation != join.incarnation)
    assert worker.held() == set()


def test_cannot_read_but_can_write(language: Language, bootstrap: str, tmp_path: Path) -> None:
    """Without the assignments topic its tasks stop with its lease, although heartbeats arrive."""
    kafka = new_topics(bootstrap)
    with working(language, kafka, tmp_path) as (coordinator, worker):
        given(coordinator, worker, "0_0")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.delete_topics([kafka.name(TopicKind.ASSIGNMENTS)]).values():
            done.result(60)
        left = coordinator.wait_for(Leave)
        assert worker.held() == set()
    kafka.close()
    heard = [e.origin.at_ms for e in coordinator.events if isinstance(e, Heartbeat)]
    assert left.origin.at_ms - heard[-1] < coordinator.session_timeout_ms / 2


def test_signs_events(language: Language, kafka: Topics, tmp_path: Path) -> None:
    """Every event is signed with the newest key; if the file is missing the old keys stay."""
    ring = Ring(tmp_path / "ring.json")
    keys = {VARIABLE: str(ring.file)}
    with working(language, kafka, tmp_path, **keys) as (coordinator, worker):
        join = coordinator.wait_for(Join)
        coordinator.assign(join, ["0_0"], report=True)
        coordinator.wait_for(Report)
        with ring.away():
            heard = len(coordinator.events)
            coordinator.wait_for(Heartbeat, after=heard + 2)
        ring("rotate", "--spread-ms", "0")
        new = ring.newest().encode()
        eventually(lambda: new in coordinator.signed[-1][1])
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == 0
        coordinator.wait_for(Leave)
    topic, key = kafka.name(TopicKind.MEMBERSHIP), coordinator.group.encode()
    verifier = Verifier(keyring_file.read(ring.file), coordinator.group, topic, key)
    for event, (value, signature) in zip(coordinator.events, coordinator.signed, strict=True):
        assert signature
        assert verifier.verdict(Caller.MEMBER, value, signature, event.origin.at_ms) is None


def test_follows_a_topic_that_grows(language: Language, bootstrap: str, tmp_path: Path) -> None:
    """When its key belongs to another partition, it reads that one and keeps its tasks."""
    kafka = new_topics(bootstrap, partitions=1)
    keys = ((n, key_of(tmp_path.name, n)) for n in map("m{}".format, range(99)))
    name = next(n for n, key in keys if partition_of(key, 3))
    with working(language, kafka, tmp_path, member=name) as (coordinator, worker):
        join = given(coordinator, worker, "0_0")
        topic = kafka.name(TopicKind.ASSIGNMENTS)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.create_partitions([NewPartitions(topic, 3)]).values():
            done.result(60)
        eventually(lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == 3)
        coordinator.assign(join, ["0_0", "0_1"], generation=2)
        eventually(lambda: worker.held() == {"0_0", "0_1"})
        end_ms = coordinator.events[-1].origin.at_ms + coordinator.session_timeout_ms
        eventually(lambda: coordinator.events[-1].origin.at_ms > end_ms)  # it still reads
        assert {line["event"] for line in worker.lines()} == {"start"}
    kafka.close()


def test_a_new_coordinator_requests_a_report(both: tuple[ScriptedCoordinator, Running]) -> None:
    """A request with an old revision is answered with the new epoch, and changes no task."""
    coordinator, worker = both
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0", "0_1"])
    coordinator.assign(join, ["0_0", "0_1", "0_2"], generation=2)
    eventually(lambda: worker.held() == {"0_0", "0_1", "0_2"})
    coordinator.assign(join, ["0_0"], generation=1, revision=1, coordinator_epoch=9, report=True)
    answer = coordinator.wait_for(Report, lambda r: r.revision == 2)
    assert answer.holding.active == TaskSet.of(["0_0", "0_1", "0_2"])
    assert answer.coordinator_epoch == 9
    coordinator.assign(join, ["0_7"], generation=3)  # of the old coordinator: ignored
    coordinator.assign(join, ["0_1"], generation=4, coordinator_epoch=9)
    eventually(lambda: worker.held() == {"0_1"})
    assert "0_7" not in {line["task"] for line in worker.lines()}
