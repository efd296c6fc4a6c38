"""KIP-925's worked examples of racks: EX-R1 to EX-R12."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
from support.assignor.placing import Member, group, holdings

from muster.assignor import check
from muster.assignor.api import Graph, InvalidGraph
from muster.assignor.high_availability_assignor import HighAvailability
from muster.assignor.model import GroupView, Placement
from muster.assignor.score import score
from muster.assignor.targets.racks import AVAILABILITY, racks_of
from muster.assignor.targets.racks_with_kept_counts import FromPrevious, optimised_standbys
from muster.protocol.tasks import Subtopology

RACKS = {"0": [["r0", "r1"], ["r1", "r2"]], "1": [["r0", "r2"], ["r1", "r3"]]}


def _units(racks: Mapping[str, list[list[str]]], *, stateful: bool) -> list[Subtopology]:
    def lists(rows: list[list[str]]) -> tuple[tuple[tuple[str, ...], ...], ...]:
        return tuple((tuple(row),) for row in rows)

    return [
        Subtopology(
            name,
            len(rows),
            stateful=stateful,
            source_racks=lists(rows),
            changelog_racks=lists(rows),
        )
        for name, rows in racks.items()
    ]


def _optimised(
    members: dict[str, Member], *, stateful: bool, **config: object
) -> tuple[GroupView, Placement]:
    settings = {"rack_aware_assignment_strategy": "min_traffic"} | config
    view = group(_units(RACKS, stateful=stateful), members, **settings)
    placement = FromPrevious().assign(view)
    check.valid(view, placement)
    return view, placement


def test_EX_R1_two_tasks_are_exchanged() -> None:
    """Two tasks on each other's best member: exchanged, cost from 5 to 2."""
    graph = Graph()
    for tail, head, cost, flow in [
        (-1, 0, 0, 1), (-1, 2, 0, 1), (0, 1, 3, 1), (0, 3, 1, 0), (2, 1, 1, 0), (2, 3, 2, 1),
        (1, 99, 0, 1), (3, 99, 0, 1),
    ]:  # fmt: skip
        graph.add_edge(tail, head, 1, cost, flow)
    graph.set_source(-1)
    graph.set_sink(99)
    assert graph.cost() == 5
    assert graph.minimise() == 2
    carried = {(e.tail, e.head) for e in graph.edges() if e.flow}
    assert {(0, 3), (2, 1)} < carried


def test_EX_R2_subtopologies_are_spread() -> None:
    """Threads 1, 2, 3 and two subtopologies of 3: counts 1, 2, 3, of each at most 1, 1, 2."""
    everywhere = [["r0", "r1", "r2"]] * 3
    members = {f"C{n + 1}": Member(capacity=n + 1, rack=f"r{n}") for n in range(3)}
    view = group(
        _units({"1": everywhere, "2": everywhere}, stateful=True),
        members,
        rack_aware_assignment_strategy="balance_subtopology",
    )
    held = holdings(view, HighAvailability().assign(view))
    for name, count, most in [("C1", 1, 1), ("C2", 2, 1), ("C3", 3, 2)]:
        active = held[name][0]
        assert len(active) == count
        assert max(sum(t.startswith(unit) for t in active) for unit in ("1_", "2_")) <= most


@pytest.mark.parametrize(
    ("members", "expected", "costs"),
    [
        pytest.param(
            {"P1": (["0_1", "1_1"], "r0"), "P2": (["1_0"], "r1"), "P3": (["0_0"], "r2")},
            {"P1": ["0_0", "1_0"], "P2": ["1_1"], "P3": ["0_1"]},
            (4, 0),
            id="EX_R3",
        ),
        pytest.param(
            {"P1": ([], "r0"), "P2": (["1_0"], "r1"), "P3": (["0_0"], "r2")},
            {"P1": [], "P2": ["0_0"], "P3": ["1_0"]},
            (2, 0),
            id="EX_R4",
        ),
        pytest.param(
            {"P1": ([], "r0"), "P2": (["0_1", "1_0"], "r1"), "P3": (["0_0"], "r2")},
            {"P1": [], "P2": ["0_0", "0_1"], "P3": ["1_0"]},
            (2, 0),
            id="EX_R5",
        ),
    ],
)
@pytest.mark.parametrize("stateful", [True, False])
def test_EX_R3_EX_R4_EX_R5_all_rack_reads_are_avoided(
    members: dict[str, tuple[list[str], str]],
    expected: dict[str, list[str]],
    costs: tuple[int, int],
    stateful: bool,
) -> None:
    """All rack reads can be avoided: the cost is that of the moves at 10/1, and 0 at 1/0."""
    given = {name: Member(active=active, rack=rack) for name, (active, rack) in members.items()}
    view, placement = _optimised(given, stateful=stateful)
    assert {name: three[0] for name, three in holdings(view, placement).items()} == expected
    assert placement.cost == placement.cost_lower_bound == costs[0 if stateful else 1]
    assert score(view, placement).cross_rack == 0


@pytest.mark.parametrize(("stateful", "cost"), [(True, 10), (False, 1)])
def test_EX_R6_no_replica_in_one_rack(stateful: bool, cost: int) -> None:
    """One member's rack has no replica: counts stay, and so does the cost."""
    members = {
        "P2": Member(active=["0_0", "1_1"], rack="r1"),
        "P5": Member(active=["0_1"], rack="r4"),
    }
    view, placement = _optimised(members, stateful=stateful)
    assert [len(three[0]) for three in holdings(view, placement).values()] == [2, 1]
    assert placement.cost == placement.cost_lower_bound == cost


def test_EX_R7_node_outside_the_cycle() -> None:
    """A node outside the cycle changes nothing: cost from 20 to 2."""
    graph = Graph()
    for tail, head, capacity, cost, flow in [
        (-1, 0, 1, 0, 1), (-1, 1, 1, 0, 1),
        (0, 2, 1, 1, 0), (0, 3, 1, 1, 0), (0, 4, 1, 10, 1),
        (1, 2, 1, 1, 0), (1, 3, 1, 10, 1), (1, 4, 1, 1, 0),
        (2, 99, 0, 0, 0), (3, 99, 1, 0, 1), (4, 99, 1, 0, 1),
    ]:  # fmt: skip
        graph.add_edge(tail, head, capacity, cost, flow)
    graph.set_source(-1)
    graph.set_sink(99)
    assert graph.cost() == 20
    assert graph.minimise() == 2
    carried = {(e.tail, e.head) for e in graph.edges() if e.flow}
    assert {(0, 3), (1, 4)} < carried


def test_EX_R8_parallel_paths() -> None:
    """Four parallel paths, added in any order: always the lowest of the cheapest."""
    edges = [(0, k, 2 if k == 1 else 1, int(k == 1)) for k in (1, 2, 3, 4)]
    edges += [(k, 5, 1, int(k == 1)) for k in (1, 2, 3, 4)]
    for seed in range(10):
        random.Random(seed).shuffle(edges)
        graph = Graph()
        for tail, head, cost, flow in edges:
            graph.add_edge(tail, head, 1, cost, flow)
        graph.set_source(0)
        graph.set_sink(5)
        assert (graph.cost(), graph.minimise()) == (3, 2)
        assert [(e.tail, e.head) for e in graph.edges() if e.flow] == [(0, 2), (2, 5)]


STANDBY_RACKS = {
    "0": [["r0", "r1"], ["r1", "r2"], ["r1", "r2"]],
    "1": [["r0", "r2"], ["r1", "r3"], ["r0", "r1"]],
}
HOLDERS = {
    "P1": ("r0", "0_0", ["0_1", "1_1"]),
    "P2": ("r1", "0_1", ["0_0", "1_0"]),
    "P3": ("r2", "1_0", ["0_0", "0_2"]),
    "P4": ("r3", "1_1", ["0_1", "1_2"]),
    "P6": ("r0", "0_2", ["1_0", "1_2"]),
    "P7": ("r1", "1_2", ["0_2", "1_1"]),
}


def _standby_example(tags: str) -> GroupView:
    members = {
        name: Member(active=[active], standby=standby, rack=rack, tags={"rack": rack})
        for name, (rack, active, standby) in HOLDERS.items()
    }
    return group(
        _units(STANDBY_RACKS, stateful=True),
        members,
        rack_aware_assignment_strategy="min_traffic",
        rack_aware_assignment_tags=tags,
    )


@pytest.mark.parametrize(("tags", "cost"), [("", 20), ("rack", 50)], ids=["EX_R9", "EX_R10"])
def test_EX_R9_EX_R10_standbys(tags: str, cost: int) -> None:
    """Standbys of six members: from 60 to the optimum, without and with distinct racks per task."""
    view = _standby_example(tags)
    racks, _ = racks_of(view, AVAILABILITY, standbys=True)
    assert racks is not None
    pairs, reached, bound = optimised_standbys(view, racks, view.active)
    assert np.bincount(pairs.member).tolist() == [2] * 6
    assert not (view.active[pairs.task] == pairs.member).any()
    if tags:
        for task in range(6):
            holders = [int(view.active[task]), *pairs.member[pairs.task == task].tolist()]
            assert len({view.rack[m] for m in holders}) == 3
    assert reached == cost == bound


def test_EX_R11_min_traffic() -> None:
    """Traffic costs nothing, moves cost: the output is the input."""
    members = {
        "P1": Member(active=["0_1", "1_1"], rack="r0"),
        "P2": Member(active=["1_0"], rack="r1"),
        "P3": Member(active=["0_0"], rack="r2"),
    }
    costs = {
        "rack_aware_assignment_traffic_cost": 0,
        "rack_aware_assignment_non_overlap_cost": 1,
    }
    view, placement = _optimised(members, stateful=True, **costs)
    assert np.array_equal(placement.active, view.active)
    assert placement.cost == 0


def test_EX_R11_balance_subtopology() -> None:
    """The same with subtopologies spread: valid, counts kept."""
    members = {
        "P1": Member(active=["0_1", "1_1"], rack="r0"),
        "P2": Member(active=["1_0"], rack="r1"),
        "P3": Member(active=["0_0"], rack="r2"),
    }
    _, placement = _optimised(
        members,
        stateful=True,
        rack_aware_assignment_strategy="balance_subtopology",
        rack_aware_assignment_traffic_cost=0,
        rack_aware_assignment_non_overlap_cost=1,
    )
    assert np.bincount(placement.active).tolist() == [2, 1, 1]


@pytest.mark.parametrize(
    ("edges", "source", "sink", "fault"),
    [
        ([(1, 2, -1, 0)], 1, 2, "capacity -1 is below 0"),
        ([(1, 2, 1, 2)], 1, 2, "flow 2 is not within 0..1"),
        ([(1, 2, 1, 0), (2, 1, 1, 0)], 1, 2, "an edge between these nodes already"),
        ([(1, 2, 1, 1), (2, 3, 1, 0)], 1, 3, "node 2: inflow and outflow differ by 1"),
        ([(1, 2, 1, 0)], 2, 3, "edge 1->2 leads into the source"),
        ([(1, 2, 1, 0)], 3, 1, "edge 1->2 leads out of the sink"),
        ([(1, 2, 1, 0)], None, 2, "the source is not set"),
    ],
)
def test_EX_R12_invalid_networks(
    edges: list[tuple[int, int, int, int]], source: int | None, sink: int, fault: str
) -> None:
    """Invalid networks are refused, and the message names the fault."""
    graph = Graph()
    if source is not None:
        graph.set_source(source)
    graph.set_sink(sink)

    def build() -> None:
        for tail, head, capacity, flow in edges:
            graph.add_edge(tail, head, capacity, 1, flow)
        graph.minimise()

    with pytest.raises(InvalidGraph, match=fault):
        build()
