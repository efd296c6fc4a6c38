"""`muster simulate` plays KIP-441's worked examples (EX-H) to their end, and what is close to them.

Each test has the numbers of the example in its first generation. Then copies restore, one second
each, until the group rests. In the neighbouring cases something happens on the way.
"""

from __future__ import annotations

from typing import Any

import pytest

from muster.cli.simulate import as_json, play
from muster.protocol.setting_values import LONG_MAX

PROBING_MS = 600_000
Generation = dict[str, Any]
Shape = dict[str, tuple[int, int, int]]


def join(at_ms: int, name: str, *active: str, **more: object) -> dict[str, Any]:
    """A member joins with the tasks that it runs."""
    return {"at_ms": at_ms, "join": {"id": name, "active": list(active), **more}}


def stateful(*sizes: int) -> list[dict[str, Any]]:
    """Stateful subtopologies 0, 1, … of these sizes."""
    return [{"subtopology": str(n), "partitions": p, "stateful": True} for n, p in enumerate(sizes)]


def played(
    tasks: list[dict[str, Any]],
    events: list[dict[str, Any]],
    config: dict[str, object],
    restore_ms: int | None = 1_000,
) -> tuple[list[Generation], Generation]:
    """The generations, and the summary."""
    scenario = {
        "group": {"assignor": "high-availability", "config": config, "tasks": tasks},
        "defaults": {"restore_ms": restore_ms},
        "events": events,
    }
    *generations, summary = as_json(play(scenario))
    return generations, summary


def shape(generation: Generation) -> Shape:
    """(actives, standbys, learners) of each member."""
    roles = ("active", "standby", "learner")
    members = generation["members"].items()
    return {name: tuple(len(held[role]) for role in roles) for name, held in members}


def learners(generation: Generation) -> int:
    """How many learners the group has."""
    return sum(learners for _, _, learners in shape(generation).values())


NINE = [f"{unit}_{number}" for unit in range(3) for number in range(3)]
FOUR = ["0_0", "0_1", "0_2", "0_3"]
COLD = {"0_0": 20_000, "0_1": 20_000}
WARM_COPY = join(0, "P2", standby=NINE, lag=dict.fromkeys(NINE, 10))
START_1 = [join(0, "P1", *NINE), WARM_COPY, join(0, "P3")]
CONFIG_1 = {
    "acceptable.recovery.lag": 11,
    "max.warmup.replicas": 2,
    "num.standby.replicas": 1,
}
STANDBY = {"num.standby.replicas": 1}
EXAMPLES = {
    # id: tasks, joins, config, (held by each member, probing) at first, roles of each in the end
    "EX-H1": (stateful(3, 3, 3), START_1, CONFIG_1, ([9, 9, 2], True), [(3, 3)] * 3),
    "EX-H2": (
        stateful(3, 3, 3),
        START_1,
        {**CONFIG_1, "acceptable.recovery.lag": LONG_MAX},
        ([6, 6, 6], False),
        [(3, 3)] * 3,
    ),
    "EX-H3": (
        stateful(2),
        [join(0, "P1", "0_0", "0_1"), join(0, "P2")],
        {},
        ([2, 1], True),
        [(1, 0)] * 2,
    ),
    "EX-H4": (
        stateful(4),
        [join(0, "P1", *FOUR), join(0, "P2")],
        {"max.warmup.replicas": 1},
        ([4, 1], True),
        [(2, 0)] * 2,
    ),
    "EX-H5": (
        stateful(4),
        [join(0, "P1", *FOUR), join(0, "P2")],
        {"max.warmup.replicas": 1, **STANDBY},
        ([4, 4], True),
        [(2, 2)] * 2,
    ),
    "EX-H6": (
        stateful(1),
        [join(0, "P1"), join(0, "P2", lag={"0_0": 1_000}), join(0, "P3", lag={"0_0": 500})],
        {"acceptable.recovery.lag": 100, **STANDBY},
        ([1, 1, 1], True),
        [(1, 0), (0, 1), (0, 0)],
    ),
    "EX-H7": (stateful(2), [join(0, "P1")], STANDBY, ([2], False), [(2, 0)]),
    "EX-H8": (
        stateful(2),
        [join(0, "P1", lag=COLD), join(0, "P2", lag=COLD)],
        {},
        ([1, 1], False),
        [(1, 0)] * 2,
    ),
    "EX-H9": (
        stateful(9),
        [join(0, "P1", capacity=6), join(0, "P2", capacity=3)],
        {},
        ([6, 3], False),
        [(6, 0), (3, 0)],
    ),
    "EX-H11": (
        stateful(2),
        [join(0, "P1", "0_0"), join(0, "P2", "0_1")],
        STANDBY,
        ([2, 2], False),
        [(1, 1)] * 2,
    ),
    "EX-H12": (
        [{"subtopology": "0", "partitions": 4}],
        [join(0, "P1"), join(0, "P2")],
        STANDBY,
        ([2, 2], False),
        [(2, 0)] * 2,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_to_its_end(name: str) -> None:
    """The example's numbers at first; in the end balance and no follow-up; no task ever stops."""
    tasks, joins, config, (held, probing), end = EXAMPLES[name]
    generations, summary = played(tasks, joins, config)
    first, last = generations[0], generations[-1]
    assert [sum(roles) for roles in shape(first).values()] == held
    assert first["followup_ms"] == (PROBING_MS if probing else None)
    assert list(shape(last).values()) == [(*roles, 0) for roles in end]
    assert last["followup_ms"] is None
    assert len(generations) > 1 if probing else len(generations) == 1
    budget = int(str(config.get("max.warmup.replicas", 2)))
    assert max(map(learners, generations)) <= budget
    assert summary["task_downtime_ms"] == 0
    assert summary["converged_at_ms"] == last["at_ms"]


def test_ex_h13_to_its_end() -> None:
    """11 stateful and 7 stateless tasks, a second member joins: 9 each after at most 6 rounds."""
    tasks = [
        *stateful(5, 5, 1),
        {"subtopology": "3", "partitions": 5},
        {"subtopology": "4", "partitions": 2},
    ]
    generations, summary = played(tasks, [join(0, "P1"), join(5_000, "P2")], {})
    alone, *rounds = generations
    assert shape(alone) == {"P1": (18, 0, 0)}
    assert len(rounds) <= 6
    assert shape(rounds[-1]) == {"P1": (9, 0, 0), "P2": (9, 0, 0)}
    units = [[task[0] in "012" for task in m["active"]] for m in rounds[-1]["members"].values()]
    assert sorted(map(sum, units)) == [5, 6]
    assert (rounds[-1]["followup_ms"], summary["task_downtime_ms"]) == (None, 0)


@pytest.mark.parametrize("lost", [f"P{n}" for n in range(1, 8)])
def test_ex_h14_to_its_end(lost: str) -> None:
    """13 stateful and 11 stateless tasks, any of 7 members leaves: 4 each, at most 8 rounds."""
    tasks = [
        *stateful(5, 5, 3),
        *({"subtopology": str(n), "partitions": p} for n, p in ((3, 5), (4, 5), (5, 1))),
    ]
    joins = [join(0, f"P{n}") for n in range(1, 8)]
    generations, _ = played(tasks, [*joins, {"at_ms": 5_000, "leave": lost}], {})
    whole, *rounds = generations
    assert sorted(shape(whole).values()) == [(3, 0, 0)] * 4 + [(4, 0, 0)] * 3
    assert len(rounds) <= 8
    assert list(shape(rounds[-1]).values()) == [(4, 0, 0)] * 6
    assert rounds[-1]["followup_ms"] is None


EIGHTEEN_ON_TWO = [(4, 5, 0), (5, 4, 0)]
ON_THE_WAY = {
    # name: what happens at 1,500 ms, when P3 runs two tasks and restores two; the end, sorted
    "a member joins": (join(1_500, "P4"), [(2, 2, 0), (2, 2, 0), (2, 3, 0), (3, 2, 0)]),
    "the newcomer leaves": ({"at_ms": 1_500, "leave": "P3"}, EIGHTEEN_ON_TWO),
    "the first owner leaves": ({"at_ms": 1_500, "leave": "P1"}, EIGHTEEN_ON_TWO),
    "the warm copy leaves": ({"at_ms": 1_500, "leave": "P2"}, EIGHTEEN_ON_TWO),
    "the first owner drains": ({"at_ms": 1_500, "drain": "P1"}, [(0, 0, 0), *EIGHTEEN_ON_TWO]),
    "a unit is removed": ({"at_ms": 1_500, "tasks": stateful(3, 3)}, [(2, 2, 0)] * 3),
}


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_ex_h1_is_disturbed_on_the_way(name: str) -> None:
    """The group heads for its new balance, within the warm-up budget, and no task stops."""
    event, end = ON_THE_WAY[name]
    generations, summary = played(stateful(3, 3, 3), [*START_1, event], CONFIG_1)
    before = next(g for g in generations if g["at_ms"] == 1_000)
    assert shape(before)["P3"] == (2, 0, 2)
    assert sorted(shape(generations[-1]).values()) == end
    assert generations[-1]["followup_ms"] is None
    assert max(map(learners, generations)) <= 2
    assert summary["task_downtime_ms"] == 0


def test_ex_h1_the_first_owner_crashes_on_the_way() -> None:
    """Its four tasks wait for its session to end; then warm copies run them."""
    crash = {"at_ms": 1_500, "crash": "P1"}
    generations, summary = played(stateful(3, 3, 3), [*START_1, crash], CONFIG_1)
    assert shape(next(g for g in generations if g["at_ms"] == 1_000))["P1"][0] == 4
    assert sorted(shape(generations[-1]).values()) == EIGHTEEN_ON_TWO
    assert generations[-1]["at_ms"] == summary["converged_at_ms"] == 46_500
    assert summary["task_downtime_ms"] == 4 * 45_000


def test_ex_h1_a_group_that_was_empty_begins_warm() -> None:
    """All leave and return with what their disks have: balanced at once, nothing restores."""
    leaves = [{"at_ms": 5_000, "leave": name} for name in ("P1", "P2", "P3")]
    returns = [{"at_ms": 6_000, "return": name} for name in ("P3", "P2", "P1")]
    generations, _ = played(stateful(3, 3, 3), [*START_1, *leaves, *returns], CONFIG_1)
    assert generations[-1]["at_ms"] == 6_000
    assert list(shape(generations[-1]).values()) == [(3, 3, 0)] * 3
    assert generations[-1]["followup_ms"] is None


SETTINGS = {
    # name: setting, value: shapes of the generation that this opens at 500 ms, and of the last one
    "fewer warm-ups": (
        "max.warmup.replicas",
        1,
        [(6, 3, 0), (3, 6, 0), (0, 0, 1)],
        [(3, 3, 0)] * 3,
    ),
    "more warm-ups": ("max.warmup.replicas", 5, [(6, 3, 0), (3, 6, 0), (0, 0, 5)], [(3, 3, 0)] * 3),
    "no standbys": ("num.standby.replicas", 0, [(6, 0, 0), (3, 0, 0), (0, 0, 2)], [(3, 0, 0)] * 3),
    "two standbys": ("num.standby.replicas", 2, [(6, 3, 0), (3, 6, 0), (0, 9, 0)], [(3, 6, 0)] * 3),
    "any lag": ("acceptable.recovery.lag", LONG_MAX, [(3, 3, 0)] * 3, [(3, 3, 0)] * 3),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_ex_h1_a_setting_changes_on_the_way(name: str) -> None:
    """The new value counts at once; copies that restore already go on."""
    key, value, changed, end = SETTINGS[name]
    event = {"at_ms": 500, "config": {key: value}}
    generations, summary = played(stateful(3, 3, 3), [*START_1, event], CONFIG_1)
    first, second, *_ = generations
    assert (second["at_ms"], second["cause"]) == (500, f"config changed: {key}")
    assert list(shape(second).values()) == changed
    restoring, then = (
        {task for role in ("active", "standby", "learner") for task in g["members"]["P3"][role]}
        for g in (first, second)
    )
    assert then < restoring if name == "fewer warm-ups" else then >= restoring
    assert list(shape(generations[-1]).values()) == end
    assert generations[-1]["followup_ms"] is None
    assert summary["task_downtime_ms"] == 0


def test_the_probing_interval_changes_on_the_way() -> None:
    """Later generations ask for their follow-up after the new interval."""
    event = {"at_ms": 500, "config": {"probing.rebalance.interval.ms": 60_000}}
    generations, _ = played(stateful(3, 3, 3), [*START_1, event], CONFIG_1)
    waits = {g["at_ms"]: g["followup_ms"] for g in generations if g["at_ms"] != 500}
    assert waits == {0: PROBING_MS, 1_000: 60_000, 2_000: 60_000, 3_000: None}


def test_s2_f28_an_owner_that_restores_keeps_its_task_until_a_copy_is_warm() -> None:
    """P1 restores 0_0 from afar. P2's standby is less behind; it takes over at 10,000, not before.

    Kafka gives P2 the task at once, although P2 restores too (`test_against_kafka_availability`).
    """
    joins = [
        join(0, "P1", "0_0", lag={"0_0": 50_000}),
        join(0, "P2", standby=["0_0"], lag={"0_0": 20_000}),
    ]
    lags = [
        {"at_ms": at_ms, "lag": {"member": "P2", "0_0": behind}}
        for at_ms, behind in ((1_000, 10_001), (2_000, 10_000))
    ]
    generations, _ = played(stateful(1), [*joins, *lags], STANDBY, restore_ms=None)
    assert [(g["at_ms"], shape(g)) for g in generations] == [
        (0, {"P1": (1, 0, 0), "P2": (0, 1, 0)}),
        (2_000, {"P1": (0, 1, 0), "P2": (1, 0, 0)}),
    ]


def test_a_group_that_loses_all_its_tasks_is_at_rest() -> None:
    """Members of a group without tasks hold nothing and stay; when tasks come they run them."""
    gone = {"at_ms": 1_500, "tasks": []}
    generations, summary = played(stateful(3, 3, 3), [*START_1, gone], CONFIG_1)
    assert generations[-1]["state"] == "Not Ready"
    assert list(shape(generations[-1]).values()) == [(0, 0, 0)] * 3
    assert summary["converged_at_ms"] == 1_500
    back = {"at_ms": 5_000, "tasks": stateful(3, 3, 3)}
    generations, summary = played(stateful(3, 3, 3), [*START_1, gone, back], CONFIG_1)
    assert sorted(shape(generations[-1]).values()) == [(3, 3, 0)] * 3
    assert generations[-1]["state"] == "Stable"
