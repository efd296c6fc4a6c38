"""Checks whether a group has settled: the coordinator and the workers have nothing left to do."""

from __future__ import annotations

from collections.abc import Iterable

from muster.protocol.ids import MemberId, Role
from muster.protocol.records import GroupState
from muster.published.holdups import waits_of
from muster.simulation.jobs import Jobs
from muster.state import invariants
from muster.state.group import Group
from muster.testing.worker import SimulatedWorker
from muster.worker.session_steps import State


def unsettled(
    jobs: Jobs, workers: Iterable[SimulatedWorker], now: float, *, in_words: bool
) -> str | None:
    """Describe what the group or a worker (its newest process) still does; None = it has settled.

    With `in_words` a person reads the description; a short one is quicker. `now` is true time, ms.
    """
    if jobs.newest is None:
        return "no coordinator runs"
    group = jobs.newest.group
    running = {w.member_id: w for w in workers if w.is_reachable and not w.has_ended}
    busy = _busy(running.values(), now)
    moving = still_moving(group)
    if in_words and moving is not None:
        return "; ".join([moving, *map(str, waits_of(group.snapshot())), *busy])
    if busy or moving is not None:
        return "; ".join(busy) or moving
    for member in group.roster:
        if member.id not in running:
            return f"the group still waits for {member.id}, whose process does not answer"
    for name, worker in running.items():
        if worker.is_to_leave:
            return f"{name} has not left yet"
        slot = group.roster.by_id.get(MemberId(name))
        if slot is None:
            return f"{name} is not a member ({worker.state})"
        if worker.session.state is State.JOINING:
            return f"{worker.process.name} waits: a process before it is still a member as {name}"
        held, recorded = worker.session.holding, invariants.holding_of(group, slot)
        if held.digest() != recorded.digest():
            return f"{name} holds {held}, and the group expects {recorded}"
    return None


def still_moving(group: Group) -> str | None:
    """Describe what the group itself shows that it still does; None = nothing."""
    if group.state is GroupState.EMPTY:
        return "no worker is in the group"
    if group.state is not GroupState.STABLE or group.recovery.asked:
        return f"the group is {group.state.value} ({group.cause})"
    if (group.target.active != group.target.destination).any():
        return "a task is not where it belongs"
    if len(group.owned.copies[Role.LEARNER].kept) or group.target.again:
        return f"a learner is still needed ({group.cause})"
    if group.timers.delay_until_ms is not None:
        return "tasks of a lost member wait for its return"
    return None


def _busy(workers: Iterable[SimulatedWorker], now: float) -> list[str]:
    busy = []
    for worker in workers:
        shown, doing = worker.process.name, worker.process.doing
        busy += [
            f"{name} of {shown} has run for {(now - since) / 1000:.1f} s"
            for name, since in doing.items()
        ]
        for name, errors in worker.not_begun.items():
            for error in sorted(set(errors.values())):
                tasks = " ".join(str(task) for task in sorted(errors) if errors[task] == error)
                busy.append(f"{name} of {shown} raised {error}, and is called again for {tasks}")
        if worker.has_news:
            busy.append(f"{shown} reports something that has not reached Kafka")
    return busy
