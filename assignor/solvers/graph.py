"""A flow network given edge by edge, as KIP-925 describes it: checked, then solved.

It is for plug-ins that have their own network. Edges carry an initial flow, which says how much
goes from source to sink; the answer carries as much at the least cost. Of equally cheap answers,
the one over the lowest edges (by tail, then head) wins, whatever order they were added in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from muster.assignor.errors import AssignorError
from muster.assignor.solvers.flow import Network


class InvalidGraph(AssignorError):
    """A network that is not a flow network; the message names the edge or node."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge and the flow over it."""

    tail: int
    head: int
    capacity: int
    cost: int
    flow: int


class Graph:
    """A flow network from `source` to `sink`."""

    def __init__(self) -> None:
        self._edges: dict[tuple[int, int], Edge] = {}
        self._source: int | None = None
        self._sink: int | None = None

    def add_edge(self, tail: int, head: int, capacity: int, cost: int, flow: int) -> None:
        """Add an edge.

        Raises:
            InvalidGraph: capacity below 0, flow outside 0..capacity, a second edge between nodes.
        """
        if capacity < 0:
            raise InvalidGraph(f"edge {tail}->{head}: capacity {capacity} is below 0")
        if not 0 <= flow <= capacity:
            raise InvalidGraph(f"edge {tail}->{head}: flow {flow} is not within 0..{capacity}")
        if (head, tail) in self._edges or (tail, head) in self._edges:
            raise InvalidGraph(f"edge {tail}->{head}: there is an edge between these nodes already")
        self._edges[tail, head] = Edge(tail, head, capacity, cost, flow)

    def set_source(self, node: int) -> None:
        """Set the node where flow enters."""
        self._source = node

    def set_sink(self, node: int) -> None:
        """Set the node where flow leaves."""
        self._sink = node

    def edges(self) -> list[Edge]:
        """Every edge, by tail, then head."""
        return [self._edges[key] for key in sorted(self._edges)]

    def cost(self) -> int:
        """Cost of the present flow."""
        return sum(edge.flow * edge.cost for edge in self._edges.values())

    def minimise(self) -> int:
        """Replace the flow by a cheapest one of the same amount; returns its cost.

        Raises:
            InvalidGraph: source or sink is not set, has edges in the wrong direction, or inflow and
                outflow of a node differ.
        """
        source, sink = self._end(self._source, "source"), self._end(self._sink, "sink")
        amount = self._amount(source, sink)
        edges = self.edges()
        network = Network()
        index_of = {node: place for place, node in enumerate(self._nodes())}
        network.nodes(len(index_of))
        network.supply([index_of[source], index_of[sink]], [amount, -amount])
        scale = len(edges) * max(sum(edge.capacity for edge in edges), 1) + 1
        network.arcs(
            [index_of[edge.tail] for edge in edges],
            [index_of[edge.head] for edge in edges],
            [edge.capacity for edge in edges],
            np.array([edge.cost for edge in edges]) * scale + np.arange(len(edges)),
        )
        flow = network.solve()
        for edge, units in zip(edges, flow.tolist(), strict=True):
            self._edges[edge.tail, edge.head] = replace(edge, flow=units)
        return self.cost()

    def _nodes(self) -> list[int]:
        return sorted({node for key in self._edges for node in key})

    def _end(self, node: int | None, name: str) -> int:
        if node is None:
            raise InvalidGraph(f"the {name} is not set")
        return node

    def _amount(self, source: int, sink: int) -> int:
        net: Counter[int] = Counter()
        for edge in self._edges.values():
            if edge.head == source:
                raise InvalidGraph(f"edge {edge.tail}->{edge.head} leads into the source")
            if edge.tail == sink:
                raise InvalidGraph(f"edge {edge.tail}->{edge.head} leads out of the sink")
            net[edge.tail] -= edge.flow
            net[edge.head] += edge.flow
        for node in self._nodes():
            if node not in (source, sink) and net[node]:
                raise InvalidGraph(f"node {node}: inflow and outflow differ by {abs(net[node])}")
        return net[sink]
