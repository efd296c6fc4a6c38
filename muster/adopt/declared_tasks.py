"""The tasks of a governed group: what Kafka says there is, declared in the group's configuration.

Pure, but for its log. The governor writes the configuration that `declare` returns, and tells the
outcome to `written`. A configuration that could not be written stays the group's newest: the
governor decides by it, and `declare` returns it again after `AGAIN_MS`.

A topic that one look at Kafka's metadata lacks keeps its tasks for discovery's grace time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Final

from muster.adopt.join_metadata import KafkaMember, Kind
from muster.adopt.model import AssignableUnits, Configured, Options
from muster.discovery.topic_changes import GRACE_MS, Memory, vanished
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig
from muster.protocol.records import GroupSnapshot
from muster.protocol.tasks import Unit

log = logging.getLogger("muster.adopt")

AGAIN_MS: Final = 5_000
"""Pause before a configuration that was not written is written again."""


class DeclaredTasks:
    """The newest configuration of a group, and the topics or connectors that it follows.

    Attributes:
        config: the newest configuration.
        declared_ms: when its tasks changed last, by the governor's clock.
    """

    def __init__(self, options: Options) -> None:
        self.config = options.config
        self.declared_ms = 0
        self._options = options
        self._place: Place = options.configured  # of the newest configuration that was written
        self._is_written = True  # whether that one is `config`
        self._again_ms: int | None = None  # when `config`, which was not written, is written again
        self._fault = ""  # why it was not written
        self._units: AssignableUnits | None = None
        self._memory = Memory()  # of topics that Kafka lacks
        self._kept_until_ms: int | None = None  # when the first of them loses its tasks

    @property
    def offset(self) -> int:
        """Offset of Connect's config topic up to which the connectors are known; -1 = none."""
        return -1 if self._units is None else self._units.offset

    @property
    def is_unwritten(self) -> bool:
        """Whether `config` could not be written, so that the coordinator does not know it."""
        return bool(self._fault)

    def is_due(self, now_ms: int) -> bool:
        """Whether `declare` is to be called although nothing new was found."""
        return any(
            due_ms is not None and now_ms >= due_ms
            for due_ms in (self._again_ms, self._kept_until_ms)
        )

    def found(self, units: AssignableUnits) -> None:
        """Take in what Kafka says there is to assign."""
        self._units = units

    def are_known(self, members: Sequence[KafkaMember]) -> bool:
        """Whether the tasks are known; of Connect, up to the newest offset that a worker read."""
        newest = max((member.config_offset for member in members), default=-1)
        return self._units is not None and self._units.offset >= newest

    def declare(self, members: Sequence[KafkaMember], now_ms: int) -> GroupConfig | None:
        """The configuration to write: its tasks have changed, or the last write failed a while ago.

        None = there is nothing to write.
        """
        units = self._units_of(members, now_ms)
        if units is not None and units != self.config.tasks:
            self.config, self.declared_ms = replace(self.config, tasks=units), now_ms
        elif self._again_ms is None or now_ms < self._again_ms:
            return None
        self._is_written, self._again_ms = False, None
        return self.config

    def _units_of(self, members: Sequence[KafkaMember], now_ms: int) -> tuple[Unit, ...] | None:
        """What the configuration is to declare; None = what it declares already."""
        if self._units is None:
            return None
        found = self._units.units
        old = {unit.name: unit for unit in self.config.tasks}
        if self._options.kind is Kind.CONSUMER:
            # Keep only topics that a present member reads; without members, keep the last tasks.
            subscribed = {topic for member in members for topic in member.topics or ()}
            if not subscribed:
                return None
            there = {unit.name: unit for unit in found}
            kept = self._vanished(subscribed & old.keys(), there.keys(), now_ms)
            units = {name: unit for name, unit in there.items() if name in subscribed}
            units |= {name: old[name] for name in kept}
            found = tuple(units[name] for name in sorted(units))
        return tuple(self._weighed(unit, old.get(unit.name)) for unit in found)

    def _weighed(self, unit: Unit, old: Unit | None) -> Unit:
        """The unit with its weight from the options, or else from the previous configuration."""
        weight = self._options.weights.get(unit.name, old.weight if old is not None else None)
        return unit if weight is None else replace(unit, weight=weight)

    def _vanished(self, known: Set[str], there: Set[str], now_ms: int) -> list[str]:
        """Known topics that Kafka lacks, and that keep their tasks for now."""
        kept = vanished(known, there, self._memory, now_ms, GRACE_MS)
        ends = [self._memory.missing_since_ms[name] + GRACE_MS for name in kept]
        self._kept_until_ms = min(ends, default=None)
        return kept

    def written(self, outcome: Configured, now_ms: int) -> None:
        """Note where the configuration is, or that it was not written and is to be once more."""
        if outcome.place is None:
            self._again_ms = now_ms + AGAIN_MS
            self._tell(outcome.fault or "no reason given")
        else:
            self._place, self._is_written, self._again_ms = outcome.place, True, None
            self._tell("")

    def _tell(self, fault: str) -> None:
        """Log once why the configuration is not written, and that it is; empty = it is."""
        group = {"group": self._options.group}
        if fault and fault != self._fault:
            log.warning(
                "the group's configuration, with new tasks, is not written: %s; the governor"
                " decides by it meanwhile, and writes it again every %d s",
                fault,
                AGAIN_MS // 1_000,
                extra=group,
            )
        elif self._fault and not fault:
            log.info("the group's configuration is written; the coordinator decides", extra=group)
        self._fault = fault

    def read(self, snapshot: GroupSnapshot) -> None:
        """Take over what an operator has changed since our configuration, which must stay so.

        Of tasks that are not written yet the snapshot knows nothing: they stay.
        """
        read = {(topic, number): offset for topic, number, offset in snapshot.through}
        mine = self._place
        is_being_written = not self._is_written and self._again_ms is None
        if is_being_written or read.get((mine.topic, mine.partition), -1) < mine.offset:
            return
        self.config = replace(
            self.config,
            assignor=snapshot.assignor,
            settings=snapshot.settings,
            tasks=snapshot.tasks if self._is_written else self.config.tasks,
        )
