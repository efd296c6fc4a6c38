"""The console on a real Kafka: its reader, and what it writes."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.console.served import in_thread
from support.kafka.brokers import Topics
from support.state.snapshots import orders
from support.state.story import config
from support.suite.waiting import until

from muster.cli.main import main
from muster.console.app import Options
from muster.console.drains_and_settings import Writes
from muster.console.fleet import findings, rows
from muster.console.reader import Reader
from muster.console.request_guard import Access
from muster.console.server import Console, ListenAddress
from muster.console.store import GroupKey, Store
from muster.kafka.writer import append
from muster.output import wall_ms
from muster.protocol import codec
from muster.protocol.events import GroupConfig, Origin
from muster.protocol.ids import GroupId
from muster.protocol.records import Rejected
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind

pytestmark = pytest.mark.broker


@pytest.fixture
def store(topics: Topics) -> Iterator[Store]:
    """A store that follows a test's topics."""
    made = Store([topics.prefix])
    with Reader(topics.clients, made):
        yield made


def generation(store: Store, topics: Topics) -> int:
    """The generation of group orders that the console knows; 0 = none."""
    history = store.history(GroupKey(topics.prefix, "orders"))
    return 0 if history is None or history.newest is None else history.newest.generation


def test_the_reader_follows_groups_and_dead_letters(topics: Topics) -> None:
    """It reads what was there before it, says so, and then what is written."""
    group = codec.encode(orders(generation=7))
    topics.write_raw(TopicKind.GROUPS, group.key, group.value)
    store = Store([topics.prefix])
    with Reader(topics.clients, store):
        until(lambda: store.caught_up, "everything has been read")
        assert generation(store, topics) == 7
        later = codec.encode(orders(generation=8))
        topics.write_raw(TopicKind.GROUPS, later.key, later.value)
        letter = codec.encode(Rejected(origin=Origin("t", 0, 1, 2), reason="UNSIGNED", message=""))
        topics.write_raw(TopicKind.REJECTED, letter.key, letter.value)
        until(lambda: generation(store, topics) == 8, "the new generation was read")
        until(lambda: len(store.letters(topics.prefix)) == 1, "the dead letter was read")
        assert store.fault == ""


def test_a_configuration_that_was_refused_is_shown(topics: Topics, store: Store) -> None:
    """The row of its group says so; the next configuration, which is followed, ends it."""
    name = topics.name(TopicKind.CONFIG)
    event = replace(config(Subtopology("0", 5)), group=GroupId("orders"))
    place = append(topics.clients, name, event)
    letter = Rejected(origin=Origin(*place, 0), reason="UNDECODABLE", message="no", key=b"orders")
    for encoded, kind in ((orders(), TopicKind.GROUPS), (letter, TopicKind.REJECTED)):
        written = codec.encode(encoded)
        topics.write_raw(kind, written.key, written.value)

    def is_told() -> bool:
        row = rows(store, findings(store, wall_ms()), wall_ms()).get(f"{topics.prefix}|orders")
        return row is not None and any(
            "was refused: no; it follows" in each for each in row["wrong"]
        )

    until(is_told, "the refusal is shown")
    followed = append(topics.clients, name, event)
    later = codec.encode(replace(orders(generation=8), through=(tuple(followed),)))
    topics.write_raw(TopicKind.GROUPS, later.key, later.value)
    until(lambda: not is_told(), "the refusal is shown no more")


def test_a_kafka_without_the_topics_is_a_fault_that_ends(topics: Topics) -> None:
    """The pages say what is missing; the reader asks again."""
    store = Store(["absent"])
    with Reader(topics.clients, store):
        until(lambda: "absent.groups" in store.fault, "the fault is named")
        assert not store.caught_up


def test_a_drain_from_the_page_names_who_asked(
    topics: Topics, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    """The event is that of `muster drain`, with the user in a header; the config likewise."""
    group = codec.encode(orders())
    topics.write_raw(TopicKind.GROUPS, group.key, group.value)
    config = GroupConfig(
        group=orders().group, assignor="sticky", settings=orders().settings, tasks=orders().tasks
    )
    topics.write(TopicKind.CONFIG, config)
    until(lambda: generation(store, topics) == 7, "the group is known", story=lambda: store.fault)
    access = Access()
    options = Options(topics.clients, writes=Writes(frozenset({"drain", "config"})))
    console = Console(store, Reader(topics.clients, store), options, access, ListenAddress(port=0))

    def write(path: str, body: dict[str, object]) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "origin": url.rstrip("/"),
            "x-muster-token": access.token(""),
        }
        body_sent = json.dumps({**body, "confirmed": True}).encode()
        address = f"{url}api/{path}?g=orders&p={topics.prefix}"
        with urllib.request.urlopen(urllib.request.Request(address, body_sent, headers)) as answer:
            return json.load(answer)

    with in_thread(console) as url:
        assert write("drain", {"member": "W1", "on": True}) == {"said": "W1: drain ordered"}
        changed = write("config", {"config": {"num.standby.replicas": "2"}})
        assert changed == {"said": "orders: configured"}
    for kind, change in (
        (TopicKind.MEMBERSHIP, ("member", "W1")),
        (TopicKind.CONFIG, ("assignor", "sticky")),
    ):
        kafka = ["--bootstrap-server", topics.address, "--topic-prefix", topics.prefix]
        assert main(["decode", "--topic", topics.name(kind), *kafka]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert last["by"].startswith("console@")
        assert last["value"][change[0]] == change[1]
    assert last["value"]["settings"]["num.standby.replicas"] == 2
