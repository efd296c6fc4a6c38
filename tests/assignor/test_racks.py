"""Racks (KIP-925) beyond its worked examples: prices, downtime, standbys, many rounds, sizes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from support.assignor.histories import Life
from support.assignor.placing import Member, group, holdings, random_cluster

from muster.assignor import check
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, Placement, group_view, no_pairs
from muster.assignor.registry import get
from muster.assignor.score import score
from muster.assignor.targets import strategies, traffic
from muster.assignor.targets.racks import AVAILABILITY, racks_of
from muster.assignor.targets.racks_with_kept_counts import FromPrevious, optimised_standbys
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology, TaskTable

MIN = {"rack_aware_assignment_strategy": "min_traffic"}
BY_UNIT = {"rack_aware_assignment_strategy": "balance_subtopology"}
RACKS = ("r0", "r1", "r2")


def _unit(*racks: str, name: str = "0", changelogs: tuple[str, ...] | None = None) -> Subtopology:
    """Stateful tasks; the input of each, and its changelog unless given, is in one rack."""
    return Subtopology(
        name,
        len(racks),
        stateful=True,
        source_racks=tuple(((rack,),) for rack in racks),
        changelog_racks=tuple(((rack,),) for rack in changelogs or racks),
    )


def _placed(view: GroupView, name: str = "high-availability") -> Placement:
    placement = get(name).assign(view)
    check.valid(view, placement)
    return placement


@pytest.mark.parametrize(
    ("name", "config", "ends"),
    [
        ("high-availability", {}, ["r0", "r1"]),
        ("sticky", {}, ["r1", "r0"]),
        ("sticky", {"rack_aware_assignment_non_overlap_cost": 0}, ["r0", "r1"]),
        ("sticky", {"rack_aware_assignment_traffic_cost": 11}, ["r0", "r1"]),
        ("high-availability", {"rack_aware_assignment_traffic_cost": 0}, ["r1", "r0"]),
    ],
)
def test_what_traffic_is_worth(name: str, config: dict[str, object], ends: list[str]) -> None:
    """Both tasks in the wrong rack: 10/1 exchanges them, 1/10 leaves them; prices can be set."""
    members = {
        "P0": Member(rack="r0", active=["0_1"]),
        "P1": Member(rack="r1", active=["0_0"]),
    }
    view = group([_unit("r0", "r1")], members, name, **MIN, **config)
    placement = _placed(view, name)
    assert [view.racks[view.rack[m]] for m in placement.destination] == ends


def test_stateless_tasks_move_for_any_traffic() -> None:
    """`sticky` leaves a stateful task where it is and moves a stateless one: always 1/0."""
    stateless = Subtopology("1", 2, source_racks=((("r0",),), (("r1",),)))
    members = {
        "P0": Member(rack="r0", active=["0_1", "1_1"]),
        "P1": Member(rack="r1", active=["0_0", "1_0"]),
    }
    view = group([_unit("r0", "r1"), stateless], members, "sticky", **MIN)
    held = holdings(view, _placed(view, "sticky"))
    assert held["P0"][0] == ["0_1", "1_0"]
    assert held["P1"][0] == ["0_0", "1_1"]


@pytest.mark.parametrize("name", ["high-availability", "sticky"])
def test_nothing_moves_where_traffic_is_the_same_everywhere(name: str) -> None:
    """Every partition in every rack: the balanced group is left alone."""
    everywhere = Subtopology(
        "0", 6, stateful=True, source_racks=((RACKS,),) * 6, changelog_racks=((RACKS,),) * 6
    )
    members = {f"P{n}": Member(rack=RACKS[n], active=[f"0_{n}", f"0_{5 - n}"]) for n in range(3)}
    view = group([everywhere], members, name, **MIN)
    placement = _placed(view, name)
    assert np.array_equal(placement.active, view.active)
    assert placement.cost == 0


def test_downtime_counts_before_traffic() -> None:
    """The only warm copies are in the wrong racks: they run until learners have restored."""
    members = {
        "P0": Member(rack="r0", active=["0_1"]),
        "P1": Member(rack="r1", active=["0_0"]),
    }
    life = Life(get("high-availability"), [_unit("r0", "r1")], members, {**MIN})
    view, first = life.round()
    assert np.array_equal(first.active, view.active)
    assert first.destination.tolist() == [0, 1]
    assert first.learner.code.tolist() == Pairs.of(*_columns((0, 0), (1, 1))).code.tolist()
    assert first.followup_ms is not None
    view, second = life.round()
    assert second.active.tolist() == [0, 1]
    assert score(view, second).cross_rack == 0


def _columns(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.array(pairs, dtype=np.int32)
    return rows[:, 0], rows[:, 1]


def test_changelogs_decide_where_standbys_go() -> None:
    """Inputs in one rack, changelogs in another: actives follow the first, standbys the second."""
    unit = _unit("r0", "r0", changelogs=("r1", "r2"))
    members = {f"P{n}": Member(rack=RACKS[n % 3]) for n in range(6)}
    view = group([unit], members, num_standby_replicas=1, **MIN)
    placement = _placed(view)
    assert [view.racks[view.rack[m]] for m in placement.active] == ["r0", "r0"]
    assert [view.racks[view.rack[m]] for m in placement.standby.member] == ["r1", "r2"]


@pytest.mark.parametrize("members", [6, 50])
def test_placing_an_extra_standby_is_part_of_the_optimum(members: int) -> None:
    """More members than copies, all changelogs in one rack: every copy goes there (S4-28)."""
    unit = _unit(*["r0"] * 2, changelogs=("r2",) * 2)
    present = {f"P{n:02}": Member(rack=RACKS[n % 3]) for n in range(members)}
    view = group([unit], present, num_standby_replicas=1, **MIN)
    placement = _placed(view)
    assert [view.racks[view.rack[m]] for m in placement.standby.member] == ["r2", "r2"]
    assert len(set(placement.standby.member.tolist())) == 2
    assert placement.cost == 0


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_the_lowest_id_wins_among_equal_members(tasks: int) -> None:
    """Fewer tasks than members, all in one rack, nothing held: the first members get one each."""
    unit = Subtopology("0", tasks, stateful=True, source_racks=((("r0", "r1"),),) * tasks)
    members = {f"P{n}": Member(rack="r0", capacity=2) for n in range(5)}
    placement = _placed(group([unit], members, **MIN))
    assert sorted(placement.active.tolist()) == list(range(tasks))


def test_unknown_changelogs_matter_only_to_standbys() -> None:
    """Changelogs without racks: racks are off with standbys, and on without."""
    unit = Subtopology("0", 2, stateful=True, source_racks=((("r0",),), (("r1",),)))
    members = {"P0": Member(rack="r0"), "P1": Member(rack="r1")}
    off = _placed(group([unit], members, num_standby_replicas=1, **MIN))
    assert off.warnings == ("racks are ignored: racks of the changelogs of task 0_0 are unknown",)
    on = _placed(group([unit], members, **MIN))
    assert on.warnings == ()
    assert on.active.tolist() == [0, 1]


@pytest.mark.parametrize("config", [MIN, BY_UNIT])
@pytest.mark.parametrize("seed", range(4))
def test_random_clusters_cost_no_more_than_before(seed: int, config: dict[str, object]) -> None:
    """30 members, 40 units of 3: every member keeps its counts, and traffic falls or stays."""
    view = random_cluster(random.Random(seed), 30, 40, config)
    placement = FromPrevious().assign(view)
    check.valid(view, placement)
    kinds = [view.tasks.stateful, ~view.tasks.stateful]
    before = [np.bincount(view.active[kind], minlength=30).tolist() for kind in kinds]
    after = [np.bincount(placement.active[kind], minlength=30).tolist() for kind in kinds]
    assert after == before
    assert np.bincount(placement.standby.member, minlength=30).tolist() == (
        np.bincount(view.standby.member, minlength=30).tolist()
    )
    same = Placement(active=view.active, destination=view.active, standby=view.standby)
    assert score(view, placement).cross_rack < score(view, same).cross_rack
    assert not (placement.active[placement.standby.task] == placement.standby.member).any()


@pytest.mark.parametrize("seed", range(4))
def test_an_exchange_loses_no_tag_value(seed: int) -> None:
    """Two tags and racks: cheaper, and no task's copies have fewer distinct values (T-03)."""
    config = {**MIN, "rack_aware_assignment_tags": "zone,cluster"}
    view = random_cluster(random.Random(seed), 8, 8, config)
    racks, _ = racks_of(view, AVAILABILITY, standbys=True)
    assert racks is not None
    standby_pairs = optimised_standbys(view, racks, view.active).pairs

    def values(standby: Pairs) -> list[int]:
        holders = [{int(m)} for m in view.active]
        for task, member in zip(standby.task.tolist(), standby.member.tolist(), strict=True):
            holders[task].add(member)
        return [len({pair for m in each for pair in view.tags[m].items()}) for each in holders]

    def crossings(standby: Pairs) -> int:
        return traffic.crossings(view, standby.task, standby.member, changelog=True)

    pairs = zip(values(standby_pairs), values(view.standby), strict=True)
    assert all(after >= before for after, before in pairs)
    assert crossings(standby_pairs) < crossings(view.standby)


@pytest.mark.parametrize("name", ["high-availability", "sticky"])
@pytest.mark.parametrize("seed", range(3))
def test_racks_cost_no_tag_value(seed: int, name: str) -> None:
    """T-03: tags leave a choice and racks make it: every copy in another zone and cluster."""
    read = []
    for strategy in ("none", "min_traffic"):
        config = {"rack_aware_assignment_strategy": strategy}
        config |= {"rack_aware_assignment_tags": "zone,cluster"}
        view = random_cluster(random.Random(seed), 8, 8, config)
        fresh = replace(view, active=np.full_like(view.active, NO_MEMBER), standby=no_pairs())
        placement = _placed(fresh, name)
        copies = placement.standby
        assert len(copies) == view.tasks.stateful.sum()
        for task, member in zip(copies.task, copies.member, strict=True):
            owner = view.tags[placement.active[task]]
            assert all(owner[key] != view.tags[member][key] for key in ("zone", "cluster"))
        read.append(traffic.crossings(view, copies.task, copies.member, changelog=True))
    assert read[1] < read[0]


def test_tags_come_before_traffic() -> None:
    """Tags ask for the other zone, the changelog is in this one: zone first, then the rack."""
    unit = _unit("r0", changelogs=("r2",))
    members = {
        "P0": Member(rack="r0", tags={"zone": "a"}),
        "P1": Member(rack="r2", tags={"zone": "a"}),
        "P2": Member(rack="r1", tags={"zone": "b"}),
        "P3": Member(rack="r2", tags={"zone": "b"}),
    }
    config = {**MIN, "num_standby_replicas": 1, "rack_aware_assignment_tags": "zone"}
    view = group([unit], members, **config)
    placement = _placed(view)
    assert holdings(view, placement)["P0"][0] == ["0_0"]
    assert holdings(view, placement)["P3"][1] == ["0_0"]
    assert placement.followup_ms is None


def test_a_member_without_a_tag_that_counts_is_named() -> None:
    """Kafka's client would not start; here a warning names the member and the missing tag."""
    members = {"P0": Member(tags={"zone": "a"}), "P1": Member(tags={"cluster": "b"})}
    config = {"num_standby_replicas": 1, "rack_aware_assignment_tags": "zone"}
    placement = _placed(group([_unit("r0")], members, **config))
    assert placement.warnings == ("member P1 has no tag 'zone': it counts as one more value",)
    assert len(placement.standby) == 1


@pytest.mark.parametrize("config", [MIN, BY_UNIT])
@pytest.mark.parametrize("name", ["high-availability", "sticky"])
def test_order_of_input_does_not_matter(name: str, config: dict[str, object]) -> None:
    """Members and units shuffled: the same placement at the same cost."""
    rng = random.Random(5)
    for seed in range(5):
        units = [
            _unit(*(random.Random(10 * seed + n).choice(RACKS) for _ in range(4)), name=str(n))
            for n in range(3)
        ]
        members = {f"P{n}": Member(rack=RACKS[(n + seed) % 3]) for n in range(5)}
        answers = []
        for _ in range(3):
            names = rng.sample(list(members), len(members))
            shuffled = {n: members[n] for n in names}
            view = group(rng.sample(units, 3), shuffled, name, num_standby_replicas=1, **config)
            placement = _placed(view, name)
            answers.append((holdings(view, placement), placement.cost))
        assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("config", [MIN, BY_UNIT])
@pytest.mark.parametrize("seed", range(6))
def test_lives_with_racks_converge(seed: int, config: dict[str, object]) -> None:
    """Joins and losses: probing ends, and a converged group is left alone (S4-13)."""
    rng = random.Random(seed)
    units = [_unit(*(rng.choice(RACKS) for _ in range(5)), name=str(n)) for n in range(2)]
    members = {f"P{n}": Member(rack=RACKS[n % 3]) for n in range(3)}
    settings = {"num_standby_replicas": seed % 2, "max_warmup_replicas": 2, **config}
    life = Life(get("high-availability"), units, members, settings)
    life.converge(1)
    for step in range(4):
        if rng.random() < 0.5 and len(life.members) > 1:
            del life.members[rng.choice(sorted(life.members))]
        else:
            life.members[f"Q{step}"] = Member(rack=rng.choice(RACKS))
        life.converge(2 * (10 + 10 * (seed % 2)) + 1)
        view, placement = life.round()
        assert np.array_equal(placement.active, view.active)
        assert len(placement.reasons) == 0


@pytest.mark.parametrize("config", [MIN, BY_UNIT])
@pytest.mark.parametrize("name", ["high-availability", "sticky", "fallback", "learner"])
def test_a_fresh_small_group_needs_no_exact_solver(
    name: str, config: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No member has anything yet: with and without the exact placement of small groups the same."""
    for seed in range(10):
        rng = random.Random(seed)
        units = [
            _unit(*(rng.choice(RACKS) for _ in range(rng.randint(1, 6))), name=str(n))
            for n in range(2)
        ]
        members = {f"P{n}": Member(rack=rng.choice(RACKS)) for n in range(rng.randint(2, 5))}
        view = group(units, members, name, **config)
        figures_by_way = []
        for way in (strategies._exact_pays, lambda inputs: True):
            monkeypatch.setattr(strategies, "_exact_pays", way)
            placement = _placed(view, name)
            figures = score(view, placement)
            figures_by_way.append((placement.cost, figures.cross_rack, figures.imbalance))
            monkeypatch.undo()
        assert figures_by_way[0] == figures_by_way[1]


@pytest.mark.parametrize("name", ["high-availability", "sticky"])
def test_a_rolling_upgrade_to_racks(name: str) -> None:
    """Members get their rack one by one: off with a warning until the last has one (S4-F08).

    From then on traffic is the least for equal counts; before, nothing moves for racks.
    """
    unit = _unit("r0", "r1", "r2", "r0", "r1", "r2")
    owned = {"P0": ["0_1", "0_2"], "P1": ["0_0", "0_5"], "P2": ["0_3", "0_4"]}
    members = {n: Member(active=tasks, lag={}) for n, tasks in owned.items()}
    free = {"rack_aware_assignment_non_overlap_cost": 0}
    life = Life(get(name), [unit], members, {**MIN, **free, "max_warmup_replicas": 1})
    for number, member in enumerate(sorted(owned)):
        view, placement = life.round()
        assert placement.warnings == (f"racks are ignored: member {member} has no rack",)
        assert np.array_equal(placement.destination, view.active)
        life.members[member] = replace(life.members[member], rack=RACKS[number])
    life.converge(2 * 6 + 1)
    view, placement = life.round()
    assert placement.warnings == ()
    assert score(view, placement).cross_rack == 0
    assert np.bincount(placement.active).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("name", "tasks", "members", "threads", "standbys"),
    [
        ("high-availability", 6_000, 2, 1, 1),
        ("high-availability", 1_000, 1_000, 1, 1),
        ("high-availability", 1_000, 100, 1, 50),
        ("high-availability", 1_000, 10, 1_000, 1),
        ("sticky", 2_000, 2, 1, 1),
        ("sticky", 1_000, 1_000, 1, 1),
        ("sticky", 1_000, 100, 1, 20),
        ("sticky", 1_000, 10, 1_000, 1),
    ],
)
def test_kafkas_scale_tests(
    name: str, tasks: int, members: int, threads: int, standbys: int
) -> None:
    """Placed twice: valid, complete, balanced, and nothing moves the second time (S4-F10)."""
    view = group_view(
        tasks=TaskTable([Subtopology("0", tasks, stateful=True)]),
        settings=parse_settings({"num.standby.replicas": standbys}, name),
        members=tuple(f"P{n:04}" for n in range(members)),
        capacity=np.full(members, threads, dtype=np.int64),
    )
    first = _placed(view, name)
    again = group_view(
        tasks=view.tasks,
        settings=view.settings,
        members=view.members,
        capacity=view.capacity,
        active=first.active,
        standby=first.standby,
    )
    second = _placed(again, name)
    assert (first.active != NO_MEMBER).all()
    assert (np.bincount(first.standby.task, minlength=tasks) == standbys).all()
    for held in (first.active, first.standby.member):
        counts = np.bincount(held, minlength=members)
        assert counts.max() - counts.min() <= 1
    assert np.array_equal(second.active, first.active)
    assert np.array_equal(second.standby.code, first.standby.code)
