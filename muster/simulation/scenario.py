"""What happens in a simulated life, as values; `muster.cli.scenario` reads them from JSON."""

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
    """A process starts and joins. Spans as in `SimulatedMember`."""

    join: Join
    ack_ms: int = 0
    restore_ms: int | None = 0
    heartbeat_ms: int = 3_000
    ack_step_ms: int = 0
    tells: str = READY
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Returns:
    """A process that left or crashed starts again, as it was, with what its disk still has."""

    member: str


@dataclass(frozen=True, slots=True)
class Leaves:
    """A member stops everything and goes; `temporary`: a static one that will return."""

    member: str
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Crashes:
    """A process is gone without a word; its last heartbeat is of this instant."""

    member: str


@dataclass(frozen=True, slots=True)
class Drains:
    """An operator wants a member empty."""

    member: str
    on: bool = True


@dataclass(frozen=True, slots=True)
class Rejoins:
    """A member joins again and nothing has changed; with Connect's assignors all workers do."""

    member: str


@dataclass(frozen=True, slots=True)
class Lagging:
    """How far a member's copies are behind."""

    member: str
    offsets: tuple[tuple[Task, int], ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """A member has caught up with a learner."""

    member: str
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """The group is to be like this from now on."""

    assignor: str
    settings: Settings
    tasks: tuple[Unit, ...]


@dataclass(frozen=True, slots=True)
class Forgets:
    """The assignor's memory is lost, as when Connect's leader changes."""


@dataclass(frozen=True, slots=True)
class Undelivered:
    """The records of the next generation do not reach these members."""

    members: frozenset[str]


Happening: TypeAlias = (
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
    """A life: the group's first config, and what happens when.

    Attributes:
        group: the config in force at the beginning.
        events: (milliseconds, happening), ascending.
        until_ms: when the play ends.
    """

    group: Configured
    events: tuple[tuple[int, Happening], ...] = field(default_factory=tuple)
    until_ms: int
