"""The events of a simulated scenario as values; `documents.scenario` reads them from JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from muster.protocol.events import Join
from muster.protocol.ids import Task
from muster.protocol.settings import Settings
from muster.protocol.tasks import Unit
from muster.simulation.member import READY


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """A process starts and joins. The attributes are those of `SimulatedMember`."""

    join: Join
    ack_ms: int = 0
    restore_ms: int | None = 0
    heartbeat_ms: int = 3_000
    ack_step_ms: int = 0
    tells: str = READY
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Returns:
    """A process that left or crashed starts again with the same settings and its old disk."""

    member: str


@dataclass(frozen=True, slots=True)
class Leaves:
    """A member stops everything and leaves; with `temporary`, its leave says it will return."""

    member: str
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Crashes:
    """A process ends without a leave, just after a last heartbeat."""

    member: str


@dataclass(frozen=True, slots=True)
class Drains:
    """An operator drains a member, or (`on` is False) undoes that."""

    member: str
    on: bool = True


@dataclass(frozen=True, slots=True)
class Rejoins:
    """A member joins again with nothing changed; with Connect's assignors all members do."""

    member: str


@dataclass(frozen=True, slots=True)
class Lagging:
    """Lags of a member's copies are reported."""

    member: str
    offsets: tuple[tuple[Task, int], ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A member has caught up with a learner."""

    member: str
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The group gets this config."""

    assignor: str
    settings: Settings
    tasks: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Forgets:
    """The assignor's memory is lost, as when Connect's leader changes."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """These members do not get the records of the next generation."""

    members: frozenset[str]


ScenarioEvent: TypeAlias = (
    Joins
    | Returns
    | Leaves
    | Crashes
    | Drains
    | Rejoins
    | Lagging
    | Ready
    | Configured
    | Forgets
    | Undelivered
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario: the group's first config, and timed events.

    Attributes:
        group: the config in force at the beginning.
        events: (milliseconds, event), ascending.
        until_ms: when the simulation ends.
    """

    group: Configured
    events: tuple[tuple[int, ScenarioEvent], ...] = field(default_factory=tuple)
    until_ms: int
