"""Looks which partitions the topics of governed groups have, and tells the governors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from muster.adopt.model import Jobs
from muster.discovery import topics as discovery
from muster.discovery.topics import Topic
from muster.kafka.settings import ClientSettings
from muster.protocol.tasks import Subtopology

log = logging.getLogger("muster.adopt.kafka")

LOOK_S: Final = 2.0
"""How often topics are looked at: new partitions are read a second or two after they were made."""
CLOSE_S: Final = 10.0


class Partitions:
    """One thread for all groups; `open` it once, `close` it once."""

    def __init__(self, clients: ClientSettings) -> None:
        self._admin = AdminClient(clients.librdkafka({"log_level": 0}))
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._posts: dict[str, Callable[[Jobs], None]] = {}
        self._told: dict[str, Jobs] = {}
        self._unseen: set[str] = set()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="muster-partitions", daemon=True)

    def open(self) -> None:
        """Begin to look."""
        self._thread.start()

    def want(self, group: str, topics: Sequence[str], post: Callable[[Jobs], None]) -> None:
        """A group's members read these topics; `post` gets their partitions, now and later."""
        self._posts[group] = post
        if self._wanted.get(group) != tuple(topics):
            self._wanted[group] = tuple(topics)
            self._told.pop(group, None)
            self._wake.set()

    def close(self) -> None:
        """Stop."""
        self._closing = True
        self._wake.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            wanted = dict(self._wanted)
            topics = {topic for names in wanted.values() for topic in names}
            if self._closing or not wanted:
                continue
            try:
                found = discovery.topics(self._admin, topics)
            except (KafkaException, TimeoutError) as error:
                log.info("topics cannot be looked at: %s", error)
                continue
            self._warn(topics - found.keys())
            for group, names in wanted.items():
                jobs = Jobs(tuple(_unit(found[name]) for name in names if name in found))
                if self._told.get(group) != jobs and self._wanted.get(group) == names:
                    self._told[group] = jobs
                    self._posts[group](jobs)

    def _warn(self, unseen: set[str]) -> None:
        """Log the topics that members read and this login does not see, each once."""
        for name in sorted(unseen - self._unseen):
            log.warning(
                "topic %s is not there, or this login lacks DESCRIBE on it: no member gets its"
                " partitions",
                name,
            )
        self._unseen = unseen


def _unit(topic: Topic) -> Subtopology:
    racks = tuple((row,) for row in topic.replica_racks) if topic.has_racks else None
    return Subtopology(topic.name, topic.partitions, source_racks=racks)
