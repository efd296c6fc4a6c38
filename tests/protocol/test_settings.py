"""The settings table: Kafka's names, defaults and bounds."""

from __future__ import annotations

import pytest

from muster.protocol.errors import ConfigError
from muster.protocol.settings import KEYS, SETTINGS, Settings, parse_settings


def test_defaults() -> None:
    """Nothing given is Kafka's default; Connect's assignors have Connect's timeouts."""
    assert parse_settings({}) == Settings()
    connect = parse_settings({}, "cooperative")
    assert (connect.session_timeout_ms, connect.heartbeat_interval_ms) == (10_000, 3_000)
    assert parse_settings({"session.timeout.ms": 20_000}, "eager").session_timeout_ms == 20_000


@pytest.mark.parametrize("key", KEYS)
def test_every_default_is_accepted_as_text(key: str) -> None:
    """What `tuned` or a default shows can be given back, as text too."""
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
    ],
)
def test_what_is_not_accepted_names_the_key(key: str, value: object) -> None:
    """A value out of bounds, of the wrong kind, or of an unknown key is refused by name."""
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")) as caught:
        parse_settings({key: value})
    assert caught.value.key == key


def test_what_was_tuned() -> None:
    """Only what differs from the plain defaults is shown, by Kafka's name."""
    given = {"num.standby.replicas": "2", "rack.aware.assignment.tags": ["zone", " rack "]}
    tuned = parse_settings(given).tuned()
    assert tuned == {"num.standby.replicas": 2, "rack.aware.assignment.tags": ("zone", "rack")}
