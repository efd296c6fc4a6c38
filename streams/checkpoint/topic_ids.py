"""The topics that a checkpoint belongs to: their Kafka ids, in a file in the checkpoint.

A checkpoint holds offsets. If its topics were created again, or are another cluster's, a query that
continues from it skips every record until the old offsets are reached, and looks healthy. So the
ids are compared at each start (`check`), and by `Kept` while the job runs. The topics of claims are
compared as well: an epoch is the offset of a claim, and members ignore one that goes back.

A checkpoint without the file (from before the file existed) is accepted and gets one. Brokers older
than 2.8 have no topic ids: then nothing is compared.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from muster.kafka.client_settings import ClientSettings
from muster.logs import KAFKA
from muster.streams.checkpoint.files import Checkpoint
from muster.streams.errors import KafkaUnreachable, OtherTopics

FILE = "muster-topics.json"
ASK_TIMEOUT_S = 30.0
NONE = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that a broker without topic ids gives."""


def check(
    checkpoint: Checkpoint, clients: ClientSettings, topics: Iterable[str]
) -> Mapping[str, str]:
    """Check that the checkpoint belongs to these topics, and write down their ids; return them.

    A new checkpoint of other topics is emptied: a first batch was begun in it and never committed.

    Raises:
        OtherTopics: the checkpoint belongs to other topics.
        KafkaUnreachable: Kafka did not return the topics' ids.
    """
    now = ids(clients, topics)
    then = {topic: str(id_) for topic, id_ in checkpoint.read(FILE).items()}
    fault = _fault(checkpoint.folder, then, now)
    if fault is not None and not checkpoint.is_new:
        raise fault
    if fault is not None:
        checkpoint, then = checkpoint.emptied(), {}
    if {**then, **now} != then:
        checkpoint.write(FILE, {**then, **now})
    return {**then, **now}


class Kept:
    """The topics of a job that runs: ends the job when they are others than its checkpoint's.

    `then` is the result of `check`. When the topics are others, `stop` is set, and `fault` says
    which.
    """

    def __init__(
        self, folder: str, clients: ClientSettings, then: Mapping[str, str], stop: threading.Event
    ) -> None:
        self.fault: OtherTopics | None = None
        self._folder, self._clients, self._then, self._stop = folder, clients, then, stop

    def same(self) -> bool:
        """Whether the topics are the checkpoint's; if not, the job ends.

        Raises:
            KafkaUnreachable: Kafka did not return the topics' ids.
        """
        self.fault = _fault(self._folder, self._then, ids(self._clients, self._then))
        if self.fault is not None:
            self._stop.set()
        return self.fault is None


def _fault(folder: str, then: Mapping[str, str], now: Mapping[str, str]) -> OtherTopics | None:
    other = sorted(topic for topic in then.keys() & now.keys() if then[topic] != now[topic])
    if not other:
        return None
    return OtherTopics(
        f"the checkpoint {folder} is of other topics: {', '.join(other)} were "
        "created again since, or are another cluster's. Give --checkpoint a new folder; the "
        "groups are read back from Kafka. (If the same records are at the same offsets there, "
        f"as in a restored backup, remove {folder}/{FILE} instead)"
    )


def ids(clients: ClientSettings, topics: Iterable[str]) -> dict[str, str]:
    """Topic → id; topics without an id are left out.

    Raises:
        KafkaUnreachable: Kafka did not return the ids.
    """
    admin = AdminClient(clients.librdkafka(), logger=KAFKA)
    asked = admin.describe_topics(TopicCollection([*topics]), request_timeout=ASK_TIMEOUT_S)
    try:
        ids_by_name = {name: str(future.result().topic_id) for name, future in asked.items()}
    except KafkaException as error:
        raise KafkaUnreachable(f"Kafka did not return the ids of the topics: {error}") from error
    return {name: id_ for name, id_ in ids_by_name.items() if id_ != NONE}
