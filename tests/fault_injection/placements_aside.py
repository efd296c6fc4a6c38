"""A coordinator that computes every placement aside, as it does those of large groups.

Batches go on meanwhile: members join and leave, and copies catch up, between a question and the
batch that applies its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from fault_injection import faults
from fault_injection.checker import CheckedJob
from fault_injection.faults import Timed

from muster.protocol.events import Event
from muster.simulation.jobs import Checkpoint
from muster.simulation.log import Log
from muster.state import placement
from muster.state.assignor_outcome import Outcome, Question
from muster.state.machine import Step

BATCHES_MAX = 8
"""An answer is there after so many batches at most; a group asks four times a second."""


SPACING_MS = (200, 1_500)
"""Shortest and longest time between two starts of a life."""


class Desk:
    """Computes a placement at the first question, and gives it some batches later."""

    def __init__(self) -> None:
        self._question: Question | None = None
        self._outcome: Outcome | None = None
        self._batches_left = 0

    def __call__(self, question: Question, work: Callable[[], Outcome]) -> Outcome | None:
        """Take a question, or give its outcome; a new question replaces the one before."""
        if question != self._question:
            self._question, self._outcome = question, work()
            self._batches_left = Random(repr(question)).randrange(BATCHES_MAX + 1)
        self._batches_left -= 1
        return self._outcome if self._batches_left < 0 else None


class AsideJob(CheckedJob):
    """A checked coordinator for which the placement of every group is a large one."""

    def __init__(self, log: Log, epoch: int, checkpoint: Checkpoint) -> None:
        super().__init__(log, epoch, checkpoint)
        self.aside = Desk()

    def decide(self, events: Sequence[Event]) -> Step:
        """Decide as usual, for a group of any size."""
        size_max = placement.SIZE_MAX
        placement.SIZE_MAX = -1
        try:
            return super().decide(events)
        finally:
            placement.SIZE_MAX = size_max


def life(seed: int) -> list[Timed]:
    """A fleet starts member by member; copies restore while the next placement is computed."""
    rng = Random(f"aside/{seed}")
    assignor = rng.choice(("learner", "high-availability"))
    configures = faults.Configures(faults.ASSIGNORS.index(assignor), tasks=1, values=1)
    timeline: list[Timed] = [(0, configures)]
    at_ms = 100
    for name in faults.NAMES[:4]:
        timeline.append((at_ms, faults.Starts(name)))
        at_ms += rng.randrange(*SPACING_MS)
    return timeline
