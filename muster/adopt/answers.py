"""What each member is answered at SyncGroup: as much of the target as is free. Pure.

The coordinator's target says where every task belongs. A task that another member still runs is
not free: its owner is answered without it, stops it, joins again without it, and only then is it
given to the next one. That is Kafka's cooperative protocol. Under an eager protocol no member runs
anything while the group rebalances, so everything is free and one round does it all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.adopt.said import Said
from muster.protocol.ids import Task
from muster.protocol.tasks import EMPTY, TaskSet


@dataclass(frozen=True, slots=True)
class Answer:
    """What one member is told.

    Attributes:
        assigned: all that it is to run.
        added: the part of `assigned` that it does not run now.
        revoked: what it runs now and is to stop.
    """

    assigned: TaskSet
    added: TaskSet
    revoked: TaskSet


def answers(said: Sequence[Said], target: Mapping[str, TaskSet]) -> dict[str, Answer]:
    """The answer to each member, by name.

    A task that two members claim to run belongs to the one with the younger Kafka generation: the
    other was away when it was given on, and Kafka refuses its commits. If that does not decide,
    neither gets it in this round.

    Args:
        said: what the present members said.
        target: name → tasks that the member is to have in the end.
    """
    owner = owners(said)
    given: dict[str, Answer] = {}
    for member in said:
        wanted = target.get(member.name, EMPTY)
        free = TaskSet.of(
            task
            for task in wanted
            if owner.get(task, member.name) == member.name and _may_have(member, task)
        )
        given[member.name] = Answer(free, free - member.owned, member.owned - free)
    return given


def owners(said: Sequence[Said]) -> dict[Task, str | None]:
    """Which member runs each task; None = several say so and none of them is known to be stale."""
    claims: defaultdict[Task, list[Said]] = defaultdict(list)
    for member in said:
        for task in member.owned:
            claims[task].append(member)
    return {task: _youngest(members) for task, members in claims.items()}


def _youngest(members: Sequence[Said]) -> str | None:
    newest = max(member.generation for member in members)
    there = [member.name for member in members if member.generation == newest]
    return there[0] if len(there) == 1 else None


def _may_have(member: Said, task: Task) -> bool:
    """A consumer that gets a partition of a topic it does not subscribe to joins again at once."""
    return member.topics is None or task.unit in member.topics
