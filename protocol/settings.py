"""Settings of a group, with Kafka's names and defaults, as one table.

`SETTINGS` is the only source: key, accepted values, meaning, default, the assignors that use it,
and Kafka's name. The command line, the job and docs/settings.md read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from muster.protocol.errors import ConfigError, UnknownSetting
from muster.protocol.setting_values import (
    INT_MAX,
    LONG_MAX,
    Accepted,
    Value,
    count,
    count_or_nothing,
    milliseconds,
    offsets,
    one_of,
    percentage,
    tag_keys,
    truth,
)
from muster.protocol.unknown_names import instead_of

CONNECT_ASSIGNORS = ("eager", "cooperative", "static")
"""Assignors of Kafka Connect: their groups default to Connect's timeouts."""
STREAMS_ASSIGNORS = ("high-availability", "sticky", "fallback", "learner")
"""Assignors of stateful tasks, which use standbys, warm-ups, lags and racks."""
CONNECT_PROTOCOLS = ("static", "sessioned", "compatible", "eager")
"""Best first; a worker that speaks one offers those after it too (S0-F02)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one group. Times are milliseconds, lags are offsets.

    `parse_settings` uses the defaults of the assignor; the constructor has those of streams.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    rebalance_timeout_ms: int = 60_000
    initial_rebalance_delay_ms: int = 3_000
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
    subtopology_imbalance_max: int | None = None
    stream_rebalancing_mode: str = "incremental"
    group_max_size: int = INT_MAX

    def tuned(self, defaults: Settings | None = None) -> dict[str, Value]:
        """The settings that differ from these defaults, or the constructor's, by Kafka's name."""
        before = defaults or _PLAIN
        if self == before:
            return {}
        return {
            key: value
            for field, key in KEY_OF.items()
            if (value := getattr(self, field)) != getattr(before, field)
        }


_PLAIN = Settings()


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    Attributes:
        key: as the user writes it; the field of `Settings` has underscores for dots.
        accepted: the accepted values, and the function that reads one.
        meaning: one sentence for the command line and the docs.
        kafka: Kafka's name for it and where it is set there; empty = muster's own.
        defaults: assignor name → default, where it differs; None = nowhere.
        assignors: the built-in assignors that use it; None = the coordinator uses it for every
            group. Plug-ins may use all settings.
        condition: when it has an effect, in words; empty = always.
    """

    key: str
    accepted: Accepted
    meaning: str
    kafka: str = ""
    defaults: Mapping[str, Value] | None = None
    assignors: tuple[str, ...] | None = None
    condition: str = ""

    @property
    def field(self) -> str:
        """Attribute of `Settings`."""
        return self.key.replace(".", "_")

    def default_for(self, assignor: str) -> Value:
        """The default in a group with this assignor."""
        common: Value = getattr(_PLAIN, self.field)
        return (self.defaults or {}).get(assignor, common)


_CONNECT, _STREAMS = "a Connect worker's", "a Streams application's"
_DRAFT = "a draft of KIP-429 and KIP-441; in no release"
_PLUG_INS: tuple[str, ...] = ()
_ROUNDS = ("cooperative", "static")

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "session.timeout.ms",
        milliseconds(100, 1_800_000),
        "a member from which nothing was heard for this long is gone",
        f"{_CONNECT}; a broker's group.streams.session.timeout.ms",
        dict.fromkeys(CONNECT_ASSIGNORS, 10_000),
    ),
    Setting(
        "heartbeat.interval.ms",
        milliseconds(10, 600_000, ", below half of session.timeout.ms"),
        "how often members say that they are alive",
        f"{_CONNECT}; a broker's group.streams.heartbeat.interval.ms",
        dict.fromkeys(CONNECT_ASSIGNORS, 3_000),
    ),
    Setting(
        "rebalance.timeout.ms",
        milliseconds(1),
        "a member that has not released a task for this long is fenced",
        f"{_CONNECT}; a consumer's max.poll.interval.ms",
    ),
    Setting(
        "initial.rebalance.delay.ms",
        milliseconds(0),
        "a fleet that starts is placed when no member has joined for a twelfth of this, and this "
        "long after the first join at the latest; 0 = at once",
        "a broker's group.initial.rebalance.delay.ms, group.streams.initial.rebalance.delay.ms",
    ),
    Setting(
        "assignment.interval.ms",
        milliseconds(0),
        "least time between two generations",
        "a broker's group.streams.assignment.interval.ms (KIP-1263)",
    ),
    Setting(
        "assignor.timeout.ms",
        milliseconds(1),
        "how long a plug-in assignor may take; beyond it the group keeps its target",
        assignors=_PLUG_INS,
    ),
    Setting(
        "scheduled.rebalance.max.delay.ms",
        milliseconds(0, INT_MAX),
        "how long the work of a lost worker waits for its return; 0 = not at all",
        f"{_CONNECT} (KIP-415)",
        assignors=_ROUNDS,
    ),
    Setting(
        "connect.protocol",
        one_of("eager", "compatible", "sessioned", "static"),
        "best of Connect's protocols that the group may use; static lists count only with static",
        f"{_CONNECT} (KIP-415, KIP-987)",
        {"static": "static"},
        _ROUNDS,
    ),
    Setting(
        "acceptable.recovery.lag",
        offsets(0),
        "a copy at most this far behind counts as caught up",
        f"{_STREAMS} (KIP-441)",
        assignors=STREAMS_ASSIGNORS,
    ),
    Setting(
        "max.warmup.replicas",
        count(1),
        "how many tasks of a group may warm up at once on the member that is to run them",
        f"{_STREAMS} (KIP-441)",
        assignors=("high-availability",),
    ),
    Setting(
        "num.standby.replicas",
        count(0),
        "warm copies of every stateful task",
        _STREAMS,
        assignors=STREAMS_ASSIGNORS,
        condition='a task is "stateful": true',
    ),
    Setting(
        "probing.rebalance.interval.ms",
        milliseconds(60_000),
        "how often the placement is computed again while copies catch up, besides each report that "
        "a copy has caught up; and, with any assignor, after it failed",
        f"{_STREAMS} (KIP-441)",
        assignors=STREAMS_ASSIGNORS,
    ),
    Setting(
        "rack.aware.assignment.strategy",
        one_of("none", "min_traffic", "balance_subtopology"),
        "whether placement avoids traffic across racks, and whether it spreads each subtopology",
        f"{_STREAMS} (KIP-925)",
        assignors=STREAMS_ASSIGNORS,
    ),
    Setting(
        "rack.aware.assignment.traffic_cost",
        count_or_nothing(),
        "cost of a partition of a stateful task read across racks; null = 10 (sticky, fallback: 1)",
        f"{_STREAMS} (KIP-925)",
        assignors=STREAMS_ASSIGNORS,
        condition="rack.aware.assignment.strategy is not none",
    ),
    Setting(
        "rack.aware.assignment.non_overlap_cost",
        count_or_nothing(),
        "cost of moving a stateful task; null = 1 (sticky, fallback: 10)",
        f"{_STREAMS} (KIP-925)",
        assignors=STREAMS_ASSIGNORS,
        condition="rack.aware.assignment.strategy is not none",
    ),
    Setting(
        "rack.aware.assignment.tags",
        tag_keys(),
        "tags in which the copies of a task are to differ",
        f"{_STREAMS} (KIP-708)",
        assignors=STREAMS_ASSIGNORS,
        condition="num.standby.replicas is above 0",
    ),
    Setting(
        "rack.aware.standby.strategy",
        one_of("traffic", "reliability_then_traffic"),
        "whether copies of a task go to different racks before traffic counts (KIP-925, option II)",
        assignors=STREAMS_ASSIGNORS,
        condition="num.standby.replicas is above 0 and rack.aware.assignment.strategy is not none",
    ),
    Setting(
        "rack.aware.standby.reliable.replicas",
        count_or_nothing(),
        "how many copies of a task go to different racks before traffic counts; null = all",
        assignors=STREAMS_ASSIGNORS,
        condition="rack.aware.standby.strategy is reliability_then_traffic",
    ),
    Setting(
        "scale.down.timeout.ms",
        milliseconds(0),
        "a draining member is let go after this long, learners ready or not",
        _DRAFT,
    ),
    Setting(
        "learner.partial.rebalance",
        truth(),
        "whether each ready learner takes over at once, or all of a member together",
        _DRAFT,
        assignors=("high-availability", "learner"),
    ),
    Setting(
        "stream.imbalance.percentage",
        percentage(1000),
        "how far from its share a member may stay before tasks move",
        _DRAFT,
        assignors=STREAMS_ASSIGNORS,
        condition="tasks differ in weight, or the assignor is learner",
    ),
    Setting(
        "subtopology.imbalance.max",
        count_or_nothing(1),
        "by how many actives of one subtopology two members may differ, by capacity, before tasks"
        " move for that alone; null = none do, but those that move anyway are spread",
        assignors=("high-availability", "sticky"),
        condition="tasks do not differ in weight",
    ),
    Setting(
        "stream.rebalancing.mode",
        one_of("incremental", "upgrading"),
        "upgrading = no learners, until every member is upgraded",
        _DRAFT,
        assignors=("learner",),
    ),
    Setting(
        "group.max.size",
        count(1),
        "members a group may have",
        "a broker's group.max.size, group.streams.max.size",
    ),
)

_BY_KEY = {s.key: s for s in SETTINGS}
KEYS = tuple(_BY_KEY)
KEY_OF = {s.field: s.key for s in SETTINGS}
"""Attribute of `Settings` → key, in the order of the table."""

DEFAULT_ASSIGNOR = "high-availability"
"""The assignor of a group whose config names none."""


def parse_settings(values: Mapping[str, object], assignor: str = DEFAULT_ASSIGNOR) -> Settings:
    """Read a group's settings by Kafka's key; strings are accepted for every type.

    Missing ones have their defaults, some of which depend on the assignor (`Setting.defaults`).

    Raises:
        UnknownSetting: an unknown key; it names a similar one.
        ConfigError: a value that is not accepted; it names the key.
    """
    by_field: dict[str, Any] = {}
    for key, value in values.items():
        setting = _BY_KEY.get(key)
        if setting is None:
            raise UnknownSetting(key, value, instead_of(key, KEYS))
        try:
            by_field[setting.field] = setting.accepted.read(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ConfigError(key, value, str(setting.accepted)) from None
    settings = replace(defaults_of(assignor), **by_field)
    if settings.heartbeat_interval_ms >= settings.session_timeout_ms:
        raise ConfigError(
            "heartbeat.interval.ms",
            settings.heartbeat_interval_ms,
            f"less than session.timeout.ms ({settings.session_timeout_ms})",
        )
    return settings


def accepted_settings(values: Mapping[str, str]) -> dict[str, str]:
    """Those of a group's settings, by Kafka's key, whose key and value this version accepts."""
    accepted: dict[str, str] = {}
    for key, value in values.items():
        try:
            _BY_KEY[key].accepted.read(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
        accepted[key] = value
    return accepted


@lru_cache(64)
def defaults_of(assignor: str) -> Settings:
    """The settings of a group with this assignor that sets none."""
    values: dict[str, Any] = {s.field: s.default_for(assignor) for s in SETTINGS}
    return Settings(**values)


assert {s.field for s in SETTINGS} == {f.name for f in fields(Settings)}  # a row for each field
