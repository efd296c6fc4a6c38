"""Coordinators with faults: one reads a topic late, or another claims the group while one runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from muster.protocol.events import Event, Tick
from muster.simulation.jobs import Batch, Checkpoint, Job, Jobs, read_back
from muster.state.group import Group
from muster.state.machine import Step


class FaultyJob(Job):
    """One coordinator.

    Attributes:
        stops_at: true time from which it starts no batch, because it has read a later claim.
        generations: number of generations it opened.
        late_ms: how much later than usual its records reach Kafka.
        skew: topic → true time until which it reads nothing new from it.
        obeys: whether it obeys ticks that name a later coordinator; old versions do not.
        now: true time at which it looks for a batch.
    """

    stops_at = float("inf")
    generations = 0
    late_ms = now = 0.0
    obeys = True

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self.skew: dict[str, float] = {}

    def take(self) -> Batch | None:
        """Compute the next batch, without what it does not read yet."""
        through = self.checkpoint.through
        if self.checkpoint.begun is None:
            end = {
                topic: through[topic] if self.now < self.skew.get(topic, 0.0) else end
                for topic, end in self.log.ends().items()
            }
            if end == through:
                return None
            self.checkpoint.begun = end
        return super().take()

    def decide(self, events: Sequence[Event]) -> Step:
        """Compute the step for a batch of events."""
        step = super().decide(self.as_read(events))
        self.generations += step.group.generation > self.group.generation
        return step

    def as_read(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events of a batch as this version of the coordinator reads them."""
        return events if self.obeys else [*map(self._without_later, events)]

    def _without_later(self, event: Event) -> Event:
        """The event as an old version reads it, which ignores the mark of a later coordinator."""
        if not isinstance(event, Tick) or event.published is None:
            return event
        is_later = event.published.coordinator_epoch > self.epoch
        return replace(event, published=None) if is_later else event


class FaultyJobs(Jobs):
    """All running coordinators; `generations`: how many they opened, also those that have ended."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self._ended_generations = 0
        self._obeyed: list[Checkpoint] = []  # of jobs whose ticks all others obeyed as they began

    @property
    def generations(self) -> int:
        """Generations opened so far."""
        return self._ended_generations + sum(job.generations for job in self.running)

    def begin(self, checkpoint: Checkpoint | None = None) -> None:
        """Start a coordinator; without a checkpoint it may know that all others will obey it."""
        obeyed = checkpoint is None and bool(self.running) and all(j.obeys for j in self.running)
        super().begin(checkpoint)
        begun = self.newest.checkpoint
        if obeyed:
            self._obeyed.append(begun)
        is_obeyed = any(each is begun for each in self._obeyed)
        if is_obeyed and begun.group is None and begun.snapshot is not None:
            self.newest.group = Group.recover(read_back(begun.snapshot), predecessors_obey=True)

    def skew(self, topic: str, for_ms: int) -> None:
        """The newest coordinator reads nothing new from one topic for a while."""
        job = self.newest
        if job is not None:
            job.skew[topic] = max(job.skew.get(topic, 0.0), self._simulation.now + for_ms)

    def replace(self, notices_ms: int, late_ms: int, starts_ms: int, *, obeys: bool) -> None:
        """A second coordinator, without a checkpoint, claims the group while the first runs.

        The first reads the claim after `notices_ms`, writes `late_ms` later than usual, and may
        obey the second one's ticks. The second takes `starts_ms` until its first batch.
        """
        job = self.newest
        if job is None:
            return
        now = self._simulation.now
        job.stops_at = now + notices_ms
        job.late_ms = late_ms
        job.obeys = obeys
        # It reads the claim even if no event comes.
        self._simulation.at(job.stops_at, lambda: self._wake(job, 0.0))
        self.begin()
        self.newest.behind_until = now + starts_ms

    def _compute(self, job: FaultyJob) -> None:
        now = job.now = self._simulation.now
        if job in self.running and job.batch is None and now >= job.stops_at:
            job.is_woken = False
            self._end(job)
            return
        super()._compute(job)
        later_seen = [at for at in job.skew.values() if at > now]
        if later_seen and job in self.running:
            self._wake(job, min(later_seen) - now)

    def _writing_ms(self, job: FaultyJob) -> float:
        return super()._writing_ms(job) + job.late_ms

    def _end(self, job: FaultyJob) -> None:
        self._ended_generations += job.generations
        super()._end(job)
