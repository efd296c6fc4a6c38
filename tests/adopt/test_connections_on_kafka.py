"""The governor's connections to a real Kafka, while a JoinGroup waits for another member."""

from __future__ import annotations

import queue
import uuid
from dataclasses import replace

import pytest
from kafka.errors import GroupIdNotFoundError, NoError, for_code
from support.suite.waiting import until

from muster.adopt import join_metadata, requests
from muster.adopt.coordinator_connections import CoordinatorConnection, Network
from muster.adopt.join_metadata import Kind
from muster.adopt.join_watch import why_unanswered
from muster.adopt.model import Message, Options
from muster.kafka.client_settings import client_settings
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.settings import Settings

pytestmark = pytest.mark.broker
WAIT_MS = 60_000


class Asked(queue.SimpleQueue[Message | Exception]):
    """The answer to a request that has been sent."""

    def answer(self) -> Message:
        """Wait for it."""
        given = self.get(timeout=30)
        assert not isinstance(given, Exception), given
        assert for_code(getattr(given, "error_code", 0)).errno == 0
        return given


def asked(line: CoordinatorConnection, request: Message, *, aside: bool = False) -> Asked:
    """Send a request."""
    asked = Asked()
    (line.ask_aside if aside else line.ask)(request, asked.put, WAIT_MS)
    return asked


def is_found(seen: Message | Exception) -> bool:
    """Whether an answer to `requests.look` came from the group's coordinator."""
    return not isinstance(seen, Exception) and seen.groups[0].error_code in (
        NoError.errno,
        GroupIdNotFoundError.errno,
    )


def test_a_join_that_waits(bootstrap):
    """Kafka counts who waits; a connection that is dropped is replaced, and the id stays good."""
    group = GroupId(f"waits-{uuid.uuid4().hex[:8]}")
    config = GroupConfig(group=group, assignor="sticky", settings=Settings(), tasks=())
    options = Options(
        group, Kind.CONSUMER, config, Place("muster.config", 0, 0), session_timeout_ms=20_000
    )
    other = replace(options, instance_id="W1")
    offers = join_metadata.offers(Kind.CONSUMER, ())
    look = requests.look(options)
    network = Network(client_settings(bootstrap))
    try:
        line, slow = network.line(group), network.line(group)
        until(lambda: is_found(asked(slow, look).get(timeout=30)), "groups have a coordinator")
        first = asked(slow, requests.join(other, "", offers)).answer()
        asked(slow, requests.sync(other, first.member_id, first.generation_id, "range", {}))
        waits = asked(line, requests.join(options, "", offers))
        while why_unanswered(
            seen := asked(line, look, aside=True).answer(), options, "", has_moved=False
        ):
            assert waits.empty()
        assert len(seen.groups[0].members) == 2
        behind = asked(line, look)
        asked(line, look, aside=True).answer()
        assert not line.has_moved()
        assert waits.empty()
        assert behind.empty(), "Kafka reads it when it has answered the JoinGroup"
        line.drop()
        assert isinstance(waits.get(timeout=30), Exception)
        again = asked(line, requests.join(options, "", offers))
        assert len(asked(line, look, aside=True).answer().groups[0].members) == 2
        assert again.empty()
        asked(slow, requests.join(other, first.member_id, offers)).answer()
        joined = again.answer()
        assert joined.generation_id > first.generation_id
        assert why_unanswered(seen, options, joined.member_id, has_moved=False), "a newer id"
        seen = asked(line, look, aside=True).answer()
        assert not why_unanswered(seen, options, joined.member_id, has_moved=False)
    finally:
        line.close()
        slow.close()
        network.close(5)
