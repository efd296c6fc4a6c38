"""How long the jobs of a lost worker wait for its return (``scheduled.rebalance.max.delay.ms``).

A job is *lost* when the last round deployed it and no worker reports it now. Lost jobs wait for the
delay (S3-F05). Workers that come without jobs while the delay runs are *candidates*: when it ends,
the candidates get the lost jobs. Without candidates the round gives them to any worker.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from muster.assignor.connect.java_order import hash_order
from muster.assignor.connect.jobs import numbers
from muster.assignor.connect.leader_memory import Memory
from muster.assignor.model import BoolArray, GroupView
from muster.protocol.tasks import IntArray


class LostJobs(NamedTuple):
    """What a round does with its lost jobs.

    Attributes:
        ready: bool[T], lost jobs that no longer wait; any worker may get them.
        candidates: indexes of the workers that get all lost jobs now; empty = no worker does.
        undelivered: whether the last plan did not reach the workers, so no worker was lost.
    """

    ready: BoolArray
    candidates: tuple[int, ...] = ()
    undelivered: bool = False


def apply_delay(
    view: GroupView, memory: Memory, workers: BoolArray, owner: IntArray, lost: BoolArray
) -> LostJobs:
    """Start, continue or end the delay; the leader's memory of it is changed.

    `workers` (bool[M]) may get jobs; `owner` (int32[T]) is the worker of each job so far in this
    round; `lost` (bool[T]) jobs are not pinned.
    """
    limit_ms = view.settings.scheduled_rebalance_max_delay_ms
    none = np.zeros_like(lost)
    if not lost.any() and not memory.revoked_before:
        _reset(memory)
        return LostJobs(none)
    if memory.scheduled_ms <= 0 and set(memory.members) <= set(view.members):
        return LostJobs(lost, undelivered=True)  # every worker is still there
    if limit_ms == 0 or not workers.any():  # no job waits, or no worker could get it
        _reset(memory)
        return LostJobs(lost)
    if 0 < memory.scheduled_ms <= view.now_ms:
        candidates = _present(view, memory.candidates, workers)
        _reset(memory)
        memory.revoked_before = False
        return LostJobs(none if candidates else lost, candidates)
    _note_candidates(view, memory, workers, owner)
    remaining_ms = memory.scheduled_ms - view.now_ms
    memory.delay_ms = min(remaining_ms, limit_ms) if remaining_ms > 0 else limit_ms
    memory.scheduled_ms = view.now_ms + memory.delay_ms
    return LostJobs(none)


def _reset(memory: Memory) -> None:
    memory.candidates = ()
    memory.scheduled_ms = 0
    memory.delay_ms = 0


def _present(view: GroupView, candidates: tuple[str, ...], workers: BoolArray) -> tuple[int, ...]:
    """Indexes of the candidates that are still in the group and may get jobs."""
    index_of = {worker: index for index, worker in enumerate(view.members)}
    present = (index_of[worker] for worker in candidates if worker in index_of)
    return tuple(index for index in present if workers[index])


def _note_candidates(view: GroupView, memory: Memory, workers: BoolArray, owner: IntArray) -> None:
    """Add the workers without jobs to the candidates, in the order in which Kafka visits them."""
    members = view.members
    idle = (numbers(owner, len(members)) == 0) & workers
    if not idle.any():
        return
    order = hash_order(members)
    places: list[int] = order[idle[order]].tolist()
    visited = [members[place] for place in places]
    ordered = [visited[int(place)] for place in hash_order(visited)]
    memory.candidates = tuple(dict.fromkeys((*memory.candidates, *ordered)))
