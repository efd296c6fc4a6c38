"""Laws of `high-availability`: fewest moves, balance, never cold, budgets; order, for all."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.placing import group, holdings
from support.random_groups import allowed, caught_up, placed, problems, restricted

from muster.assignor.model import NOBODY


@settings(max_examples=150, deadline=None)
@given(problems())
def test_high_availability_obeys_its_laws(problem: tuple) -> None:
    """Any group: lawful, balanced in the end, never cold beside warm, learners in budget."""
    units, members, config = problem
    view = group(units, members, **config)
    placement = placed(view)
    draining = view.draining & ~view.draining.all()
    capacity = np.where(draining, 0, view.capacity)
    stateful = view.tasks.stateful
    if not restricted(view):
        counts = np.bincount(placement.destination, minlength=len(capacity))
        load = counts[capacity > 0] / capacity[capacity > 0]
        assert load.max() - load.min() <= 1 + 1e-9
        counts = np.bincount(placement.destination[stateful], minlength=len(capacity))
        load = counts[capacity > 0] / capacity[capacity > 0]
        assert load.max() - load.min() <= 1 + 1e-9
    warm = caught_up(view)
    for task in np.flatnonzero(stateful).tolist():
        could = (
            warm[task]
            & allowed(view)[task]
            & (~draining | (view.active[task] == np.arange(len(capacity))))
        )
        if could.any():
            assert warm[task, placement.active[task]]
    assert len(placement.learner) <= view.settings.max_warmup_replicas
    wanted = min(view.settings.num_standby_replicas, int((capacity > 0).sum()) - 1)
    copies = np.bincount(placement.standby.task, minlength=len(view.tasks))
    assert restricted(view) or (copies[stateful] == max(wanted, 0)).all()


@settings(max_examples=150, deadline=None)
@given(problems())
def test_high_availability_moves_no_stateful_task_in_vain(problem: tuple) -> None:
    """Moves of stateful tasks, now and to come, are as few as networkx finds for balanced counts.

    A task whose owner is gone runs where it is warm; if it belongs elsewhere, it will move.
    """
    units, members, config = problem
    view = group(
        units, {n: replace(m, capacity=1, topics=None) for n, m in members.items()}, **config
    )
    placement = placed(view)
    usable = np.flatnonzero(~view.draining | view.draining.all()).tolist()
    tasks = np.flatnonzero(view.tasks.stateful).tolist()
    runs = np.where((view.active == NOBODY)[:, None], caught_up(view), False)
    runs[np.flatnonzero(view.active != NOBODY), view.active[view.active != NOBODY]] = True
    runs = runs[:, usable]

    def moves(task: int, seat: int) -> int:
        return int(runs[task].any() and not runs[task, seat])

    graph = nx.DiGraph()
    floor, extras = divmod(len(tasks), len(usable))
    graph.add_node("sink", demand=extras)
    for seat in range(len(usable)):
        graph.add_node(seat, demand=floor)
        graph.add_edge(seat, "sink", capacity=1)
    for task in tasks:
        graph.add_node(f"task {task}", demand=-1)
        for seat in range(len(usable)):
            graph.add_edge(f"task {task}", seat, capacity=1, weight=moves(task, seat))
    made = sum(moves(task, usable.index(int(placement.destination[task]))) for task in tasks)
    assert made == nx.min_cost_flow_cost(graph)


@settings(max_examples=100, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_input_order_does_not_matter(problem: tuple, chance: random.Random) -> None:
    """Members and units in another order: the same placement, reasons included."""
    units, members, config = problem
    names = list(members)
    chance.shuffle(names)
    shuffled = group(chance.sample(units, len(units)), {n: members[n] for n in names}, **config)
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        one, other = placed(view, name), placed(shuffled, name)
        assert holdings(view, one) == holdings(shuffled, other)
        assert one.reasons == other.reasons
