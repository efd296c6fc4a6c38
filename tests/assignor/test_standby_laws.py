"""Standbys: sticky, cheapest racks, and the same properties when dealt instead of one flow."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group, holdings
from support.suite.examples import examples

from muster.assignor import check
from muster.assignor.model import GroupView, Placement, group_view, no_lags, no_pairs
from muster.assignor.registry import get
from muster.assignor.targets import standby
from muster.assignor.targets.racks_with_kept_counts import FromPrevious
from muster.cli.assign import solve
from muster.protocol.tasks import Subtopology


def _placed(view: GroupView) -> Placement:
    placement = get("high-availability").assign(view)
    check.valid(view, placement)
    return placement


def _group(rng: random.Random, tasks: int, members: int, standbys: int, racks: bool) -> GroupView:
    """A group with actives in order, random standbys and, if wanted, racks."""
    lists = tuple((tuple(rng.sample(["r0", "r1", "r2"], 2)),) for _ in range(tasks))
    unit = Subtopology(
        "0",
        tasks,
        stateful=True,
        source_racks=lists if racks else None,
        changelog_racks=lists if racks else None,
    )
    held: list[tuple[list[str], list[str]]] = [([], []) for _ in range(members)]
    for task in range(tasks):
        owner, *others = rng.sample(range(members), min(members, standbys + 1))
        held[owner][0].append(f"0_{task}")
        for other in others:
            held[other][1].append(f"0_{task}")
    given_members = {
        f"P{n:03}": Member(
            active=active,
            standby=copies,
            lag=dict.fromkeys(copies, 0),
            rack=f"r{n % 3}" if racks else None,
        )
        for n, (active, copies) in enumerate(held)
    }
    config: dict[str, object] = {"num_standby_replicas": standbys, "max_warmup_replicas": 10_000}
    if racks:
        config["rack_aware_assignment_strategy"] = "min_traffic"
    return group([unit], given_members, **config)


def _assert_whole(view: GroupView, placement: Placement, standbys: int) -> None:
    copies = np.bincount(placement.standby.task, minlength=len(view.tasks))
    assert (copies == standbys).all()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**40))
def test_previous_standbys_end_at_the_optimum(seed: int) -> None:
    """3 or 4 members, up to 5 tasks: no exchange of all standbys at equal counts costs less."""
    rng = random.Random(seed)
    view = _group(rng, rng.randint(1, 5), rng.randint(3, 4), 1, racks=True)
    config_free = FromPrevious().assign(view)
    check.valid(view, config_free)
    racks = view.tasks.units[0].changelog_racks
    tasks, room = view.standby.task, np.bincount(view.standby.member, minlength=len(view.members))

    def crossings(members: tuple[int, ...]) -> int:
        pairs = zip(tasks.tolist(), members, strict=True)
        return sum(view.racks[view.rack[m]] not in racks[t][0] for t, m in pairs)

    best = min(
        crossings(members)
        for members in itertools.product(range(len(view.members)), repeat=len(tasks))
        if (np.bincount(members, minlength=len(room)) == room).all()
        and all(config_free.active[t] != m for t, m in zip(tasks, members, strict=True))
    )
    reached = crossings(tuple(config_free.standby.member.tolist()))
    assert config_free.standby.task.tolist() == tasks.tolist()
    assert reached == best


@pytest.mark.parametrize("racks", [False, True])
@pytest.mark.parametrize("standbys", [1, 2])
def test_many_copies_obey_the_same_laws(
    standbys: int, racks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dealt by classes instead of one big flow: complete, even, apart, hardly more expensive."""
    view = _group(random.Random(3), 300, 20, standbys, racks)
    exact = _placed(view)
    monkeypatch.setattr(standby, "MAX_ARCS", 0)
    fast = _placed(view)
    _assert_whole(view, exact, standbys)
    _assert_whole(view, fast, standbys)
    for placement in (exact, fast):
        final = np.bincount(placement.standby.member, minlength=20)
        assert final.sum() == 300 * standbys
        assert placement.cost_lower_bound <= placement.cost
    assert fast.cost_lower_bound <= exact.cost <= fast.cost <= exact.cost + 30


@pytest.mark.parametrize("joining", [0, 1, 5])
@pytest.mark.parametrize("standbys", [1, 2])
def test_a_deal_costs_what_the_flow_over_every_choice_costs(
    standbys: int, joining: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random groups of 20 that empty members join: as few new copies as by flow, and as even."""
    for seed in range(10):
        rng = random.Random(seed)
        view = _joined(_group(rng, rng.randint(101, 160), 20, standbys, False), joining)
        results = []
        for few_arcs in (10**9, 0):
            monkeypatch.setattr(standby, "FEW_ARCS", few_arcs)
            placement = get("sticky").assign(view)
            check.valid(view, placement)
            _assert_whole(view, placement, standbys)
            pairs = placement.standby
            owned = view.active[pairs.task] == pairs.member
            new = ~owned & ~np.isin(pairs.code, view.standby.code)
            load = np.bincount(pairs.member, minlength=len(view.members))
            results.append((int(new.sum()), sorted(load.tolist())))
        assert results[0] == results[1]


def _joined(view: GroupView, more: int) -> GroupView:
    return group_view(
        tasks=view.tasks,
        settings=view.settings,
        members=(*view.members, *(f"Q{n}" for n in range(more))),
        active=view.active,
        standby=view.standby,
        lags=view.lags,
    )


def test_standbys_stay_when_one_member_joins() -> None:
    """100 tasks, 10 members, one joins: only its due of standbys moves."""
    members = {f"P{n}": Member() for n in range(10)}
    first = group([Subtopology("0", 100, stateful=True)], members, num_standby_replicas=1)
    placement = _placed(first)
    again = {
        name: Member(
            active=[f"0_{t}" for t in np.flatnonzero(placement.active == n)],
            standby=[f"0_{t}" for t in placement.standby.task[placement.standby.member == n]],
            lag={f"0_{t}": 0 for t in placement.standby.task[placement.standby.member == n]},
        )
        for n, name in enumerate(sorted(members))
    }
    view = group(
        [Subtopology("0", 100, stateful=True)],
        again | {"P99": Member()},
        num_standby_replicas=1,
        max_warmup_replicas=1000,
    )
    joined = _placed(view)
    moved = np.setdiff1d(view.standby.code, joined.standby.code)
    assert len(joined.learner) <= 18
    assert len(moved) <= 9


@pytest.mark.parametrize(
    ("strategy", "crossings"), [("traffic", 0), ("reliability_then_traffic", 6)]
)
def test_reliability_before_traffic(strategy: str, crossings: int) -> None:
    """All replicas in the owner's rack: copies go there, or elsewhere if configured (S4-31)."""
    lists = ((("r0",),),) * 3 + ((("r1",),),) * 3
    unit = Subtopology("0", 6, stateful=True, source_racks=lists, changelog_racks=lists)
    members = {f"P{n}": Member(rack=f"r{n // 2}") for n in range(4)}
    view = group(
        [unit],
        members,
        num_standby_replicas=1,
        rack_aware_assignment_strategy="min_traffic",
        rack_aware_standby_strategy=strategy,
    )
    placement = _placed(view)
    _assert_whole(view, placement, 1)
    racks = view.rack[placement.standby.member]
    same = racks == view.rack[placement.destination[placement.standby.task]]
    away = sum(
        view.racks[r] not in lists[t][0] for t, r in zip(placement.standby.task, racks, strict=True)
    )
    assert away == crossings
    assert same.all() == (strategy == "traffic")
    assert same.any() == (strategy == "traffic")


@pytest.mark.parametrize(
    ("tasks", "copies", "strategy", "honoured"),
    [
        (800, 1, "reliability_then_traffic", True),
        (1_600, 1, "reliability_then_traffic", False),
        (4_000, 2, "traffic", True),
    ],
)
def test_prices_of_large_groups_add_up(
    tasks: int, copies: int, strategy: str, honoured: bool
) -> None:
    """Racks, hundreds of standbys and more: all are placed; what is not honoured is reported."""
    lists = tuple(((f"r{n % 3}",),) for n in range(tasks))
    unit = Subtopology("0", tasks, stateful=True, source_racks=lists, changelog_racks=lists)
    view = group(
        [unit],
        {f"P{n:02}": Member(rack=f"r{n % 3}") for n in range(30)},
        num_standby_replicas=copies,
        rack_aware_assignment_strategy="min_traffic",
        rack_aware_standby_strategy=strategy,
    )
    placement = _placed(view)
    _assert_whole(view, placement, copies)
    assert len(placement.warnings) == (not honoured)
    assert all(f"{strategy} is not honoured: too many" in w for w in placement.warnings)
    racks = view.rack[placement.standby.member]
    apart = racks != view.rack[placement.destination[placement.standby.task]]
    assert apart.all() == (strategy == "reliability_then_traffic" and honoured)


def test_many_reliable_copies_on_few_members_are_whole_and_stay() -> None:
    """1,600 tasks with two standbys on 5 members in 3 racks: none is missing, then none moves."""
    rng = random.Random(2)
    racks = ["r0", "r1", "r2"]
    lists = tuple((tuple(rng.sample(racks, 2)),) for _ in range(1_600))
    unit = Subtopology("0", 1_600, stateful=True, source_racks=lists, changelog_racks=lists)
    members = {f"P{n}": Member(rack=rng.choice(racks)) for n in range(5)}
    config: dict[str, object] = {
        "num_standby_replicas": 2,
        "rack_aware_assignment_strategy": "min_traffic",
        "rack_aware_standby_strategy": "reliability_then_traffic",
    }
    view = group([unit], members, **config)
    first = _placed(view)
    _assert_whole(view, first, 2)
    for name, (active, copied, _) in holdings(view, first).items():
        lag = dict.fromkeys(copied, 0)
        members[name] = replace(members[name], active=active, standby=copied, lag=lag)
    again = _placed(group([unit], members, **config))
    assert len(again.learner) == 0
    assert np.array_equal(again.standby.code, first.standby.code)


@pytest.mark.parametrize(("first", "away"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_the_first_copies_part_before_traffic_counts(first: int, away: int) -> None:
    """All replicas in the owner's rack, two copies: only the reliable ones leave that rack."""
    lists = ((("r0",),),) * 3
    unit = Subtopology("0", 3, stateful=True, source_racks=lists, changelog_racks=lists)
    members = {f"P{n:02}": Member(rack=f"r{max(n - 6, 0) // 3}") for n in range(15)}
    owned = {f"P{n:02}": Member(rack="r0", active=[f"0_{n}"]) for n in range(3)}
    view = group(
        [unit],
        members | owned,
        num_standby_replicas=2,
        rack_aware_assignment_strategy="min_traffic",
        rack_aware_standby_strategy="reliability_then_traffic",
        rack_aware_standby_reliable_replicas=first,
        max_warmup_replicas=100,
    )
    placement = _placed(view)
    _assert_whole(view, placement, 2)
    for task in range(3):
        members_of = placement.standby.member[placement.standby.task == task].tolist()
        elsewhere = [int(view.rack[m]) for m in members_of if view.rack[m]]
        assert len(set(elsewhere)) == len(elsewhere) == away


def test_further_copies_part_where_traffic_is_the_same() -> None:
    """Replicas in every rack, one reliable copy: the other copy is in another rack, too."""
    lists = ((("r0", "r1", "r2"),),) * 3
    unit = Subtopology("0", 3, stateful=True, source_racks=lists, changelog_racks=lists)
    members = {f"P{n}": Member(rack=f"r{n // 3}") for n in range(9)}
    view = group(
        [unit],
        members,
        num_standby_replicas=2,
        rack_aware_assignment_strategy="min_traffic",
        rack_aware_standby_strategy="reliability_then_traffic",
        rack_aware_standby_reliable_replicas=1,
    )
    placement = _placed(view)
    _assert_whole(view, placement, 2)
    for task in range(3):
        copies = placement.standby.member[placement.standby.task == task].tolist()
        assert len({int(view.rack[m]) for m in [int(placement.destination[task]), *copies]}) == 3


def test_a_copy_without_a_zone_of_its_own_avoids_learners() -> None:
    """Two members of equal tags, two standbys, a learner: no standby joins the learner."""
    view = group(
        [Subtopology("0", 2, stateful=True)],
        {"P0": Member(active=["0_0"], standby=["0_1"]), "P1": Member()},
        "learner",
        num_standby_replicas=2,
        rack_aware_assignment_tags="zone",
    )
    placement = get("learner").assign(view)
    check.valid(view, placement)
    assert holdings(view, placement) == {
        "P0": (["0_0", "0_1"], [], []),
        "P1": ([], ["0_0"], ["0_1"]),
    }


def test_a_member_that_takes_nothing_has_no_share_of_the_copies() -> None:
    """P3 may take no task: copies are placed, and stay, as if P3 were not in the group."""
    members = {
        "P1": Member(active=["0_0"], standby=["0_1"], topics=["0"]),
        "P2": Member(active=["0_1", "0_2"], topics=["0"]),
        "P4": Member(active=["0_3"], topics=["0"]),
    }
    units = [Subtopology("0", 4, stateful=True)]
    alone = group(units, members, num_standby_replicas=1)
    beside = group(units, {**members, "P3": Member(capacity=4, topics=[])}, num_standby_replicas=1)
    placements = [holdings(view, _placed(view)) for view in (alone, beside)]
    assert placements[1].pop("P3") == ([], [], [])
    assert placements[0] == placements[1]
    assert "0_1" in placements[0]["P1"][1]


@pytest.mark.parametrize("assignor", ["sticky", "fallback", "high-availability", "learner"])
def test_copies_are_as_even_as_actives(assignor: str) -> None:
    """Ten equal members with 0 to 3 of 20 standbys: two each, by the fewest copies made anew."""
    counts = (3, 2, 3, 3, 1, 2, 2, 0, 3, 1)
    copies = iter([*range(6, 20), *range(6)])  # no member has a copy of what it runs itself
    problem = {
        "assignor": assignor,
        "config": {"num.standby.replicas": 1},
        "tasks": [{"subtopology": "0", "partitions": 20, "stateful": True}],
        "members": [
            {
                "id": f"P{n}",
                "active": [f"0_{2 * n}", f"0_{2 * n + 1}"],
                "standby": [f"0_{next(copies)}" for _ in range(count)],
            }
            for n, count in enumerate(counts)
        ],
    }
    answer = solve(problem)
    assert [len(member["standby"]) for member in answer["members"].values()] == [2] * 10
    assert len(answer["moves"]) == sum(max(2 - count, 0) for count in counts)


@pytest.mark.parametrize(
    ("tasks", "members", "tie", "few"),
    [
        (6, 3, "topics", False),
        (400, 50, "", False),
        (40, 8, "zone", False),
        (100, 10, "traffic", False),
        (12, 6, "reliability_then_traffic", False),
        (400, 50, "traffic", True),
    ],
)
@pytest.mark.parametrize("reported", [True, False])
def test_of_too_many_standbys_those_that_have_caught_up_stay(
    tasks: int, members: int, tie: str, few: bool, reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second standby of each task is taken back while it restores: the first ones stay.

    By classes (`few` arcs) counts differ by a task or two, so a few copies move.
    """
    if few:
        monkeypatch.setattr(standby, "MAX_ARCS", 0)
    lists = tuple(((f"r{n % 3}",),) for n in range(tasks)) if "traffic" in tie else None
    unit = Subtopology("0", tasks, stateful=True, source_racks=lists, changelog_racks=lists)
    config: dict[str, object] = {}
    if lists:
        config["rack_aware_assignment_strategy"] = "min_traffic"
        config["rack_aware_standby_strategy"] = tie
    elif tie == "zone":
        config["rack_aware_assignment_tags"] = "zone"
    held = {
        f"P{n:02}": Member(
            rack=f"r{n % 3}" if lists else None,
            tags={"zone": "abc"[n % 3]},
            topics=["0"] if tie == "topics" and n == 0 else None,
        )
        for n in range(members)
    }
    caught_up: set[tuple[str, str]] = set()
    for standbys in (1, 2, 1):
        view = group([unit], held, num_standby_replicas=standbys, **config)
        now = holdings(view, _placed(view))
        copies = {(name, task) for name, (_, tasks_of, _) in now.items() for task in tasks_of}
        caught_up = caught_up or copies
        for name, (active, copied, learner) in now.items():
            behind = {task: 1_000_000 for task in (*copied, *learner) if reported}
            near = {task: 0 for task in copied if (name, task) in caught_up}
            lag = behind | near
            held[name] = replace(
                held[name], active=active, standby=copied, learner=learner, lag=lag
            )
    assert len(copies) == tasks
    assert len(caught_up - copies) <= (4 if few else 0)


def _pools(mixed: bool, racks: bool, assignor: str) -> GroupView:
    """120 tasks in 4 units, and 12 members, each of which may take two of the units."""
    lists = tuple(((f"r{n % 2}",),) for n in range(30))
    of_unit = {"source_racks": lists, "changelog_racks": lists} if racks else {}
    units = [Subtopology(str(n), 30, stateful=True, **of_unit) for n in range(4)]
    pairs = list(itertools.combinations("0123", 2)) if mixed else [("0", "1"), ("2", "3")]
    members = {
        f"P{n:02}": Member(topics=pairs[n % len(pairs)], rack=f"r{n // 6}" if racks else None)
        for n in range(12)
    }
    strategy = {"rack_aware_assignment_strategy": "min_traffic"} if racks else {}
    return group(units, members, assignor, num_standby_replicas=1, **strategy)


@pytest.mark.parametrize("assignor", ["high-availability", "sticky"])
@pytest.mark.parametrize("racks", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_many_copies_are_whole_where_topics_restrict_members(
    mixed: bool, racks: bool, assignor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deal lacks no copy for which there is a member, is even, and names no false bound."""
    monkeypatch.setattr(standby, "MAX_ARCS", 0)
    view = _pools(mixed, racks, assignor)
    placement = get(assignor).assign(view)
    check.valid(view, placement)
    _assert_whole(view, placement, 1)
    assert not placement.warnings
    assert placement.cost_lower_bound <= placement.cost
    copies = np.bincount(placement.standby.member, minlength=12)
    assert np.ptp(copies + np.bincount(placement.active, minlength=12)) <= (4 if racks else 2)


@pytest.mark.parametrize("few", [False, True])
def test_members_without_room_take_copies_that_no_other_may_take(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One unit of four is open to half of the members: its copies are there, evenly, and stay."""
    monkeypatch.setattr(standby, "MAX_ARCS", 10**6 if few else 0)
    units = [Subtopology(str(n), 30, stateful=True) for n in range(4)]
    members = {f"P{n:02}": Member(topics=("0",) if n < 6 else ("1", "2", "3")) for n in range(12)}
    view = group(units, members, num_standby_replicas=1)
    first = _placed(view)
    _assert_whole(view, first, 1)
    copies = np.bincount(first.standby.member, minlength=12) + np.bincount(first.active)
    assert np.ptp(copies[:6]) <= 2
    assert np.ptp(copies[6:]) <= 2
    again = _placed(replace(view, active=first.active, standby=first.standby))
    assert again.standby.code.tolist() == first.standby.code.tolist()


def test_the_bound_of_many_copies_counts_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sticky` counts a new copy as a move; where none exists, each of 300 is one, by the bound."""
    view = _group(random.Random(3), 300, 20, 1, racks=True)
    view = replace(view, standby=no_pairs(), lags=no_lags())
    monkeypatch.setattr(standby, "MAX_ARCS", 0)
    placement = get("sticky").assign(view)
    check.valid(view, placement)
    assert 300 * 10 <= placement.cost_lower_bound <= placement.cost
    assert placement.cost - placement.cost_lower_bound <= 30
