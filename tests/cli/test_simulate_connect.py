"""`muster simulate` reproduces Connect's reference sequences (EX-I), round by round."""

from __future__ import annotations

from typing import Any

import pytest

from muster.cli.simulate import as_json, play

TWO = [{"connector": "c1", "tasks": 4}, {"connector": "c2", "tasks": 4}]
THREE = [*TWO, {"connector": "c3", "tasks": 4}]


def rounds(*events: dict[str, Any], tasks: list[dict[str, Any]] = TWO, **config: int) -> list[Any]:
    """For each round: the workers' counts of connectors and of tasks, and the delay in ms."""
    values = {"scheduled.rebalance.max.delay.ms": config.pop("delay", 300_000)}
    scenario = {
        "group": {"assignor": "cooperative", "config": values, "tasks": tasks},
        "defaults": {"ack_ms": 1},
        "events": list(events),
        "until_ms": config.pop("until", 400_000),
    }
    return [
        (*counts(entry["members"]), entry["delay_ms"]) for entry in as_json(play(scenario))[:-1]
    ]


def counts(members: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sorted counts of connectors and of tasks."""
    held = [member["active"] for member in members.values()]
    connectors = sorted(sum("-" not in task for task in tasks) for tasks in held)
    return tuple(connectors), tuple(sorted(sum("-" in task for task in tasks) for tasks in held))


def join(at_ms: int, name: str, **more: Any) -> dict[str, Any]:
    """A worker joins."""
    return {"at_ms": at_ms, "join": {"id": name, **more}}


def again(at_ms: int) -> dict[str, Any]:
    """One more round without a change."""
    return {"at_ms": at_ms, "rejoin": "w1"}


def test_ex_i1_worker_joins() -> None:
    """A second worker gets its share in two rounds; one more round changes nothing."""
    assert rounds(join(0, "w1"), join(1000, "w2"), again(2000)) == [
        ((2,), (8,), 0),
        ((0, 1), (0, 4), 0),
        ((1, 1), (4, 4), 0),
        ((1, 1), (4, 4), 0),
    ]


def test_ex_i2_joins_after_revocations() -> None:
    """Workers join during revocations: consecutive revocations wait 40 ms, then 1600 ms."""
    events = [
        join(0, "w1"),
        join(1000, "w2"),
        join(1001, "w3"),
        join(1041, "w4"),  # the 40 ms are over
        join(1042, "w5"),  # the revocation is acknowledged
        join(2642, "w6"),  # the 1600 ms are over
    ]
    assert rounds(*events, tasks=THREE) == [
        ((3,), (12,), 0),
        ((0, 2), (0, 6), 0),
        ((0, 1, 2), (3, 3, 6), 40),
        ((0, 0, 1, 1), (0, 3, 3, 3), 0),
        ((0, 0, 1, 1, 1), (1, 2, 3, 3, 3), 1_600),
        ((0, 0, 0, 1, 1, 1), (0, 1, 2, 2, 2, 2), 0),
        ((0, 0, 0, 1, 1, 1), (2, 2, 2, 2, 2, 2), 0),
    ]


@pytest.mark.parametrize(
    ("delay", "third"), [(0, ((0, 1, 1), (3, 3, 4), 0)), (1, ((0, 1, 2), (3, 3, 6), 1))]
)
def test_ex_i3_i4_without_a_long_delay(delay: int, third: object) -> None:
    """A delay of 0 revokes in consecutive rounds; a delay of 1 ms waits exactly 1 ms."""
    played_rounds = rounds(
        join(0, "w1"), join(1000, "w2"), join(1001, "w3"), tasks=THREE, delay=delay
    )
    assert played_rounds[:3] == [((3,), (12,), 0), ((0, 2), (0, 6), 0), third]


def test_ex_i5_leaves_for_good() -> None:
    """Lost work waits the whole delay; a round in between shows the rest of the delay."""
    start = [join(0, "w1"), join(0, "w2")]
    played_rounds = rounds(*start, {"at_ms": 1000, "leave": "w2"}, again(151_000))
    assert played_rounds == [
        ((1, 1), (4, 4), 0),
        ((1,), (4,), 300_000),
        ((1,), (4,), 150_000),
        ((2,), (8,), 0),
    ]


def test_ex_i6_bounces() -> None:
    """A worker that returns within the delay gets its work at the end, without revocations."""
    start = [join(0, "w1"), join(0, "w2"), {"at_ms": 1000, "leave": "w2"}]
    played_rounds = rounds(*start, again(151_000), join(226_000, "w2"))
    assert played_rounds == [
        ((1, 1), (4, 4), 0),
        ((1,), (4,), 300_000),
        ((1,), (4,), 150_000),
        ((0, 1), (0, 4), 75_000),
        ((1, 1), (4, 4), 0),
    ]


def test_ex_i7_leader_leaves_for_good() -> None:
    """If the assignor's memory is lost, lost work counts as new and is assigned at once."""
    start = [join(0, name) for name in ("w1", "w2", "w3")]
    gone = [{"at_ms": 1000, "forget": True}, {"at_ms": 1000, "leave": "w3"}]
    played_rounds = rounds(*start, *gone, again(2000))
    assert played_rounds[1:] == [((1, 1), (4, 4), 0), ((1, 1), (4, 4), 0)]


def test_ex_i8_leader_bounces() -> None:
    """The old leader returns as a follower: one round revokes, the next one assigns."""
    start = [join(0, name) for name in ("w1", "w2", "w3")]
    gone = [{"at_ms": 1000, "forget": True}, {"at_ms": 1000, "leave": "w3"}]
    played_rounds = rounds(*start, *gone, join(2000, "w3"))
    assert played_rounds[2:] == [((0, 1, 1), (0, 3, 3), 0), ((0, 1, 1), (2, 3, 3), 0)]


def test_ex_i9_first_assignment_lost() -> None:
    """If the first assignment is lost, there is no delay: the next round assigns everything."""
    events = [{"at_ms": 0, "undelivered": ["w1", "w2"]}, join(0, "w1"), join(0, "w2"), again(100)]
    assert rounds(*events) == [((0, 0), (0, 0), 0), ((1, 1), (4, 4), 0)]


@pytest.mark.parametrize(
    "again_ms",
    [
        pytest.param(1_100, id="ex_i10"),
        pytest.param(3_500, id="ex_i11_known_as_lost"),  # heartbeat digests differed meanwhile
    ],
)
def test_ex_i10_i11_later_assignment_lost(again_ms: int) -> None:
    """Revocations that never arrive are planned again after a wait of 40 ms."""
    events = [
        join(0, "w1"),
        join(0, "w2"),
        {"at_ms": 1000, "undelivered": ["w1", "w2", "w3"]},
        join(1000, "w3"),
        again(again_ms),
    ]
    assert rounds(*events) == [
        ((1, 1), (4, 4), 0),
        ((0, 1, 1), (0, 4, 4), 0),
        ((0, 1, 1), (0, 4, 4), 40),
        ((0, 1, 1), (0, 3, 3), 0),
        ((0, 1, 1), (2, 3, 3), 0),
    ]


def test_ex_i12_connector_deleted() -> None:
    """A deleted connector stops in the same round, and nothing else moves."""
    events = [join(0, "w1"), join(0, "w2"), {"at_ms": 1000, "tasks": TWO}]
    played_rounds = rounds(*events, tasks=THREE)
    assert played_rounds[0] == ((1, 2), (6, 6), 0)
    assert played_rounds[1] == ((1, 1), (4, 4), 0)


def test_ex_i13_duplicates() -> None:
    """Jobs that two workers claim stop on both and are assigned in the next round."""
    claimed = ["c1", "c1-0", "c1-1", "c1-2", "c1-3"]
    played_rounds = rounds(join(0, "w1"), join(1000, "w2", active=claimed))
    assert played_rounds == [((2,), (8,), 0), ((0, 1), (0, 4), 0), ((1, 1), (4, 4), 0)]


def test_ex_i18_no_delay() -> None:
    """With a delay of 0 lost work is assigned in the round of the loss."""
    played_rounds = rounds(join(0, "w1"), join(0, "w2"), {"at_ms": 1000, "leave": "w2"}, delay=0)
    assert played_rounds == [((1, 1), (4, 4), 0), ((2,), (8,), 0)]


def test_a_crash_ends_by_the_session_timeout() -> None:
    """A crashed worker expires 10 s, Connect's session timeout, after its last heartbeat."""
    scenario = {
        "group": {"assignor": "cooperative", "tasks": TWO},
        "events": [join(0, "w1"), join(0, "w2"), {"at_ms": 5_000, "crash": "w2"}],
        "until_ms": 20_000,
    }
    *generations, _ = as_json(play(scenario))
    assert [(g["at_ms"], g["cause"]) for g in generations] == [
        (0, "w1, w2 joined"),
        (15_000, "w2 expired"),
    ]


def test_connectors_that_are_all_deleted_come_back_at_once() -> None:
    """Jobs of a worker that leaves while no connector exists are not lost: no delay follows."""
    played_rounds = rounds(
        *(join(0, "w1"), join(0, "w2")),
        {"at_ms": 1_000, "tasks": []},
        {"at_ms": 2_000, "leave": "w2"},
        {"at_ms": 3_000, "tasks": TWO},
    )
    assert played_rounds == [
        ((1, 1), (4, 4), 0),
        ((0, 0), (0, 0), 0),
        ((0,), (0,), 0),
        ((2,), (8,), 0),
    ]


def test_workers_without_connectors_play_rounds() -> None:
    """Without connectors every join is a round, and the group is stable."""
    group = {"assignor": "cooperative", "tasks": []}
    scenario = {"group": group, "events": [join(0, "w1"), join(1_000, "w2")]}
    *generations, summary = as_json(play(scenario))
    assert [(g["at_ms"], g["cause"], g["state"]) for g in generations] == [
        (0, "w1 joined", "Stable"),
        (1_000, "w2 joined", "Stable"),
    ]
    assert summary["converged_at_ms"] == 1_000


def test_a_delay_counts_from_the_time_of_the_round() -> None:
    """A config between two heartbeats gets exactly the rest of the delay."""
    played_rounds = rounds(
        *(join(0, "w1"), join(0, "w2")),
        {"at_ms": 1_000, "leave": "w2"},
        {"at_ms": 91_642, "tasks": THREE},
    )
    assert [delay for *_, delay in played_rounds] == [0, 300_000, 300_000 - 90_642, 0]
