"""One round of Kafka Connect's IncrementalCooperativeAssignor, as a function of the view.

A round compares what was deployed (the leader's memory), what workers report and what is
configured (S3-F02):

    lost    = previous - reported           created = configured - previous - reported

stops what must not run where it runs (claimed twice, on a draining worker, pinned elsewhere), lets
lost work wait for its worker's return (S3-F05), stops the excess of workers above their share
unless a delay runs (S3-F04, S3-F06) or the round before revoked too (S3-F07), and hands out what is
free to the least loaded. A job stopped in one round starts in a later one (S3-F16, Q-03): a move
takes two rounds.

Same answers as Kafka's class for every order of reports and of workers;
`muster.assignor.connect.java` says why Java's hash codes appear in
`muster.assignor.connect.counts`. Jobs that are deleted are not in the view; the group takes them
from their holders at once, as Kafka's round does; only that a leader of Kafka's that remembers
nothing counts them as load, and may stop jobs that are configured. Static assignments (KIP-987)
restrict the same round to wildcard jobs and workers.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from muster.assignor.connect.counts import Counted
from muster.assignor.connect.java import hash_order
from muster.assignor.connect.jobs import Ranks, empty_hands, kinds, takers
from muster.assignor.connect.memory import Memory
from muster.assignor.connect.pins import Pins
from muster.assignor.connect.weights import Weighed, weighs
from muster.assignor.connect.why import Why
from muster.assignor.model import NO_MEMBER, BoolArray, GroupView, Pairs, Placement
from muster.protocol.tasks import IntArray

_BACKOFF_BASE = 40
"""Successive revoking rounds wait 1 ms x 40^n, at most the delay (S3-F07)."""


def play(view: GroupView, pins: Pins) -> Placement:
    """One round; `pins` are the static assignments in force."""
    return _Round(view, pins).play()


def backoff_ms(successive: int, most_ms: int) -> int:
    """Wait before the n-th revoking round in a row, as Kafka's ExponentialBackoff computes it."""
    if most_ms == 0:
        return 0
    exponent = math.log(most_ms) / math.log(_BACKOFF_BASE)
    return min(most_ms, int(math.pow(_BACKOFF_BASE, min(successive, exponent))))


class _Round:
    """The round in progress. `next` is who will run each job when it is over."""

    def __init__(self, view: GroupView, pins: Pins) -> None:
        self.view = view
        self.pins = pins
        self.memory = Memory.of(view.memory, view.tasks)
        self.workers = takers(view) & pins.wildcard
        self.limit_ms = view.settings.scheduled_rebalance_max_delay_ms
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
        whole = self.view.whole_generation
        if not memory.has_reached(whole=whole):  # the last plan, perhaps for no worker (S3-F09)
            memory.previous = np.zeros_like(memory.previous)
        memory.reached = None
        if (memory.revocation & self.reported).any():  # it was not honoured (S3-F08)
            memory.previous = self.reported.copy()
        lost = memory.previous & ~self.reported
        created = ~memory.previous & ~self.reported
        misplaced = self._stop_what_must_not_run()
        ready = self._lost(lost & ~self.pins.pinned)
        arriving = self._arriving(created, ready)
        excess = self._excess(arriving)
        owed = (lost | created) & self.pins.pinned
        self.pins.deal(self.view, self.next, np.flatnonzero(owed).astype(np.int32))
        self.balance.deal(self.next, arriving)
        revoked = Pairs.of(
            np.concatenate((misplaced.task, excess.task)),
            np.concatenate((misplaced.member, excess.member)),
        )
        self._remember(lost, revoked)
        return self._placement(revoked, ready)

    def _stop_what_must_not_run(self) -> Pairs:
        """Jobs claimed by several workers, of draining workers, and off their pins."""
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
        """Start, keep up or end the delay; the answer is what no longer waits.

        After a delay the workers that came back empty get the lost work directly.
        """
        memory, now = self.memory, self.view.now_ms
        none = np.zeros_like(lost)
        if not lost.any() and not memory.revoked_before:
            self._reset_delay()
            return none
        if memory.scheduled_ms <= 0 and set(memory.members) <= set(self.view.members):
            self.why.undelivered = True
            return lost  # no worker left: records got lost, not workers
        if self.limit_ms == 0:
            return lost
        if not self.workers.any():  # no worker to wait for, none to give it to
            self._reset_delay()
            return lost
        if 0 < memory.scheduled_ms <= now:
            returned = [
                place
                for place in map(self._place, memory.candidates)
                if place is not None and self.workers[place]
            ]
            if returned:
                self._deal_to(returned, lost)
                self.why.returned = lost
            self._reset_delay()
            memory.revoked_before = False
            return none if returned else lost
        self._note_candidates()
        remaining = memory.scheduled_ms - now
        memory.delay_ms = min(remaining, self.limit_ms) if remaining > 0 else self.limit_ms
        memory.scheduled_ms = now + memory.delay_ms
        return none

    def _reset_delay(self) -> None:
        self.memory.candidates = ()
        self.memory.scheduled_ms = 0
        self.memory.delay_ms = 0

    def _place(self, worker: str) -> int | None:
        members = self.view.members
        place = bisect_left(members, worker)
        return place if place < len(members) and members[place] == worker else None

    def _note_candidates(self) -> None:
        """Remember who is empty now, after those remembered before, in Kafka's order."""
        members = self.view.members
        idle = empty_hands(self.next, len(members)) & self.workers
        if not idle.any():
            return
        order = hash_order(members)
        places: list[int] = order[idle[order]].tolist()
        walked = [members[place] for place in places]
        ordered = [walked[int(place)] for place in hash_order(walked)]
        self.memory.candidates = tuple(dict.fromkeys((*self.memory.candidates, *ordered)))

    def _deal_to(self, places: list[int], lost: BoolArray) -> None:
        candidates = np.array(places, dtype=np.int32)
        for jobs in kinds(self.view.tasks):
            dealt = jobs[lost[jobs]]
            self.next[dealt] = candidates[np.arange(len(dealt)) % len(candidates)]
            self.ranks = self.ranks.then(dealt)

    def _arriving(self, created: BoolArray, ready: BoolArray) -> IntArray:
        """Free jobs to hand out: new ones in Kafka's order, then lost ones."""
        jobs = np.concatenate(kinds(self.view.tasks))
        return np.concatenate((jobs[(created & ~self.pins.pinned)[jobs]], jobs[ready[jobs]]))

    def _excess(self, arriving: IntArray) -> Pairs:
        """Jobs stopped for balance, unless a delay runs or the back-off says wait."""
        memory = self.memory
        none = np.empty(0, dtype=np.int32)
        if memory.delay_ms != 0:
            memory.revoked_before = False
            return Pairs(none, none)
        cut = self.balance.cut(self.next, self.ranks, arriving)
        if len(cut) == 0:
            if memory.revoked_before:
                memory.revoked_before, memory.successive = False, 0
            return Pairs(none, none)
        if memory.revoked_before:
            memory.successive += 1
            memory.delay_ms = backoff_ms(memory.successive, self.limit_ms)
            if memory.delay_ms != 0:
                memory.scheduled_ms = self.view.now_ms + memory.delay_ms
                return Pairs(none, none)
        memory.revoked_before = True
        found = Pairs(cut, self.next[cut])
        planned = self.balance.planned if isinstance(self.balance, Weighed) else {}
        self.why.cut(cut, found.member, planned)
        self.next[cut] = NO_MEMBER
        return found

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
