"""One round of Kafka Connect's IncrementalCooperativeAssignor, as a function of the view.

A round compares what was deployed (the leader's memory), what workers report and what is configured
(S3-F02):

    lost    = previous - reported           created = configured - previous - reported

A round stops jobs that run where they must not: claimed twice, on a draining worker, pinned to
another worker. Lost jobs wait for their worker's return (`lost_worker_delay`). The round stops the
excess of workers above their share, unless a delay runs (S3-F04, S3-F06) or the round before
stopped jobs too (S3-F07). It gives free jobs to the least loaded workers. A job that one round
stops starts in a later one (S3-F16). Static assignments (KIP-987) restrict the round to wildcard
jobs and workers.

The answers equal those of Kafka's class for every order of reports and of workers, with one
exception: deleted jobs are not in the view, because the group takes them from their workers at
once, as Kafka's round does. Kafka's leader counts them as load while it has no memory, and may stop
configured jobs.
"""

from __future__ import annotations

import math

import numpy as np

from muster.assignor.connect.counts import Counted
from muster.assignor.connect.jobs import Ranks, kinds, takers
from muster.assignor.connect.leader_memory import Memory
from muster.assignor.connect.lost_worker_delay import apply_delay
from muster.assignor.connect.pinned_jobs import Pins
from muster.assignor.connect.reason_texts import Why
from muster.assignor.connect.weights import Weighed, weighs
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, Placement, no_pairs
from muster.protocol.tasks import IntArray

_BACKOFF_BASE = 40
"""The n-th round in a row that stops jobs waits 1 ms x 40^n, at most the delay (S3-F07)."""


def play(view: GroupView, pins: Pins) -> Placement:
    """Compute one round with the static assignments in force (`pins`)."""
    return _Round(view, pins).play()


def backoff_ms(successive: int, most_ms: int) -> int:
    """Wait before the n-th round in a row that stops jobs, like Kafka's ExponentialBackoff."""
    if most_ms == 0:
        return 0
    exponent = math.log(most_ms) / math.log(_BACKOFF_BASE)
    return min(most_ms, int(math.pow(_BACKOFF_BASE, min(successive, exponent))))


class _Round:
    """The round in progress. `next` is the worker of each job after it."""

    def __init__(self, view: GroupView, pins: Pins) -> None:
        self.view = view
        self.pins = pins
        self.memory = Memory.of(view.memory, view.tasks)
        self.workers = takers(view) & pins.wildcard
        free = ~pins.pinned
        self.balance = (
            Weighed(view, self.workers, free, self.memory.planned)
            if weighs(view)
            else Counted(view, self.workers, free)
        )
        self.ranks = Ranks.of(view)
        self.reported = view.active != NO_MEMBER
        self.reported[view.also_active.task] = True
        self.next = view.active.copy()
        self.why = Why(view)

    def play(self) -> Placement:
        """All steps, in Kafka's order."""
        memory = self.memory
        if not memory.has_reached(self.view):  # S3-F09: perhaps no worker got the last plan
            memory.previous = np.zeros_like(memory.previous)
        memory.reached = None
        if (memory.revocation & self.reported).any():  # a worker did not stop its jobs (S3-F08)
            memory.previous = self.reported.copy()
        lost = memory.previous & ~self.reported
        created = ~memory.previous & ~self.reported
        misplaced = self._stop_misplaced()
        ready = self._lost(lost & ~self.pins.pinned)
        arriving = self._arriving(created, ready)
        excess = self._excess(arriving)
        pinned_jobs = (lost | created) & self.pins.pinned
        self.pins.deal(self.view, self.next, np.flatnonzero(pinned_jobs).astype(np.int32))
        self.balance.deal(self.next, arriving)
        revoked = Pairs.of(
            np.concatenate((misplaced.task, excess.task)),
            np.concatenate((misplaced.member, excess.member)),
        )
        self._remember(lost, revoked)
        return self._placement(revoked, ready)

    def _stop_misplaced(self) -> Pairs:
        """Stop jobs claimed twice, on a draining worker, or on one that may not run them."""
        view, also = self.view, self.view.also_active
        twice = np.zeros(len(view.tasks), dtype=np.bool_)
        twice[also.task] = True
        held = view.active != NO_MEMBER
        gone = held & ~np.append(takers(view), True)[view.active]
        strays = held & self.pins.astray(view.active)
        stopped = np.flatnonzero(held & (twice | gone | strays)).astype(np.int32)
        self.next[stopped] = NO_MEMBER
        self.why.stopped(stopped, twice, gone, self.pins)
        return Pairs.of(
            np.concatenate((stopped, also.task)),
            np.concatenate((view.active[stopped], also.member)),
        )

    def _lost(self, lost: BoolArray) -> BoolArray:
        """Give lost jobs to candidates after the delay; return the jobs that any worker may get."""
        result = apply_delay(self.view, self.memory, self.workers, self.next, lost)
        self.why.undelivered = result.undelivered
        candidates = np.array(result.candidates, dtype=np.int32)
        if len(candidates):
            self.why.returned = lost
            for jobs in kinds(self.view.tasks):
                dealt = jobs[lost[jobs]]
                self.next[dealt] = candidates[np.arange(len(dealt)) % len(candidates)]
                self.ranks = self.ranks.then(dealt)
        return result.ready

    def _arriving(self, created: BoolArray, ready: BoolArray) -> IntArray:
        """Jobs to place that are not pinned: new ones in Kafka's order, then lost ones."""
        jobs = np.concatenate(kinds(self.view.tasks))
        return np.concatenate((jobs[(created & ~self.pins.pinned)[jobs]], jobs[ready[jobs]]))

    def _excess(self, arriving: IntArray) -> Pairs:
        """Jobs stopped for balance; none while a delay runs or the back-off requires a wait."""
        memory = self.memory
        if memory.delay_ms != 0:
            memory.revoked_before = False
            return no_pairs()
        cut = self.balance.cut(self.next, self.ranks, arriving)
        if len(cut) == 0:
            if memory.revoked_before:
                memory.revoked_before, memory.successive = False, 0
            return no_pairs()
        if memory.revoked_before:
            memory.successive += 1
            most_ms = self.view.settings.scheduled_rebalance_max_delay_ms
            memory.delay_ms = backoff_ms(memory.successive, most_ms)
            if memory.delay_ms != 0:
                memory.scheduled_ms = self.view.now_ms + memory.delay_ms
                return no_pairs()
        memory.revoked_before = True
        stopped = Pairs(cut, self.next[cut])
        planned = self.balance.planned if isinstance(self.balance, Weighed) else {}
        self.why.cut(cut, stopped.member, planned)
        self.next[cut] = NO_MEMBER
        return stopped

    def _remember(self, lost: BoolArray, revoked: Pairs) -> None:
        memory = self.memory
        memory.previous = (self.next != NO_MEMBER) | lost
        memory.revocation = np.zeros_like(memory.previous)
        memory.revocation[revoked.task] = True
        memory.members = self.view.members
        if isinstance(self.balance, Weighed):
            memory.planned = self.balance.planned

    def _placement(self, revoked: Pairs, ready: BoolArray) -> Placement:
        unowned = self.next == NO_MEMBER
        uncovered = unowned & ~self.pins.pinned if not self.workers.any() else unowned & False
        uncovered[revoked.task] = False
        return Placement(
            active=self.next,
            destination=self.next,
            reasons=self.why.reasons(self.next, ready, self.pins),
            revoked=revoked,
            unassigned=np.flatnonzero(uncovered).astype(np.int32),
            delay_ms=self.memory.delay_ms,
            again=len(revoked) > 0,
            memory=self.memory.as_json(self.view.tasks),
            warnings=self.pins.warnings,
        )
