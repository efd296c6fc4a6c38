"""Connect's workers by name (EX-C, EX-I, EX-S0) and follow-ups (EX-S1) in `muster simulate`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.assignor.model import GroupView, Placement
from muster.assignor.registry import get
from muster.cli.simulate import as_json, play
from muster.documents.scenario import parse_scenario
from muster.simulation.world import BEGINNING_MS, World

DELAY_MS = 300_000
FIVE = [{"connector": "A", "tasks": 2}, {"connector": "B", "tasks": 1}]
TWO = [{"connector": "c1", "tasks": 4}, {"connector": "c2", "tasks": 4}]


def rounds(*events: dict[str, Any], tasks: object = FIVE, assignor: str = "cooperative") -> Any:
    """The generations; a release takes one millisecond."""
    scenario = {
        "group": {"assignor": assignor, "tasks": tasks},
        "defaults": {"ack_ms": 1},
        "events": list(events),
        "until_ms": 800_000,
    }
    return as_json(play(scenario))[:-1]


def join(at_ms: int, name: str, *active: str, **more: Any) -> dict[str, Any]:
    """A worker joins with the jobs that it runs."""
    return {"at_ms": at_ms, "join": {"id": name, "active": list(active), **more}}


def leave(at_ms: int, name: str) -> dict[str, Any]:
    """A worker leaves."""
    return {"at_ms": at_ms, "leave": name}


def runs(generation: dict[str, Any]) -> dict[str, list[str]]:
    """The sorted jobs of each worker."""
    return {name: sorted(held["active"]) for name, held in generation["members"].items()}


def sizes(generation: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Sorted counts of connectors and of tasks."""
    jobs = runs(generation).values()
    connectors = sorted(sum("-" not in job for job in held) for held in jobs)
    return connectors, sorted(sum("-" in job for job in held) for held in jobs)


THREE = [join(0, "W1", "A", "A-0"), join(0, "W2", "A-1", "B"), join(0, "W3", "B-0")]


def test_ex_c1_new_members() -> None:
    """Two joins take two rounds; what the first worker keeps never stops."""
    played_rounds = rounds(join(0, "W1"), join(1_000, "W2"), join(1_000, "W3"))
    assert [g["delay_ms"] for g in played_rounds] == [0, 0, 0]
    assert sizes(played_rounds[1]) == ([0, 0, 1], [0, 0, 1])
    assert len(played_rounds[1]["members"]["W1"]["revoked"]) == 3
    assert set(runs(played_rounds[1])["W1"]) <= set(runs(played_rounds[2])["W1"])
    assert sorted(map(len, runs(played_rounds[2]).values())) == [1, 2, 2]


def test_ex_c2_worker_leaves() -> None:
    """Nothing moves during the delay; then the lost jobs are balanced for each kind."""
    played_rounds = rounds(*THREE, leave(1_000, "W2"))
    assert [(g["at_ms"], g["delay_ms"]) for g in played_rounds[1:]] == [
        (1_000, DELAY_MS),
        (1_000 + DELAY_MS, 0),
    ]
    assert runs(played_rounds[1]) == {"W1": ["A", "A-0"], "W3": ["B-0"]}
    assert runs(played_rounds[2]) == {"W1": ["A", "A-0", "A-1"], "W3": ["B", "B-0"]}


def test_ex_c3_worker_bounces() -> None:
    """A worker that returns empty gets the lost jobs when the delay ends."""
    played_rounds = rounds(*THREE, leave(1_000, "W2"), join(101_000, "W2"))
    assert [g["delay_ms"] for g in played_rounds[1:]] == [DELAY_MS, DELAY_MS - 100_000, 0]
    assert runs(played_rounds[2])["W2"] == []
    assert runs(played_rounds[3]) == {"W1": ["A", "A-0"], "W2": ["A-1", "B"], "W3": ["B-0"]}


def test_ex_c4_leader_bounces() -> None:
    """The delay survives the leader: two workers return in turn and share the lost jobs."""
    gone = [leave(1_000, "W2"), join(51_000, "W2"), leave(101_000, "W1"), join(151_000, "W1")]
    played_rounds = rounds(*THREE, *gone)
    assert [g["delay_ms"] for g in played_rounds[-5:]] == [300_000, 250_000, 200_000, 150_000, 0]
    assert runs(played_rounds[-1]) == {"W1": ["A-1", "B"], "W2": ["A", "A-0"], "W3": ["B-0"]}


def test_ex_c5_member_leaves_and_returns() -> None:
    """D leaves and returns: nothing moves, and D has its task again after the delay."""
    four = [join(0, name, job) for name, job in (("A", "T"), ("B", "T-0"), ("C", "T-1"))]
    events = [*four, join(0, "D", "T-2"), leave(1_000, "D"), join(11_000, "D")]
    played_rounds = rounds(*events, tasks=[{"connector": "T", "tasks": 3}])
    others = {"A": ["T"], "B": ["T-0"], "C": ["T-1"]}
    assert [runs(g) for g in played_rounds] == [
        {**others, "D": ["T-2"]},
        others,
        {**others, "D": []},
        {**others, "D": ["T-2"]},
    ]


def test_ex_i14_duplicates_deleted_at_once() -> None:
    """Deleted duplicates stop, the rest is balanced, and then nothing moves."""
    claimed = ["c1", "c1-0", "c1-1", "c1-2", "c1-3"]
    events = [join(0, "w1"), {"at_ms": 1_000, "tasks": TWO[1:]}, join(1_000, "w2", *claimed)]
    played_rounds = rounds(*events, {"at_ms": 9_000, "rejoin": "w1"}, tasks=TWO)
    assert [sizes(g) for g in played_rounds] == [
        ([2], [8]),
        ([0, 1], [0, 2]),
        ([0, 1], [2, 2]),
        ([0, 1], [2, 2]),
    ]
    assert runs(played_rounds[3]) == runs(played_rounds[2])


def test_ex_i15_imbalanced_fill() -> None:
    """New jobs fill loads of 2, 3, 4 and 0 up to 6 each."""
    held = {"a": range(2), "b": range(2, 5), "d": range(5, 9), "e": range(0)}
    events = [join(0, name, *[f"c-{n}" for n in jobs]) for name, jobs in held.items()]
    played_rounds = rounds(*events, tasks=[{"connector": "c", "tasks": 24}])
    assert [sizes(g)[1] for g in played_rounds] == [[6, 6, 6, 6]]


SIX = [{"connector": f"c{n}", "tasks": 2} for n in range(6)]
LOST = [*(join(0, f"w{n}") for n in range(3)), leave(1_000, "w1")]


def test_ex_i16_candidates() -> None:
    """Workers that were empty during the delay share the lost work evenly when it ends."""
    played_rounds = rounds(*LOST, join(2_000, "w3"), join(151_000, "w1"), tasks=SIX)
    assert sizes(played_rounds[0]) == ([2, 2, 2], [4, 4, 4])
    assert [g["delay_ms"] for g in played_rounds[1:5]] == [DELAY_MS, 299_000, 150_000, 0]
    dealt = runs(played_rounds[4])
    assert [sum("-" in job for job in dealt[name]) for name in ("w1", "w3")] == [2, 2]
    assert [sum("-" not in job for job in dealt[name]) for name in ("w1", "w3")] == [1, 1]
    assert sizes(played_rounds[-1]) == ([1, 1, 2, 2], [3, 3, 3, 3])


def test_ex_i17_bounces_back_but_leaves() -> None:
    """A worker that returned but left again before the delay ends gets nothing."""
    played_rounds = rounds(*LOST, join(151_000, "w1"), leave(152_000, "w1"), tasks=SIX)
    assert played_rounds[-1]["at_ms"] == 1_000 + DELAY_MS
    assert sizes(played_rounds[-1]) == ([3, 3], [6, 6])


def test_ex_s0_12_drain() -> None:
    """Static workers join one by one, two rounds each; at the end wildcard workers have nothing."""
    jobs = ["c1", "c1-0", "c1-1", "c1-2", "c2", "c2-0", "c2-1"]
    namers = [join(10_000 * n, f"s{n}", static=[job]) for n, job in enumerate(jobs, 1)]
    events = [join(0, "w1"), join(0, "w2"), *namers]
    gone = [leave(100_000, "w1"), leave(100_000, "w2")]
    tasks = [{"connector": "c1", "tasks": 3}, {"connector": "c2", "tasks": 2}]
    played_rounds = rounds(*events, *gone, tasks=tasks, assignor="static")
    for n, job in enumerate(jobs, 1):
        mine = [g for g in played_rounds if 10_000 * n <= g["at_ms"] < 10_000 * (n + 1)]
        assert (len(mine), runs(mine[-1])[f"s{n}"]) == (2, [job])
    drained = next(g for g in reversed(played_rounds) if g["at_ms"] < 100_000)
    namers_run = {f"s{n}": [job] for n, job in enumerate(jobs, 1)}
    assert runs(drained) == {**namers_run, "w1": [], "w2": []}
    assert runs(played_rounds[-1]) == namers_run


class _Wishes:
    """Places as `sticky` does, and asks for one follow-up of a list with each call."""

    name = "wishes"

    def __init__(self, *spans_ms: int | None) -> None:
        self.spans_ms = list(spans_ms)
        self.asked_ms: list[int] = []

    def assign(self, view: GroupView) -> Placement:
        """Place, with the next follow-up or none."""
        self.asked_ms.append(view.now_ms - BEGINNING_MS)
        wish = self.spans_ms.pop(0) if self.spans_ms else None
        return replace(get("sticky").assign(view), followup_ms=wish)


@pytest.mark.parametrize(
    ("spans_ms", "expected"),
    [
        pytest.param((600_000, None), [0, 100_000], id="ex_s1_8_dropped"),
        pytest.param((600_000, 500_000), [0, 100_000, 600_000], id="ex_s1_9_asked_again"),
        pytest.param((0, None), [0, 0, 100_000], id="ex_s1_10_at_once"),
    ],
)
def test_ex_s1_8_to_10_follow_ups(spans_ms: tuple[int | None, ...], expected: list[int]) -> None:
    """The newest answer's follow-up counts: dropped, asked again, or due at once."""
    scenario = {
        "group": {"tasks": [{"subtopology": "0", "partitions": 4}]},
        "events": [join(0, "W1"), join(0, "W2"), leave(100_000, "W2")],
        "until_ms": 900_000,
    }
    wishes = _Wishes(*spans_ms)
    world = World(lookup=lambda name: wishes)
    world.play(parse_scenario(scenario))
    assert wishes.asked_ms == expected
