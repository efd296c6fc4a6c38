"""The cheapest placement within one box: one minimum-cost flow with an arc per (task, member).

    task ──► (unit, member), each step more expensive than the last ──► member ─► sink

A *box* says how few and how many tasks each member may hold. `folded_costs` makes the cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.assignor.solvers.flow import Longs, Network
from muster.assignor.solvers.folded_costs import Table, highest
from muster.assignor.solvers.shares import Counts, Together
from muster.protocol.tasks import IntArray


class Box(NamedTuple):
    """How few and how many tasks each member may take: int64[M] each, `low` <= `high`.

    Some members may take only so many `together`; None = any number.
    """

    low: Counts
    high: Counts
    together: Together | None = None


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
    upper_bound = highest(table.price, need)
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
