"""When members were last heard, of one group and of all groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.state.snapshots import orders

from muster.kafka.client_settings import ClientSettings
from muster.kafka.reader import Row
from muster.protocol.codec import encode
from muster.protocol.events import Heartbeat
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot
from muster.published import members_last_heard as module
from muster.published.members_last_heard import last_heartbeats

NOW = 1_790_000_000_000
SESSION_MS = max(member.session_timeout_ms for member in orders().members)
GROUPS = 40


class Topics:
    """What `read` reads, and which topics it was asked for."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {"muster.membership": [], "muster.heartbeats": []}
        self.asked: list[str] = []

    def beat(self, topic: str, group: str, member: str, at_ms: int) -> None:
        """A member writes a heartbeat."""
        row = encode(Heartbeat(group=GroupId(group), member=MemberId(member), epoch=7, digest=0))
        self.rows[topic].append(Row(row.key, row.value, topic, 0, len(self.rows[topic]), at_ms))

    def read(
        self, _: ClientSettings, topic: str, *, key: bytes | None = None, since_ms: int = 0
    ) -> Iterator[Row]:
        """As `reader.read`."""
        self.asked.append(topic)
        for row in self.rows[topic]:
            if key in (None, row.key) and row.at_ms >= since_ms:
                yield row


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Of each group W1 writes to membership and W2 apart."""
    made = Topics()
    for number in range(GROUPS):
        made.beat("muster.membership", f"g{number}", "W1", NOW - number)
        made.beat("muster.heartbeats", f"g{number}", "W2", NOW - 2 * number)
    monkeypatch.setattr(module, "read", made.read)
    return made


def group(name: str, **more: object) -> GroupSnapshot:
    """A group whose newest record is new."""
    return replace(orders(), group=GroupId(name), clock_ms=NOW, apart=(1,), **more)


def heard_in(*snapshots: GroupSnapshot) -> dict[GroupId, dict[str, int]]:
    """What the function finds."""
    return last_heartbeats(ClientSettings({}), "muster", snapshots, NOW)


def test_of_many_groups_each_topic_is_read_once(topics: Topics) -> None:
    """So the command takes as long as the topics are, and not as long as there are groups."""
    snapshots = [group(f"g{number}") for number in range(GROUPS)]
    assert heard_in(*snapshots) == {
        f"g{number}": {"W1": NOW - number, "W2": NOW - 2 * number} for number in range(GROUPS)
    }
    assert topics.asked == ["muster.membership", "muster.heartbeats"]


def test_each_group_counts_its_own_session(topics: Topics) -> None:
    """What was written before that does not count, though another group looks further back."""
    topics.beat("muster.membership", "g1", "W3", NOW - SESSION_MS - 1)
    topics.beat("muster.membership", "g2", "W3", NOW - SESSION_MS - 1)
    quiet = replace(group("g2"), clock_ms=NOW - 3_600_000)
    heard = heard_in(group("g1"), quiet)
    assert ("W3" in heard["g1"], "W3" in heard["g2"]) == (False, True)


def test_nothing_is_read_of_groups_without_members(topics: Topics) -> None:
    """Nor when no group is looked at."""
    assert heard_in(group("g1", members=())) == {"g1": {}}
    assert heard_in() == {}
    assert topics.asked == []
