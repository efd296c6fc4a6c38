"""Which record of a group discovery takes for its newest one."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import Message

from muster.kafka.client_settings import client_settings
from muster.protocol import codec
from muster.protocol.events import Event, GroupConfig, GroupDeleted, TopicsFound
from muster.protocol.ids import GroupId
from muster.protocol.keyring import Keyring, SigningKey, caller_of
from muster.protocol.keys import key_of, partition_of
from muster.protocol.settings import Settings
from muster.protocol.signing import HEADER, Subject, sign
from muster.protocol.sources import Found, Source
from muster.signing.followed_key_file import KeyFile
from muster.signing.rotation import KEPT_MS
from muster.streams.discovery_thread import Discovery, _Group

G = GroupId("g")
TOPIC = "muster.config"
HOME = partition_of(key_of(G), 2)
OTHER = 1 - HOME


def config(*topics: str) -> GroupConfig:
    """A config that declares these topics."""
    return GroupConfig(
        group=G, assignor="sticky", settings=Settings(), tasks=(), sources=(Source(topics),)
    )


def found(topic: str) -> TopicsFound:
    """What was found for a config that declares this topic."""
    return TopicsFound(group=G, found=(Found(Source((topic,)), ()),))


def sources(group: _Group) -> tuple[object, object]:
    """The sources that the config declares, and those of what was found."""
    assert group.config is not None
    found_sources = group.found and tuple(each.source for each in group.found.found)
    return group.config.sources, found_sources


def read(
    *records: tuple[Event, int, int, int],
    keys: KeyFile | None = None,
    signatures: Sequence[bytes] = (),
) -> _Group:
    """What is known of the group after these records: event, partition, offset, time.

    `signatures` are those of the records; with fewer of them the last records have none.
    """
    discovery = Discovery(client_settings("k:9092"), ["muster"], keys=keys)
    discovery._counts = Counter({TOPIC: 2})
    padded = [*signatures, *[b""] * (len(records) - len(signatures))]
    for (event, partition, offset, at_ms), by in zip(records, padded, strict=True):
        encoded = codec.encode(event)
        message = SimpleNamespace(
            topic=lambda: TOPIC,
            key=lambda encoded=encoded: encoded.key,
            value=lambda encoded=encoded: encoded.value,
            partition=lambda partition=partition: partition,
            offset=lambda offset=offset: offset,
            timestamp=lambda at_ms=at_ms: (2, at_ms),
            headers=lambda by=by: [(HEADER, by)] if by else None,
        )
        discovery._note(cast("Message", message))
    return discovery._groups["muster", G]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_topic_that_got_partitions(order: tuple[int, int]) -> None:
    """The old config and what was found for it are in another partition, read first or last."""
    each = (
        [(config("old"), OTHER, 40, 1_000), (found("old"), OTHER, 41, 1_001)],
        [(config("new"), HOME, 0, 5_000), (found("new"), HOME, 1, 5_001)],
    )
    group = read(*each[order[0]], *each[order[1]])
    assert sources(group) == ((Source(("new",)),), (Source(("new",)),))


def test_a_group_that_was_deleted_after_the_topic_got_partitions() -> None:
    """The tombstone is in the partition of today, and the config before it is not taken back."""
    deleted = GroupDeleted(group=G), HOME, 0, 5_000
    assert read(deleted, (config("old"), OTHER, 40, 1_000)).config is None


def test_a_broker_whose_clock_is_behind() -> None:
    """In one partition the later record counts, also with an earlier time of another leader."""
    records = [(config("old"), HOME, 0, 900_000), (config("new"), HOME, 1, 600_000)]
    assert sources(read(*records)) == ((Source(("new",)),), None)


@pytest.mark.parametrize("secret", [None, b"f" * 32], ids=["unsigned", "forged"])
def test_records_that_the_coordinator_refuses(secret: bytes | None, tmp_path: Path) -> None:
    """Where signatures are required, forgeries change neither the sources nor what was found.

    The job would sign what follows from a forgery: the group would lose all tasks that were found.
    """
    own, now_ms = b"o" * 32, time.time_ns() // 1_000_000
    events = [config("real"), found("real"), config("other"), found("other"), GroupDeleted(group=G)]
    records = [(event, HOME, n, now_ms + n) for n, event in enumerate(events)]
    secrets = [own, own, *[secret] * 3]
    signatures = [
        b"" if by is None else signature(event, by, at_ms)
        for by, (event, _, _, at_ms) in zip(secrets, records, strict=True)
    ]
    group = read(*records, keys=key_file(tmp_path, own), signatures=signatures)
    assert sources(group) == ((Source(("real",)),), (Source(("real",)),))


def test_a_key_that_has_left_the_keyring(tmp_path: Path) -> None:
    """What a key signed counts for longer than the keyring has it; no one signs with it today."""
    now_ms = time.time_ns() // 1_000_000
    keys = key_file(tmp_path, b"n" * 32, name="new")
    for at_ms, counts in ((now_ms, False), (now_ms - KEPT_MS - 60_000, True)):
        old = signature(config("real"), b"o" * 32, at_ms)
        group = read((config("real"), HOME, 0, at_ms), keys=keys, signatures=[old])
        assert (group.config is not None) is counts


def signature(event: Event, secret: bytes, at_ms: int) -> bytes:
    """The signature of a record of the config topic with the key ``k``."""
    keyring = Keyring(keys=(SigningKey(id="k", secret=secret),))
    value = codec.encode(event).value
    return sign(keyring, G, caller_of(event), Subject(TOPIC, key_of(G), value), at_ms)


def key_file(folder: Path, secret: bytes, name: str = "k") -> KeyFile:
    """A keyring with one key, which requires signatures of every group."""
    key = {"id": name, "secret": base64.b64encode(secret).decode()}
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": [key], "signature.required": [{"groups": ["*"]}]}))
    return KeyFile(str(path))
