"""Rolling upgrades (U-01 to U-04): members are replaced one by one while the group runs."""

from __future__ import annotations

from typing import Any

from muster.cli.simulate import as_json, play

SESSIONED = ["sessioned", "compatible", "eager"]
STATIC = ["static", *SESSIONED]
CONNECTORS = [{"connector": "c1", "tasks": 4}, {"connector": "c2", "tasks": 4}]
JOBS = 10
STEP_MS = 10_000
"""Time between two members: enough for a delay and two rounds."""
DELAY_MS = 5_000


def joins(at_ms: int, name: str, **more: Any) -> dict[str, Any]:
    """A member starts."""
    return {"at_ms": at_ms, "join": {"id": name, **more}}


def bounced(at_ms: int, name: str, **more: Any) -> list[dict[str, Any]]:
    """A member stops, and its new version starts a moment later."""
    return [{"at_ms": at_ms, "leave": name}, joins(at_ms + 100, name, **more)]


def life(
    assignor: str,
    events: list[dict[str, Any]],
    tasks: list[dict[str, Any]] = CONNECTORS,
    **config: Any,
) -> list[dict[str, Any]]:
    """The generations of a scenario, without its summary."""
    scenario = {
        "group": {"assignor": assignor, "config": config, "tasks": tasks},
        "defaults": {"ack_ms": 1, "restore_ms": 3_000},
        "events": events,
        "until_ms": events[-1]["at_ms"] + STEP_MS,
    }
    return as_json(play(scenario))[:-1]


def at(generations: list[dict[str, Any]], ms: int) -> dict[str, Any]:
    """The generation in force at a time."""
    return [each for each in generations if each["at_ms"] <= ms][-1]


def held(generation: dict[str, Any]) -> dict[str, list[str]]:
    """Member → the tasks that it runs."""
    return {name: member["active"] for name, member in generation["members"].items()}


def dealt(generations: list[dict[str, Any]], since_ms: int, until_ms: int) -> set[bool]:
    """For the generations of a span that moved something: whether they assigned round robin."""
    return {
        any(move["reason"] == "round robin" for move in each["moves"])
        for each in generations
        if since_ms <= each["at_ms"] < until_ms and each["moves"]
    }


def test_U_01_eager_to_sessioned_in_two_bounces() -> None:
    """Assignments are round robin until the last eager worker is gone, and cooperative after it.

    In the second bounce, compatible to sessioned, no job changes its worker: lost work waits.
    """
    workers = ("w1", "w2", "w3")
    events = [joins(1_000 * n, worker, protocols=["eager"]) for n, worker in enumerate(workers)]
    for bounce, protocols in enumerate((SESSIONED[1:], SESSIONED), start=1):
        for nth, worker in enumerate(workers):
            events += bounced((3 * bounce + nth) * STEP_MS, worker, protocols=protocols)
    records = life("cooperative", events, **{"scheduled.rebalance.max.delay.ms": DELAY_MS})
    last_old = 5 * STEP_MS
    assert dealt(records, 0, last_old) == {True}
    assert dealt(records, last_old, 10 * STEP_MS) == {False}
    between = held(at(records, 6 * STEP_MS - 1))
    assert sorted(job for jobs in between.values() for job in jobs) == sorted(
        {job for jobs in held(records[0]).values() for job in jobs}
    )
    for nth in (6, 7, 8):
        assert held(at(records, (nth + 1) * STEP_MS - 1)) == between


def test_U_02_static_lists_wait_for_the_last_worker() -> None:
    """Static lists count once every worker is static; with an old worker back they do not."""
    pins = {"w1": ["c1-0"], "w2": [], "w3": []}
    delay = {"scheduled.rebalance.max.delay.ms": DELAY_MS}
    begun = [joins(1_000 * n, worker, protocols=SESSIONED) for n, worker in enumerate(pins)]
    rolled = [
        event
        for nth, (worker, jobs) in enumerate(pins.items(), start=1)
        for event in bounced(nth * STEP_MS, worker, protocols=STATIC, static=jobs)
    ]
    plain = [
        event
        for nth, worker in enumerate(pins, start=1)
        for event in bounced(nth * STEP_MS, worker, protocols=SESSIONED)
    ]
    records, sessioned = (life("static", [*begun, *rest], **delay) for rest in (rolled, plain))
    for ms in (2 * STEP_MS - 1, 3 * STEP_MS - 1):
        assert held(at(records, ms)) == held(at(sessioned, ms))
    assert len(held(at(records, 3 * STEP_MS - 1))["w1"]) > 1  # more than its list
    one_by_one = [
        *begun,
        *rolled,
        joins(4 * STEP_MS, "w4", protocols=STATIC, static=["c2-0"]),
        *bounced(5 * STEP_MS, "w4", protocols=SESSIONED, static=["c2-0"]),
    ]
    records = life("static", one_by_one, **delay)
    assert held(at(records, 4 * STEP_MS - 1))["w1"] == ["c1-0"]
    upgraded = held(at(records, 5 * STEP_MS - 1))
    assert (upgraded["w1"], upgraded["w4"]) == (["c1-0"], ["c2-0"])
    downgraded = held(records[-1])
    assert sorted(len(jobs) for jobs in downgraded.values()) == [2, 2, 3, 3]
    assert sum(len(jobs) for jobs in downgraded.values()) == JOBS


def test_S0_31_a_setting_holds_a_group_below_static() -> None:
    """While `connect.protocol` is below `static`, static lists do not count."""
    events = [
        joins(0, "w1", static=["c1-0"]),
        joins(1_000, "w2"),
        joins(2_000, "w3"),
        {"at_ms": STEP_MS, "config": {"connect.protocol": "sessioned"}},
        {"at_ms": 2 * STEP_MS, "config": {"connect.protocol": "static"}},
    ]
    records = life("static", events)
    pinned, spread, again = (held(at(records, n * STEP_MS - 1)) for n in (1, 2, 3))
    assert pinned["w1"] == again["w1"] == ["c1-0"]
    assert len(spread["w1"]) > 1  # more than its list
    assert sum(map(len, again.values())) == JOBS


def test_U_03_learners_begin_with_the_second_bounce() -> None:
    """`upgrading` moves tasks at once; after the switch a new member learns before it takes over.

    The switch itself moves nothing.
    """
    events = [
        joins(0, "w1"),
        joins(1_000, "w2"),
        *bounced(STEP_MS, "w2"),
        {"at_ms": 2 * STEP_MS, "config": {"stream.rebalancing.mode": "incremental"}},
        joins(3 * STEP_MS, "w3"),
    ]
    tasks = [{"subtopology": "0", "partitions": 6, "stateful": True}]
    records = life("learner", events, tasks, **{"stream.rebalancing.mode": "upgrading"})
    before = [each for each in records if each["at_ms"] < 3 * STEP_MS]
    assert not any(member["learner"] for each in before for member in each["members"].values())
    assert held(at(records, 2 * STEP_MS)) == held(at(records, 2 * STEP_MS - 1))
    joined, ready = [each for each in records if each["at_ms"] >= 3 * STEP_MS]
    assert (len(joined["members"]["w3"]["learner"]), held(joined)["w3"]) == (2, [])
    assert sorted(len(tasks) for tasks in held(ready).values()) == [2, 2, 2]
    assert ready["at_ms"] == 3 * STEP_MS + 3_000


def test_U_04_racks_count_when_every_member_has_one() -> None:
    """Racks are ignored, and the group stays balanced, until the last member names its rack."""
    replicas = [[["a"]], [["a"]], [["b"]], [["b"]], [["a"]], [["b"]]]
    tasks = [{"subtopology": "0", "partitions": 6, "source_racks": replicas}]
    racks = {"w1": "b", "w2": "a"}
    events = [joins(1_000 * n, worker) for n, worker in enumerate(racks)]
    for nth, (worker, rack) in enumerate(racks.items(), start=1):
        events += bounced(nth * STEP_MS, worker, rack=rack)
    config = {"rack.aware.assignment.strategy": "min_traffic"}
    records = life("high-availability", events, tasks, **config)
    for each in records:
        counts = [len(active) for active in held(each).values()]
        assert sum(counts) == 6
        assert max(counts) - min(counts) <= 1
    both = [each for each in records if each["at_ms"] >= 2 * STEP_MS + 100]
    assert both[-1]["score"]["cross_rack"] == 0
    assert held(both[-1]) == {"w1": ["0_2", "0_3", "0_5"], "w2": ["0_0", "0_1", "0_4"]}
