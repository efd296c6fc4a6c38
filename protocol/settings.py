"""Settings of a group: Kafka's names, Kafka's defaults, one table (`kips.md` section 10).

`SETTINGS` is the whole truth: key, field of `Settings`, default, what is accepted, meaning. The
command line, the job and the docs read it; nothing else knows a default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, cast

from muster.protocol.errors import ConfigError
from muster.protocol.tags import KEY_CHARS_MAX, TAGS_MAX

LONG_MAX = 2**63 - 1
Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

CONNECT_ASSIGNORS = ("eager", "cooperative", "static")
CONNECT_PROTOCOLS = ("static", "sessioned", "compatible", "eager")
"""Best first; who speaks one offers those below it as well (S0-F02)."""
"""Assignors of Kafka Connect: their groups default to Connect's timeouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings in force for one group. Times are milliseconds, lags are offsets.

    Build it with `parse_settings`; the plain constructor takes the streams defaults.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    rebalance_timeout_ms: int = 60_000
    initial_rebalance_delay_ms: int = 0
    assignment_interval_ms: int = 0
    assignor_timeout_ms: int = 5_000
    scheduled_rebalance_max_delay_ms: int = 300_000
    connect_protocol: str = "sessioned"
    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    num_standby_replicas: int = 0
    probing_rebalance_interval_ms: int = 600_000
    rack_aware_assignment_strategy: str = "none"
    rack_aware_assignment_traffic_cost: int | None = None
    rack_aware_assignment_non_overlap_cost: int | None = None
    rack_aware_assignment_tags: tuple[str, ...] = ()
    rack_aware_standby_strategy: str = "traffic"
    rack_aware_standby_reliable_replicas: int | None = None
    scale_down_timeout_ms: int = LONG_MAX
    learner_partial_rebalance: bool = True
    stream_imbalance_percentage: float = 0
    stream_rebalancing_mode: str = "incremental"
    group_max_size: int = 2**31 - 1

    def tuned(self) -> dict[str, Value]:
        """The keys whose value is not the plain default, by Kafka's name."""
        plain = Settings()
        return {
            s.key: getattr(self, s.field)
            for s in SETTINGS
            if getattr(self, s.field) != getattr(plain, s.field)
        }


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        key: as the user writes it.
        field: attribute of `Settings`.
        read: turns what the user wrote into the value; raises ValueError.
        accepted: what is right, in words.
        meaning: one sentence for `--help` and the docs.
        connect_default: the default for Connect's assignors, where it differs.
    """

    key: str
    field: str
    read: Callable[[object], Value]
    accepted: str
    meaning: str
    connect_default: Value = None


def _whole(low: int, high: int = LONG_MAX) -> Callable[[object], Value]:
    def read(value: object) -> Value:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError(value)
        _refuse_pythons_own(value)
        number = int(value)  # type: ignore[call-overload]  # whatever is no number raises below
        if not low <= number <= high:
            raise ValueError(value)
        return int(number)

    return read


def _optional_whole(value: object) -> Value:
    return None if value is None or value in ("", "null") else _whole(0, 2**31 - 1)(value)


def _refuse_pythons_own(value: object) -> None:
    """Numbers as text that nobody but Python reads as numbers: 1_0, other scripts' digits."""
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError(value)


def _percentage(value: object) -> Value:
    _refuse_pythons_own(value)
    number = float(value)  # type: ignore[arg-type]  # whatever is no number raises below
    if isinstance(value, bool) or not 0 <= number <= 1000:
        raise ValueError(value)
    return number


def _truth(value: object) -> Value:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}[str(value).lower()]


def _one_of(*names: str) -> Callable[[object], Value]:
    def read(value: object) -> Value:
        if value not in names:
            raise ValueError(value)
        return str(value)

    return read


def _names(value: object) -> Value:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list | tuple):
        raise ValueError(value)
    if not all(isinstance(part, str) for part in value):
        raise ValueError(value)
    parts = [part.strip() for part in cast("Sequence[str]", value)]
    found = tuple(part for part in parts if part)
    distinct = len(set(found)) == len(found) <= TAGS_MAX
    if not distinct or any(len(part) > KEY_CHARS_MAX for part in found):
        raise ValueError(found)
    return found


_MS = "a whole number of milliseconds"

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "session.timeout.ms",
        "session_timeout_ms",
        _whole(100, 1_800_000),
        f"{_MS}, 100 to 1800000",
        "a member silent for this long is gone",
        10_000,
    ),
    Setting(
        "heartbeat.interval.ms",
        "heartbeat_interval_ms",
        _whole(10, 600_000),
        f"{_MS}, 10 to 600000, below session.timeout.ms",
        "how often members say they are alive",
        3_000,
    ),
    Setting(
        "rebalance.timeout.ms",
        "rebalance_timeout_ms",
        _whole(1),
        f"{_MS}, at least 1",
        "a member that has not released a task for this long is fenced",
    ),
    Setting(
        "initial.rebalance.delay.ms",
        "initial_rebalance_delay_ms",
        _whole(0),
        f"{_MS}, 0 or more",
        "an empty group waits this long for more members after the first join",
    ),
    Setting(
        "assignment.interval.ms",
        "assignment_interval_ms",
        _whole(0),
        f"{_MS}, 0 or more",
        "least time between two generations",
    ),
    Setting(
        "assignor.timeout.ms",
        "assignor_timeout_ms",
        _whole(1),
        f"{_MS}, at least 1",
        "time budget of a plug-in assignor; beyond it the group keeps its target",
    ),
    Setting(
        "scheduled.rebalance.max.delay.ms",
        "scheduled_rebalance_max_delay_ms",
        _whole(0, 2**31 - 1),
        f"{_MS}, 0 to 2147483647",
        "how long the work of a lost worker waits for its return; 0 = not at all",
    ),
    Setting(
        "connect.protocol",
        "connect_protocol",
        _one_of("eager", "compatible", "sessioned", "static"),
        "eager, compatible, sessioned or static",
        "best protocol the group may use",
    ),
    Setting(
        "acceptable.recovery.lag",
        "acceptable_recovery_lag",
        _whole(0),
        "a whole number of offsets, 0 or more",
        "a copy at most this far behind counts as caught up",
    ),
    Setting(
        "max.warmup.replicas",
        "max_warmup_replicas",
        _whole(1, 2**31 - 1),
        "a whole number, 1 or more",
        "learners a group may have at once",
    ),
    Setting(
        "num.standby.replicas",
        "num_standby_replicas",
        _whole(0, 2**31 - 1),
        "a whole number, 0 or more",
        "warm copies of every stateful task",
    ),
    Setting(
        "probing.rebalance.interval.ms",
        "probing_rebalance_interval_ms",
        _whole(60_000),
        f"{_MS}, at least 60000",
        "how often a learner is looked at without an event (parity; events promote at once)",
    ),
    Setting(
        "rack.aware.assignment.strategy",
        "rack_aware_assignment_strategy",
        _one_of("none", "min_traffic", "balance_subtopology"),
        "none, min_traffic or balance_subtopology",
        "whether placement avoids traffic across racks",
    ),
    Setting(
        "rack.aware.assignment.traffic_cost",
        "rack_aware_assignment_traffic_cost",
        _optional_whole,
        "a whole number, 0 or more, or null",
        "cost of one partition read across racks; null = the assignor's own",
    ),
    Setting(
        "rack.aware.assignment.non_overlap_cost",
        "rack_aware_assignment_non_overlap_cost",
        _optional_whole,
        "a whole number, 0 or more, or null",
        "cost of moving a task; null = the assignor's own",
    ),
    Setting(
        "rack.aware.assignment.tags",
        "rack_aware_assignment_tags",
        _names,
        "at most 5 distinct tag keys of at most 20 characters, comma separated",
        "tags that copies of a task should differ in",
    ),
    Setting(
        "rack.aware.standby.strategy",
        "rack_aware_standby_strategy",
        _one_of("traffic", "reliability_then_traffic"),
        "traffic or reliability_then_traffic",
        "whether copies of a task go to different racks before traffic counts (KIP-925, option II)",
    ),
    Setting(
        "rack.aware.standby.reliable.replicas",
        "rack_aware_standby_reliable_replicas",
        _optional_whole,
        "a whole number, 0 or more, or null",
        "how many copies of a task go to different racks before traffic counts; null = all",
    ),
    Setting(
        "scale.down.timeout.ms",
        "scale_down_timeout_ms",
        _whole(0),
        f"{_MS}, 0 or more",
        "a draining member is let go after this long, learners ready or not",
    ),
    Setting(
        "learner.partial.rebalance",
        "learner_partial_rebalance",
        _truth,
        "true or false",
        "whether each ready learner takes over at once, or all of a member together",
    ),
    Setting(
        "stream.imbalance.percentage",
        "stream_imbalance_percentage",
        _percentage,
        "a percentage, 0 to 1000",
        "how far from its share a member may stay before tasks move",
    ),
    Setting(
        "stream.rebalancing.mode",
        "stream_rebalancing_mode",
        _one_of("incremental", "upgrading"),
        "incremental or upgrading",
        "upgrading = no learners, until every member is upgraded",
    ),
    Setting(
        "group.max.size",
        "group_max_size",
        _whole(1, 2**31 - 1),
        "a whole number, 1 or more",
        "members a group may have",
    ),
)

_BY_KEY = {s.key: s for s in SETTINGS}
KEYS = tuple(_BY_KEY)

_BY_WORKER = "nothing here: each worker says it of itself"
_BY_FILE = "nothing here: keys get to processes as files, not through a topic"
ELSEWHERE: Mapping[str, str] = {
    "task.assignor.class": "nothing here: the `assignor` of the group, a name or module:attribute",
    "upgrade.from": "nothing here: readers take what older and newer versions write",
    "static.connectors": f"{_BY_WORKER} (`static` of its join)",
    "static.tasks": f"{_BY_WORKER} (`static` of its join)",
    "group.instance.id": f"{_BY_WORKER} (`instance_id` of its join)",
    "client.rack": f"{_BY_WORKER} (`rack` of its join)",
    "inter.worker.key.generation.algorithm": _BY_FILE,
    "inter.worker.key.size": _BY_FILE,
    "inter.worker.key.ttl.ms": _BY_FILE,
    "inter.worker.signature.algorithm": _BY_FILE,
    "inter.worker.verification.algorithms": _BY_FILE,
}
"""Keys of Kafka that are no settings of a group here, and what stands for them."""

DEFAULT_ASSIGNOR = "high-availability"
"""How the tasks of a group are placed for which nothing is said."""


def parse_settings(values: Mapping[str, object], assignor: str = DEFAULT_ASSIGNOR) -> Settings:
    """Read a group's settings; what is not given takes its default.

    Args:
        values: by Kafka's key; strings are accepted for every type.
        assignor: Connect's assignors have Connect's defaults for session and heartbeat.

    Raises:
        ConfigError: an unknown key, or a value out of bounds; it names the key.
    """
    found: dict[str, Value] = {}
    if assignor in CONNECT_ASSIGNORS:
        found = {s.field: s.connect_default for s in SETTINGS if s.connect_default is not None}
    for key, value in values.items():
        setting = _BY_KEY.get(key)
        if setting is None:
            raise ConfigError(key, value, _instead_of(key))
        try:
            found[setting.field] = setting.read(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ConfigError(key, value, setting.accepted) from None
    settings = Settings(**found)  # type: ignore[arg-type]  # each row reads its field's type
    if settings.heartbeat_interval_ms >= settings.session_timeout_ms:
        raise ConfigError(
            "heartbeat.interval.ms",
            settings.heartbeat_interval_ms,
            f"less than session.timeout.ms ({settings.session_timeout_ms})",
        )
    return settings


def _instead_of(key: str) -> str:
    """What is right for a key that is none: Kafka's brokers have the same ones behind a prefix."""
    bare = next((known for known in KEYS if key.endswith(f".{known}")), None)
    if bare is not None:
        return f"the key {bare}, without what is before it"
    near = difflib.get_close_matches(key, KEYS, n=1)
    known = f"one of {', '.join(KEYS)}"
    return ELSEWHERE.get(key, f"{near[0]}, or another {known}" if near else known)


assert {s.field for s in SETTINGS} == {f.name for f in fields(Settings)}  # a row for each field
