"""Every move has a reason, and the reason is true."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group
from support.assignor.random_groups import allowed, caught_up, crossings, placed, problems
from support.suite.examples import examples

from muster.assignor import (
    reason_texts,
    sticky_assignor,
)
from muster.assignor.actives_until_warm import Staged, Target
from muster.assignor.model import NO_MEMBER, GroupView, Lags, Pairs, Placement, Reason
from muster.assignor.reason_arrays import Reasons
from muster.assignor.reason_texts import explained
from muster.protocol.ids import Role
from muster.protocol.tasks import Subtopology


@settings(max_examples=examples(100), deadline=None)
@given(problems(racks=True))
def test_every_move_has_a_reason(problem: tuple) -> None:
    """Every role that a member gains, and nothing else, has a reason."""
    units, members, config = problem
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        placement = placed(view, name)
        explained_moves = {(r.task, int(r.role), r.destination) for r in placement.reasons}
        after = {(t, 1, int(m)) for t, m in enumerate(placement.active)}
        before = {(t, 1, int(m)) for t, m in enumerate(view.active)}
        for role, after_pairs, before_pairs in (
            (2, placement.standby, view.standby),
            (3, placement.learner, view.learner),
        ):
            after |= {
                (int(t), role, int(m))
                for t, m in zip(after_pairs.task, after_pairs.member, strict=True)
            }
            before |= {
                (int(t), role, int(m))
                for t, m in zip(before_pairs.task, before_pairs.member, strict=True)
            }
        assert explained_moves == after - before
        assert all(reason.text for reason in placement.reasons)


def evener(view: GroupView, before: np.ndarray, after: np.ndarray, pair: list[int]) -> bool:
    """Whether two members' loads by capacity have a lower maximum, or the same and are closer."""
    loads_before, loads_after = (load[pair] / view.capacity[pair] for load in (before, after))
    measure_before, measure_after = (
        (levels.max(), np.ptp(levels)) for levels in (loads_before, loads_after)
    )
    return measure_after[0] < measure_before[0] - 1e-9 or (
        measure_after[0] < measure_before[0] + 1e-9 and measure_after[1] < measure_before[1] - 1e-9
    )


def evens_group(view: GroupView, after: np.ndarray, pair: list[int]) -> bool:
    """Whether the group's largest and smallest load are closer than if one copy went back."""
    loads = [Fraction(int(n), int(c)) for n, c in zip(after, view.capacity, strict=True)]
    source, destination = pair
    back = list(loads)
    back[source] += Fraction(1, int(view.capacity[source]))
    back[destination] -= Fraction(1, int(view.capacity[destination]))
    stays = [m for m in range(len(loads)) if not view.draining[m] or view.draining.all()]
    spread, spread_back = (
        max(of[m] for m in stays) - min(of[m] for m in stays) for of in (loads, back)
    )
    return spread < spread_back


class Facts:
    """The facts that a reason may claim, from the view, the placement and its target alone."""

    def __init__(
        self, view: GroupView, placement: Placement, target: Target, *, by_number: bool
    ) -> None:
        self.view, self.placement = view, placement
        self.weight = np.ones(len(view.tasks)) if by_number else view.tasks.weight
        self.destination = target.active
        self.standbys = codes(target.standby)
        self.held_before = np.bincount(view.standby.member, minlength=len(view.members))
        self.held_after = np.bincount(target.standby.member, minlength=len(view.members))

    def loads(
        self, tasks: np.ndarray, *, count: bool = False, now: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weight, or number, of each member's actives of a kind: before, and now or in the end."""
        weight = np.ones(len(tasks)) if count else self.weight
        return tuple(
            np.bincount(
                owner[tasks & (owner != NO_MEMBER)],
                weight[tasks & (owner != NO_MEMBER)],
                minlength=len(self.view.members),
            )
            for owner in (self.view.active, self.placement.active if now else self.destination)
        )

    def balance(self, claim: re.Match[str], pair: list[int], task: int) -> bool:
        """Whether the claimed numbers are right and better; stateless tasks use present loads."""
        tasks = self.view.tasks
        of_kind = {
            None: np.ones(len(tasks), dtype=np.bool_),
            "stateful tasks": tasks.stateful,
            "stateless tasks": ~tasks.stateful,
        }.get(claim["kind"])
        if of_kind is None:
            names = [f"subtopology {unit.name}" for unit in tasks.units]
            of_kind = tasks.unit_of == names.index(claim["kind"])
        before, after = self.loads(of_kind, now=not tasks.stateful[task])
        numbers = [claim[name] for name in "abcd"]
        actual = [f"{load:g}" for load in (*before[pair], *after[pair])]
        return numbers == actual and evener(self.view, before, after, pair)

    def given(self, member: int) -> bool:
        """Whether a member gets an active, now or in the end, or a standby it did not have."""
        new = (self.destination == member) | (self.placement.active == member)
        new &= self.view.active != member
        old = codes(self.view.standby)
        return bool(new.any()) or any(
            pair not in old for pair in self.standbys if pair[1] == member
        )

    def cause(self, text: str, task: int, source: int, destination: int) -> bool:
        """Whether the cause of a move of an active is true."""
        view, names = self.view, self.view.members
        balance_claim = re.fullmatch(
            r"balance (?:of (?P<kind>.+) )?(?P<a>\S+)/(?P<b>\S+) -> (?P<c>\S+)/(?P<d>\S+)", text
        )
        if balance_claim:
            return self.balance(balance_claim, [source, destination], task)
        fewer = re.fullmatch(r"reads (\d+) partitions? fewer across racks", text)
        if fewer:
            across = crossings(view)[task]
            return bool(across[source] - across[destination] == int(fewer[1]))
        return {
            "had no owner": lambda: source == NO_MEMBER,
            f"{names[source]} is draining": lambda: bool(view.draining[source]),
            f"{names[source]} does not take it any more": lambda: not allowed(view)[task, source],
            f"{names[source]} is still restoring it": lambda: (
                caught_up(view)[task, [source, self.placement.active[task]]].tolist()
                == [False, True]
            ),
            f"{names[destination]} had no task": lambda: not (view.active == destination).any(),
            f"{names[destination]} has the furthest copy": lambda: furthest(
                view, task, source, destination
            ),
            f"{names[source]} makes room for another task": lambda: self.given(source),
        }[text]()

    def active(self, reason: Reason) -> bool:
        """Whether every part of an active's or a learner's reason is true."""
        view, task, destination = self.view, reason.task, reason.destination
        first, *more = reason.text.split("; ")
        if first == "goes on restoring":
            runs = view.members[self.placement.active[task]]
            own_copy = view.active[task] == destination and not caught_up(view)[task, destination]
            return bool(own_copy) and more == [f"{runs} runs it meanwhile"]
        if first == "restores before the standby moves here":
            warm = caught_up(view)[task, destination]
            return not warm and (task, destination) in self.standbys
        owner = int(view.active[task])
        facts = [self.cause(first, task, owner, destination)]
        for text in more:
            runner = re.fullmatch(r"restores before it takes over from (\w+)", text)
            said = text.replace("copy runs it", "copy").removeprefix("runs ")
            keeper = re.fullmatch(r"(caught-up copy|furthest copy|here) while (\w+) restores", said)
            if runner:
                runs = view.members[self.placement.active[task]]
                facts += [runs == runner[1], self.destination[task] == destination]
            elif keeper:
                final_owner = self.destination[task]
                facts += [view.members[final_owner] == keeper[2], final_owner != destination]
                facts += [caught_up(view)[task, destination] == (keeper[1] == "caught-up copy")]
                reported = codes(view.ready) | codes(view.lags)
                facts += [((task, destination) in reported) == (keeper[1] != "here")]
            elif text == "no other member may":
                facts.append(destination == NO_MEMBER and not allowed(view)[task].any())
            elif text == "only draining members may":
                takers = allowed(view)[task]
                facts.append(destination == NO_MEMBER and takers.any())
                facts.append(bool(view.draining[takers].all()))
            elif text == "learner ready":
                facts += [(task, destination) in codes(view.ready)]
            else:
                assert text == "copy caught up"
                facts += [caught_up(view)[task, destination]]
        return all(facts)

    def standby(self, reason: Reason) -> bool:
        """Whether a standby's reason is true."""
        view, task = self.view, reason.task
        pair = [reason.source, reason.destination]
        names = [view.members[member] for member in pair]
        actives_before, actives_after = self.loads(
            np.ones(len(view.tasks), dtype=np.bool_), count=True
        )
        before, after = self.held_before, self.held_after
        wanted = view.settings.num_standby_replicas
        warm, final_owner = caught_up(view)[task], int(self.destination[task])
        fewer = re.fullmatch(r"reads (\d+) partitions? fewer across racks", reason.text)
        if fewer:
            across = crossings(view)[task]  # here changelogs are where inputs are
            return bool(across[pair[0]] - across[pair[1]] == int(fewer[1]))
        return {
            "ran the task before; keeps its copy warm": lambda: (
                view.active[task] == pair[1] and warm[pair[1]]
            ),
            "ran the task before; goes on restoring": lambda: (
                view.active[task] == pair[1] and not warm[pair[1]]
            ),
            "restores as a standby before it takes over": (
                lambda: final_owner == pair[1] and not warm[pair[1]]
            ),
            "caught up; stands in while another restores": lambda: (
                warm[pair[1]]
                and (task, pair[1]) not in self.standbys
                and any(not warm[m] for t, m in {*self.standbys, (task, final_owner)} if t == task)
            ),
            f"{wanted} standby{'s' if wanted != 1 else ''} wanted": lambda: pair[0] == NO_MEMBER,
            f"{names[0]} is draining": lambda: view.draining[pair[0]],
            f"{names[0]} runs the task now": lambda: self.placement.active[task] == pair[0],
            f"{names[0]} does not take it any more": lambda: not allowed(view)[task, pair[0]],
            "standbys spread evenly": lambda: (
                evener(view, before, after, pair) or evens_group(view, after, pair)
            ),
            "actives and standbys spread evenly": lambda: (
                evener(view, before + actives_before, after + actives_after, pair)
                or evens_group(view, after + actives_after, pair)
            ),
            "its copy is further": lambda: lag(view, task, pair[1]) < lag(view, task, pair[0]),
            "differs in more tags from the other copies": lambda: (
                self.alike(task, pair[1]) < self.alike(task, pair[0])
            ),
            f"{names[0]} makes room for another copy": lambda: self.given(pair[0]),
        }[reason.text]()

    def alike(self, task: int, member: int) -> int:
        """How many tags a member shares with the final holders of a task."""
        tags = self.view.tags
        holders = {m for t, m in self.standbys if t == task} | {int(self.destination[task])}
        return sum(
            tags[member][key] == tags[other][key]
            for other in holders - {member, NO_MEMBER}
            for key in self.view.settings.rack_aware_assignment_tags
        )


def codes(pairs: Pairs | Lags) -> set[tuple[int, int]]:
    """Pairs as a set."""
    return set(zip(pairs.task.tolist(), pairs.member.tolist(), strict=True))


def lag(view: GroupView, task: int, member: int) -> float:
    """Offsets a member is behind; infinite without state."""
    if (task, member) in codes(view.ready):
        return 0
    lags = zip(view.lags.task.tolist(), view.lags.member.tolist(), view.lags.offsets, strict=True)
    unreported = 0 if view.active[task] == member else math.inf
    return next((int(behind) for t, m, behind in lags if (t, m) == (task, member)), unreported)


def furthest(view: GroupView, task: int, source: int, destination: int) -> bool:
    """Whether no member but the present owner has a more complete copy of a task."""
    others = set(range(len(view.members))) - {source}
    return lag(view, task, destination) == min(lag(view, task, m) for m in others) < math.inf


def facts(view: GroupView, name: str) -> Facts:
    """A placement and its target, as `explained` got them."""
    targets = []

    def recorded(view: GroupView, target: Target, staged: Staged, **options: bool) -> Reasons:
        targets.append(target)
        return explained(view, target, staged, **options)

    with mock.patch.object(sticky_assignor, "explained", recorded):
        placement = placed(view, name)
    return Facts(view, placement, targets[-1], by_number=name == "learner")


@st.composite
def views(draw: st.DrawFn) -> GroupView:
    """Random groups, with racks, weights, tags or none of them."""
    units, members, config = draw(problems(racks=True))
    kind = draw(st.sampled_from(["racks", "plain", "weights", "tags"]))
    rng = random.Random(draw(st.integers(0, 2**30)))
    if kind != "racks":
        del config["rack_aware_assignment_strategy"]
    if kind == "weights":
        units = [replace(unit, weight=rng.choice([0.5, 1, 2, 5])) for unit in units]
    if kind == "tags":
        config["rack_aware_assignment_tags"] = "zone,cluster"
        members = {
            name: replace(member, tags={"zone": rng.choice("abc"), "cluster": rng.choice("x")})
            for name, member in members.items()
        }
    return group(units, members, **config)


NAMES = ("high-availability", "sticky", "learner", "fallback")


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(views())
def test_every_reason_is_true(view: GroupView) -> None:
    """Each claim of each reason is looked up: loads got more even, traffic fell, owners left.

    That nothing better can be said than "one of several placements" is not taken for a reason here.
    """
    for name in NAMES:
        known = facts(view, name)
        for reason in known.placement.reasons:
            true = known.standby if reason.role is Role.STANDBY else known.active
            assert true(reason), (name, reason)


def test_reason_of_an_owner_that_may_not_keep_a_task() -> None:
    """A member narrowed its topics: the reason says so, and does not claim balance."""
    units = [Subtopology("0", 2), Subtopology("1", 2)]
    members = {"A": Member(active=["0_0", "0_1"], topics=["1"]), "B": Member(active=["1_0", "1_1"])}
    view = group(units, members)
    texts = {r.task: r.text for r in placed(view, "sticky").reasons}
    assert texts[0] == texts[1] == "A does not take it any more"


def test_traffic_is_the_reason_of_a_move_for_racks() -> None:
    """Two tasks are exchanged for their racks: counts stay, and no reason claims balance."""
    racks = ((("r1",),), (("r0",),))
    unit = Subtopology("0", 2, source_racks=racks)
    members = {"A": Member(rack="r0", active=["0_0"]), "B": Member(rack="r1", active=["0_1"])}
    view = group([unit], members, rack_aware_assignment_strategy="min_traffic")
    texts = [reason.text for reason in placed(view, "high-availability").reasons]
    assert texts == ["reads 1 partition fewer across racks"] * 2


def test_balance_is_not_the_reason_of_a_move_for_racks() -> None:
    """A gives its task to C for its rack and gets another from B: A has one task as before.

    A and C become more even, 1/0 -> 1/1, but by the move from B, which is for balance.
    """
    racks = ((("r1",),), (("r0",),), (("r1",),))
    unit = Subtopology("0", 3, source_racks=racks)
    members = {
        "A": Member(rack="r0", active=["0_0"]),
        "B": Member(rack="r1", active=["0_1", "0_2"]),
        "C": Member(rack="r1"),
    }
    view = group([unit], members, rack_aware_assignment_strategy="min_traffic")
    texts = {r.task: r.text for r in placed(view, "high-availability").reasons}
    assert texts == dict.fromkeys((0, 1), "reads 1 partition fewer across racks")


def test_learner_reasons_count_tasks() -> None:
    """Tasks of different weight: `learner` balances their number, and its reasons say so."""
    units = [Subtopology("0", 2, stateful=True, weight=5), Subtopology("1", 2, stateful=True)]
    members = {"P1": Member(active=["0_0", "1_0", "1_1"]), "P2": Member(active=["0_1"])}
    view = group(units, {**members, "P3": Member()}, "learner")
    (reason,) = placed(view, "learner").reasons
    assert reason.text == "balance 3/0 -> 2/1; restores before it takes over from P1"


def test_reason_of_a_standby_that_may_not_stay() -> None:
    """A member that narrowed its topics loses its standby: the reason says so."""
    units = [Subtopology("0", 1, stateful=True), Subtopology("1", 1)]
    members = {
        "P1": Member(active=["0_0"]),
        "P2": Member(standby=["0_0"], topics=["1"]),
        "P3": Member(),
    }
    view = group(units, members, num_standby_replicas=1)
    texts = {r.task: r.text for r in placed(view, "sticky").reasons if r.role is Role.STANDBY}
    assert texts == {0: "P2 does not take it any more"}


def test_reason_of_a_standby_that_evens_the_group() -> None:
    """B gets the standby of F: B and F are not more even, but no member is empty any more."""
    units = [Subtopology("0", 1, stateful=True), Subtopology("1", 2, stateful=True, weight=0.5)]
    members = {
        "A": Member(capacity=2, active=["1_0"], standby=["0_0"], lag={"0_0": 101}),
        "B": Member(),
        "C": Member(standby=["1_1"], lag={"1_1": 5000}),
        "D": Member(capacity=3, learner=["1_0"], ready=["1_0"], lag={"1_0": 0}),
        "E": Member(capacity=4, lag={"0_0": 5000}),
        "F": Member(capacity=4, active=["0_0"], standby=["1_0"], lag={"1_0": 0}),
    }
    view = group(units, members, num_standby_replicas=1)
    [reason] = [r for r in placed(view, "sticky").reasons if r.role is Role.STANDBY]
    assert (view.members[reason.destination], reason.text) == (
        "B",
        "actives and standbys spread evenly",
    )


def test_reason_of_a_copy_that_stands_in() -> None:
    """P3 is caught up with 0_1 from before; the standby belongs to P2, which restores."""
    members = {
        "P1": Member(active=["0_1"]),
        "P2": Member(active=["0_0"]),
        "P3": Member(standby=["0_0"], lag={"0_0": 0, "0_1": 0}),
    }
    view = group([Subtopology("0", 2, stateful=True)], members, num_standby_replicas=1)
    texts = {(r.role, r.destination): r.text for r in placed(view, "high-availability").reasons}
    assert texts == {
        (Role.STANDBY, 2): "caught up; stands in while another restores",
        (Role.LEARNER, 1): "restores before the standby moves here",
    }


def test_reason_of_a_task_that_no_member_may_take() -> None:
    """The only member narrowed its topics and loses its active: the reason says so."""
    view = group([Subtopology("0", 2, stateful=True)], {"A": Member(active=["0_0"], topics=["1"])})
    for name in ("high-availability", "sticky", "learner", "fallback"):
        reasons = [
            (r.task, r.role, r.source, r.destination, r.text) for r in placed(view, name).reasons
        ]
        text = "A does not take it any more; no other member may"
        assert reasons == [(0, Role.ACTIVE, 0, NO_MEMBER, text)]


def test_reason_of_a_task_that_only_a_draining_member_may_take() -> None:
    """A narrowed its topics, and B, which takes all, is draining: the reason does not deny B."""
    members = {
        "A": Member(active=["0_0"], topics=["1"]),
        "B": Member(draining=True),
    }
    view = group([Subtopology("0", 1, stateful=True), Subtopology("1", 1)], members)
    for name in NAMES:
        texts = {r.task: r.text for r in placed(view, name).reasons}
        assert texts[0] == "A does not take it any more; only draining members may"


def test_reason_of_a_task_that_runs_where_no_copy_is() -> None:
    """1_1 starts on A, with nothing of it, until C has room: no copy is said to be the furthest."""
    members = {
        "A": Member(),
        "B": Member(capacity=2, topics=["0"]),
        "C": Member(active=["0_1"]),
    }
    units = [Subtopology(name, 2, stateful=True) for name in "01"]
    texts = {(r.task, r.role): r.text for r in placed(group(units, members), "learner").reasons}
    assert texts[3, Role.ACTIVE] == "had no owner; runs here while C restores"


def test_many_moves_between_two_members_cost_one_comparison() -> None:
    """A third member joins 2,000 tasks: the cost of reasons follows the members, not the tasks."""
    tasks = [f"0_{i}" for i in range(2_000)]
    members = {"A": Member(active=tasks[:1_000]), "B": Member(active=tasks[1_000:]), "C": Member()}
    view = group([Subtopology("0", 2_000)], members)
    with mock.patch(
        "muster.assignor.reason_texts._evener", wraps=reason_texts._evener
    ) as comparison:
        texts = [reason.text for reason in placed(view, "sticky").reasons]
    assert len(texts) == 666
    assert set(texts) <= {"balance 1000/0 -> 667/666", "balance 1000/0 -> 667/667"}
    assert comparison.call_count <= 2
