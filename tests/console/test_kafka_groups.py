"""`muster console --shadow`: Kafka's own groups beside muster's, looked at and never changed."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack

import pytest
from support.console.kafka_groups import consumer, seen
from support.console.played import PREFIX, demo_life, play
from support.kafka.brokers import Topics
from support.kafka.members import Consumers
from support.suite.waiting import until

from muster.cli.console import readers
from muster.console.drains_and_settings import Writes
from muster.console.explanations import task_json
from muster.console.fleet import findings, rows
from muster.console.frames import frame
from muster.console.kafka_groups import GROUPS_MAX, PublishedShadows
from muster.console.plans import plan_json, question
from muster.console.store import SHADOWED, GroupKey, Store
from muster.errors import BadInput
from muster.kafka.client_settings import client_settings
from muster.kafka.groups import ConnectWorker, Description, Kind, Listed, Member
from muster.shadow.group_reader import ShadowedGroup

KEY = GroupKey(SHADOWED, "shop")


def looked() -> tuple[Store, PublishedShadows]:
    """A store with a group of muster's, and `shop` as it was seen three times."""
    store = Store([PREFIX])
    play(store, demo_life())
    shown = PublishedShadows(store)
    shown.take(seen(1_000, consumer("A", 0, 1, 2, 3)))
    shown.take(seen(2_000, consumer("A", 0, 1, 2, 3)))
    shown.take(seen(3_000, state="PreparingRebalance"))  # Kafka says nothing of members then
    shown.take(seen(4_000, consumer("A", 0, 1), consumer("B", 2, 3)))
    return store, shown


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_a_connect_cluster_that_rebalances_is_no_generation(state: str) -> None:
    """Kafka then returns ids instead of the workers' names, and no tasks; then all is as before."""
    store, kind = Store([PREFIX]), Kind.CONNECT
    shown = PublishedShadows(store)
    job = ConnectWorker(2, "http://w1:8083/", 7, {"a": (-1, 0)}, {}, {}, "http://w1:8083/", 0)
    for at_ms, now, work in ((1_000, "Stable", job), (2_000, state, None), (3_000, "Stable", job)):
        worker = Member("connect-w1-5c2e", None, "c", "10.0.0.1", connect=work)
        described = Description("shop", kind, now, "sessioned", None, (worker,))
        shown.take(ShadowedGroup(described, at_ms=at_ms))
    history = store.history(KEY)
    assert history is not None
    assert [r.generation for r in history.generations] == [1]


def test_a_change_is_a_generation() -> None:
    """What stays the same is no record; a consumer that came is the cause, with what moved."""
    store, _ = looked()
    history = store.history(KEY)
    assert history is not None
    assert [(r.generation, r.cause, r.moved) for r in history.generations] == [
        (1, "first seen; placed by range", 0),
        (2, "B joined", 2),
    ]
    why = task_json(history, history.moments[-1], "orders_2", 4_000)
    assert why is not None
    assert why["sentence"] == "orders_2 runs on B"
    assert [(m["from"], m["to"], m["reason"]) for m in why["moves"]] == [
        ("A", "B", "range moved it")
    ]
    before = history.snapshot(history.moments[0])
    assert [str(m.id) for m in before.members] == ["A"]


def test_a_topic_that_is_created_anew_is_a_generation() -> None:
    """Same name, partitions and owners, another topic: its records begin at offset 0."""
    store, shown = looked()
    members = (consumer("A", 0, 1), consumer("B", 2, 3))
    shown.take(seen(5_000, *members, topic_id="new"))
    shown.take(seen(6_000, *members, topic_id="new"))
    history = store.history(KEY)
    assert history is not None
    newest = history.generations[-1]
    assert (newest.generation, newest.cause) == (3, "topic orders was created anew")
    assert (newest.moves, len(history.moments)) == (0, 3)


def test_shadowed_groups_stay_when_musters_topics_are_created_anew() -> None:
    """Nothing of theirs was in these topics, and Kafka's answer is the same as before."""
    store, shown = looked()
    history = store.history(KEY)
    store.clear()
    shown.take(seen(5_000, consumer("A", 0, 1), consumer("B", 2, 3)))
    assert store.histories() == [(KEY, history)]
    assert history is not None
    assert store.held_bytes == history.held_bytes > 0


def test_it_is_marked_and_not_judged() -> None:
    """The list and the page say shadowed; the doctor judges what muster coordinates only."""
    store, _ = looked()
    history = store.history(KEY)
    assert history is not None
    made = frame(history, history.moments[-1], history.snapshot(history.moments[-1]))
    assert made.head["kind"] == "shadowed"
    listed = rows(store, findings(store, 10**9), 10**9)
    assert {row["name"]: row["kind"] for row in listed.values()} == {
        "g": "native",
        "shop": "shadowed",
    }
    assert listed[f"{SHADOWED}|shop"]["wrong"] == []


def test_what_if_shows_the_command_that_looks() -> None:
    """What muster would move; and nothing that would change the group."""
    store, _ = looked()
    history = store.history(KEY)
    assert history is not None
    assert history.newest is not None
    plan = plan_json(history.newest, question([("remove", "B")]), 0, is_shadowed=True)
    assert {m["to"] for m in plan["moves"]} == {"A"}
    assert plan["commands"] == ["muster shadow --group shop --remove-member B"]
    body = json.dumps({"member": "B", "on": True, "confirmed": True}).encode()
    every = Writes(frozenset({"drain", "config"}))
    for write in (every.drain, every.config):
        with pytest.raises(BadInput, match="muster only looks at it"):
            write(client_settings("nowhere:1"), KEY, history.newest, body, "ann")


def test_groups_that_are_shown() -> None:
    """Not muster's own programs, not what muster leads, not what it cannot read; and a bound."""
    store, shown = looked()
    names = [f"n{number:03}" for number in range(GROUPS_MAX + 5)]
    listed = [
        Listed("g", Kind.CLASSIC, "Stable"),  # muster has a group of this name: it is governed
        Listed(f"{PREFIX}.cli-1", Kind.CLASSIC, "Stable"),
        Listed("odd", Kind.OTHER, "Stable"),
        *(Listed(name, Kind.CONSUMER, "Stable") for name in names),
    ]
    assert shown.wanted(listed) == names[:GROUPS_MAX]
    shown.keep([])
    assert store.history(KEY) is None
    assert len(store.histories()) == 1


@pytest.mark.broker
def test_consumers_of_a_real_kafka(topics: Topics) -> None:
    """A consumer joins and leaves; the console's thread ends with the block."""
    store = Store([topics.prefix])
    with ExitStack() as stack:
        group = stack.enter_context(Consumers(topics.address, {"orders": 4}))
        key = GroupKey(SHADOWED, group.group)
        stack.enter_context(readers(topics.clients, store, shadow=True))

        def causes() -> list[str]:
            history = store.history(key)
            return [] if history is None else [each.cause for each in history.generations]

        def members() -> int:
            history = store.history(key)
            return 0 if history is None or history.newest is None else len(history.newest.members)

        group.start({"group.instance.id": "A", "session.timeout.ms": 6_000})
        until(lambda: members() == 1, "one consumer is seen", story=causes)
        second = group.start({"client.id": "B", "session.timeout.ms": 6_000})
        until(lambda: members() == 2, "two consumers are seen", story=causes)
        history = store.history(key)
        assert history is not None
        assert history.newest is not None
        until(lambda: (history.newest.holder >= 0).all(), "both have their share", story=causes)
        assert {len(held) for held in _shares(store, key).values()} == {2}
        group.stop(second)
        until(lambda: members() == 1, "it has left", story=causes)
        assert any(cause.endswith("left") for cause in causes()), causes()
    names = {thread.name for thread in threading.enumerate()}
    assert not {"muster-console-shadows", "muster-console-reader"} & names


def _shares(store: Store, key: GroupKey) -> dict[int, list[int]]:
    """Slot → its tasks."""
    history = store.history(key)
    assert history is not None
    assert history.newest is not None
    shares: dict[int, list[int]] = {}
    for task, slot in enumerate(history.newest.holder.tolist()):
        shares.setdefault(slot, []).append(task)
    return shares
