"""Reasons of Connect's rounds: each is true of the view it is given for."""

from __future__ import annotations

import random
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.connect_rounds import ConnectGroup
from support.suite.examples import examples

from muster.assignor.model import NO_MEMBER, GroupView, Placement, Reason
from muster.protocol.tasks import Connector


def counts(view: GroupView, owner: np.ndarray, job: int) -> np.ndarray:
    """Jobs of the same kind that each worker has."""
    kind = view.tasks.is_connector == view.tasks.is_connector[job]
    return np.bincount(owner[kind & (owner != NO_MEMBER)], minlength=len(view.members))


def level(view: GroupView) -> np.ndarray:
    """Weight each worker runs, by capacity."""
    held = view.active != NO_MEMBER
    load = np.bincount(
        view.active[held], weights=view.tasks.weight[held], minlength=len(view.members)
    )
    return load / view.capacity


def true(view: GroupView, placement: Placement, reason: Reason) -> bool:
    """Whether a reason's claim holds."""
    named = re.match(r"\S+", reason.text)
    assert named
    who = view.members.index(named[0]) if named[0] in view.members else NO_MEMBER
    job = str(view.tasks.task(reason.task))
    weighed = bool((view.tasks.weight != 1).any() or len(set(view.capacity.tolist())) > 1)
    claims = {
        "claimed by several workers, stopped on all of them": lambda: (
            reason.task in view.also_active.task
        ),
        "pinned elsewhere": lambda: any(job in names for names in view.static),
        "is draining": lambda: bool(view.draining[who]),
        "is static and does not name it": lambda: (
            bool(view.static[who]) and job not in view.static[who]
        ),
        "names it": lambda: job in view.static[who],
        "has more than its share": lambda: (
            level(view)[who] > level(view).min() - 1e-9
            if weighed
            else too_many(view, placement, reason, who)
        ),
        "makes room for other jobs": lambda: weighed,
        "has room": lambda: weighed or fair(view, placement, reason),
    }
    text = reason.text.removeprefix(f"{named[0]} ") if who != NO_MEMBER else reason.text
    if text.startswith(("its worker is gone, ", "no worker was told to run it, ")):
        left = not set((view.memory or {}).get("members", ())) <= set(view.members)
        waited = (view.memory or {}).get("scheduled_ms", 0) > 0
        gone = text.startswith("its worker") == (left or waited)
        return view.active[reason.task] == NO_MEMBER and gone
    if text == "has room for its weight":
        return weighed
    return claims[text]()


def too_many(view: GroupView, placement: Placement, reason: Reason, worker: int) -> bool:
    """Whether a worker would have more of a kind than its share, with what starts there."""
    would = placement.active.copy()
    would[placement.revoked.task] = placement.revoked.member
    have = counts(view, would, reason.task)
    return bool(have[worker] > have.sum() // np.count_nonzero(~view.draining | view.draining.all()))


def fair(view: GroupView, placement: Placement, reason: Reason) -> bool:
    """Whether the worker that starts a job has no more than the others, plus or minus one."""
    after = counts(view, placement.active, reason.task)
    takers = [p for p, names in enumerate(view.static) if not names and not view.draining[p]]
    if any(view.static):
        return reason.destination in takers or not takers
    return not takers or bool(after[reason.destination] <= after[takers].min() + 1)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**40))
def test_every_reason_of_a_life_is_true(seed: int) -> None:
    """Workers join, leave, drain, claim and are pinned; weights now and then; claims checked."""
    rng = random.Random(seed)
    weights = rng.choice([(1.0,), (1.0,), (1.0, 3.0, 10.0)])
    group = ConnectGroup(
        {f"c{n}": Connector(f"c{n}", rng.randint(0, 6), rng.choice(weights), 1) for n in range(3)},
        rng.choice(["cooperative", "static"]),
        delay_ms=rng.choice([0, 300_000]),
    )
    group.join("A", "B")
    for number in range(12):
        event = rng.choice(["join", "leave", "drain", "claim", "pin", "sleep", "again"])
        name = rng.choice(sorted(group.workers))
        if event == "join":
            group.join(f"W{number}")
        elif event == "leave" and len(group.workers) > 1:
            group.leave(name)
        elif event == "drain":
            group.workers[name].draining = rng.random() < 0.5
        elif event == "claim":
            jobs = [job for worker in group.workers.values() for job in worker.runs]
            group.join(f"C{number}", runs=rng.sample(jobs, min(2, len(jobs))))
        elif event == "pin" and group.assignor == "static":
            group.workers[name].static = rng.choice([(), ("c0",), ("c1-0", "c0-0")])
        elif event == "sleep":
            group.sleep()
        view = group.view()
        placement = group.round()
        for reason in placement.reasons:
            assert true(view, placement, reason), reason
