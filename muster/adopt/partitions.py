"""Looks which partitions the topics of governed groups have, and tells the governors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from muster.adopt.model import Jobs
from muster.kafka.settings import ClientSettings
from muster.protocol.tasks import RackLists, Subtopology

log = logging.getLogger("muster.adopt.kafka")

LOOK_S: Final = 2.0
"""How often topics are looked at: new partitions are read a second or two after they were made."""
TIMEOUT_S: Final = 10.0


class Partitions:
    """One thread for all groups; `open` it once, `close` it once."""

    def __init__(self, clients: ClientSettings) -> None:
        self._admin = AdminClient(clients.librdkafka({"log_level": 0}))
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._posts: dict[str, Callable[[Jobs], None]] = {}
        self._told: dict[str, Jobs] = {}
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
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            wanted = dict(self._wanted)
            topics = {topic for names in wanted.values() for topic in names}
            if self._closing or not topics:
                continue
            try:
                units = described(self._admin, topics)
            except (KafkaException, TimeoutError) as error:
                log.info("topics cannot be looked at: %s", error)
                continue
            for group, names in wanted.items():
                jobs = Jobs(tuple(units[name] for name in names if name in units))
                if self._told.get(group) != jobs and self._wanted.get(group) == names:
                    self._told[group] = jobs
                    self._posts[group](jobs)


def described(admin: AdminClient, topics: Collection[str]) -> dict[str, Subtopology]:
    """The topics that exist and may be described, by name.

    Raises:
        KafkaException, TimeoutError: no answer.
    """
    asked = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=TIMEOUT_S)
    found: dict[str, Subtopology] = {}
    for name, future in asked.items():
        try:
            told: Any = future.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].retriable():
                raise
            continue  # deleted, or not ours to see: its partitions cannot be given to anybody
        partitions = sorted(told.partitions, key=lambda each: each.id)
        found[name] = Subtopology(name, len(partitions), source_racks=_racks(partitions))
    return found


def _racks(partitions: Iterable[Any]) -> RackLists | None:
    """Per partition the racks of its replicas; None if a broker has none."""
    lists = []
    for partition in partitions:
        racks = [node.rack for node in partition.replicas]
        if not all(racks):
            return None
        lists.append((tuple(sorted(set(racks))),))
    return tuple(lists) or None
