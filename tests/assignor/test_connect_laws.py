"""Properties of Connect's rounds: convergence, balance, static lists, repeatability."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.connect_rounds import ConnectGroup, Worker
from support.suite.examples import examples

from muster.assignor.connect import java_order
from muster.assignor.connect.leader_memory import Memory
from muster.assignor.connect.round import backoff_ms
from muster.assignor.errors import AssignorError
from muster.assignor.registry import get
from muster.protocol.tasks import Connector, Subtopology, TaskTable

LIVES = settings(max_examples=examples(60), deadline=None)
connectors = st.dictionaries(
    st.sampled_from(["a", "b-1", "c", "10", "9"]), st.integers(0, 6), min_size=1, max_size=4
)
workers = st.lists(
    st.sampled_from([f"worker-{n}" for n in range(8)]), min_size=1, max_size=6, unique=True
)
events = st.lists(st.sampled_from(["join", "leave", "sleep", "again", "grow"]), max_size=8)


def live(group: ConnectGroup, happenings: list[str]) -> None:
    """Random events in a group, with one round after each."""
    for number, event in enumerate(happenings):
        if event == "join":
            group.join(f"late-{number}")
        elif event == "leave" and len(group.workers) > 1:
            group.leave(min(group.workers))
        elif event == "sleep":
            group.sleep()
        elif event == "grow":
            name = min(group.connectors)
            group.connectors[name] = int(group.connectors[name]) + 1  # type: ignore[call-overload]
        group.round()


def lived(
    units: dict[str, int], names: list[str], happenings: list[str], *assignor: str
) -> ConnectGroup:
    """A group that some workers joined at once, after some random events."""
    group = ConnectGroup(dict(units), *assignor)
    group.join(*names)
    group.round()
    live(group, happenings)
    return group


def settled(group: ConnectGroup, rounds: int = 40) -> int:
    """Run rounds until nothing stops, starts or waits; time advances by the reported delays."""
    for number in range(rounds):
        before = group.runs()
        placement = group.round()
        if not placement.again and not placement.delay_ms and group.runs() == before:
            return number
        group.sleep()
    raise AssertionError(f"still moving after {rounds} rounds: {group.runs()}")


@LIVES
@given(connectors, workers, events)
def test_rounds_converge_and_balance_each_kind(
    units: dict[str, int], names: list[str], happenings: list[str]
) -> None:
    """After random events the group settles, every job runs once, kinds differ by at most one."""
    group = lived(units, names, happenings)
    settled(group)
    running = sorted(job for jobs in group.runs().values() for job in jobs)
    table = group.view().tasks
    assert running == sorted(str(table.task(i)) for i in range(len(table)))
    for counts in group.counts():
        assert max(counts) - min(counts) <= 1


@LIVES
@given(connectors, workers, events, st.data())
def test_static_lists_are_kept(
    units: dict[str, int], names: list[str], happenings: list[str], data: st.DataObject
) -> None:
    """Settled, no wildcard job runs on a static worker and no static job off its namers."""
    group = ConnectGroup(dict(units), "static")
    group.join(*names)
    group.round()
    table = group.view().tasks
    jobs = [str(table.task(i)) for i in range(len(table))]
    for number in range(data.draw(st.integers(1, 3))):
        pinned = data.draw(st.lists(st.sampled_from(jobs), max_size=3, unique=True))
        group.join(f"pin-{number}", static=tuple(pinned))
    live(group, happenings)
    settled(group)
    namers: dict[str, set[str]] = {}
    for name, worker in group.workers.items():
        for job in worker.static:
            namers.setdefault(job, set()).add(name)
    for name, worker in group.workers.items():
        for job in worker.runs:
            assert name in namers[job] if job in namers else not worker.static
    if any(not worker.static for worker in group.workers.values()):
        table = group.view().tasks
        assert sum(len(w.runs) for w in group.workers.values()) == len(table)


@LIVES
@given(connectors, workers, events)
def test_S0_22_static_without_lists_is_sessioned(
    units: dict[str, int], names: list[str], happenings: list[str]
) -> None:
    """The same life under both names gives the same answers, memory included."""
    groups = [lived(units, names, happenings, name) for name in ("static", "cooperative")]
    assert groups[0].workers == groups[1].workers
    assert groups[0].memory == groups[1].memory


@LIVES
@given(connectors, workers, events)
def test_a_round_is_a_function_of_the_view(
    units: dict[str, int], names: list[str], happenings: list[str]
) -> None:
    """Two calls give identical bytes, and the view is unchanged."""
    group = lived(units, names, happenings)
    view = group.view()
    owners = view.active.copy()
    first, second = (get("cooperative").assign(view) for _ in range(2))
    assert json.dumps(first.memory) == json.dumps(second.memory)
    assert first.active.tolist() == second.active.tolist()
    assert view.active.tolist() == owners.tolist()


weights = st.sampled_from([0.5, 1, 2, 3, 7])


@LIVES
@given(st.lists(st.tuples(weights, st.integers(1, 5)), min_size=1, max_size=4), workers, events)
def test_S3_13_heavy_jobs_do_not_pile_up(
    units: list[tuple[float, int]], names: list[str], happenings: list[str]
) -> None:
    """With weights the group settles, and no single move would relieve the fullest worker much."""
    group = ConnectGroup(
        {f"c{n}": Connector(f"c{n}", size, weight, 0.25) for n, (weight, size) in enumerate(units)}
    )
    group.join(*names, capacity=2)
    group.join("small")
    group.round()
    live(group, [event for event in happenings if event != "grow"])
    settled(group)
    view = group.view()
    load = np.bincount(view.active, weights=view.tasks.weight, minlength=len(view.members))
    fullest = int(np.argmax(load / view.capacity))
    for job in np.flatnonzero(view.active == fullest).tolist():
        after = (load + view.tasks.weight[job]) / view.capacity
        after[fullest] = np.inf
        share = view.tasks.weight[job] / view.capacity[fullest]
        assert after.min() >= load[fullest] / view.capacity[fullest] - share / 2 - 1e-6


def test_S3_13_no_more_stops_than_weight_asks_for() -> None:
    """Weights of any size, one worker joins: what stops weighs at most twice what it is due."""
    rng = random.Random(5)
    units = {f"c{n}": Connector(f"c{n}", 9, round(rng.uniform(1, 10), 3), 1) for n in range(20)}
    group = ConnectGroup(dict(units), delay_ms=0)
    group.join(*(f"w{n:02}" for n in range(20)))
    settled(group)
    total = float(group.view().tasks.weight.sum())
    group.join("x")
    stopped = 0.0
    for _ in range(4):
        weight = group.view().tasks.weight
        stopped += float(weight[group.round().revoked.task].sum())
        group.sleep()
    assert stopped <= 2 * total / 21
    group.leave("w03")
    settled(group)
    assert sum(len(jobs) for jobs in group.runs().values()) == 200


def test_weights_spread_heavy_tasks_that_counts_would_pile_up() -> None:
    """Two heavy and two light connectors on two workers: one heavy each, not by chance."""
    units = {name: Connector(name, 2, weight, 0) for name, weight in (("h", 10.0), ("l", 1.0))}
    group = ConnectGroup(dict(units))
    group.join("A", runs=["h", "h-0", "h-1"])
    group.join("B", runs=["l", "l-0", "l-1"])
    group.round()
    settled(group)
    heavy = {
        name: sum(job in ("h-0", "h-1") for job in jobs) for name, jobs in group.runs().items()
    }
    assert heavy == {"A": 1, "B": 1}


def test_a_draining_worker_is_emptied_and_gets_nothing() -> None:
    """Its jobs stop in one round and run elsewhere after the next, even while a delay runs."""
    group = ConnectGroup({"c": 7})
    group.join("A", "B", "C")
    group.round()
    group.workers["B"].draining = True
    group.settle(2)
    assert group.runs()["B"] == []
    assert group.counts()[1] == (0, 3, 4)
    settled(group)
    assert group.runs()["B"] == []


def test_one_old_worker_sets_the_group_back() -> None:
    """U-01: with one eager worker the group is dealt round robin; without it, no longer."""
    group = ConnectGroup({"c": 3})
    group.join("A", "B", protocols=("sessioned", "compatible", "eager"))
    group.round()
    assert group.memory is not None
    group.join("C", protocols=("default",))
    group.round()
    assert group.memory is None
    group.leave("C")
    group.round()
    assert group.memory is not None


def test_connect_protocol_bounds_the_group() -> None:
    """`eager` makes a group deal round robin; only `static`, the default, makes lists count."""
    pinned = {"A": ["c", "c-0", "c-1"], "B": ["c-2"]}
    spread = {"A": ["c", "c-0", "c-2"], "B": ["c-1"]}
    dealt = {"A": ["c", "c-1"], "B": ["c-0", "c-2"]}
    for assignor, default in (("cooperative", spread), ("static", pinned)):
        expected = {"static": pinned, "sessioned": spread, "compatible": spread, "eager": dealt}
        for protocol, runs in ((None, default), *expected.items()):
            settings: dict[str, object] = {"connect.protocol": protocol} if protocol else {}
            group = ConnectGroup({"c": 3}, assignor, settings=settings)
            group.join("A")
            group.join("B", static=("c-2",))
            group.round()
            assert group.runs() == runs, (assignor, protocol)


def test_no_common_protocol_is_an_error() -> None:
    """The message lists the protocols of each worker."""
    group = ConnectGroup({"c": 2})
    group.workers = {"A": Worker(protocols=("eager",)), "B": Worker(protocols=("compatible",))}
    with pytest.raises(AssignorError, match="A: eager, B: compatible"):
        group.round()


def test_S3_F11_config_mismatch_changes_nothing() -> None:
    """A worker has read a newer config than the group: no worker starts or stops anything."""
    from dataclasses import replace

    group = ConnectGroup({"c": 2})
    group.join("A", runs=["c"])
    group.join("B")
    view = replace(group.view(), config_offsets=np.array([7, 3]), config_offset=5)
    placement = get("cooperative").assign(view)
    assert placement.active.tolist() == view.active.tolist()
    assert (placement.again, len(placement.revoked)) == (False, 0)
    assert "CONFIG_MISMATCH: A has read the config up to 7" in placement.warnings[0]
    level = get("cooperative").assign(replace(view, config_offset=7))
    assert (level.active >= 0).all()


@pytest.mark.parametrize("delivered", [True, False])
def test_S3_F09_a_round_that_planned_nothing(delivered: bool) -> None:
    """B leaves before a mismatch: as in Kafka, the plan with B ends with that round."""
    from dataclasses import replace

    group = ConnectGroup({"c": 3})
    group.join("A", "B")
    group.round()
    group.leave("B")
    view = replace(group.view(), config_offsets=np.array([7]), config_offset=5)
    group.memory = json.loads(json.dumps(get("cooperative").assign(view).memory))
    group.delivered = delivered
    placement = group.round()
    assert (placement.delay_ms == 0) == delivered
    assert (group.counts() == ((1,), (3,))) == delivered


@pytest.mark.parametrize(
    ("most_ms", "expected"),
    [
        (300_000, [40, 1_600, 64_000, 300_000, 300_000]),
        (1, [1, 1, 1, 1, 1]),
        (0, [0, 0, 0, 0, 0]),
        (40, [40, 40, 40, 40, 40]),
    ],
)
def test_S3_F07_backoff(most_ms: int, expected: list[int]) -> None:
    """1 ms x 40^n, bounded by the delay."""
    assert [backoff_ms(n, most_ms) for n in range(1, 6)] == expected


def test_java_hash_codes_and_orders() -> None:
    """Values of the Java documentation and of a JDK: plain, empty, accented, beyond the plane."""
    names = ["", "a", "hello", "worker-10", "é", "𝄞", "nul\x00"]
    expected = [0, 97, 99162322, None, 233, 1772394, None]
    codes = java_order.hash_codes(names).tolist()
    assert [c for c, e in zip(codes, expected, strict=True) if e is not None] == [
        e for e in expected if e is not None
    ]
    alone = [java_order.hash_codes([name])[0] for name in names]
    assert codes == alone
    assert java_order.hash_codes(["hello", "a"]).tolist() == [99162322, 97]
    # Sixteen buckets: "q" and "a" share one, in order of insertion; "b" comes after both.
    assert java_order.hash_order(["b", "q", "a"]).tolist() == [1, 2, 0]
    assert java_order.text_order(["9", "10", "a"]).tolist() == [1, 0, 2]


@pytest.mark.parametrize("assignor", ["cooperative", "eager"])
def test_ids_beyond_the_basic_plane_sort_as_in_java(assignor: str) -> None:
    """A character of two UTF-16 units sorts before U+FF5E in Java, after it by code point."""
    group = ConnectGroup({"\uff5e": 0, "\U0001d538": 0}, assignor)
    group.join("\uff5eworker", "\U0001d538worker")
    group.round()
    assert {name: worker.runs for name, worker in group.workers.items()} == {
        "\U0001d538worker": ["\U0001d538"],
        "\uff5eworker": ["\uff5e"],
    }


jobs_of = st.sets(st.integers(0, 19))


@LIVES
@given(jobs_of, jobs_of)
def test_memory_survives_json_and_a_change_of_tasks(previous: set[int], revoked: set[int]) -> None:
    """The memory is read back exactly; deleted jobs drop out."""
    table = TaskTable([Connector("a", 9), Connector("b-1", 4), Subtopology("0", 5)])
    memory = Memory(
        previous=np.isin(np.arange(len(table)), list(previous)),
        revocation=np.isin(np.arange(len(table)), list(revoked)),
        members=("w1", "w2"),
        revoked_before=True,
        successive=3,
        scheduled_ms=17,
        delay_ms=5,
        candidates=("w2",),
        planned={"a-1": "w1"},
    )
    written: dict[str, Any] = json.loads(json.dumps(memory.as_json(table)))
    again = Memory.of(written, table)
    assert again.previous.tolist() == memory.previous.tolist()
    assert again.as_json(table) == memory.as_json(table)
    fewer = TaskTable([Connector("a", 4)])
    kept = {str(fewer.task(i)) for i in np.flatnonzero(Memory.of(written, fewer).previous)}
    before = {str(table.task(i)) for i in previous}
    assert kept == before & {str(fewer.task(i)) for i in range(len(fewer))}


@pytest.mark.parametrize(
    "nonsense", [None, {}, {"kind": "connect-1"}, {"kind": "connect-1", "previous": 5}, {"a": 1}]
)
def test_memory_of_another_assignor_is_ignored(nonsense: dict[str, Any] | None) -> None:
    """After a switch of the assignor the memory is that of a new leader."""
    table = TaskTable([Connector("a", 1)])
    assert Memory.of(nonsense, table).as_json(table) == Memory.of(None, table).as_json(table)


def test_topics_are_refused_with_a_clear_error() -> None:
    """Connect's rules do not support restricted members; the error names assignors that do."""
    from dataclasses import replace

    group = ConnectGroup({"c": 1})
    group.join("A")
    view = replace(group.view(), topics=(frozenset({"c"}),))
    for name in ("eager", "cooperative", "static"):
        with pytest.raises(AssignorError, match="member A restricts its topics"):
            get(name).assign(view)
