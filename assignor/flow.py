"""Minimum-cost flow, for the placements that arithmetic alone cannot decide.

A thin, deterministic cover over OR-tools: arcs are added in bulk, the answer is the flow of every
arc. Costs are whole numbers, so that optima are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from muster.assignor.errors import AssignorError

Longs = NDArray[np.int64]


@dataclass(slots=True)
class Network:
    """A flow network under construction. Nodes are numbers handed out by `nodes`."""

    count: int = 0
    _tail: list[Longs] = field(default_factory=list)
    _head: list[Longs] = field(default_factory=list)
    _capacity: list[Longs] = field(default_factory=list)
    _cost: list[Longs] = field(default_factory=list)
    _arcs: int = 0

    def nodes(self, number: int) -> Longs:
        """Add nodes; returns their numbers."""
        first = self.count
        self.count += number
        return np.arange(first, self.count, dtype=np.int64)

    def arcs(self, tail: ArrayLike, head: ArrayLike, capacity: ArrayLike, cost: ArrayLike) -> slice:
        """Add arcs (arguments broadcast); returns where their flows stand in the answer."""
        parts = np.broadcast_arrays(tail, head, capacity, cost)
        flat = [np.ascontiguousarray(p, dtype=np.int64).ravel() for p in parts]
        for store, part in zip(
            (self._tail, self._head, self._capacity, self._cost), flat, strict=True
        ):
            store.append(part)
        first = self._arcs
        self._arcs += len(flat[0])
        return slice(first, self._arcs)

    def solve(self, source: int, sink: int, amount: int) -> tuple[Longs, int]:
        """Send `amount` from source to sink as cheaply as possible.

        Returns:
            The flow of every arc, and the total cost.

        Raises:
            AssignorError: the network cannot carry the amount.
        """
        from ortools.graph.python import min_cost_flow

        solver = min_cost_flow.SimpleMinCostFlow()
        solver.add_arcs_with_capacity_and_unit_cost(
            *(np.concatenate(s) for s in (self._tail, self._head, self._capacity, self._cost))
        )
        solver.set_node_supply(source, amount)
        solver.set_node_supply(sink, -amount)
        status = solver.solve()
        if status != solver.OPTIMAL:
            raise AssignorError(f"no placement fits the shares (flow solver: {status.name})")
        return solver.flows(np.arange(self._arcs)).astype(np.int64), int(solver.optimal_cost())
