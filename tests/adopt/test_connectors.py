"""What a Connect cluster's config topic says, record by record."""

from __future__ import annotations

import json

from muster.adopt.connectors import ConfigTopicState
from muster.protocol.tasks import Connector


def read(*records: tuple[str, object]) -> ConfigTopicState:
    configs = ConfigTopicState()
    for offset, (key, value) in enumerate(records):
        configs.read(key, None if value is None else json.dumps(value).encode(), offset)
    return configs


def test_a_connector_and_its_tasks():
    """The commit says how many tasks there are, whatever task records came before."""
    configs = read(
        ("connector-a", {"properties": {}}),
        ("task-a-0", {"properties": {}}),
        ("task-a-1", {"properties": {}}),
        ("commit-a", {"tasks": 2}),
        ("connector-b", {"properties": {}}),
        ("session-key", {"key": "x"}),
    )
    assert configs.units().units == (Connector("a", 2), Connector("b", 0))
    assert configs.units().offset == 6


def test_a_deleted_connector_made_again():
    """Its tasks of before do not count."""
    configs = read(("connector-a", {}), ("commit-a", {"tasks": 3}), ("connector-a", None))
    assert configs.units().units == ()
    configs.read("connector-a", b"{}", 3)
    assert configs.units().units == (Connector("a", 0),)


def test_values_with_a_schema_and_broken_ones():
    """A converter may write schemas; what cannot be read counts as no task."""
    configs = read(("connector-a", {}), ("commit-a", {"schema": {}, "payload": {"tasks": 2}}))
    assert configs.units().units == (Connector("a", 2),)
    for broken in (b"[]", b"no", b'{"tasks": "x"}', None):
        configs.read("commit-a", broken, 9)
        assert configs.units().units == (Connector("a", 0),)
