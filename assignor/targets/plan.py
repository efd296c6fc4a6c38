"""Where everything belongs in the end: actives, standbys, what it costs and what was missing.

The plan says nothing about how to get there (`muster.assignor.staging`). Each step is optimal
within the steps before it: stateful actives, standbys, stateless actives (S2-F25, S4-17).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from muster.assignor.copies import Copies
from muster.assignor.model import NOBODY, GroupView, Pairs, no_pairs
from muster.assignor.solvers.balance import held
from muster.assignor.solvers.exact import small
from muster.assignor.solvers.shares import Counts, even_shares
from muster.assignor.targets.actives import Actives, settled_by_copies, settled_to, uneven
from muster.assignor.targets.partial import settled_by_topics
from muster.assignor.targets.racks import STATELESS, Prices, Racks, racks_of, settled_by_cost
from muster.assignor.targets.refinement import costs, refined
from muster.assignor.targets.small import SmallGroup
from muster.assignor.targets.standby import standbys
from muster.assignor.targets.tags import Zones, tagged_standbys
from muster.assignor.targets.wanted import Found, Toll, Wanted
from muster.assignor.targets.weighted import differ_in_weight, settled_by_weight
from muster.protocol.tasks import IntArray

_MOVES_ONLY = Prices(0, 1)


@dataclass(slots=True)
class Plan:
    """A target and what is known about it.

    Attributes:
        active: int32[T], where actives belong.
        standby: where standbys belong.
        cost: what racks and moves cost, 0 where racks do not count.
        bound: what it costs at least, each step given the steps before.
        warnings: what could not be honoured.
        provisional: whether more is to be moved once this has been carried out.
    """

    active: IntArray
    standby: Pairs = field(default_factory=no_pairs)
    cost: int = 0
    bound: int = 0
    warnings: tuple[str, ...] = ()
    provisional: bool = False


def usable_capacity(view: GroupView) -> Counts:
    """int64[M]: capacity, 0 for draining members; a group that drains as a whole keeps working."""
    if not view.draining.any() or view.draining.all():
        return view.capacity
    return np.where(view.draining, 0, view.capacity)


def staying_owner(copies: Copies, capacity: Counts) -> IntArray:
    """int32[T]: present owners, `NOBODY` where the owner is to be emptied or may not keep it."""
    if capacity.all():
        return copies.owner
    usable = np.append(capacity > 0, True)  # entry -1: nobody
    return np.where(usable[copies.owner], copies.owner, NOBODY).astype(np.int32)


class Planner:
    """Plans one view.

    Args:
        view: the group.
        copies: its copies.
        default: the assignor's own prices of traffic and moves.
        at_once: whether the plan is carried out without learners.
    """

    def __init__(
        self, view: GroupView, copies: Copies, default: Prices, *, at_once: bool = False
    ) -> None:
        self.view = view
        self.copies = copies
        self.capacity = usable_capacity(view)
        self.home = staying_owner(copies, self.capacity)
        wants_standbys = view.settings.num_standby_replicas > 0
        self.racks, warning = racks_of(view, default, standbys=wants_standbys)
        self.plan = Plan(np.full(len(view.tasks), NOBODY, dtype=np.int32))
        if warning:
            self.plan.warnings = (warning,)
        self._at_once = at_once
        self._wanted: Wanted | None = None
        self._priced = False
        self._small: SmallGroup | None = None
        if (
            small(len(view.tasks), self.capacity)
            and view.unrestricted
            and view.tasks.weigh_alike
            and not self._nothing_to_weigh(at_once=at_once)
        ):
            self._small = SmallGroup(
                view, copies, self.capacity, self.home, self.racks, at_once=at_once
            )

    def _nothing_to_weigh(self, *, at_once: bool) -> bool:
        """Whether what is good for large groups is exact for a small one, and faster.

        So it is for equal members of which none has anything nor is to have a standby: counts are
        plain, and racks, if they count, are one flow where tasks are of one kind. Whoever starts
        at once may have decided counts without looking at racks, and is looked at again.
        """
        view, capacity = self.view, self.capacity
        if view.settings.num_standby_replicas or not self.copies.none:
            return False
        if int(view.active.max(initial=NOBODY)) != NOBODY or (capacity != capacity[0]).any():
            return False
        stateful = view.tasks.stateful
        return self.racks is None or (not at_once and bool((stateful == stateful[0]).all()))

    def actives(self, tasks: IntArray, *, before: Counts | None = None) -> None:
        """Place some actives, balanced among themselves and with those placed before."""
        if len(tasks) == 0:
            return
        if self._small is not None and self._exactly(tasks, before):
            return
        actives = Actives(tasks, self.home[tasks], before)
        if differ_in_weight(self.view, tasks):
            self.plan.active[tasks], complete = settled_by_weight(
                self.copies, actives, self.capacity, self._weights(), at_once=self._at_once
            )
            self.plan.provisional |= not complete
            if self.racks is not None:
                for weight in np.unique(self.view.tasks.weight[tasks]).tolist():
                    self._exchanged(tasks[self.view.tasks.weight[tasks] == weight])
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
        self.plan.active[tasks], cost = settled_by_cost(
            self.view, self.copies, actives, self.capacity, self.racks, self._prices(tasks)
        )
        self._paid(cost)

    def _exchanged(self, tasks: IntArray) -> None:
        """Let tasks of one weight change places where racks make that cheaper (S4-21).

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
        """Place some actives of a small group; False if no balanced answer is left."""
        assert self._small is not None
        found = self._small.actives(tasks, before)
        if found is None:
            return False
        self.plan.active[tasks], cost = found
        self._paid(cost)
        return True

    def filled(self) -> IntArray | None:
        """Owners where everybody keeps what is theirs, if the group is small; else None."""
        if self._small is None or self.racks is not None:
            return None
        return self._small.filled(np.arange(len(self.view.tasks), dtype=np.int32))

    def settled(
        self, tasks: IntArray, home: IntArray, room: Counts, before: Counts
    ) -> tuple[IntArray, int]:
        """Owners of some tasks of one kind within given room, plans left aside.

        Args:
            tasks: tasks to place.
            home: int32[K], owners they may stay with.
            room: int64[M], how many each member takes; not used where topics restrict members,
                there balance follows from who may take what.
            before: int64[M], tasks each member has beside these.

        Returns:
            int32[K], `NOBODY` where nobody may take a task, with the least traffic where racks
            count and the fewest moves; and what racks and moves cost, 0 where racks do not count.
        """
        free = self.view.unrestricted
        if free and self.racks is None:
            return settled_to(self.view, self.copies, Actives(tasks, home), room), 0
        owner, cost = settled_by_cost(
            self.view, self.copies, Actives(tasks, home, before), self.capacity, self.racks,
            self._prices(tasks), counts=room if free else None,
        )  # fmt: skip
        return owner, cost if self.racks is not None else 0

    def taking(self, pairs: Pairs) -> Pairs:
        """Those of some pairs whose member takes tasks, and this one."""
        fits = self.capacity[pairs.member] > 0
        if not self.view.unrestricted:
            fits &= self.view.may_take(pairs.task, pairs.member)
        return pairs.only(fits)

    def standbys(self, taken: Pairs | None = None) -> None:
        """Place the standbys of every stateful active that has been placed.

        Args:
            taken: copies of other roles; a standby never stands beside one.
        """
        view, plan = self.view, self.plan
        if view.settings.num_standby_replicas == 0:
            return
        stateful = np.flatnonzero(view.tasks.stateful & (plan.active != NOBODY)).astype(np.int32)
        table = None if view.unrestricted else view.kinds
        wanted = Wanted(
            tasks=stateful,
            target=plan.active,
            copies=view.settings.num_standby_replicas,
            capacity=self.capacity,
            may=None if table is None else table.allowed[table.kind_of],
            toll=None if self.racks is None else changelog_toll(view, self.racks),
            leaving=0 if self.racks is None else self.racks.stateful.overlap,
            loads=self.loads(),
            apart=_apart(view),
            tolls_first=self.racks is not None and self.racks.stateful.tolls_first,
            taken=taken or no_pairs(),
        )
        plan.standby, missing, bound, warning = self._standbys(wanted)
        self._wanted = wanted
        if wanted.toll is not None:
            plan.cost += wanted.cost(view, plan.standby)
            plan.bound += bound
        if warning:
            plan.warnings += (warning,)
        if missing:
            plan.warnings += (
                f"{missing} standbys are missing: too few members for"
                f" num.standby.replicas={wanted.copies}",
            )

    def _standbys(self, wanted: Wanted) -> Found:
        if self.view.settings.rack_aware_assignment_tags:
            return tagged_standbys(self.view, self.copies, wanted)
        if self._small is not None and not wanted.apart:
            pairs = self._small.standbys(wanted)
            if pairs is not None:
                missing = wanted.copies * len(wanted.tasks) - len(pairs)
                return Found(pairs, missing, wanted.cost(self.view, pairs))
        return standbys(self.view, self.copies, wanted)

    def refine(self, *, at_once: bool) -> None:
        """Take what is to be had for nothing, where the problem is small enough to look.

        Not where members differ in what they may take, tasks in weight, or racks must be apart.

        Args:
            at_once: whether the plan is carried out without learners.
        """
        view, plan = self.view, self.plan
        if (
            self._small is None
            or not view.tasks.weigh_alike
            or (self.racks and view.settings.rack_aware_standby_strategy != "traffic")
            or (plan.active == NOBODY).any()
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
            strict=not at_once,
        )
        if self.racks is not None:
            plan.cost += self._cost() - before
            if plan.cost < plan.bound:  # proven for other counts
                plan.bound = self._least()

    def _settled_afresh(self) -> bool:
        """Whether traffic and evenness are all that counts, and are the best already.

        So it is where nobody has anything yet, nobody is to have a standby, and members are equal:
        of unequal ones one kind of task may make up for what another leaves uneven.
        """
        if len(self.plan.standby) or not self.copies.none or (self.racks and not self._priced):
            return False
        if uneven(self.capacity):
            return False
        return int(self.copies.owner.max(initial=NOBODY)) == NOBODY

    def everything(self) -> None:
        """Place all actives together: of all even answers the one with the fewest moves."""
        tasks = np.arange(len(self.view.tasks), dtype=np.int32)
        if self.racks is not None and self._small is None:  # prices differ by kind
            stateful = self.view.tasks.stateful
            self.actives(tasks[stateful])
            self.actives(tasks[~stateful], before=self.loads())
            return
        plain = self.racks is None and self.view.unrestricted
        if self._small is not None or not plain or not self.view.tasks.weigh_alike:
            self.actives(tasks)
            return
        count = held(self.home, len(self.capacity))
        share = even_shares(len(tasks), self.capacity, count)
        self.plan.active = settled_to(self.view, self.copies, Actives(tasks, self.home), share)

    def _cost(self) -> int:
        """What racks and moves cost, of the steps that minimise them."""
        if self.racks is None:
            return 0
        view, plan = self.view, self.plan
        cost = 0 if self._wanted is None else self._wanted.cost(view, plan.standby)
        if not self._priced:
            return cost
        across = self.racks.inputs.across[self.racks.inputs.class_of, view.rack[plan.active]]
        left = (self.home != NOBODY) & (self.home != plan.active)
        for kind, prices in (
            (view.tasks.stateful, self.racks.stateful),
            (~view.tasks.stateful, STATELESS),
        ):
            cost += prices.traffic * int(across[kind].sum())
            cost += prices.overlap * int(np.count_nonzero(left[kind]))
        return cost

    def _least(self) -> int:
        """What racks cost at least, whatever the counts."""
        assert self.racks is not None
        usable = np.unique(self.view.rack[self.capacity > 0])
        least = 0
        if self._wanted is not None and self._wanted.toll is not None:
            need = np.bincount(self.plan.standby.task, minlength=len(self.view.tasks))
            least = self._wanted.toll.least(need)
        if not self._priced:
            return least
        across = self.racks.inputs.across[:, usable].min(axis=1)[self.racks.inputs.class_of]
        traffic = np.where(self.view.tasks.stateful, self.racks.stateful.traffic, 1)
        return least + int((across * traffic).sum())

    def _weights(self) -> NDArray[np.float64]:
        """float64[M]: weight of the actives placed so far."""
        placed = np.flatnonzero(self.plan.active != NOBODY)
        weight = self.view.tasks.weight[placed]
        load = np.bincount(self.plan.active[placed], weights=weight, minlength=len(self.capacity))
        return load.astype(np.float64)

    def loads(self) -> Counts:
        """int64[M]: actives placed so far."""
        return held(self.plan.active, len(self.capacity))


def _apart(view: GroupView) -> int:
    """How many copies of a task must be in different racks whatever the traffic (S4-31)."""
    if view.settings.rack_aware_standby_strategy == "traffic":
        return 0
    first = view.settings.rack_aware_standby_reliable_replicas
    every = view.settings.num_standby_replicas
    return every if first is None else min(first, every)


def changelog_toll(view: GroupView, racks: Racks) -> Toll | None:
    """What reading the changelogs of tasks costs at members; None where no standbys are wanted."""
    table = racks.changelogs
    if table is None:
        return None
    return Toll(table.class_of, table.across * racks.stateful.traffic, view.rack)
