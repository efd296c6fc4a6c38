"""The checks of random lives count the same reports as the coordinator may, for the same time.

Each life here keeps every promise. Checks that remember too few or too many of the members' reports
would find a cold start in it. `test_random_lives` shows that they find real ones.
"""

from __future__ import annotations

from typing import Any

import pytest

from muster.random_lives import lives

STANDBY = {"num.standby.replicas": 1}
LAG = {"tells": "lag"}
Row = dict[str, Any]


def join(name: str, at_ms: int = 0, **how: Any) -> Row:
    """A member joins."""
    return {"at_ms": at_ms, "join": {"id": name, **how}}


def unit(partitions: int, name: str = "0", **more: Any) -> Row:
    """A stateful subtopology."""
    return {"subtopology": name, "partitions": partitions, "stateful": True} | more


LIVES = {
    "a refused join takes back nothing that the living session said": (
        "high-availability",
        {},
        [unit(1)],
        [
            join("W1", **LAG),
            join("W2", **LAG),
            {"at_ms": 700_000, "config": STANDBY},
            {"at_ms": 940_000, "crash": "W2"},
            {"at_ms": 940_500, "return": "W2"},  # refused: the first one's session lives
            {"at_ms": 970_000, "leave": "W1"},
            {"at_ms": 970_500, "return": "W1"},
        ],
    ),
    "a lag of a copy on a disk counts for a while": (
        "high-availability",
        {**STANDBY, "acceptable.recovery.lag": 100_000},
        [unit(7)],
        [
            join("W1"),
            join("W2", **LAG),
            join("W3"),
            {"at_ms": 21_000, "leave": "W1"},
            {"at_ms": 41_000, "return": "W1"},
            {"at_ms": 42_000, "leave": "W2"},
            {"at_ms": 62_000, "return": "W2"},
            {"at_ms": 63_000, "leave": "W3"},
        ],
    ),
    "who joins under the name of an expired owner has not run its tasks": (
        "learner",
        {"session.timeout.ms": 60_000},
        [unit(1, "1")],
        [
            join("W1", heartbeat_ms=15_000),
            {"at_ms": 30_000, "crash": "W1"},
            {"at_ms": 50_000, "return": "W1"},  # refused until the session ends
            {"at_ms": 53_000, "tasks": [unit(9, "0"), unit(7, "1")]},
            join("W2", 83_000, heartbeat_ms=15_000, restore_ms=45_000),
        ],
    ),
    "a copy that is being given up is ready no longer than it is kept": (
        "high-availability",
        STANDBY,
        [unit(8, weight=4), unit(1, "1", stateful=False)],
        [
            join("W1", capacity=3),
            join("W2", capacity=3),
            join("W3", capacity=3, ack_step_ms=700),
            {"at_ms": 1_585_000, "config": {"num.standby.replicas": 0}},
            {"at_ms": 1_588_000, "crash": "W1"},
        ],
    ),
    "a copy that was given up is no copy, also if it begins anew in the same batch": (
        "high-availability",
        STANDBY,
        [unit(7), unit(8, "1")],
        [
            join("M1", restore_ms=45_000, ack_ms=300, **LAG),
            join("M2", 200, restore_ms=5_000, ack_ms=3_000),
            join("M3", 3_200, restore_ms=45_000, capacity=3),
            {"at_ms": 6_200, "leave": "M1"},  # M2 reports stopped copies at that moment
        ],
    ),
    "while all members drain nothing is moved for the balance": (
        "high-availability",
        {},
        [unit(2)],
        [
            join("W1"),
            join("W2", 820_000),
            {"at_ms": 850_000, "drain": "W1"},
            {"at_ms": 880_000, "drain": "W2"},
        ],
    ),
    "a task that has never run has no state to lose": (
        "high-availability",
        STANDBY,
        [unit(1, "1")],
        [
            join("W1"),
            join("W2"),
            join("W3", capacity=3, **LAG),
            {"at_ms": 273_000, "crash": "W2"},
            {"at_ms": 276_200, "leave": "W3"},
            {"at_ms": 276_700, "return": "W3"},
            {
                "at_ms": 279_400,
                "tasks": [unit(3, "0", stateful=False), unit(8, "1"), unit(7, "2")],
            },
            {"at_ms": 309_400, "leave": "W1"},
        ],
    ),
}
"""What the life shows → its assignor, config, tasks and events."""


@pytest.mark.parametrize("what", LIVES)
def test_every_promise_is_kept(what: str) -> None:
    """A life with unusual reports breaks no promise."""
    assignor, config, tasks, events = LIVES[what]
    group = {"assignor": assignor, "config": config, "tasks": tasks}
    until_ms = events[-1]["at_ms"] + 6_000_000
    life = lives.checked({"group": group, "events": events, "until_ms": until_ms})
    assert life.broken == ()
    assert life.generations >= 3
