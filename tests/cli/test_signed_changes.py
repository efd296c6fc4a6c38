"""A change that is signed begins with what the group follows, not with what a forger wrote."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.state.snapshots import orders

from muster.cli import config as config_command
from muster.cli.main import main
from muster.kafka.client_settings import client_settings
from muster.kafka.reader import Row
from muster.kafka.writer import Place
from muster.protocol.codec import decode, encode
from muster.protocol.events import NOWHERE, Event, GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot
from muster.protocol.settings import parse_settings
from muster.protocol.signing import HEADER
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.published import config_changes
from muster.published.snapshots import Published
from muster.signing.followed_key_file import KeyFile, signed

CLIENTS = client_settings("nowhere:1")
G = GroupId("orders")
TOPIC = "muster.config"
SOURCE = Source(topics=("shop",))
FORGED = "events of this group must be signed"


def config(warm_ups: int) -> GroupConfig:
    """A configuration of the group."""
    settings = parse_settings({"max.warmup.replicas": warm_ups}, "sticky")
    return GroupConfig(group=G, assignor="sticky", settings=settings, tasks=())


def ring(folder: Path, key: str) -> str:
    """A keyring with one key, whose groups must sign."""
    secret = base64.b64encode(f"the secret of {key}".ljust(32).encode()).decode()
    content = {
        "keys": [{"id": key, "secret": secret}],
        "signature.required": [{"groups": ["*"], "from_ms": 0}],
    }
    path = folder / f"{key}.json"
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return str(path)


class Topics:
    """`config` and `groups` in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[Row] = []
        self.snapshots: list[GroupSnapshot] = []
        monkeypatch.setattr(config_changes, "read", lambda *_, **__: iter([*self.rows]))
        monkeypatch.setattr(config_changes, "history", lambda *_: self._published())
        monkeypatch.setattr(config_command, "append", self.append)

    def _published(self) -> list[Published]:
        return [Published(snapshot, 1) for snapshot in self.snapshots]

    def append(
        self, _: object, __: object, event: Event, keys: KeyFile | None = None, by: str = ""
    ) -> Place:
        """Write a record, signed now."""
        encoded = signed(keys, encode(event), event, TOPIC)
        signature = dict(encoded.headers).get(HEADER, b"")
        at_ms = int.from_bytes(signature[2:10], "big") if signature else len(self.rows) + 1
        place = Place(TOPIC, 0, len(self.rows))
        self.rows.append(Row(encoded.key, encoded.value, *place, at_ms=at_ms, signature=signature))
        return place

    def newest(self) -> GroupConfig:
        """The configuration written last."""
        row = self.rows[-1]
        event = decode(TopicKind.CONFIG, row.key, row.value, NOWHERE)
        assert isinstance(event, GroupConfig)
        return event


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Topics without a record."""
    return Topics(monkeypatch)


def test_a_command_does_not_sign_what_a_forger_wrote(
    topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The forged settings and tasks are not in what it writes; those that the group follows are."""
    keys = ring(tmp_path, "ops")
    topics.append(None, None, config(7), KeyFile(keys))
    topics.append(None, None, replace(config(99), tasks=(Subtopology("forged", 3),)))
    found = Subtopology("shop", 2)
    followed = replace(
        orders(),
        assignor="sticky",
        settings=config(7).settings,
        tasks=(Subtopology("own", 3), found),
        sources=(SOURCE,),
        found=(Found(SOURCE, (found,)),),
    )
    topics.snapshots.append(followed)
    command = ["config", "set", "--group", G, "--config", "num.standby.replicas=1"]
    assert main([*command, "--signing-keys", keys]) == 0
    said = capsys.readouterr().err
    assert said.startswith("muster config: orders: the newest record on muster.config (partition 0")
    assert f"offset 1) is not used: {FORGED}. The change begins with what the group f" in said
    written = topics.newest()
    assert written.tasks == (Subtopology("own", 3),)
    assert written.sources == (SOURCE,)
    assert written.settings.max_warmup_replicas == 7
    assert written.settings.num_standby_replicas == 1


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_record_that_counts_is_the_configuration(
    topics: Topics, tmp_path: Path, is_signed: bool
) -> None:
    """One that is signed; and without keys the newest one, whatever its signature."""
    keys = KeyFile(ring(tmp_path, "ops"))
    topics.append(None, None, config(7), keys if is_signed else None)
    topics.snapshots.append(orders())
    read = config_changes.known(CLIENTS, "muster", G, keys if is_signed else None)
    assert read.config is not None
    assert (read.config.settings, read.note) == (config(7).settings, "")


def test_a_forged_deletion_deletes_nothing(topics: Topics, tmp_path: Path) -> None:
    """The group goes on, and so does a change of it."""
    topics.append(None, None, GroupDeleted(group=G))
    topics.snapshots.append(orders())
    read = config_changes.known(CLIENTS, "muster", G, KeyFile(ring(tmp_path, "ops")))
    assert read.config is not None
    assert read.config.settings == orders().settings
    assert read.note


def test_nothing_is_known_of_the_group_but_a_forged_record(topics: Topics, tmp_path: Path) -> None:
    """The change begins with nothing, as for a new group."""
    topics.append(None, None, config(99))
    read = config_changes.known(CLIENTS, "muster", G, KeyFile(ring(tmp_path, "ops")))
    assert read.config is None
    assert read.note.endswith(f"{FORGED}. The change begins with nothing")


def test_another_operators_key(topics: Topics, tmp_path: Path) -> None:
    """What it signed cannot be checked here: what the group follows counts, once it does."""
    topics.append(None, None, config(7), KeyFile(ring(tmp_path, "another")))
    keys = KeyFile(ring(tmp_path, "ops"))
    read = config_changes.known(CLIENTS, "muster", G, keys)
    assert read.config is not None
    assert (read.config.settings, read.note) == (config(7).settings, "")
    topics.snapshots.append(orders())
    read = config_changes.known(CLIENTS, "muster", G, keys)
    assert read.config is not None
    assert read.config.tasks == orders().tasks
    assert "signed with key 'another', which is not known here" in read.note
