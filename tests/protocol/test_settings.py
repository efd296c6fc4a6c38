"""The settings table: Kafka's names, defaults and bounds."""

from __future__ import annotations

import pytest

from muster.protocol.errors import ConfigError
from muster.protocol.setting_values import LONG_MAX
from muster.protocol.settings import KEYS, SETTINGS, Settings, parse_settings
from muster.protocol.unknown_names import ELSEWHERE


def test_defaults() -> None:
    """Without values the defaults are Kafka's; Connect's assignors have Connect's timeouts."""
    assert parse_settings({}) == Settings()
    connect = parse_settings({}, "cooperative")
    assert (connect.session_timeout_ms, connect.heartbeat_interval_ms) == (10_000, 3_000)
    assert parse_settings({"session.timeout.ms": 20_000}, "eager").session_timeout_ms == 20_000


@pytest.mark.parametrize("key", KEYS)
def test_every_default_is_accepted_as_text(key: str) -> None:
    """Values that `tuned` or a default shows can be given back, also as text."""
    setting = next(s for s in SETTINGS if s.key == key)
    value = getattr(Settings(), setting.field)
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    text = {"None": "null", "True": "true", "False": "false"}.get(text, text)
    assert getattr(parse_settings({key: text}), setting.field) == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.timeout.ms", 99),
        ("session.timeout.ms", "soon"),
        ("session.timeout.ms", 1.5),
        ("session.timeout.ms", True),
        ("session.timeout.ms", None),
        ("heartbeat.interval.ms", 45_000),
        ("num.standby.replicas", -1),
        ("stream.imbalance.percentage", 1001),
        ("stream.imbalance.percentage", float("nan")),
        ("learner.partial.rebalance", "maybe"),
        ("stream.rebalancing.mode", "backwards"),
        ("rack.aware.assignment.tags", "a,b,c,d,e,f"),
        ("rack.aware.assignment.tags", "a,a"),
        ("rack.aware.assignment.tags", "x" * 21),
        ("rack.aware.assignment.tags", 5),
        ("rack.aware.assignment.traffic_cost", -1),
        ("no.such.setting", 1),
        ("internal.task.assignor.class", "x"),
    ],
)
def test_what_is_not_accepted_names_the_key(key: str, value: object) -> None:
    """The error names the key of a bad value, and an unknown key."""
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")) as caught:
        parse_settings({key: value})
    assert caught.value.key == key


KAFKAS = {
    "acceptable.recovery.lag": (10_000, [0, LONG_MAX], [-1]),
    "assignment.interval.ms": (0, [1, 1_000], [-1]),
    "connect.protocol": ("sessioned", ["eager", "compatible", "static"], ["", "Eager"]),
    "heartbeat.interval.ms": (5_000, [10, 44_999], [9, 45_000]),
    "initial.rebalance.delay.ms": (3_000, [0, 1, 60_000], [-1]),
    "learner.partial.rebalance": (True, [False, "false"], [1, "no"]),
    "max.warmup.replicas": (2, [1, 2**31 - 1], [0]),
    "num.standby.replicas": (0, [1, 50], [-1]),
    "probing.rebalance.interval.ms": (600_000, [60_000], [59_999]),
    "rack.aware.assignment.non_overlap_cost": (None, [0, 10], [-1]),
    "rack.aware.assignment.strategy": ("none", ["min_traffic", "balance_subtopology"], ["some"]),
    "rack.aware.assignment.tags": ((), ["a,b,c,d,e"], ["a,b,c,d,e,f"]),
    "rack.aware.assignment.traffic_cost": (None, [0, 10], [-1]),
    "rebalance.timeout.ms": (60_000, [1], [0]),
    "scale.down.timeout.ms": (LONG_MAX, [0, 60_000], [-1]),
    "scheduled.rebalance.max.delay.ms": (300_000, [0, 2**31 - 1], [-1]),
    "session.timeout.ms": (45_000, [6_000, 1_800_000], [99]),
    "stream.imbalance.percentage": (0, [20, "12.5"], [-1]),
    "stream.rebalancing.mode": ("incremental", ["upgrading"], ["both"]),
}
"""Kafka's keys: default, accepted values, some refused ones (`docs/requirements/protocol.md`).

One default is not Kafka's: a micro-batch gathers what comes together, so the interval (1,000) is 0.
"""


@pytest.mark.parametrize("key", sorted(KAFKAS))
def test_kafkas_keys(key: str) -> None:
    """Every key has the default and the bounds it is listed with."""
    default, accepted, refused = KAFKAS[key]
    field = next(s.field for s in SETTINGS if s.key == key)
    assert getattr(parse_settings({}), field) == default
    for value in accepted:
        assert parse_settings({key: value}) != Settings()
    for value in refused:
        with pytest.raises(ConfigError):
            parse_settings({key: value})


def test_every_key_is_listed() -> None:
    """Keys that are not in that table are muster's own."""
    own = {
        *("assignor.timeout.ms", "group.max.size", "subtopology.imbalance.max"),
        *("rack.aware.standby.strategy", "rack.aware.standby.reliable.replicas"),
    }
    assert set(KAFKAS) | own == set(KEYS)


@pytest.mark.parametrize(
    ("key", "accepted"),
    [
        *ELSEWHERE.items(),
        ("group.initial.rebalance.delay.ms", "the key initial.rebalance.delay.ms, without what"),
        ("streams.session.timeout.ms", "the key session.timeout.ms, without what is before it"),
        ("sesion.timeout.ms", "did you mean session.timeout.ms?"),
        ("x", "muster config describe lists all settings"),
    ],
)
def test_keys_that_are_no_settings_say_what_is(key: str, accepted: str) -> None:
    """The error for a Kafka key that is no setting of a group names the replacement."""
    with pytest.raises(ConfigError) as caught:
        parse_settings({key: "x"})
    assert str(caught.value).startswith(f"no setting {key!r}: {accepted}")


def test_a_count_that_is_too_large_names_the_most() -> None:
    """A refused count says which numbers are accepted, the largest too."""
    with pytest.raises(ConfigError, match=r"expected a whole number, 0 to 2147483647$"):
        parse_settings({"num.standby.replicas": 10**12})


def test_what_was_tuned() -> None:
    """`tuned` shows only settings that differ from the defaults, by Kafka's name."""
    given = {"num.standby.replicas": "2", "rack.aware.assignment.tags": ["zone", " rack "]}
    tuned = parse_settings(given).tuned()
    assert tuned == {"num.standby.replicas": 2, "rack.aware.assignment.tags": ("zone", "rack")}


@pytest.mark.parametrize(
    ("key", "default", "least"),
    [
        ("acceptable.recovery.lag", 10_000, 0),
        ("max.warmup.replicas", 2, 1),
        ("probing.rebalance.interval.ms", 600_000, 60_000),
        ("num.standby.replicas", 0, 0),
    ],
)
def test_S2_F23_warm_up_settings(key: str, default: int, least: int) -> None:
    """Kafka's defaults and lower bounds; a value below a bound is refused."""
    field = key.replace(".", "_")
    assert getattr(parse_settings({}), field) == default
    assert getattr(parse_settings({key: least}), field) == least
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        parse_settings({key: least - 1})
