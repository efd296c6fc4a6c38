"""Minimum-cost flow, for placements that arithmetic alone cannot decide.

A thin, deterministic wrapper of OR-tools: callers add arcs in bulk and get the flow of every arc.
Costs are whole numbers, so that optima are exact and proven.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from muster.assignor.errors import AssignorError

Longs = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TOO_DEAR = (
    "costs are too large to be added up; expected smaller values of"
    " rack.aware.assignment.traffic_cost and rack.aware.assignment.non_overlap_cost"
)


class CostsTooLarge(AssignorError):
    """The sum of costs may not fit 64 bits.

    Operator action: lower the prices that the message names.
    """


class Network:
    """A flow network under construction. `nodes` hands out node numbers."""

    def __init__(self) -> None:
        self._nodes = 0
        self._arcs = 0
        self._parts: list[list[Longs]] = []
        self._supplies: list[tuple[Longs, Longs]] = []

    def nodes(self, number: int) -> Longs:
        """Add nodes; returns their numbers."""
        first = self._nodes
        self._nodes += number
        return np.arange(first, self._nodes, dtype=np.int64)

    def node(self) -> int:
        """Add one node."""
        return int(self.nodes(1)[0])

    def supply(self, nodes: ArrayLike, amount: ArrayLike) -> None:
        """Set how much flow enters at nodes (negative: leaves)."""
        parts = np.broadcast_arrays(nodes, amount)
        self._supplies.append((_flat(parts[0]), _flat(parts[1])))

    def arcs(self, tail: ArrayLike, head: ArrayLike, capacity: ArrayLike, cost: ArrayLike) -> slice:
        """Add arcs (arguments broadcast); returns the slice of their flows in the answer.

        Raises:
            CostsTooLarge: a cost or capacity does not fit 64 bits.
        """
        try:
            flat = [_flat(part) for part in np.broadcast_arrays(tail, head, capacity, cost)]
        except OverflowError:
            raise CostsTooLarge(TOO_DEAR) from None
        self._parts.append(flat)
        first = self._arcs
        self._arcs += len(flat[0])
        return slice(first, self._arcs)

    def pooled(
        self, tail: Longs, pool: int, capacity: Longs, together: tuple[BoolArray, int] | None
    ) -> None:
        """Add free arcs from `tail` nodes into a pool.

        `together` are nodes (bool[N]) and how much flow these may send in sum; None = any.
        """
        if together is None:
            self.arcs(tail, pool, capacity, 0)
            return
        of_these, most = together
        gate = self.node()
        self.arcs(tail, np.where(of_these, gate, pool), capacity, 0)
        self.arcs(gate, pool, most, 0)

    def solve(self) -> Longs:
        """The flow of every arc when all that enters leaves, at the least cost.

        Raises:
            CostsTooLarge: costs are too large to add up.
            AssignorError: the network cannot carry the flow.
        """
        from ortools.graph.python import min_cost_flow

        if self._arcs == 0:
            return np.empty(0, dtype=np.int64)
        solver = min_cost_flow.SimpleMinCostFlow()
        solver.add_arcs_with_capacity_and_unit_cost(
            *(np.concatenate(column) for column in zip(*self._parts, strict=True))
        )
        for nodes, amounts in self._supplies:
            solver.set_nodes_supplies(nodes, amounts)
        status = solver.solve()
        if status == solver.BAD_COST_RANGE:
            raise CostsTooLarge(TOO_DEAR)
        if status != solver.OPTIMAL:
            raise AssignorError(f"no placement fits the shares (flow solver: {status.name})")
        flows: Longs = solver.flows(np.arange(self._arcs)).astype(np.int64)
        return flows


def _flat(part: ArrayLike) -> Longs:
    return np.ascontiguousarray(part, dtype=np.int64).ravel()
