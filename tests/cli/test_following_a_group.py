"""Commands that wait for a group read its topic once, and then what is added to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from confluent_kafka import Message, Producer
from support.kafka.mock_kafka import mock_kafka
from support.state.snapshots import orders
from support.state.story import Story, config, join, leave, report, tick
from support.suite.waiting import until

from muster.cli import drain as drain_command
from muster.cli import groups as groups_command
from muster.cli.main import main
from muster.errors import Unreachable
from muster.kafka import reader
from muster.kafka.client_settings import client_settings
from muster.kafka.writer import Place
from muster.protocol.codec import Encoded, encode
from muster.protocol.events import Drain, GroupConfig, GroupDeleted, Origin
from muster.protocol.ids import GroupId
from muster.protocol.keys import partition_of
from muster.protocol.records import GroupGone, GroupSnapshot, Quarantine, Rejected
from muster.protocol.split_records import parts
from muster.protocol.tasks import Subtopology
from muster.published.config_changes import Known
from muster.published.followed_group import FollowedGroup

Output = pytest.CaptureFixture[str]
QUICK = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 400, "rebalance_timeout_ms": 600}
OTHERS = 40
"""Records of other groups, which are there before the command begins."""


@dataclass
class GroupsTopic:
    """A groups topic on librdkafka's mock, which counts how often each record is read.

    Attributes:
        address: bootstrap servers.
        reads: place of a record → how often it was read.
        written: number of records.
        is_over: the test has ended.
        writers: the threads that write while the command runs.
    """

    address: str
    reads: dict[tuple[int, int], int] = field(default_factory=dict)
    written: int = 0
    is_over: bool = False
    writers: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.address, "log_level": 2})

    def write(
        self,
        *records: GroupSnapshot | GroupGone,
        part_bytes: int = 1 << 20,
        place: int = -1,
        at_ms: int = 0,
    ) -> None:
        """Write records, in parts of at most this size, to the partition of their key.

        `at_ms` is their timestamp; 0 = now.
        """
        for record in records:
            encoded = parts(record, part_bytes)
            home = partition_of(encoded[-1].key, 4) if place < 0 else place
            for part in encoded:
                self._producer.produce(
                    *("muster.groups", part.value, part.key, home),
                    timestamp=at_ms,
                    headers=list(part.headers),
                )
            self.written += len(encoded)
        assert self._producer.flush(10) == 0

    def send(self, name: str, *encoded: Encoded) -> None:
        """Write records to another topic."""
        for each in encoded:
            self._producer.produce(name, each.value, each.key, headers=[*each.headers])
        assert self._producer.flush(10) == 0

    def count(self, message: Message) -> reader.Row:
        """As `reader.row_of`."""
        row = ROW_OF(message)
        place = (row.partition, row.offset)
        self.reads[place] = self.reads.get(place, 0) + 1
        return row

    def is_read(self) -> bool:
        """Whether all that was written has been read."""
        return len(self.reads) == self.written


ROW_OF = reader.row_of


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupsTopic]:
    """A topic with records of other groups."""
    with mock_kafka() as address:
        made = GroupsTopic(address)
        monkeypatch.setattr(reader, "row_of", made.count)
        made.write(*(replace(orders(), group=GroupId(f"other-{n}")) for n in range(OTHERS)))
        yield made
        made.is_over = True
        for writer in made.writers:  # before the mock ends, which would fail their last write
            writer.join()


@pytest.fixture
def story(topic: GroupsTopic) -> Story:
    """Group g: W1 and W2 have two tasks each."""
    told = Story()
    told.take(config(Subtopology("0", 4), **QUICK), join("W1"), join("W2"))
    told.at(10).take(report("W1", 1, "0_0", "0_2"), report("W2", 1, "0_1", "0_3"))
    topic.write(told.group.snapshot())
    return told


def coordinated(
    topic: GroupsTopic,
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
    *steps: Callable[[], GroupSnapshot | GroupGone],
) -> threading.Thread:
    """A coordinator that takes a step whenever the command has read all that was published.

    The first step is what it does when the drain is written.
    """

    def publish() -> None:
        for step in steps:
            if topic.is_over:
                return
            topic.write(step())
            until(lambda: topic.is_read() or topic.is_over, "the command has read it")

    thread = threading.Thread(target=publish, daemon=True)

    def append(_: object, __: str, event: Drain, *more: object) -> Place:
        place = Place("membership", 0, story.offset + 1)
        thread.start()
        topic.writers.append(thread)
        return place

    monkeypatch.setattr(drain_command, "append", append)
    return thread


def takes(story: Story, at_ms: int, *events: object) -> Callable[[], GroupSnapshot]:
    """A step: the coordinator takes these events."""

    def step() -> GroupSnapshot:
        return story.at(at_ms).take(*events).group.snapshot()

    return step


def drain(topic: GroupsTopic, *more: str) -> int:
    """Call the command."""
    words = ["drain", "--group", "g", "--member", "W2", "--wait", *more]
    return main([*words, "--bootstrap-server", topic.address])


ORDER = Drain(group=GroupId("g"), member="W2")


def test_each_record_is_read_once(
    topic: GroupsTopic, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """The command looks five times, and reads what is new: the cost follows what changes."""
    coordinator = coordinated(
        topic,
        story,
        monkeypatch,
        takes(story, 100, ORDER),
        takes(story, 200, report("W2", 2, "0_3", releasing=("0_3",))),
        takes(story, 250, tick()),
        takes(story, 300, report("W2", 2)),
    )
    assert drain(topic) == 0
    coordinator.join(10)
    assert capsys.readouterr().out.splitlines()[-1] == "W2: empty"
    assert topic.is_read()
    assert set(topic.reads.values()) == {1}


def test_it_ends_when_its_time_is_over(
    topic: GroupsTopic, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """The exit code is 1, and the message says what the member still holds."""
    coordinated(topic, story, monkeypatch, takes(story, 100, ORDER))
    assert drain(topic, "--timeout-ms", "3000") == 1
    assert capsys.readouterr().err == "muster drain: W2 still holds 2 tasks after 3000 ms\n"
    assert set(topic.reads.values()) == {1}


def _expired(story: Story) -> list[Callable[[], GroupSnapshot]]:
    beats = (report("W1", 1, "0_0", "0_2"), tick())
    return [takes(story, at_ms, *beats) for at_ms in range(500, 3_000, 400)]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda story: [takes(story, 200, replace(ORDER, on=False))], "not drained: the drain was"),
        (lambda story: [lambda: GroupGone(group=GroupId("g"))], "no group 'g' on muster.groups"),
        (
            lambda story: [takes(story, 200, GroupDeleted(group=GroupId("g")))],
            "not drained: the drain was undone, or the group was deleted",
        ),
        (_expired, "expelled, not drained: it was fenced or expired"),
    ],
    ids=["undone", "gone", "deleted", "expelled"],
)
def test_it_ends_when_it_cannot_succeed(
    topic: GroupsTopic,
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    end: Callable[[Story], Sequence[Callable[[], GroupSnapshot | GroupGone]]],
    said: str,
) -> None:
    """The group or the member is gone, or the drain was undone: exit code 1, with the reason."""
    coordinated(topic, story, monkeypatch, takes(story, 100, ORDER), *end(story))
    assert drain(topic) == 1
    assert said in capsys.readouterr().err


def test_a_member_that_the_coordinator_does_not_know(
    topic: GroupsTopic, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """The member left before the coordinator read the drain, which it therefore refuses."""
    coordinated(topic, story, monkeypatch, takes(story, 100, leave("W2"), ORDER))
    assert drain(topic) == 1
    assert "muster drain: W2: not drained" in capsys.readouterr().err


def test_it_ends_when_the_coordinator_refuses_the_drain(
    topic: GroupsTopic, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """The group's record does not change then: the dead letter says why, and at once."""

    def append(_: object, name: str, event: Drain, *more: object) -> Place:
        origin = Origin(name, 0, story.offset + 1, 0)
        letter = encode(Rejected(origin=origin, reason="UNSIGNED", message="it must be signed"))
        other = encode(Rejected(origin=Origin(name, 0, 0, 0), reason="TOO_LARGE", message="no"))
        topic.send("muster.rejected", other, letter)
        return Place(name, 0, story.offset + 1)

    monkeypatch.setattr(drain_command, "append", append)
    assert drain(topic, "--timeout-ms", "60000") == 1
    assert capsys.readouterr().err == (
        "muster drain: W2: not drained: the coordinator refused the drain, UNSIGNED: it must be "
        "signed; give the sender the keyring file\n"
    )


@pytest.mark.parametrize("more", [[], ["--wait"], ["--cancel"]], ids=["drain", "wait", "cancel"])
def test_a_group_that_is_quarantined_is_not_drained(
    topic: GroupsTopic,
    story: Story,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Output,
    more: list[str],
) -> None:
    """The drain would become a dead letter, so it is not written."""
    aside = Quarantine(since_ms=1, story="it was ended by SIGABRT")
    topic.write(replace(story.group.snapshot(), quarantine=aside))
    monkeypatch.setattr(drain_command, "append", lambda *_: pytest.fail("it was written"))
    words = ["drain", "--group", "g", "--member", "W2", "--bootstrap-server", topic.address]
    assert main([*words, *more]) == 1
    assert capsys.readouterr().err == (
        "muster drain: group 'g' is quarantined, and its events become dead letters: it was ended "
        "by SIGABRT. Correct the cause, then: muster groups release --group g\n"
    )


@pytest.mark.parametrize("words", [["groups", "describe"], ["plan"], ["drain", "--member", "W1"]])
def test_a_deleted_group_is_called_deleted(
    topic: GroupsTopic, story: Story, capsys: Output, words: list[str]
) -> None:
    """Every command says who deleted it; one that never was is another case."""
    story.at(100).take(leave("W1"), leave("W2"))
    topic.write(story.at(200).take(GroupDeleted(group=GroupId("g"))).group.snapshot())
    assert main([*words, "--group", "g", "--bootstrap-server", topic.address]) == 1
    deleted = f"muster {words[0]}: no group 'g': group deleted by muster config delete (config-0@"
    assert capsys.readouterr().err.startswith(deleted)


def test_it_ends_when_kafka_is_away(
    topic: GroupsTopic, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """Whether Kafka answers is asked again while the command waits."""
    asked: list[str] = []

    def partitions_of(*_: object) -> int:
        asked.append("")
        if len(asked) > 2:
            raise Unreachable("Kafka at k:9092: no answer within 15 s")
        return 4

    monkeypatch.setattr(reader, "FOLLOWER_LOOKS_S", 0.0)
    monkeypatch.setattr(reader, "partitions_of", partitions_of)
    coordinated(topic, story, monkeypatch, takes(story, 100, ORDER))
    assert drain(topic) == 1
    assert capsys.readouterr().err == "muster drain: Kafka at k:9092: no answer within 15 s\n"


def test_a_release_reads_each_record_once(
    topic: GroupsTopic, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """`muster groups release` waits in the same way."""
    failed = replace(orders(), quarantine=Quarantine(since_ms=1, story="it failed"))
    topic.write(failed)
    thread = threading.Thread(
        target=lambda: (topic.write(failed), until(topic.is_read, "read"), topic.write(orders())),
        daemon=True,
    )

    def append(_: object, __: str, event: GroupConfig | GroupDeleted, *more: object) -> Place:
        thread.start()
        return Place("muster.config", 0, 0)

    monkeypatch.setattr(groups_command, "append", append)
    monkeypatch.setattr(groups_command, "known", lambda *_: Known(None, {}))
    monkeypatch.setattr(groups_command, "replaced", lambda *_: "")
    words = ["groups", "release", "--group", "orders", "--bootstrap-server", topic.address]
    assert main(words) == 0
    thread.join(10)
    assert capsys.readouterr().out.splitlines()[-1].startswith("orders: released")
    assert set(topic.reads.values()) == {1}


def test_partitions_that_are_added_and_split_records(
    topic: GroupsTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of one record may come with two reads; a new partition is read from its beginning."""
    partitions = 3
    monkeypatch.setattr(reader, "FOLLOWER_LOOKS_S", 0.0)
    monkeypatch.setattr(reader, "partitions_of", lambda *_: partitions)
    topic.write(orders(7), part_bytes=400)
    with FollowedGroup(client_settings(topic.address), "muster", "orders") as followed:
        assert followed.snapshot().generation == 7
        topic.write(orders(8), part_bytes=400)
        until(lambda: followed.snapshot(1.0).generation == 8, "the parts are joined")
        topic.write(orders(9), place=3)
        partitions = 4
        until(lambda: followed.snapshot(1.0).generation == 9, "the new partition is read")
    assert len(topic.reads) > OTHERS + 6
    assert set(topic.reads.values()) == {1}


def test_the_last_record_of_a_partition_counts_whatever_its_timestamp(topic: GroupsTopic) -> None:
    """The next coordinator's clock is behind that of the one before."""
    where = client_settings(topic.address)
    with FollowedGroup(where, "muster", "orders") as followed:
        topic.write(replace(orders(), generation=7), at_ms=10_000)
        assert followed.snapshot().generation == 7
        topic.write(replace(orders(), generation=8), at_ms=9_500)
        until(lambda: followed.snapshot(0.1).generation == 8, "the last record is taken")


def test_a_record_of_a_superseded_coordinator_does_not_count(topic: GroupsTopic) -> None:
    """It was frozen, and writes an older generation after its successor has written."""
    with FollowedGroup(client_settings(topic.address), "muster", "orders") as followed:
        topic.write(replace(orders(), generation=8))
        assert followed.snapshot().generation == 8
        topic.write(replace(orders(), generation=7), replace(orders(), group=GroupId("last")))
        until(lambda: followed.newest(0.1) is not None and topic.is_read(), "all is read")
        assert followed.snapshot().generation == 8
        topic.write(replace(orders(), generation=9))
        until(lambda: followed.snapshot(0.1).generation == 9, "a newer record is taken")
