"""How much work the events of one group may ask for: in one batch, and batch after batch.

Few bytes can ask for much work, and the other groups of a batch wait for it. So events are limited
by what they name (tasks, lags, heartbeats in ticks), and a group has a *credit* of CPU time for
each kind of topic. An event uses credit up by a fixed estimate of what it costs, in µs on a slow
core; the credit grows back with the broker's time. Without credit the group's events are refused.
Its members repeat what matters: a join that is not answered, a report whose digest differs.

Of new groups without a config a batch accepts a few, whatever they ask for.

Rows and stored values decide all of this, never a clock: a replay refuses the same events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from muster.protocol.errors import DecodeError
from muster.protocol.events import (
    Event,
    GroupConfig,
    Join,
    LagReport,
    Report,
    Tick,
    TopicsFound,
)
from muster.protocol.framing import PREFIX
from muster.protocol.rows import HOLDING_SETS
from muster.protocol.tasks import GROUP_TASKS_MAX, Unit
from muster.protocol.taskset import SET_TASKS_MAX
from muster.protocol.tick_covers import HEARD_MAX
from muster.protocol.topics import TopicKind

EVENT_TASKS_MIN = 4_096
"""Tasks that a join or report may name in each role, even in a small group."""
BATCH_TASKS_MIN = 1 << 18
"""Tasks that all joins and reports of a small group in one batch may name together."""
BATCH_LAGS_MIN = 1 << 14
"""Lags that the events of a group in one batch may report, even in a small group; a decoded lag
takes some 300 bytes."""
BATCH_HEARD_MIN = 50_000
"""Heartbeats that the ticks of a group in one batch may carry, even in a small group."""
BATCH_HEARD = 8
"""The same for each member of a larger group. A few hundred bytes can carry thousands."""
LAGS_MAX = 1 << 22
"""Lags that the events of a group in one batch may report, however many tasks the group has."""
SMALL_BYTES_MAX = 4_096
"""When the lags of a batch are used up, larger events of the group are refused without decoding."""
PLAIN_TICK_BYTES = 128
"""A tick that names no member has fewer bytes."""

EVENT_US = 250
"""Estimate for a join, report, leave, drain, tick or lag report. Heartbeats cost nothing here."""
LAG_US = 5
HEARD_US = 1
"""Estimates for each lag that an event reports, and for each heartbeat that a tick carries."""
REFUSED_US = 50
"""Estimate for a row that cannot be decoded."""
CONFIG_US = 1_000
CONFIG_UNIT_US = 40
CONFIG_MEMBER_US = 75
"""Estimates for a config, a deletion, or found topics; more for each unit, and for each member that
may get a record because of it."""
CREDIT_EVENTS_MIN = 1_000
"""Events for which the whole credit of a small group suffices; a larger group has credit for one
event of each member, or two of each task, because all members of a fleet join and then report."""
CREDIT_CONFIGS_US = 500_000
"""Whole credit for configs of a small group; a larger one has room for two more of its size."""
REGROWN_US = 75_000
"""Credit that grows back in a second, even for a small group."""
REGROWN_PART = 10
"""A larger group's credit grows back by its whole, divided by this, in a second."""
LARGE_CONFIG_BYTES = 1 << 16
LARGE_CONFIGS_US = 1_000_000
"""Work for which all configs above this size may ask in one batch. All groups share it, because a
writer can name another group in each config, which no group's credit limits."""
LARGE_CONFIG_BYTE_US = 0.1
"""Estimate for each byte of a large config that cannot be decoded."""
NEW_GROUPS_MAX = 10
"""New groups without a config that one Spark task accepts in a batch. A new group costs ten times
as much as a known one, and a client that may write to `membership` can name a million of them. Only
an operator may write a config."""
KEPT_US = 10 * EVENT_US
"""Used credit up to this is not stored: an ordinary batch of a small group changes no format."""

_TOO_MANY_LAGS = "more lags than the events of a group may report in one batch"
_TOO_MANY_HEARD = "more members in ticks than the ticks of a group may name in one batch"
_KINDS = (TopicKind.MEMBERSHIP, TopicKind.CONFIG, TopicKind.LAG)
_STORED = Struct(">q3i")
CREDIT_BYTES = _STORED.size


class Credit(NamedTuple):
    """A group's credit for events, as of a time.

    Attributes:
        at_ms: broker time, epoch milliseconds.
        left_us: for membership, config and lag; below zero after an event that cost more than the
            rest of the credit.
    """

    at_ms: int
    left_us: tuple[int, int, int]

    def to_bytes(self) -> bytes:
        """The credit as it is stored."""
        return _STORED.pack(self.at_ms, *(max(us, -(2**31)) for us in self.left_us))

    @classmethod
    def from_bytes(cls, data: bytes) -> Credit:
        """The credit as it was stored."""
        at_ms, *left_us = _STORED.unpack(data)
        return cls(at_ms, tuple(left_us))


@dataclass
class LargeConfigs:
    """What the large configs of all groups that one Spark task works on in a batch may ask for."""

    left_us: int = LARGE_CONFIGS_US


class Limits(NamedTuple):
    """What is known of a group before a batch; its limits follow from it.

    Attributes:
        group_tasks_max: tasks that a config may declare.
        tasks_known: tasks that the group has.
        members_known: members that the group has.
        credit: what the batches before have left; None = the whole credit.
        large_configs: what the batch's groups share; None = this group has it alone.
    """

    group_tasks_max: int = GROUP_TASKS_MAX
    tasks_known: int = 0
    members_known: int = 0
    credit: Credit | None = None
    large_configs: LargeConfigs | None = None


NO_LIMITS = Limits(tasks_known=SET_TASKS_MAX)


class Budget:
    """What the rest of a batch may bring: work, tasks, lags, and heartbeats in ticks.

    Args:
        limits: what is known of the group.
        now_ms: broker time of the batch's newest row.
    """

    def __init__(self, limits: Limits, now_ms: int = 0) -> None:
        self._limits = limits
        self._large_configs = limits.large_configs or LargeConfigs()
        self._tasks = 0
        self._left = 0
        self._lags = BATCH_LAGS_MIN
        self._heard = max(BATCH_HEARD_MIN, BATCH_HEARD * limits.members_known)
        self.each = 0
        self._now_ms = now_ms
        self._credit_us: dict[TopicKind, int] = {}
        self.declare(limits.tasks_known)
        before = limits.credit
        for number, kind in enumerate(_KINDS):
            whole_us = self._whole_us(kind)
            left_us = whole_us
            if before is not None:
                second_us = max(REGROWN_US, whole_us // REGROWN_PART)
                passed_ms = max(now_ms - before.at_ms, 0)
                left_us = min(whole_us, before.left_us[number] + second_us * passed_ms // 1_000)
            self._credit_us[kind] = left_us

    def declare(self, tasks: int) -> None:
        """Raise the limits for a group of that many tasks."""
        self.each = max(self.each, EVENT_TASKS_MIN, 2 * tasks)
        self._left = max(self._left, BATCH_TASKS_MIN, 8 * tasks)
        self._lags = max(self._lags, min(16 * tasks, LAGS_MAX))
        before = {kind: self._whole_us(kind) for kind in self._credit_us}
        self._tasks = max(self._tasks, tasks)
        for kind, whole_us in before.items():
            self._credit_us[kind] += self._whole_us(kind) - whole_us

    def _whole_us(self, kind: TopicKind) -> int:
        members = self._limits.members_known
        if kind is TopicKind.CONFIG:
            return CREDIT_CONFIGS_US + 2 * CONFIG_MEMBER_US * members
        return EVENT_US * max(CREDIT_EVENTS_MIN, members, 2 * self._tasks)

    def has_room(self, kind: TopicKind) -> bool:
        """Whether the group has credit for one more event of a topic."""
        return self._credit_us[kind] > 0

    def has_room_for_config(self, size: int) -> bool:
        """Whether the group has credit for one more config, and the batch room for one so large."""
        fits = size <= LARGE_CONFIG_BYTES or self._large_configs.left_us > 0
        return fits and self.has_room(TopicKind.CONFIG)

    def count_config(self, size: int, event: Event | DecodeError) -> None:
        """Use up credit for a row of the config topic."""
        cost_us = REFUSED_US
        if not isinstance(event, DecodeError):
            cost_us = CONFIG_US + CONFIG_UNIT_US * len(_units_of(event))
            cost_us += CONFIG_MEMBER_US * self._limits.members_known
        elif size > LARGE_CONFIG_BYTES:
            cost_us = int(LARGE_CONFIG_BYTE_US * size)
        self._credit_us[TopicKind.CONFIG] -= cost_us
        if size > LARGE_CONFIG_BYTES:
            self._large_configs.left_us -= cost_us

    def count(self, kind: TopicKind, event: Event | DecodeError) -> None:
        """Use up credit for a row of another topic."""
        cost_us = EVENT_US
        if isinstance(event, DecodeError):
            cost_us = REFUSED_US
        elif isinstance(event, Join | Report | LagReport):
            cost_us = max(EVENT_US, LAG_US * len(event.lags))
        elif isinstance(event, Tick) and event.cover is not None:
            cost_us = max(EVENT_US, HEARD_US * len(event.cover.heard))
        self._credit_us[kind] -= cost_us

    def credit(self) -> Credit | None:
        """What this batch leaves; None = (nearly) the whole credit."""
        used_us = [self._whole_us(kind) - left_us for kind, left_us in self._credit_us.items()]
        if max(used_us) <= KEPT_US:
            return None
        before_ms = 0 if self._limits.credit is None else self._limits.credit.at_ms
        membership, config, lag = (self._credit_us[kind] for kind in _KINDS)
        return Credit(max(self._now_ms, before_ms), (membership, config, lag))

    @property
    def heard(self) -> int:
        """Heartbeats that the next tick may carry."""
        return min(HEARD_MAX, max(self._heard, 0))

    @property
    def next(self) -> int:
        """Tasks that the next event may name in each role."""
        return min(self.each, max(self._left, 0))

    def admit(self, kind: TopicKind, value: bytes) -> None:
        """Refuse an event without decoding it when the batch has no room for what it may name.

        Decoding a lag takes microseconds, so a batch full of lags would make all other groups wait.

        Raises:
            DecodeError: the event is refused.
        """
        if self._lags <= 0 and len(value) > SMALL_BYTES_MAX and kind is not TopicKind.CONFIG:
            raise DecodeError(_TOO_MANY_LAGS)
        if self._heard <= 0 and _is_covering(kind, value):
            raise DecodeError(_TOO_MANY_HEARD)

    def refused(self, kind: TopicKind, value: bytes) -> None:
        """Note an event that could not be decoded: a tick that names too many is one of many."""
        if _is_covering(kind, value):
            self._heard = 0

    def take(self, event: Event) -> None:
        """Count what an event names.

        Raises:
            DecodeError: a config declares too many tasks, or the batch reports too many lags.
        """
        if isinstance(event, Join | Report | LagReport):
            if len(event.lags) > max(self._lags, 0):
                self._lags = 0
                raise DecodeError(_TOO_MANY_LAGS)
            self._lags -= len(event.lags)
        if isinstance(event, Join | Report):
            self._left -= sum(len(getattr(event.holding, name)) for name in HOLDING_SETS)
        elif isinstance(event, Tick) and event.cover is not None:
            self._heard -= len(event.cover.heard)
        elif isinstance(event, GroupConfig | TopicsFound):
            tasks = sum(unit.size for unit in _units_of(event))
            most = self._limits.group_tasks_max
            if tasks > most:
                raise DecodeError(f"a group of {tasks} tasks; muster.group.tasks.max is {most}")
            self.declare(tasks)


def _is_covering(kind: TopicKind, value: bytes) -> bool:
    """Whether the value may be a tick that names members."""
    is_large = kind is TopicKind.MEMBERSHIP and len(value) > PLAIN_TICK_BYTES
    return is_large and value.startswith(PREFIX["Tick"])


def _units_of(event: Event) -> Sequence[Unit]:
    """The units that an event of the config topic declares."""
    if isinstance(event, GroupConfig):
        return event.tasks
    found = event.found if isinstance(event, TopicsFound) else ()
    return [unit for each in found for unit in each.units]
