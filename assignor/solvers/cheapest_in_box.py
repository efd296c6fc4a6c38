"""The cheapest placement within one box: one minimum-cost flow with an arc per (task, member).

    task ──► (unit, member), each step more expensive than the last ──► member ─► sink

A *box* says how few and how many tasks each member may hold. The cost is several figures in order
of weight, folded into one number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from muster.assignor.solvers.flow import Longs, Network
from muster.assignor.solvers.shares import Counts, Together
from muster.assignor.solvers.spread import Spread
from muster.protocol.tasks import IntArray

_MAX_COST = 1 << 42
"""The solver multiplies costs by the number of nodes; beyond this it would overflow."""


class Box(NamedTuple):
    """How few and how many tasks each member may take: int64[M] each, `low` <= `high`.

    Some members may take only so many `together`; None = any number.
    """

    low: Counts
    high: Counts
    together: Together | None = None


def folded(figures: Iterable[Longs]) -> Longs:
    """Fold figures into one cost: a lower earlier figure outweighs any difference in later ones.

    Args:
        figures: int64[T, M] each, at least 0, most important first. Figures that no longer fit
            into the number are left out.
    """
    cost: Longs | None = None
    for figure in figures:
        if cost is None:
            cost = figure.astype(np.int64)
            continue
        base = int(figure.max(axis=1).sum()) + 1
        if (int(cost.max(axis=1, initial=0).sum()) + 1) * base > _MAX_COST:
            break
        cost = cost * base + figure
    assert cost is not None
    return cost


class Table(NamedTuple):
    """What a flow minimises.

    Attributes:
        price: int64[K, M], of each choice; below 0 = forbidden.
        spread: how units are spread; None = steps have no prices.
        step: factor of the steps' prices.
        upper_bound: a number above the cost of any placement.
    """

    price: Longs
    spread: Spread | None
    step: int
    upper_bound: int

    @classmethod
    def of(
        cls, cost: Longs, tie: Longs, spread: Spread | None, last: Longs | None, need: int
    ) -> Table:
        """Fold figures in order of weight; those that no longer fit are left out."""
        folded_price, step = folded([np.maximum(cost, 0), tie]), 0
        if spread is not None:
            base = spread.range * len(cost) * need + 1
            if _highest(folded_price, need) * base <= _MAX_COST:
                folded_price, step = folded_price * base, 1
            elif spread.window is None:
                spread = None
        if last is not None:
            base = _highest(last, need)
            if (_highest(folded_price, need) + step * len(cost) * need) * base <= _MAX_COST:
                folded_price, step = folded_price * base + last, step * base
        return cls(np.where(cost < 0, -1, folded_price), spread, step, _highest(cost, need))


def _highest(price: Longs, need: int) -> int:
    """A number above the cost of any placement."""
    return int(np.maximum(price, 0).max(axis=1, initial=0).sum()) * need + 1


def placed(table: Table, box: Box, need: int, unit: IntArray | None) -> IntArray | None:
    """The cheapest placement in a box; with `unit`, one that spreads each unit (S4-25)."""
    if unit is None:
        return _within(table, box, need)
    units = 0 if table.spread is None else len(table.spread.beside)
    size = np.bincount(unit, minlength=units)[:, None]
    placement = _within(table, box, need, unit, -(-size * box.high // len(unit)))
    if placement is None:
        return None
    count = np.bincount(placement.ravel(), minlength=table.price.shape[1])
    most = -(-size * count // len(unit))
    held = np.zeros(most.shape, dtype=np.int64)
    np.add.at(held, (unit, placement[:, 0]), 1)
    return (
        placement if (held <= most).all() else _within(table, Box(count, count), need, unit, most)
    )


def _within(
    table: Table, box: Box, need: int, unit: IntArray | None = None, most: Counts | None = None
) -> IntArray | None:
    """The cheapest placement in a box; None if there is none."""
    tasks, members = table.price.shape
    together = None
    if box.together is not None:
        together = box.together.members, box.together.room(box.low)
        if together[1] < 0:
            return None
    network = Network()
    task, member = network.nodes(tasks), network.nodes(members)
    pool, sink = network.node(), network.node()
    network.supply(task, need)
    network.supply(sink, -need * tasks)
    row, column = np.nonzero(table.price >= 0)
    gate, unit_of = member[None, :], np.zeros(tasks, dtype=np.int32)
    upper_bound = _highest(table.price, need)
    if unit is not None and most is not None:
        gate, unit_of = network.nodes(most.size).reshape(most.shape), unit
        network.arcs(gate, member[None, :], most, 0)
    if table.spread is not None:
        gate, upper_bound = _stepwise(network, table, box, gate, upper_bound)
        unit_of = table.spread.unit
    arcs = network.arcs(task[row], gate[unit_of[row], column], 1, table.price[row, column])
    network.arcs(member, sink, box.low, 0)
    network.pooled(member, pool, box.high - box.low, together)
    network.arcs(pool, sink, need * tasks - int(box.low.sum()), 0)
    lost = network.arcs(task, sink, need, upper_bound)
    flow = network.solve()
    if flow[lost].any():
        return None
    chosen = flow[arcs] > 0
    return column[chosen].reshape(tasks, need).astype(np.int32)


def _stepwise(
    network: Network, table: Table, box: Box, gate: Longs, upper_bound: int
) -> tuple[Longs, int]:
    """Put a node before each gate, per unit, from which every step costs more than the last.

    Returns:
        int64[U, M] the nodes, and a number above the cost of any placement with them.
    """
    spread = table.spread
    assert spread is not None
    nodes = network.nodes(spread.beside.size).reshape(spread.beside.shape)
    steps = spread.levels(box.high)
    price = steps.price * table.step
    upper_bound += int(price.max(initial=0)) * len(spread.unit)
    price = price + steps.outside * upper_bound
    heads = np.broadcast_to(gate, nodes.shape)[steps.unit, steps.member]
    network.arcs(nodes[steps.unit, steps.member], heads, 1, price)
    return nodes, upper_bound * (2 + 2 * len(spread.unit) * (spread.window is not None))
