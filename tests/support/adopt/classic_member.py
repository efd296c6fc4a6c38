"""One consumer of a classic group on a real Kafka, whose assignor has any name.

librdkafka has three assignors only. kafka-python takes others, but its consumer can lose a join
that outlasts a poll (3.0.12); this member sends the group's requests itself, one after the other.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Final

from kafka.errors import (
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from muster.adopt import requests, sync_answers
from muster.adopt.coordinator_connections import CoordinatorConnection
from muster.adopt.join_metadata import Kind
from muster.adopt.model import Message, Options
from muster.kafka.client_settings import ClientSettings
from muster.kafka.protocol_client import config
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId, Task
from muster.protocol.settings import Settings

SESSION_MS: Final = 60_000
"""Also how long Kafka waits for a member that does not join."""
BEAT_S: Final = 0.3
ANSWER_MS: Final = 120_000
"""Longer than a JoinGroup may wait for other members."""


class ClassicMember:
    """A member in a thread of its own. It joins when `joins` says so, else it only heartbeats.

    Args:
        clients: how to reach Kafka.
        group: its group.
        name: its client id; Kafka's member id begins with it.
        topic: what it subscribes to.
        partitions: of the topic.
        assignor: the name under which it offers to share partitions round robin.
    """

    def __init__(
        self,
        clients: ClientSettings,
        group: str,
        name: str,
        topic: str,
        partitions: int,
        assignor: str,
    ) -> None:
        self._topic, self._partitions, self._assignor = topic, partitions, assignor
        subscribed = ConsumerProtocolSubscription(version=1, topics=[topic], user_data=b"")
        self._offers = [(assignor, subscribed.encode())]
        id = GroupId(group)
        config_of_group = GroupConfig(group=id, assignor="sticky", settings=Settings(), tasks=())
        self._options = Options(
            id,
            Kind.CONSUMER,
            config_of_group,
            Place("muster.config", 0, 0),
            instance_id=None,
            session_timeout_ms=SESSION_MS,
        )
        self._net = NetworkSelector(client_id=name, slow_task_threshold_secs=0)
        self._net.start()
        settings = {**config(clients), "client_id": name}
        del settings["bootstrap_timeout_ms"]
        self._connection = CoordinatorConnection(self._net, settings, group)
        self._id = ""
        self._joining, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def joins(self, on: bool) -> None:
        """Join when the group rebalances, or do not; heartbeats go on."""
        (self._joining.set if on else self._joining.clear)()

    def close(self) -> None:
        """Leave the group."""
        self._closing.set()
        self._connection.drop()  # a JoinGroup may wait for other members
        self._thread.join(30)
        if self._id:
            self._ask(requests.leave(self._options, {self._id: None}))
        self._connection.close()
        self._net.stop(5_000)
        self._net.close()

    def _live(self) -> None:
        while not self._closing.is_set():
            if self._joining.wait(BEAT_S):
                generation = self._join()
                while generation is not None and not self._closing.wait(BEAT_S):
                    beat = self._ask(requests.beat(self._options, self._id, generation))
                    rebalances = beat.error_code == RebalanceInProgressError.errno
                    if beat.error_code and not (rebalances and not self._joining.is_set()):
                        generation = None

    def _join(self) -> int | None:
        """The generation it is in then; None = it has to join again."""
        joined = self._ask(requests.join(self._options, self._id, self._offers))
        if joined.error_code == MemberIdRequiredError.errno:
            self._id = joined.member_id
        if joined.error_code:
            return None
        self._id = joined.member_id
        leads = joined.leader == joined.member_id
        answers = self._share([each.member_id for each in joined.members]) if leads else {}
        synced = self._ask(
            requests.sync(self._options, self._id, joined.generation_id, self._assignor, answers)
        )
        return None if synced.error_code else joined.generation_id

    def _share(self, members: Sequence[str]) -> Mapping[str, bytes]:
        """Each member's answer; partitions are shared round robin, by member id."""
        tasks = [Task(self._topic, number) for number in range(self._partitions)]
        return {
            member: sync_answers.consumer(tasks[index :: len(members)])
            for index, member in enumerate(sorted(members))
        }

    def _ask(self, request: Message) -> Message:
        """Send a request and wait for the answer; without one, the answer's error code is -1."""
        answers: queue.SimpleQueue[Message | Exception] = queue.SimpleQueue()
        self._connection.ask(request, answers.put, ANSWER_MS)
        answer = answers.get()
        if isinstance(answer, Exception):  # Kafka is asked again, as every client does
            self._closing.wait(BEAT_S)
            return SimpleNamespace(error_code=-1)
        if answer.error_code == UnknownMemberIdError.errno:
            self._id = ""
        return answer
