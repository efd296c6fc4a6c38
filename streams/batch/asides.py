"""What takes long runs aside: child processes compute it while batches go on.

A group asks for a placement (`state.placement`), or for the result of a large batch
(`batches_aside`), and asks again until the answer is there. The child is a fork, so it has the
group as it was when it asked first. It runs at a low priority, and within the limits of a group
batch. A process computes a few answers at a time; groups take turns in the order in which they
asked.

When this process ends, its children run on until they finish or reach their CPU limit. The group
then asks another process, which begins anew.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from muster.state.assignor_outcome import Aside, Question
from muster.streams.batch.child_process import Child, answer_to, begin

_Answer = TypeVar("_Answer")

RUNNING_MAX = 2
"""Placements that are computed at a time."""
ASKED_MAX = 32
"""More groups than this do not wait for the results of their large batches at a time."""
FORGOTTEN_S = 10.0
"""A question that its group has not asked again for this long is dropped.

Each group asks once in a batch. Where batches are far apart, a question is dropped only after twice
the time between two batches, so that the groups of one batch do not drop each other's questions.
"""
_NICENESS = 10


class Asides:
    """The answers that this process computes aside.

    Args:
        cpu_s: CPU time that an answer may take, in seconds.
        running_max: answers that are computed at a time.
    """

    def __init__(self, cpu_s: float, running_max: int = RUNNING_MAX) -> None:
        self._cpu_s, self._running_max = cpu_s, running_max
        self._running: dict[Question, Child] = {}
        self._asked_s: dict[Question, float] = {}
        """When each question was asked last, those that were asked first in front."""

    @property
    def is_full(self) -> bool:
        """Whether so many answers are asked for that a group should not ask for one more."""
        oldest_s = time.monotonic() - FORGOTTEN_S
        return sum(asked_s > oldest_s for asked_s in self._asked_s.values()) >= ASKED_MAX

    def of(self, prefix: str) -> Aside:
        """`ask` for the groups of a topic prefix."""
        return lambda question, work: self.ask((f"{prefix} {question[0]}", *question[1:]), work)

    def ask(self, question: Question, work: Callable[[], _Answer]) -> _Answer | str | None:
        """Begin to compute an answer, or take it; see `assignor_outcome.Aside`."""
        if multiprocessing.parent_process() is not None:
            return work()  # in a child process, where no other group waits
        now_s = time.monotonic()
        gap_s = now_s - self._asked_s.get(question, now_s)
        self._asked_s[question] = now_s
        self._forget(question, now_s, max(FORGOTTEN_S, 2 * gap_s))
        if question in self._running:
            return self._look(question)  # type: ignore[no-any-return]  # what its `work` returned
        waiting = [each for each in self._asked_s if each not in self._running]
        if len(self._running) < self._running_max and waiting[0] == question:
            self._running[question] = begin(_compute, work, self._cpu_s)
        return None

    def _look(self, question: Question) -> Any:  # noqa: ANN401  # what the question's `work` returns
        child = self._running[question]
        if not child.receiver.poll():
            return None
        answer = child.answer()[1]
        self._end(question)
        return answer

    def _forget(self, question: Question, now_s: float, age_s_max: float) -> None:
        """Drop the group's other questions, and those that are not asked any more."""
        for other, asked_s in list(self._asked_s.items()):
            is_older = other[0] == question[0] and other != question
            if is_older or now_s - asked_s > age_s_max:
                self._end(other)

    def _end(self, question: Question) -> None:
        self._asked_s.pop(question, None)
        running = self._running.pop(question, None)
        if running is not None:
            running.end()


def _compute(sender: Connection, work: Callable[[], object], cpu_s: float) -> None:
    """Compute an answer in the child."""
    os.nice(_NICENESS)
    # The child must not keep the connections of a process that ends before it.
    needed = {0, 1, 2, sender.fileno()}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in needed:
            with suppress(OSError):
                os.close(int(name))
    answer_to(sender, work, cpu_s)
