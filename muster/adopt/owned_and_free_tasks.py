"""Which member owns a task, and the governor's answer: the free tasks of a member's target. Pure.

The coordinator's target says where every task belongs. A task is free if no other member runs it.
The governor first leaves a task that is not free out of its owner's answer. The owner stops the
task and joins again without it; in that next rebalance the governor gives the task to its new
owner. That is Kafka's cooperative protocol. Under an eager protocol no member runs anything while
the group rebalances, so every task is free and one rebalance is enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.adopt.join_metadata import KafkaMember
from muster.protocol.ids import Task
from muster.protocol.tasks import EMPTY, TaskSet


@dataclass(frozen=True, slots=True)
class Answer:
    """All that a member is to run, the part that it does not run now, and what it is to stop."""

    assigned: TaskSet
    added: TaskSet
    revoked: TaskSet


def answers(members: Sequence[KafkaMember], target: Mapping[str, TaskSet]) -> dict[str, Answer]:
    """The answer to each member, by name.

    If two members claim to run a task, the one with the newer Kafka generation owns it: the other
    was away when the task moved, and Kafka refuses its commits. If both have the same generation,
    neither gets the task in this rebalance.
    """
    owner_of = owners(members)
    answers: dict[str, Answer] = {}
    for member in members:
        wanted = target.get(member.name, EMPTY)
        free = TaskSet.of(
            task
            for task in wanted
            if owner_of.get(task, member.name) == member.name and _may_have(member, task)
        )
        answers[member.name] = Answer(free, free - member.owned, member.owned - free)
    return answers


def differ(answers: Mapping[str, Answer], others: Mapping[str, Answer]) -> bool:
    """Whether these answers let a member have other tasks than the others do."""
    assigned = {name: answer.assigned for name, answer in answers.items()}
    return assigned != {name: answer.assigned for name, answer in others.items()}


def owners(members: Sequence[KafkaMember]) -> dict[Task, str | None]:
    """Which member runs each task; None = several members of one generation claim to run it."""
    claims: defaultdict[Task, list[KafkaMember]] = defaultdict(list)
    for member in members:
        for task in member.owned:
            claims[task].append(member)
    return {task: _youngest(members) for task, members in claims.items()}


def _youngest(members: Sequence[KafkaMember]) -> str | None:
    newest = max(member.generation for member in members)
    youngest = [member.name for member in members if member.generation == newest]
    return youngest[0] if len(youngest) == 1 else None


def _may_have(member: KafkaMember, task: Task) -> bool:
    """Whether the member subscribes to the task's topic; otherwise a consumer would rejoin."""
    return member.topics is None or task.unit in member.topics
