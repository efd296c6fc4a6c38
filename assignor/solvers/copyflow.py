"""Distinct members for the copies of tasks: one minimum-cost flow with an arc per choice.

    task ──► (task, tag value) ──► member ─► sink

A task sends one unit of flow per copy it needs; an arc carries one, so copies of a task land on
distinct members. Where copies must differ in a tag, each value is a gate that lets one copy
through; a task with fewer values than copies may repeat a value for the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.model import Pairs
from muster.assignor.solvers.flow import CostsTooLarge, Longs, Network
from muster.assignor.solvers.shares import Counts
from muster.protocol.tasks import IntArray

OVERFULL = 1000, 30
"""A copy beyond a member's room costs this many times the largest price; if that is too much to be
added up, as in large groups, the second number of times."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Choices:
    """The choices of members for copies.

    Attributes:
        need: int64[K], copies each task needs.
        room: int64[M], copies each member takes.
        pool, pools: int32[M], int64[P]: pool of each member (-1 = none), and how many members of
            each pool may take one more copy; None = no member may.
        task, member, price: int32[P], int32[P], int64[P]: the choices; tasks are indexes into
            `need`.
        value: int32[M], tag value of each member; None = copies need not differ.
        taken: int32[K], value already used by the task's active.
        cheap_repeats, cheap_repeat_price: int64[K], how many copies of a task may repeat a value
            at this price.
        repeats, repeat_price: int64[K], how many further ones may at this price.
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
    cheap_repeats: Counts | None = None
    cheap_repeat_price: int = 0
    repeats: Counts | None = None
    repeat_price: int = 0


def chosen(choices: Choices) -> tuple[Pairs, int]:
    """The cheapest choice.

    Returns:
        (index into `need`, member) pairs, and how many copies found no member.

    Raises:
        CostsTooLarge: there are too many choices for these prices.
    """
    try:
        return _chosen(choices, OVERFULL[0])
    except CostsTooLarge:
        return _chosen(choices, OVERFULL[1])


def _chosen(choices: Choices, overfull: int) -> tuple[Pairs, int]:
    network = Network()
    tasks, members = network.nodes(len(choices.need)), network.nodes(len(choices.room))
    sink = network.node()
    total = int(choices.need.sum())
    network.supply(tasks, choices.need)
    network.supply(sink, -total)
    overflow_price = (int(choices.price.max(initial=0)) + choices.repeat_price + 1) * overfull
    if choices.value is None:
        use_arcs = [network.arcs(tasks[choices.task], members[choices.member], 1, choices.price)]
    else:
        use_arcs = _through_values(network, choices, tasks, members)
    network.arcs(members, sink, choices.room, 0)
    if choices.pool is not None and choices.pools is not None:
        pools, sharing = network.nodes(len(choices.pools)), np.flatnonzero(choices.pool >= 0)
        network.arcs(members[sharing], pools[choices.pool[sharing]], 1, 0)
        network.arcs(pools, sink, choices.pools, 0)
    network.arcs(members, sink, total, overflow_price)
    unplaced = network.arcs(tasks, sink, choices.need, overflow_price * overfull)
    flow = network.solve()
    taken = sum((flow[arcs] for arcs in use_arcs), np.zeros(len(choices.task), dtype=np.int64)) > 0
    return Pairs.of(choices.task[taken], choices.member[taken]), int(flow[unplaced].sum())


def _through_values(
    network: Network, choices: Choices, tasks: Longs, members: Longs
) -> list[slice]:
    assert choices.value is not None
    assert choices.taken is not None
    assert choices.repeats is not None
    values = int(choices.value.max(initial=0)) + 1
    gate = network.nodes(len(tasks) * values).reshape(len(tasks), values)
    gate_capacity = np.ones(gate.shape, dtype=np.int64)
    known = choices.taken >= 0
    gate_capacity[np.flatnonzero(known), choices.taken[known]] = 0
    network.arcs(np.repeat(tasks, values), gate.ravel(), gate_capacity.ravel(), 0)
    repeating = network.nodes(len(tasks))
    network.arcs(tasks, repeating, choices.repeats, choices.repeat_price)
    if choices.cheap_repeats is not None:
        network.arcs(tasks, repeating, choices.cheap_repeats, choices.cheap_repeat_price)
    gates = gate[choices.task, choices.value[choices.member]]
    ends = network.nodes(len(choices.task))  # at most one copy per (task, member), by both ways
    network.arcs(ends, members[choices.member], 1, choices.price)
    return [network.arcs(gates, ends, 1, 0), network.arcs(repeating[choices.task], ends, 1, 0)]
