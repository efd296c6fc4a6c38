"""`muster simulate` plays Connect's worked examples (EX-I, EX-C, EX-S0-12), round by round."""

from __future__ import annotations

from typing import Any

import pytest

from muster.cli.simulate import as_json, play

DELAY_MS = 300_000
"""Connect's default of `scheduled.rebalance.max.delay.ms`."""
TWO = [{"connector": "c1", "tasks": 4}, {"connector": "c2", "tasks": 4}]
THREE = [*TWO, {"connector": "c3", "tasks": 4}]
SIX = [{"connector": f"c{n}", "tasks": 2} for n in range(6)]
A_AND_B = [{"connector": "A", "tasks": 2}, {"connector": "B", "tasks": 1}]
Generation = dict[str, Any]


def played(
    *events: dict[str, Any],
    tasks: object = TWO,
    assignor: str = "cooperative",
    delay: int = DELAY_MS,
) -> list[Generation]:
    """The generations of a group; each one is a round. A release takes one millisecond."""
    values = {"scheduled.rebalance.max.delay.ms": delay}
    scenario = {
        "group": {"assignor": assignor, "config": values, "tasks": tasks},
        "defaults": {"ack_ms": 1},
        "events": list(events),
        "until_ms": 800_000,
    }
    return as_json(play(scenario))[:-1]


def rounds(*events: dict[str, Any], **more: Any) -> list[Any]:
    """For each round: the workers' counts of connectors and of tasks, and the delay in ms."""
    return [(*counts(each), each["delay_ms"]) for each in played(*events, **more)]


def runs(generation: Generation) -> dict[str, list[str]]:
    """The sorted jobs of each worker."""
    return {name: sorted(held["active"]) for name, held in generation["members"].items()}


def counts(generation: Generation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sorted counts of connectors and of tasks."""
    jobs = runs(generation).values()
    connectors = sorted(sum("-" not in job for job in held) for held in jobs)
    return tuple(connectors), tuple(sorted(sum("-" in job for job in held) for held in jobs))


def join(at_ms: int, name: str, *active: str, **more: Any) -> dict[str, Any]:
    """A worker joins with the jobs that it runs."""
    return {"at_ms": at_ms, "join": {"id": name, "active": list(active), **more}}


def leave(at_ms: int, name: str) -> dict[str, Any]:
    """A worker leaves."""
    return {"at_ms": at_ms, "leave": name}


def again(at_ms: int, name: str = "w1") -> dict[str, Any]:
    """One more round without a change."""
    return {"at_ms": at_ms, "rejoin": name}


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
    all_rounds = rounds(join(0, "w1"), join(1000, "w2"), join(1001, "w3"), tasks=THREE, delay=delay)
    assert all_rounds[:3] == [((3,), (12,), 0), ((0, 2), (0, 6), 0), third]


def test_ex_i5_leaves_for_good() -> None:
    """Lost work waits the whole delay; a round in between shows the rest of the delay."""
    start = [join(0, "w1"), join(0, "w2")]
    assert rounds(*start, leave(1000, "w2"), again(151_000)) == [
        ((1, 1), (4, 4), 0),
        ((1,), (4,), 300_000),
        ((1,), (4,), 150_000),
        ((2,), (8,), 0),
    ]


def test_ex_i6_bounces() -> None:
    """A worker that returns within the delay gets its work at the end, without revocations."""
    start = [join(0, "w1"), join(0, "w2"), leave(1000, "w2")]
    assert rounds(*start, again(151_000), join(226_000, "w2")) == [
        ((1, 1), (4, 4), 0),
        ((1,), (4,), 300_000),
        ((1,), (4,), 150_000),
        ((0, 1), (0, 4), 75_000),
        ((1, 1), (4, 4), 0),
    ]


@pytest.mark.parametrize(("leader", "other"), [("w1", "w2"), ("w2", "w1"), ("w3", "w1")])
def test_ex_i7_leader_leaves_for_good(leader: str, other: str) -> None:
    """If the assignor's memory is lost, lost work counts as new and is assigned at once."""
    start = [join(0, name) for name in ("w1", "w2", "w3")]
    gone = [{"at_ms": 1000, "forget": True}, leave(1000, leader)]
    first, second, third = played(*start, *gone, again(2000, other))
    assert (counts(first), counts(second)) == (((0, 1, 1), (2, 3, 3)), ((1, 1), (4, 4)))
    assert (second["delay_ms"], third["delay_ms"], runs(third)) == (0, 0, runs(second))


def test_ex_i8_leader_bounces() -> None:
    """The old leader returns as a follower: one round revokes, the next one assigns."""
    start = [join(0, name) for name in ("w1", "w2", "w3")]
    gone = [{"at_ms": 1000, "forget": True}, leave(1000, "w3")]
    last_two = rounds(*start, *gone, join(2000, "w3"))[2:]
    assert last_two == [((0, 1, 1), (0, 3, 3), 0), ((0, 1, 1), (2, 3, 3), 0)]


def test_ex_i9_first_assignment_lost() -> None:
    """If the first assignment is lost, there is no delay: the next round assigns everything."""
    events = [{"at_ms": 0, "undelivered": ["w1", "w2"]}, join(0, "w1"), join(0, "w2"), again(100)]
    assert rounds(*events) == [((0, 0), (0, 0), 0), ((1, 1), (4, 4), 0)]


@pytest.mark.parametrize("again_ms", [1_100, 3_500])  # before and after the next heartbeats
def test_ex_i10_later_assignment_lost(again_ms: int) -> None:
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
    assert rounds(*events, tasks=THREE)[:2] == [((1, 2), (6, 6), 0), ((1, 1), (4, 4), 0)]


def test_ex_i13_duplicates() -> None:
    """Jobs that two workers claim stop on both and are assigned in the next round."""
    claimed = ["c1", "c1-0", "c1-1", "c1-2", "c1-3"]
    assert rounds(join(0, "w1"), join(1000, "w2", *claimed)) == [
        ((2,), (8,), 0),
        ((0, 1), (0, 4), 0),
        ((1, 1), (4, 4), 0),
    ]


def test_ex_i18_no_delay() -> None:
    """With a delay of 0 lost work is assigned in the round of the loss."""
    assert rounds(join(0, "w1"), join(0, "w2"), leave(1000, "w2"), delay=0) == [
        ((1, 1), (4, 4), 0),
        ((2,), (8,), 0),
    ]


BALANCED = [join(0, "W1", "A", "A-0"), join(0, "W2", "A-1", "B"), join(0, "W3", "B-0")]
"""Connectors A and B as KIP-415 spreads them over three workers."""


def test_ex_c1_new_members() -> None:
    """Two joins take two rounds; what the first worker keeps never stops."""
    generations = played(join(0, "W1"), join(1_000, "W2"), join(1_000, "W3"), tasks=A_AND_B)
    assert [g["delay_ms"] for g in generations] == [0, 0, 0]
    assert counts(generations[1]) == ((0, 0, 1), (0, 0, 1))
    assert len(generations[1]["members"]["W1"]["revoked"]) == 3
    assert set(runs(generations[1])["W1"]) <= set(runs(generations[2])["W1"])
    assert sorted(map(len, runs(generations[2]).values())) == [1, 2, 2]


def test_ex_c2_worker_leaves() -> None:
    """Nothing moves during the delay; then the lost jobs are balanced for each kind."""
    generations = played(*BALANCED, leave(1_000, "W2"), tasks=A_AND_B)
    assert [(g["at_ms"], g["delay_ms"]) for g in generations[1:]] == [
        (1_000, DELAY_MS),
        (1_000 + DELAY_MS, 0),
    ]
    assert runs(generations[1]) == {"W1": ["A", "A-0"], "W3": ["B-0"]}
    assert runs(generations[2]) == {"W1": ["A", "A-0", "A-1"], "W3": ["B", "B-0"]}


def test_ex_c3_worker_bounces() -> None:
    """A worker that returns empty gets the lost jobs when the delay ends."""
    generations = played(*BALANCED, leave(1_000, "W2"), join(101_000, "W2"), tasks=A_AND_B)
    assert [g["delay_ms"] for g in generations[1:]] == [DELAY_MS, DELAY_MS - 100_000, 0]
    assert runs(generations[2])["W2"] == []
    assert runs(generations[3]) == {"W1": ["A", "A-0"], "W2": ["A-1", "B"], "W3": ["B-0"]}


def test_ex_c4_leader_bounces() -> None:
    """The delay survives the leader: two workers return in turn and share the lost jobs."""
    gone = [leave(1_000, "W2"), join(51_000, "W2"), leave(101_000, "W1"), join(151_000, "W1")]
    generations = played(*BALANCED, *gone, tasks=A_AND_B)
    assert [g["delay_ms"] for g in generations[-5:]] == [300_000, 250_000, 200_000, 150_000, 0]
    assert runs(generations[-1]) == {"W1": ["A-1", "B"], "W2": ["A", "A-0"], "W3": ["B-0"]}


def test_ex_c5_member_leaves_and_returns() -> None:
    """D leaves and returns: nothing moves, and D has its task again after the delay."""
    four = [join(0, name, job) for name, job in (("A", "T"), ("B", "T-0"), ("C", "T-1"))]
    events = [*four, join(0, "D", "T-2"), leave(1_000, "D"), join(11_000, "D")]
    generations = played(*events, tasks=[{"connector": "T", "tasks": 3}])
    others = {"A": ["T"], "B": ["T-0"], "C": ["T-1"]}
    assert [runs(g) for g in generations] == [
        {**others, "D": ["T-2"]},
        others,
        {**others, "D": []},
        {**others, "D": ["T-2"]},
    ]


def test_ex_i14_duplicates_deleted_at_once() -> None:
    """Deleted duplicates stop, the rest is balanced, and then nothing moves."""
    claimed = ["c1", "c1-0", "c1-1", "c1-2", "c1-3"]
    events = [join(0, "w1"), {"at_ms": 1_000, "tasks": TWO[1:]}, join(1_000, "w2", *claimed)]
    generations = played(*events, again(9_000))
    assert [counts(g) for g in generations] == [
        ((2,), (8,)),
        ((0, 1), (0, 2)),
        ((0, 1), (2, 2)),
        ((0, 1), (2, 2)),
    ]
    assert runs(generations[3]) == runs(generations[2])


def test_ex_i15_imbalanced_fill() -> None:
    """New jobs fill loads of 2, 3, 4 and 0 up to 6 each."""
    held = {"a": range(2), "b": range(2, 5), "d": range(5, 9), "e": range(0)}
    events = [join(0, name, *[f"c-{n}" for n in jobs]) for name, jobs in held.items()]
    generations = played(*events, tasks=[{"connector": "c", "tasks": 24}])
    assert [counts(g)[1] for g in generations] == [(6, 6, 6, 6)]


LOST = [*(join(0, f"w{n}") for n in range(3)), leave(1_000, "w1")]


def test_ex_i16_candidates() -> None:
    """Workers that were empty during the delay share the lost work evenly when it ends."""
    generations = played(*LOST, join(2_000, "w3"), join(151_000, "w1"), tasks=SIX)
    assert counts(generations[0]) == ((2, 2, 2), (4, 4, 4))
    assert [g["delay_ms"] for g in generations[1:5]] == [DELAY_MS, 299_000, 150_000, 0]
    newcomers = {name: generations[4]["members"][name] for name in ("w1", "w3")}
    assert counts({"members": newcomers}) == ((1, 1), (2, 2))
    assert counts(generations[-1]) == ((1, 1, 2, 2), (3, 3, 3, 3))


def test_ex_i17_bounces_back_but_leaves() -> None:
    """A worker that returned but left again before the delay ends gets nothing."""
    generations = played(*LOST, join(151_000, "w1"), leave(152_000, "w1"), tasks=SIX)
    assert generations[-1]["at_ms"] == 1_000 + DELAY_MS
    assert counts(generations[-1]) == ((3, 3), (6, 6))


def test_ex_s0_12_drain() -> None:
    """Static workers join one by one, two rounds each; at the end wildcard workers have nothing."""
    jobs = ["c1", "c1-0", "c1-1", "c1-2", "c2", "c2-0", "c2-1"]
    namers = [join(10_000 * n, f"s{n}", static=[job]) for n, job in enumerate(jobs, 1)]
    events = [join(0, "w1"), join(0, "w2"), *namers]
    gone = [leave(100_000, "w1"), leave(100_000, "w2")]
    tasks = [{"connector": "c1", "tasks": 3}, {"connector": "c2", "tasks": 2}]
    generations = played(*events, *gone, tasks=tasks, assignor="static")
    for n, job in enumerate(jobs, 1):
        mine = [g for g in generations if 10_000 * n <= g["at_ms"] < 10_000 * (n + 1)]
        assert (len(mine), runs(mine[-1])[f"s{n}"]) == (2, [job])
    drained = next(g for g in reversed(generations) if g["at_ms"] < 100_000)
    namers_run = {f"s{n}": [job] for n, job in enumerate(jobs, 1)}
    assert runs(drained) == {**namers_run, "w1": [], "w2": []}
    assert runs(generations[-1]) == namers_run


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


@pytest.mark.parametrize("left", [True, False], ids=["left", "expired"])
def test_a_worker_that_is_back_under_its_id_has_its_jobs_again(left: bool) -> None:
    """It is back before the group notices that it was gone: no job waits, and the reason is true.

    The end of its session and its new process's join are in one batch.
    """
    gone = leave(5_000, "w2") if left else {"at_ms": 5_000, "crash": "w2"}
    generations = played(join(0, "w1"), join(0, "w2"), gone, join(5_000 if left else 6_000, "w2"))
    assert [each["delay_ms"] for each in generations] == [0, 0]
    given = [[m["task"] for m in each["moves"] if m["to"] == "w2"] for each in generations]
    assert given[0] == given[1]
    reason = f"w2 {'left' if left else 'expired'}; w2 has room"
    assert {move["reason"] for move in generations[1]["moves"]} == {reason}


def test_connectors_that_are_all_deleted_come_back_at_once() -> None:
    """Jobs of a worker that leaves while no connector exists are not lost: no delay follows."""
    changes = [{"at_ms": 1_000, "tasks": []}, leave(2_000, "w2"), {"at_ms": 3_000, "tasks": TWO}]
    assert rounds(join(0, "w1"), join(0, "w2"), *changes) == [
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
    changes = [leave(1_000, "w2"), {"at_ms": 91_642, "tasks": THREE}]
    delays = [delay for *_, delay in rounds(join(0, "w1"), join(0, "w2"), *changes)]
    assert delays == [0, 300_000, 300_000 - 90_642, 0]
