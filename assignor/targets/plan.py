"""The plan of a group: owners of actives, standbys, their cost, and warnings.

A plan is a target; `muster.assignor.actives_until_warm` decides how to reach it. Each step is
optimal within the steps before it: stateful actives, standbys, stateless actives (S2-F25, S4-17).
`muster.assignor.targets.strategies` chooses once how each step is made.
"""

from __future__ import annotations

import numpy as np

from muster.assignor.copy_lags import Copies
from muster.assignor.model import NO_MEMBER, Pairs
from muster.assignor.solvers.fewest_moves import held
from muster.assignor.solvers.shares import Counts, filled_shares
from muster.assignor.targets.plan_data import Actives, Plan, Settled, inputs_of, standby_request
from muster.assignor.targets.racks import Prices
from muster.assignor.targets.standby_request import StandbyRequest
from muster.assignor.targets.strategies import chosen
from muster.protocol.tasks import IntArray


class Planner:
    """Plans one group.

    Args:
        copies: the group's copies.
        default: the assignor's own prices of traffic and moves.
        at_once: whether the plan is carried out without learners.
        bounded: whether tasks move for `subtopology.imbalance.max`.
    """

    def __init__(
        self, copies: Copies, default: Prices, *, at_once: bool = False, bounded: bool = True
    ) -> None:
        self.view, self.copies = copies.view, copies
        inputs, warnings = inputs_of(copies, default, at_once=at_once, bounded=bounded)
        self._inputs = inputs
        self.capacity, self.home = inputs.capacity, inputs.home
        self.plan = Plan(np.full(len(self.home), NO_MEMBER, dtype=np.int32), warnings)
        self._strategies = chosen(inputs)
        self._standby_request: StandbyRequest | None = None

    def actives(self, tasks: IntArray, *, before: Counts | None = None, later: int = 0) -> None:
        """Place ascending actives, balanced among themselves and with those before and later.

        `before` and `later` are those of `Actives`.
        """
        if len(tasks) == 0:
            return
        home = self.home if len(tasks) == len(self.home) else self.home[tasks]
        actives = Actives(tasks, home, before, later)
        answers = (place(actives, self.plan.active) for place in self._strategies.actives)
        self.plan.take(tasks, next(answer for answer in answers if answer is not None))

    def everything(self) -> None:
        """Place all actives together, balanced, with the fewest moves."""
        tasks = np.arange(len(self.view.tasks), dtype=np.int32)
        if self._strategies.by_kind:
            stateful = self.view.tasks.stateful
            self.actives(tasks[stateful], later=int(np.count_nonzero(~stateful)))
            self.actives(tasks[~stateful], before=self.loads())
        else:
            self.actives(tasks)

    def filled(self) -> IntArray | None:
        """Owners with every present owner kept, if the group is small; else None."""
        exact = self._strategies.exact
        return None if exact is None else exact.filled()

    def settled(self, tasks: IntArray, home: IntArray, room: Counts, before: Counts) -> Settled:
        """Owners of tasks of one kind, each member with `room` (int64[M]); the plan stays as it is.

        They have the least traffic where racks count, and the fewest moves. Where topics restrict
        members, the restrictions decide the balance, and not `room`.
        """
        return self._strategies.within(Actives(tasks, home, before), room)

    def meanwhile(self, running: IntArray) -> IntArray:
        """Owners of all tasks while the stateful ones wait for copies where they are `running`.

        Stateless tasks balance the load that runs now (S2-F25), not the load once every copy is
        caught up. Both vectors are int32[T].
        """
        stateful, weight = self.view.tasks.stateful, self._strategies.weight
        tasks = np.flatnonzero(~stateful).astype(np.int32)
        if len(tasks) == 0 or np.array_equal(running[stateful], self.plan.active[stateful]):
            return running
        owner, home = np.where(stateful, running, NO_MEMBER).astype(np.int32), self.home[tasks]
        settled = None if weight is None else weight.meanwhile(Actives(tasks, home), owner)
        if settled is None:
            count = np.where(self.capacity > 0, held(running[stateful], len(self.capacity)), 0)
            total, wanted = len(tasks) + int(count.sum()), count + held(home, len(self.capacity))
            share = filled_shares(total, self.capacity, count, wanted)
            settled = self.settled(tasks, home, share - count, count)
        owner[tasks] = settled.owner
        return owner

    def taking(self, pairs: Pairs) -> Pairs:
        """The pairs whose member takes tasks, and may take this one."""
        fits = self.capacity[pairs.member] > 0
        if not self.view.unrestricted:
            fits &= self.view.may_take(pairs.task, pairs.member)
        return pairs.only(fits)

    def standbys(self, taken: Pairs | None = None, loads: Counts | None = None) -> None:
        """Place the standbys of every placed stateful active.

        `taken` and `loads` are those of `StandbyRequest`; without `loads` the plan's actives count.
        """
        view, plan = self.view, self.plan
        if view.settings.num_standby_replicas == 0:
            return
        request = standby_request(self._inputs, plan, taken, loads)
        answers = (place(request) for place in self._strategies.standbys)
        placed = next(answer for answer in answers if answer is not None)
        self._standby_request = request
        plan.standby = placed.pairs
        if request.toll is not None:
            plan.cost += request.cost(plan.standby)
            plan.bound += placed.bound
        if placed.warning:
            plan.warnings += (placed.warning,)
        if placed.missing:
            plan.warnings += (
                f"{placed.missing} standbys are missing: too few members for"
                f" num.standby.replicas={request.copies}",
            )

    def refine(self) -> None:
        """Improve a small plan where that costs nothing."""
        if self._strategies.refine is not None:
            self._strategies.refine(self.plan, self._standby_request)

    def loads(self) -> Counts:
        """int64[M]: actives placed so far."""
        return held(self.plan.active, len(self.capacity))
