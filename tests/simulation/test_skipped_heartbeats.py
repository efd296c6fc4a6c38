"""Skipping spans with only heartbeats does not change the result."""

from __future__ import annotations

from typing import Any

import pytest

from muster.cli.simulate import as_json
from muster.documents.scenario import parse_scenario
from muster.simulation import scenario_player as worlds
from muster.simulation.scenario_player import SimulatedGroup

HOUR_MS = 3_600_000


def _joins(*names: str, **about: Any) -> list[dict[str, Any]]:
    return [{"at_ms": 700 * n, "join": {"id": name, **about}} for n, name in enumerate(names)]


LIVES: dict[str, dict[str, Any]] = {
    "a lost worker and Connect's delay": {
        "group": {"assignor": "cooperative", "tasks": [{"connector": "c", "tasks": 5}]},
        "events": [
            *_joins("W1", "W2", "W3"),
            {"at_ms": 500_000, "crash": "W2"},
            {"at_ms": 600_000, "join": {"id": "W4"}},
            {"at_ms": 1_500_000, "leave": "W1"},
        ],
        "until_ms": 2_500_000,
    },
    "learners that take their time, looked at again and again": {
        "group": {
            "assignor": "high-availability",
            "tasks": [{"subtopology": "0", "partitions": 6, "stateful": True}],
        },
        "defaults": {"restore_ms": None, "heartbeat_ms": 4_000},
        "events": [
            *_joins("P1"),
            {"at_ms": 300_000, "join": {"id": "P2", "heartbeat_ms": 3_000}},
            {"at_ms": 1_400_000, "ready": {"member": "P2", "task": "0_0"}},
        ],
        "until_ms": 2_500_000,
    },
    "a draining member that is let go at last": {
        "group": {
            "assignor": "learner",
            "config": {"scale.down.timeout.ms": 800_000, "session.timeout.ms": 20_000},
            "tasks": [{"subtopology": "0", "partitions": 4, "stateful": True}],
        },
        "defaults": {"restore_ms": None},
        "events": [*_joins("P1", "P2"), {"at_ms": 400_000, "drain": "P2"}],
        "until_ms": 2_000_000,
    },
    "no member is answered": {
        "group": {"assignor": "sticky", "tasks": [{"subtopology": "0", "partitions": 4}]},
        "events": [
            *_joins("P1", "P2"),
            {"at_ms": 400_000, "undelivered": ["P1"]},
            {"at_ms": 400_000, "join": {"id": "P3"}},
        ],
        "until_ms": 1_000_000,
    },
}


@pytest.mark.parametrize("life", LIVES)
def test_a_life_is_the_same_beat_by_beat(life: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without skipping the results are equal, with far fewer batches if skipped."""
    scenario = parse_scenario(LIVES[life])
    short, long = SimulatedGroup(), SimulatedGroup()
    short.play(scenario)
    monkeypatch.setattr(worlds, "quiet_until", lambda *_: None)
    long.play(scenario)
    assert as_json(short) == as_json(long)
    assert len(short.log) < 0.8 * len(long.log)


def test_a_year_is_played_in_few_batches() -> None:
    """Five members that never change take as many batches in a year as in an hour."""
    events = _joins("W1", "W2", "W3", "W4", "W5")
    group = {"assignor": "cooperative", "tasks": [{"connector": "c", "tasks": 9}]}
    batches = []
    for until_ms in (HOUR_MS, 365 * 24 * HOUR_MS):
        world = SimulatedGroup()
        world.play(parse_scenario({"group": group, "events": events, "until_ms": until_ms}))
        assert world.timeline.settled
        batches.append(len(world.log))
    assert batches[0] == batches[1] < 1_000
