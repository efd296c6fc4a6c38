"""Looks up which partitions the topics of governed groups have, and posts them to the governors.

If a group weighs its partitions by their load, this thread also measures the loads every
`MEASURE_S`, and posts new weights when they differ enough (`discovery.measured_weights`). It does
not while a topic has vanished for less than discovery's grace time, in which the governor keeps the
topic (`declared_tasks`): weights are relative to all of a group's partitions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException

from muster.adopt.model import AssignableUnits
from muster.discovery import measured_traffic
from muster.discovery import topics as discovery
from muster.discovery.measured_traffic import Measure, Place
from muster.discovery.measured_weights import smoothed, weighed
from muster.discovery.topic_changes import GRACE_MS, Memory, racks, vanished
from muster.discovery.topics import Topic
from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_admin import LastingAdmin
from muster.logs import KAFKA
from muster.output import wall_ms
from muster.protocol.errors import MusterError
from muster.protocol.sources import Source
from muster.protocol.tasks import Subtopology

log = logging.getLogger("muster.adopt.kafka")

LOOK_S: Final = 2.0
"""How often topics are looked up: members read new partitions a second or two after creation."""
MEASURE_S: Final = 30.0
"""How often loads are measured."""


@dataclass(slots=True)
class _Measured:
    """The newest measurement of a group's partitions.

    Attributes:
        at_s: when they were measured.
        units: topic → unit, with the weights that were posted.
        lags: smoothed lag of each partition.
        fault: why they could not be measured; empty = they were.
        memory: of topics that have vanished.
    """

    at_s: float = 0.0
    units: dict[str, Subtopology] = field(default_factory=dict)
    lags: dict[Place, float] = field(default_factory=dict)
    fault: str = ""
    memory: Memory = field(default_factory=Memory)


class Partitions:
    """The thread that looks up topics for all groups; `open` it once, `close` it once."""

    def __init__(self, clients: ClientSettings) -> None:
        self._clients = clients
        self._measures: dict[str, Measure] = {}
        self._measured: defaultdict[str, _Measured] = defaultdict(_Measured)
        self._admin = LastingAdmin(clients.librdkafka({"log_level": 0}), KAFKA)
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._posts: dict[str, Callable[[AssignableUnits], None]] = {}
        self._posted: dict[str, AssignableUnits] = {}
        self._units: dict[str, Subtopology] = {}  # topic → its partitions and racks, without load
        self._reported_unseen: set[str] = set()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="muster-partitions", daemon=True)

    def open(self) -> None:
        """Begin to look."""
        self._thread.start()

    def want(
        self,
        group: str,
        topics: Sequence[str],
        post: Callable[[AssignableUnits], None],
        measure: Measure | None = None,
    ) -> None:
        """Post the partitions of the topics that a group reads, now and after each change."""
        self._posts[group] = post
        if measure is not None:
            self._measures[group] = measure
        if self._wanted.get(group) != tuple(topics):
            self._wanted[group] = tuple(topics)
            self._posted.pop(group, None)
            self._wake.set()

    def forget(self, group: str) -> None:
        """Look no more for the topics of a group."""
        self._wanted.pop(group, None)

    def close(self, wait_s: float) -> None:
        """Stop, and wait this long for a request to end."""
        self._closing = True
        self._wake.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            wanted = dict(self._wanted)
            topics = {topic for names in wanted.values() for topic in names}
            if self._closing or not wanted:
                continue
            try:
                found = discovery.topics(self._admin.client, topics)
            except (KafkaException, TimeoutError) as error:
                log.info("topics cannot be looked up: %s", error)
                continue
            self._warn(topics - found.keys())
            self._keep(topics, found)
            for group, names in wanted.items():
                units = [self._units[name] for name in names if name in found]
                if group in self._measures and units:
                    units = self._weigh(group, names, units)
                jobs = AssignableUnits(tuple(units))
                if self._posted.get(group) != jobs and self._wanted.get(group) == names:
                    self._posted[group] = jobs
                    self._posts[group](jobs)

    def _keep(self, wanted: Set[str], found: Mapping[str, Topic]) -> None:
        """Note what the topics are now; a broker that is away keeps its rack."""
        self._units = {name: unit for name, unit in self._units.items() if name in wanted} | {
            name: Subtopology(
                name,
                topic.partitions,
                source_racks=racks(Source(topics=(name,)), [topic], self._units.get(name)),
            )
            for name, topic in found.items()
        }

    def _weigh(
        self, group: str, names: Sequence[str], units: list[Subtopology]
    ) -> list[Subtopology]:
        """The units with weights: those posted before, or new ones if they differ enough."""
        known, measure = self._measured[group], self._measures[group]
        there = {unit.name for unit in units}
        measured = [name for name in names if name in known.units]
        now_ms = int(time.monotonic() * 1_000)
        kept = vanished(measured, there, known.memory, now_ms, GRACE_MS)
        loads: dict[Place, float] | None = None
        is_grown = {unit.name: unit.size for unit in units} != {
            unit.name: unit.size for unit in known.units.values()
        }
        is_due = is_grown or time.monotonic() - known.at_s >= MEASURE_S
        if is_due and not kept:
            known.at_s = time.monotonic()
            places = [(unit.name, number) for unit in units for number in range(unit.size)]
            try:
                loads = measured_traffic.by_measure(
                    self._clients, self._admin.client, measure, places, group, wall_ms()
                )
                known.fault = ""
            except (KafkaException, MusterError, TimeoutError) as error:
                fault = self._clients.hidden(str(error))[:200]
                if fault != known.fault:
                    log.warning("%s not measured: %s", measure, fault, extra={"group": group})
                known.fault = fault
                self._admin.replace()
        if loads is not None and measure is Measure.LAG:
            loads = known.lags = smoothed(known.lags, loads)
        source = Source(topics=tuple(unit.name for unit in units), measure=str(measure))
        weighed_units = weighed(source, units, known.units, loads)
        known.units = {name: known.units[name] for name in kept} | {
            unit.name: unit for unit in weighed_units
        }
        return weighed_units

    def _warn(self, unseen: set[str]) -> None:
        """Log once each topic that members read and this login does not see."""
        for name in sorted(unseen - self._reported_unseen):
            log.warning(
                "topic %s does not exist, or this login lacks DESCRIBE on it: no member gets its"
                " partitions; one that has them keeps them for %d s",
                name,
                GRACE_MS // 1_000,
            )
        self._reported_unseen = unseen
