"""The claim: the job that wrote the latest claim is the coordinator.

At its start a job writes a claim to the one-partition topic ``<prefix>.coordinator``. The offset of
the claim is the job's coordinator epoch. It goes into every assignment, and members ignore records
of an older epoch. So an older job does no harm from that moment on, even before it notices. `Watch`
makes it notice: a job that reads a later claim than its own stops.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from confluent_kafka import Consumer, Message, TopicPartition

from muster.kafka.client_settings import ClientSettings
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.errors import DecodeError
from muster.protocol.records import CoordinatorClaim
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.background_thread import Loop

POLL_S = 0.5


class Watch(Loop):
    """Reads claims in a thread until it meets a later one than this job's (`epochs`, by prefix).

    Then it sets `stop`, and `story` names the other job.
    """

    def __init__(
        self, clients: ClientSettings, epochs: Mapping[str, int], job: str, stop: threading.Event
    ) -> None:
        super().__init__("muster-claims")
        self.story: str | None = None
        self._clients = clients
        self._epochs = dict(epochs)
        self._job = job
        self._stop = stop

    def _run(self) -> None:
        reader = self._clients.reader(f"{next(iter(self._epochs))}.job")
        consumer = Consumer(reader, logger=KAFKA)
        try:
            consumer.assign(
                [
                    TopicPartition(topic_name(TopicKind.COORDINATOR, prefix), 0, epoch + 1)
                    for prefix, epoch in self._epochs.items()
                ]
            )
            while not self._closing.is_set():
                if any(map(self._is_later, self._arrived(consumer, POLL_S))):
                    self._stop.set()
                    return
        finally:
            consumer.close()

    def _is_later(self, message: Message) -> bool:
        try:
            record = codec.decode_record(TopicKind.COORDINATOR, message.key(), message.value())
        except DecodeError:
            return False
        if not isinstance(record, CoordinatorClaim) or record.job == self._job:
            return False
        self.story = (
            f"job {record.job} on {record.host} (muster {record.version}) claimed "
            f"{message.topic()} at offset {message.offset()}, after this job"
        )
        return True
