"""Choosing distinct members for the copies of tasks: one minimum-cost flow, an arc per choice.

    task ──► (task, tag value) ──► member ─► sink

A task sends one unit per copy it needs; an arc carries one, so its copies land on distinct
members. Where copies must differ in a tag, each value is a gate that lets one copy through;
a task that starts with fewer distinct values than copies may pass that many more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.model import Pairs
from muster.assignor.solvers.flow import Longs, Network
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray

OVERFULL = 1000
"""How much worse than any price a copy beyond a member's room is."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Choices:
    """What may be chosen.

    Attributes:
        need: int64[K], copies each task needs.
        room: int64[M], copies each member takes.
        pool, pools: int32[M], int64[P]: members of a pool may take one more copy, of which each
            pool has so many; None = no member may.
        task, member, price: int32[P], int32[P], int64[P]: the choices; tasks as places in `need`.
        value: int32[M], tag value of each member; None = copies need not differ.
        taken: int32[K], value already used by the task's active.
        late, late_price: int64[K], how many copies of a task may repeat a value at this price.
        repeats, repeat_price: int64[K], how many more may at this one.
    """

    need: Counts
    room: Counts
    task: IntArray
    member: IntArray
    price: Longs
    pool: IntArray | None = None
    pools: Counts | None = None
    value: IntArray | None = None
    taken: IntArray | None = None
    late: Counts | None = None
    late_price: int = 0
    repeats: Counts | None = None
    repeat_price: int = 0


def chosen(choices: Choices) -> tuple[Pairs, int]:
    """The cheapest choice.

    Returns:
        (task place, member) pairs, and how many copies found no member.
    """
    network = Network()
    tasks, members = network.nodes(len(choices.need)), network.nodes(len(choices.room))
    sink = network.node()
    total = int(choices.need.sum())
    network.supply(tasks, choices.need)
    network.supply(sink, -total)
    dear = (int(choices.price.max(initial=0)) + choices.repeat_price + 1) * OVERFULL
    if choices.value is None:
        used = [network.arcs(tasks[choices.task], members[choices.member], 1, choices.price)]
    else:
        used = _through_values(network, choices, tasks, members)
    network.arcs(members, sink, choices.room, 0)
    if choices.pool is not None and choices.pools is not None:
        pools, sharing = network.nodes(len(choices.pools)), np.flatnonzero(choices.pool >= 0)
        network.arcs(members[sharing], pools[choices.pool[sharing]], 1, 0)
        network.arcs(pools, sink, choices.pools, 0)
    network.arcs(members, sink, total, dear)
    unplaced = network.arcs(tasks, sink, choices.need, dear * OVERFULL)
    flow, _ = network.solve()
    taken = sum((flow[arcs] for arcs in used), np.zeros(len(choices.task), dtype=np.int64)) > 0
    return Pairs.of(choices.task[taken], choices.member[taken]), int(flow[unplaced].sum())


def _through_values(
    network: Network, choices: Choices, tasks: Longs, members: Longs
) -> list[slice]:
    assert choices.value is not None
    assert choices.taken is not None
    assert choices.repeats is not None
    values = int(choices.value.max(initial=0)) + 1
    gate = network.nodes(len(tasks) * values).reshape(len(tasks), values)
    open_ = np.ones(gate.shape, dtype=np.int64)
    known = choices.taken >= 0
    open_[np.flatnonzero(known), choices.taken[known]] = 0
    network.arcs(np.repeat(tasks, values), gate.ravel(), open_.ravel(), 0)
    again = network.nodes(len(tasks))
    network.arcs(tasks, again, choices.repeats, choices.repeat_price)
    if choices.late is not None:
        network.arcs(tasks, again, choices.late, choices.late_price)
    gates = gate[choices.task, choices.value[choices.member]]
    ends = network.nodes(len(choices.task))  # one copy per (task, member), by either way
    network.arcs(ends, members[choices.member], 1, choices.price)
    return [network.arcs(gates, ends, 1, 0), network.arcs(again[choices.task], ends, 1, 0)]
