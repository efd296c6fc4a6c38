"""Every move has a reason, and it is true."""

from __future__ import annotations

import math
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.placing import Member, group
from support.random_groups import allowed, caught_up, crossings, placed, problems

from muster.assignor.model import NOBODY, GroupView, Placement, Reason
from muster.protocol.ids import Role
from muster.protocol.tasks import Subtopology


@settings(max_examples=100, deadline=None)
@given(problems(racks=True))
def test_every_move_has_a_reason(problem: tuple) -> None:
    """Whatever is held after and was not before, and nothing else, is given a reason."""
    units, members, config = problem
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        placement = placed(view, name)
        told = {(r.task, int(r.role), r.destination) for r in placement.reasons}
        after = {(t, 1, int(m)) for t, m in enumerate(placement.active) if m != NOBODY}
        before = {(t, 1, int(m)) for t, m in enumerate(view.active)}
        for role, now, then in (
            (2, placement.standby, view.standby),
            (3, placement.learner, view.learner),
        ):
            after |= {(int(t), role, int(m)) for t, m in zip(now.task, now.member, strict=True)}
            before |= {(int(t), role, int(m)) for t, m in zip(then.task, then.member, strict=True)}
        assert told == after - before
        assert all(reason.text for reason in placement.reasons)


def evener(view: GroupView, before: np.ndarray, after: np.ndarray, pair: list[int]) -> bool:
    """Whether two members' loads by capacity have a lower maximum, or the same and are closer."""
    one, other = (load[pair] / view.capacity[pair] for load in (before, after))
    was, now = ((each.max(), np.ptp(each)) for each in (one, other))
    return now[0] < was[0] - 1e-9 or (now[0] < was[0] + 1e-9 and now[1] < was[1] - 1e-9)


class Facts:
    """What a reason may claim, looked up in the view and the placement alone."""

    def __init__(self, view: GroupView, placement: Placement) -> None:
        self.view, self.placement = view, placement
        self.held_before = np.bincount(view.standby.member, minlength=len(view.members))
        self.held_after = np.bincount(placement.standby.member, minlength=len(view.members))

    def loads(self, mine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actives of some tasks that each member has before and in the end."""
        size = len(self.view.members)
        return tuple(
            np.bincount(owner[mine & (owner != NOBODY)], minlength=size)
            for owner in (self.view.active, self.placement.destination)
        )

    def balance(self, told: re.Match[str], pair: list[int]) -> bool:
        """Numbers as told, and better than before."""
        tasks = self.view.tasks
        mine = {
            None: np.ones(len(tasks), dtype=np.bool_),
            "stateful tasks": tasks.stateful,
            "stateless tasks": ~tasks.stateful,
        }.get(told["kind"])
        if mine is None:
            names = [f"subtopology {unit.name}" for unit in tasks.units]
            mine = tasks.unit_of == names.index(told["kind"])
        before, after = self.loads(mine)
        numbers = [int(told[name]) for name in "abcd"]
        return numbers == [*before[pair], *after[pair]] and evener(self.view, before, after, pair)

    def given(self, member: int) -> bool:
        """Whether a member gets an active or a standby it did not have."""
        new = (self.placement.destination == member) & (self.view.active != member)
        old = {
            *zip(self.view.standby.task.tolist(), self.view.standby.member.tolist(), strict=True)
        }
        now = zip(
            self.placement.standby.task.tolist(),
            self.placement.standby.member.tolist(),
            strict=True,
        )
        return bool(new.any()) or any(pair not in old for pair in now if pair[1] == member)

    def cause(self, text: str, task: int, source: int, destination: int) -> bool:
        """Whether the cause of a move of an active is true."""
        view, names = self.view, self.view.members
        told = re.fullmatch(
            r"balance (?:of (?P<kind>.+) )?(?P<a>\d+)/(?P<b>\d+) -> (?P<c>\d+)/(?P<d>\d+)", text
        )
        if told:
            return self.balance(told, [source, destination])
        fewer = re.fullmatch(r"reads (\d+) partitions? fewer across racks", text)
        if fewer:
            across = crossings(view)[task]
            return bool(across[source] - across[destination] == int(fewer[1]))
        return {
            "had no owner": lambda: source == NOBODY,
            f"{names[source]} is draining": lambda: bool(view.draining[source]),
            f"{names[source]} does not take it any more": lambda: not allowed(view)[task, source],
            f"{names[destination]} had no task": lambda: not (view.active == destination).any(),
            f"{names[destination]} has the furthest copy": lambda: furthest(
                view, task, source, destination
            ),
            f"{names[source]} makes room for another task": lambda: self.given(source),
            "one of several placements that are as good": lambda: True,
        }[text]()

    def active(self, reason: Reason) -> bool:
        """Whether every part of an active's or a learner's reason is true."""
        view, task, destination = self.view, reason.task, reason.destination
        first, *more = reason.text.split("; ")
        if first == "restores before the standby moves here":
            return not caught_up(view)[task, destination]
        owner = int(view.active[task])
        facts = [self.cause(first, task, owner, destination)]
        for text in more:
            runner = re.fullmatch(r"restores before it takes over from (\w+)", text)
            keeper = re.fullmatch(r"(caught-up|furthest) copy runs it while (\w+) restores", text)
            if runner:
                runs = view.members[self.placement.active[task]]
                facts += [runs == runner[1], self.placement.destination[task] == destination]
            elif keeper:
                aim = self.placement.destination[task]
                facts += [view.members[aim] == keeper[2], aim != destination]
                facts += [caught_up(view)[task, destination] == (keeper[1] == "caught-up")]
            elif text == "learner ready":
                ready = zip(view.ready.task.tolist(), view.ready.member.tolist(), strict=True)
                facts += [(task, destination) in ready]
            else:
                assert text == "copy caught up"
                facts += [caught_up(view)[task, destination]]
        return all(facts)

    def standby(self, reason: Reason) -> bool:
        """Whether a standby's reason is true, where nothing is staged."""
        view, task = self.view, reason.task
        pair = [reason.source, reason.destination]
        ran, runs = self.loads(np.ones(len(view.tasks), dtype=np.bool_))
        before, after = self.held_before, self.held_after
        wanted = view.settings.num_standby_replicas
        return {
            "ran the task before; keeps its copy warm": lambda: view.active[task] == pair[1],
            f"one of {wanted} standbys wanted": lambda: pair[0] == NOBODY,
            f"{view.members[pair[0]]} is draining": lambda: view.draining[pair[0]],
            f"{view.members[pair[0]]} runs the task now": (
                lambda: self.placement.active[task] == pair[0]
            ),
            "standbys spread evenly": lambda: evener(view, before, after, pair),
            "actives and standbys spread evenly": (
                lambda: evener(view, before + ran, after + runs, pair)
            ),
            "its copy is further": lambda: lag(view, task, pair[1]) < lag(view, task, pair[0]),
            f"{view.members[pair[0]]} makes room for another copy": lambda: self.given(pair[0]),
        }.get(reason.text, lambda: reason.text.startswith(("reads ", "one of several")))()


def lag(view: GroupView, task: int, member: int) -> float:
    """Offsets a member is behind; infinite without state."""
    if view.active[task] == member or (task, member) in zip(
        view.ready.task.tolist(), view.ready.member.tolist(), strict=True
    ):
        return 0
    told = zip(view.lags.task.tolist(), view.lags.member.tolist(), view.lags.offsets, strict=True)
    return next((int(behind) for t, m, behind in told if (t, m) == (task, member)), math.inf)


def furthest(view: GroupView, task: int, source: int, destination: int) -> bool:
    """Whether nobody but the owner has more of a task."""
    others = set(range(len(view.members))) - {source}
    return lag(view, task, destination) == min(lag(view, task, m) for m in others) < math.inf


@settings(max_examples=150, deadline=None)
@given(problems(racks=True), st.booleans())
def test_every_reason_is_true(problem: tuple, racks: bool) -> None:
    """Each claim of each reason is looked up: loads got more even, traffic fell, owners left."""
    units, members, config = problem
    if not racks:
        config = {k: v for k, v in config.items() if k != "rack_aware_assignment_strategy"}
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        placement = placed(view, name)
        facts = Facts(view, placement)
        for reason in placement.reasons:
            if reason.role is not Role.STANDBY:
                assert facts.active(reason), (name, reason)
            elif name in ("sticky", "fallback"):
                assert facts.standby(reason), (name, reason)


def test_an_owner_that_may_not_take_it_any_more() -> None:
    """A member that narrowed its topics: told so, and not that anything got more even."""
    units = [Subtopology("0", 2), Subtopology("1", 2)]
    members = {"A": Member(active=["0_0", "0_1"], topics=["1"]), "B": Member(active=["1_0", "1_1"])}
    view = group(units, members)
    told = {r.task: r.text for r in placed(view, "sticky").reasons}
    assert told[0] == told[1] == "A does not take it any more"


def test_traffic_is_told_as_traffic() -> None:
    """Two tasks change places for their racks: counts stay, and no reason speaks of balance."""
    racks = ((("r1",),), (("r0",),))
    unit = Subtopology("0", 2, source_racks=racks)
    members = {"A": Member(rack="r0", active=["0_0"]), "B": Member(rack="r1", active=["0_1"])}
    view = group([unit], members, rack_aware_assignment_strategy="min_traffic")
    told = [reason.text for reason in placed(view, "high-availability").reasons]
    assert told == ["reads 1 partition fewer across racks"] * 2
