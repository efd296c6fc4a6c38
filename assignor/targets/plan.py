"""The plan of a group: owners of actives, standbys, their cost, and warnings.

A plan is a target; `muster.assignor.staging` decides how to reach it. Each step is optimal within
the steps before it: stateful actives, standbys, stateless actives (S2-F25, S4-17).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muster.assignor.copies import Copies
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, no_pairs
from muster.assignor.solvers.balance import held
from muster.assignor.solvers.exact import small
from muster.assignor.solvers.shares import Counts, filled_shares, shares
from muster.assignor.targets.actives import Actives, settled_by_copies, settled_to, uneven
from muster.assignor.targets.partial import settled_by_topics
from muster.assignor.targets.plan_data import (
    Plan,
    PlanCost,
    changelog_toll,
    copies_apart,
    staying_owner,
    usable_capacity,
)
from muster.assignor.targets.racks import (
    STATELESS,
    Prices,
    Racks,
    differ,
    racks_of,
    settled_by_cost,
)
from muster.assignor.targets.refinement import costs, refined
from muster.assignor.targets.small import SmallGroup
from muster.assignor.targets.standby import standbys
from muster.assignor.targets.standby_request import PlacedStandbys, StandbyRequest
from muster.assignor.targets.tags import Zones, tagged_standbys
from muster.assignor.targets.weighted import differ_in_weight, settled_by_weight
from muster.assignor.targets.windows import bound_of, windows
from muster.protocol.tasks import IntArray

_MOVES_ONLY = Prices(0, 1)


class Planner:
    """Plans one view.

    Args:
        view: the group.
        copies: its copies.
        default: the assignor's own prices of traffic and moves.
        at_once: whether the plan is carried out without learners.
        bounded: whether tasks move for `subtopology.imbalance.max`.
    """

    def __init__(
        self,
        view: GroupView,
        copies: Copies,
        default: Prices,
        *,
        at_once: bool = False,
        bounded: bool = True,
    ) -> None:
        self.view = view
        self.copies = copies
        self.capacity = usable_capacity(view)
        self.home = staying_owner(copies, self.capacity)
        standbys_wanted = view.settings.num_standby_replicas > 0
        self.racks, warning = racks_of(view, default, standbys=standbys_wanted)
        if self.racks is not None and not differ(view, self.racks, self.capacity > 0):
            self.racks = None  # every placement reads the same across racks
        self.plan = Plan(np.full(len(view.tasks), NO_MEMBER, dtype=np.int32))
        if warning:
            self.plan.warnings = (warning,)
        self._at_once = at_once
        self._bound, warning = bound_of(view) if bounded else (None, "")
        if warning:
            self.plan.warnings += (warning,)
        self._standby_request: StandbyRequest | None = None
        self._priced = False
        self._small: SmallGroup | None = None
        if (
            small(len(view.tasks), self.capacity)
            and view.unrestricted
            and view.tasks.weigh_alike
            and not self._nothing_to_weigh(at_once=at_once)
        ):
            self._small = SmallGroup(
                view, copies, self.capacity, self.home, self.racks, self._bound, at_once=at_once
            )

    def _nothing_to_weigh(self, *, at_once: bool) -> bool:
        """Whether the method for large groups is exact for this small one, and faster.

        It is for members of equal capacity when none has a task or state, no standbys are wanted
        and `subtopology.imbalance.max` is off: counts are plain, and racks, if they count, are one
        flow where all tasks are of one kind. It is not for a plan that starts at once with racks,
        because its counts may ignore racks.
        """
        view, capacity = self.view, self.capacity
        if view.settings.num_standby_replicas or not self.copies.none:
            return False
        if self._bound is not None:
            return False
        if int(view.active.max(initial=NO_MEMBER)) != NO_MEMBER or (capacity != capacity[0]).any():
            return False
        stateful = view.tasks.stateful
        return self.racks is None or (not at_once and bool((stateful == stateful[0]).all()))

    def actives(self, tasks: IntArray, *, before: Counts | None = None) -> None:
        """Place actives, balanced among themselves and with those placed before."""
        if len(tasks) == 0:
            return
        if self._small is not None and self._exactly(tasks, before):
            return
        actives = Actives(tasks, self.home[tasks], before)
        if differ_in_weight(self.view, tasks):
            load = self._weights(self.plan.active)
            self.plan.active[tasks], complete = settled_by_weight(
                self.copies, actives, self.capacity, load, at_once=self._at_once
            )
            self.plan.provisional |= not complete
            if self.racks is not None:
                for weight in np.unique(self.view.tasks.weight[tasks]).tolist():
                    self._exchanged(tasks[self.view.tasks.weight[tasks] == weight])
            return
        if self._bound is not None:
            self._placed_by_cost(actives)
            return
        if self.racks is None and self.view.unrestricted:
            self.plan.active[tasks] = settled_by_copies(
                self.view, self.copies, actives, self.capacity
            )
            return
        if self.racks is None and not self.view.tasks.stateful[tasks].any():
            self.plan.active[tasks] = settled_by_topics(
                self.view, tasks, self.home[tasks], self.capacity, before
            )
            return
        self._placed_by_cost(actives)

    def _placed_by_cost(self, actives: Actives) -> None:
        tasks, window = actives.task, None
        if self._bound is not None:
            window = windows(self.view, tasks, actives.home, self.capacity, self._bound)
        self.plan.active[tasks], cost = settled_by_cost(
            self.view, self.copies, actives, self.capacity, self.racks, self._prices(tasks),
            window=window,
        )  # fmt: skip
        self._paid(cost)

    def _exchanged(self, tasks: IntArray) -> None:
        """Exchange tasks of one weight where racks make that cheaper (S4-21).

        Load comes before traffic (S4-11), and among tasks of one weight counts are load.
        """
        counts = held(self.plan.active[tasks], len(self.capacity))
        actives = Actives(tasks, self.home[tasks])
        self.plan.active[tasks], cost = settled_by_cost(
            self.view, self.copies, actives, self.capacity, self.racks, self._prices(tasks),
            counts=counts,
        )  # fmt: skip
        self._paid(cost)

    def _prices(self, tasks: IntArray) -> Prices:
        """Prices of tasks of one kind."""
        if self.racks is None:
            return _MOVES_ONLY
        return self.racks.stateful if self.view.tasks.stateful[tasks].any() else STATELESS

    def _paid(self, cost: int) -> None:
        if self.racks is not None:
            self._priced = True
            self.plan.cost += cost
            self.plan.bound += cost

    def _exactly(self, tasks: IntArray, before: Counts | None) -> bool:
        """Place actives of a small group; False if no balanced placement is left."""
        assert self._small is not None
        placed = self._small.actives(tasks, before)
        if placed is None:
            return False
        self.plan.active[tasks], cost = placed
        self._paid(cost)
        return True

    def filled(self) -> IntArray | None:
        """Owners with every present owner kept, if the group is small; else None."""
        if self._small is None or self.racks is not None:
            return None
        return self._small.filled(np.arange(len(self.view.tasks), dtype=np.int32))

    def settled(
        self, tasks: IntArray, home: IntArray, room: Counts, before: Counts
    ) -> tuple[IntArray, int]:
        """Owners of tasks of one kind within the given room; the plan is not changed.

        Args:
            tasks: tasks to place.
            home: int32[K], owners they may stay with.
            room: int64[M], how many each member takes. Not used where topics restrict members:
                there, balance follows from the restrictions.
            before: int64[M], tasks each member has beside these.

        Returns:
            int32[K] owners, `NO_MEMBER` where no member may take a task, with the least traffic
            where racks count and the fewest moves; and the cost of racks and moves, 0 where racks
            do not count.
        """
        free = self.view.unrestricted
        if free and self.racks is None:
            return settled_to(self.view, self.copies, Actives(tasks, home), room), 0
        owner, cost = settled_by_cost(
            self.view, self.copies, Actives(tasks, home, before), self.capacity, self.racks,
            self._prices(tasks), counts=room if free else None,
        )  # fmt: skip
        return owner, cost if self.racks is not None else 0

    def meanwhile(self, running: IntArray) -> IntArray:
        """Owners of all tasks while stateful ones wait for copies; stateless ones fill up the load.

        Stateless tasks follow the load that runs now (S2-F25), not the load once every copy is
        caught up; until then their plan is set aside.

        Args:
            running: int32[T], owner of each stateful task now.

        Returns:
            int32[T], `running` with the stateless tasks placed.
        """
        view = self.view
        stateful = view.tasks.stateful
        tasks = np.flatnonzero(~stateful).astype(np.int32)
        if len(tasks) == 0 or np.array_equal(running[stateful], self.plan.active[stateful]):
            return running
        count = np.where(self.capacity > 0, held(running[stateful], len(self.capacity)), 0)
        home = self.home[tasks]
        owner = running.copy()
        if differ_in_weight(view, tasks):
            load = self._weights(np.where(stateful, running, NO_MEMBER))
            owner[tasks], _ = settled_by_weight(
                self.copies, Actives(tasks, home), self.capacity, load, at_once=True
            )
            return owner
        share = filled_shares(
            len(tasks) + int(count.sum()),
            self.capacity,
            count,
            count + held(home, len(self.capacity)),
        )
        owner[tasks], _ = self.settled(tasks, home, share - count, count)
        return owner

    def taking(self, pairs: Pairs) -> Pairs:
        """The pairs whose member takes tasks, and may take this one."""
        fits = self.capacity[pairs.member] > 0
        if not self.view.unrestricted:
            fits &= self.view.may_take(pairs.task, pairs.member)
        return pairs.only(fits)

    def standbys(self, taken: Pairs | None = None) -> None:
        """Place the standbys of every stateful active that has been placed.

        Args:
            taken: copies in other roles; a standby never goes to a member that has one.
        """
        view, plan = self.view, self.plan
        if view.settings.num_standby_replicas == 0:
            return
        stateful = np.flatnonzero(view.tasks.stateful & (plan.active != NO_MEMBER)).astype(np.int32)
        table = None if view.unrestricted else view.kinds
        request = StandbyRequest(
            tasks=stateful,
            target=plan.active,
            copies=view.settings.num_standby_replicas,
            capacity=self.capacity,
            may=None if table is None else table.allowed[table.kind_of],
            toll=None if self.racks is None else changelog_toll(view, self.racks),
            leaving=0 if self.racks is None else self.racks.stateful.overlap,
            loads=self.loads(),
            apart=copies_apart(view),
            tolls_first=self.racks is not None and self.racks.stateful.tolls_first,
            taken=taken or no_pairs(),
            rack=view.rack if len(view.racks) > 1 else None,
        )
        plan.standby, missing, bound, warning = self._standbys(request)
        self._standby_request = request
        if request.toll is not None:
            plan.cost += request.cost(view, plan.standby)
            plan.bound += bound
        if warning:
            plan.warnings += (warning,)
        if missing:
            plan.warnings += (
                f"{missing} standbys are missing: too few members for"
                f" num.standby.replicas={request.copies}",
            )

    def _standbys(self, request: StandbyRequest) -> PlacedStandbys:
        if self.view.settings.rack_aware_assignment_tags:
            return tagged_standbys(self.view, self.copies, request)
        if self._small is not None and not request.apart:
            pairs = self._small.standbys(request)
            if pairs is not None:
                missing = request.copies * len(request.tasks) - len(pairs)
                return PlacedStandbys(pairs, missing, request.cost(self.view, pairs))
        return standbys(self.view, self.copies, request)

    def refine(self, *, at_once: bool) -> None:
        """Improve a small plan where that costs nothing.

        Not where members differ in what they may take, tasks differ in weight, or standbys must be
        in different racks.

        Args:
            at_once: whether the plan is carried out without learners.
        """
        view, plan = self.view, self.plan
        if (
            self._small is None
            or not view.tasks.weigh_alike
            or (self.racks and view.settings.rack_aware_standby_strategy != "traffic")
            or (plan.active[view.tasks.stateful] == NO_MEMBER).any()
            or self._settled_afresh()
        ):
            return
        by_unit = self.racks is not None and self.racks.by_unit
        tolls = None if self.racks is None else self.racks.across(view)
        before = self._cost()
        plan.active, plan.standby = refined(
            costs(
                self._small.figures,
                self.capacity,
                tolls,
                view.settings.num_standby_replicas,
                at_once=at_once,
            ),
            (plan.active, plan.standby),
            self.capacity,
            view.tasks.stateful,
            view.tasks.unit_of if by_unit else None,
            Zones(view).tags if view.settings.rack_aware_assignment_tags else None,
            self._small.spread(np.arange(len(view.tasks), dtype=np.int32)),
            strict=not at_once,
        )
        if self.racks is not None:
            plan.cost += self._cost() - before
            if plan.cost < plan.bound:  # the bound was proven for other counts
                plan.bound = self._plan_cost(self.racks).least(plan, self.capacity > 0)

    def _settled_afresh(self) -> bool:
        """Whether only traffic and balance count, and both are optimal already.

        So it is where no member has a task or state, no standbys are placed, and capacities are
        equal: with unequal ones, one kind of task may even out what another leaves uneven.
        """
        if len(self.plan.standby) or not self.copies.none or (self.racks and not self._priced):
            return False
        if uneven(self.capacity):
            return False
        return int(self.copies.owner.max(initial=NO_MEMBER)) == NO_MEMBER

    def everything(self) -> None:
        """Place all actives together, balanced, with the fewest moves."""
        tasks = np.arange(len(self.view.tasks), dtype=np.int32)
        if self.racks is not None and self._small is None:  # prices differ by kind
            stateful = self.view.tasks.stateful
            self.actives(tasks[stateful])
            self.actives(tasks[~stateful], before=self.loads())
            return
        plain = self.racks is None and self.view.unrestricted and self._bound is None
        if self._small is not None or not plain or not self.view.tasks.weigh_alike:
            self.actives(tasks)
            return
        count = held(self.home, len(self.capacity))
        share = shares(len(tasks), self.capacity, count)
        self.plan.active = settled_to(self.view, self.copies, Actives(tasks, self.home), share)

    def _cost(self) -> int:
        return 0 if self.racks is None else self._plan_cost(self.racks).of(self.plan, self.home)

    def _plan_cost(self, racks: Racks) -> PlanCost:
        return PlanCost(self.view, racks, self._standby_request, self._priced)

    def _weights(self, owner: IntArray) -> NDArray[np.float64]:
        """float64[M]: weight of each member's tasks."""
        placed = np.flatnonzero(owner != NO_MEMBER)
        weight = self.view.tasks.weight[placed]
        load = np.bincount(owner[placed], weights=weight, minlength=len(self.capacity))
        return load.astype(np.float64)

    def loads(self) -> Counts:
        """int64[M]: actives placed so far."""
        return held(self.plan.active, len(self.capacity))
