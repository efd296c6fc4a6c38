"""The tasks of a governed group: what Kafka says there is, declared in the group's configuration.

Pure. The governor writes the configuration that `declare` returns, and tells the result to
`written`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.adopt import target_choice
from muster.adopt.join_metadata import KafkaMember, Kind
from muster.adopt.model import AssignableUnits, Options
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig
from muster.protocol.records import GroupSnapshot


class DeclaredTasks:
    """The newest configuration of a group, and the topics or connectors that it follows.

    Args:
        options: how the group is governed.

    Attributes:
        config: the newest configuration.
        declared_ms: when its tasks changed last, by the governor's clock.
    """

    def __init__(self, options: Options) -> None:
        self.config = options.config
        self.declared_ms = 0
        self._options = options
        self._place: Place | None = options.configured  # None = one is being written
        self._units: AssignableUnits | None = None

    @property
    def offset(self) -> int:
        """Offset of Connect's config topic up to which the connectors are known; -1 = none."""
        return -1 if self._units is None else self._units.offset

    def found(self, units: AssignableUnits) -> None:
        """Take in what Kafka says there is to assign."""
        self._units = units

    def are_known(self, members: Sequence[KafkaMember]) -> bool:
        """Whether the tasks are known; of Connect, up to the newest offset that a worker read."""
        newest = max((member.config_offset for member in members), default=-1)
        return self._units is not None and self._units.offset >= newest

    def declare(self, members: Sequence[KafkaMember], now_ms: int) -> GroupConfig | None:
        """The configuration to write, because the tasks have changed; None = they have not."""
        if self._units is None:
            return None
        weights = self._options.weights
        old = {unit.name: unit for unit in self.config.tasks}
        units = tuple(
            target_choice.weighed(unit, weights, old.get(unit.name)) for unit in self._units.units
        )
        if self._options.kind is Kind.CONSUMER:
            # Keep only topics that a present member reads; without members, keep the last tasks.
            subscribed = {topic for member in members for topic in member.topics or ()}
            units = tuple(unit for unit in units if unit.name in subscribed)
            if not subscribed:
                return None
        if units == self.config.tasks:
            return None
        self.config = replace(self.config, tasks=units)
        self.declared_ms, self._place = now_ms, None
        return self.config

    def written(self, place: Place | None, now_ms: int) -> None:
        """Note where the configuration is; None = it was not written: declare it once more."""
        self._place = place
        if place is None:
            self.declared_ms, self.config = now_ms, replace(self.config, tasks=())

    def read(self, snapshot: GroupSnapshot) -> None:
        """Take over what an operator has changed since our configuration, which must stay so."""
        mine = self._place
        read = {(topic, number): offset for topic, number, offset in snapshot.through}
        if mine is not None and read.get((mine.topic, mine.partition), -1) >= mine.offset:
            self.config = replace(
                self.config,
                assignor=snapshot.assignor,
                settings=snapshot.settings,
                tasks=snapshot.tasks,
            )
