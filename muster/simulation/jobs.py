"""Simulated coordinators: batches of the real `advance`, checkpoints, restarts, replacements.

A coordinator publishes the records of a batch some time after it has computed them, and then
advances its checkpoint. So a coordinator that ends in between has published only a part of its
records, and a replaced one may write late. As in Spark, a job that starts from a checkpoint repeats
the interrupted batch with the same events; two coordinators never share a checkpoint. A job without
a checkpoint reads the newest snapshot of the group (`Group.recover`), and all of the config topic.

`Job` is one coordinator and has no clock; `Jobs` runs all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Self

from muster.assignor import registry
from muster.assignor.model import Assignor
from muster.protocol import codec
from muster.protocol.events import Event, Mark, Tick
from muster.protocol.records import GroupSnapshot
from muster.protocol.topics import TopicKind
from muster.simulation.log import GROUP, Log, MemberRecord, delay
from muster.simulation.trace import record_text
from muster.state import invariants
from muster.state.assignor_outcome import Aside
from muster.state.group import Group
from muster.state.machine import Step, advance

if TYPE_CHECKING:
    from muster.simulation.kafka import SimulatedKafka

Offsets = dict[str, int]
FIRST_EPOCH = 1


@dataclass(slots=True)
class Checkpoint:
    """The checkpoint of a coordinator.

    Attributes:
        snapshot: newest published record as of the last committed batch.
        group: the group at that time, whose liveness is stored; None = nothing was committed.
        through: input topic → number of events handled by then.
        begun: end offsets of the batch that was started after it; None = none was.
        follows_another: whether it replaces a lost one of another coordinator
            (`streams.checkpoint.unverified_groups` stores that).
    """

    snapshot: GroupSnapshot | None = None
    group: Group | None = None
    through: Offsets = field(default_factory=lambda: {"membership": 0, "config": 0, "lag": 0})
    begun: Offsets | None = None
    follows_another: bool = False

    def restored(self) -> Group:
        """The group as the last committed batch left it."""
        if self.snapshot is None:
            return Group.new(GROUP, unverified=self.follows_another)
        snapshot = read_back(self.snapshot)
        if self.group is None:
            return Group.recover(snapshot)
        return Group.restore(snapshot, self.group.liveness())


def read_back(snapshot: GroupSnapshot) -> GroupSnapshot:
    """The record after encoding and decoding, without what the bytes do not contain."""
    encoded = codec.encode(snapshot)
    decoded = codec.decode_record(TopicKind.GROUPS, encoded.key, encoded.value)
    assert isinstance(decoded, GroupSnapshot)
    return decoded


@dataclass(slots=True)
class Batch:
    """A batch that was computed and is not published yet."""

    step: Step
    end: Offsets


class Job:
    """One coordinator.

    Attributes:
        epoch: coordinator epoch, the offset of its claim.
        group: the group after the newest batch.
        batch: the batch that is not published yet.
        behind_until: true time until which it takes no batch.
        is_woken: whether it will soon look for a batch.
        aside: computes large placements; None = they are computed in the batch.
    """

    assignors: Callable[[str], Assignor] = staticmethod(registry.get)
    """Looks up an assignor by its name."""

    def __init__(self, log: Log, epoch: int, checkpoint: Checkpoint) -> None:
        self.log = log
        self.epoch = epoch
        self.checkpoint = checkpoint
        self.group = checkpoint.restored()
        self.batch: Batch | None = None
        self.behind_until = 0.0
        self.is_woken = False
        self.aside: Aside | None = None

    @classmethod
    def recovering(cls, log: Log, epoch: int) -> Self:
        """A coordinator without a checkpoint; the first one follows no other."""
        checkpoint = Checkpoint(log.snapshot, follows_another=epoch > FIRST_EPOCH)
        if log.snapshot is not None:
            read = {topic: offset + 1 for topic, _, offset in log.snapshot.through}
            checkpoint.through.update({**read, "config": 0})
        return cls(log, epoch, checkpoint)

    def take(self) -> Batch | None:
        """Compute the next batch; None = there is nothing new.

        Raises:
            InvariantViolation: as `decide`.
        """
        end = self.checkpoint.begun or self.log.ends()
        if end == self.checkpoint.through:
            return None
        self.checkpoint.begun = end
        step = self.decide(self.log.between(self.checkpoint.through, end))
        self.group = step.group
        self.batch = Batch(step, end)
        return self.batch

    def decide(self, events: Sequence[Event]) -> Step:
        """Compute the step for a batch of events.

        Raises:
            InvariantViolation: an invariant of the group does not hold.
        """
        step = advance(
            self.group,
            events,
            coordinator_epoch=self.epoch,
            assignors=self.assignors,
            aside=self.aside,
        )
        if step.changed:
            invariants.check(step.group)
        return step

    def commit(self) -> None:
        """The batch has been published."""
        assert self.batch is not None
        for record in self.batch.step.records:
            if isinstance(record, GroupSnapshot):
                self.checkpoint.snapshot = record
        self.checkpoint.group = self.group
        self.checkpoint.through, self.checkpoint.begun = self.batch.end, None
        self.batch = None


class Jobs:
    """All running coordinators.

    Attributes:
        newest: the newest one; None = it has ended and will start again.
        running: all of them.
        next_behind_until: true time until which the next one that starts takes no batch.
    """

    def __init__(
        self, simulation: SimulatedKafka, log: Log, rng: Random, kind: type[Job] = Job
    ) -> None:
        self.newest: Job | None = None
        self.running: list[Job] = []
        self.next_behind_until = 0.0
        self._simulation = simulation
        self._log = log
        self._rng = rng
        self._kind = kind
        self._epochs = itertools.count(FIRST_EPOCH)

    def begin(self, checkpoint: Checkpoint | None = None) -> None:
        """Start a coordinator; without a checkpoint it recovers from the published records."""
        epoch = next(self._epochs)
        if checkpoint is None:
            job = self._kind.recovering(self._log, epoch)
        else:
            job = self._kind(self._log, epoch, checkpoint)
        job.behind_until = self.next_behind_until
        self.newest = job
        self.running.append(job)
        self._simulation.send(Tick(group=GROUP, published=Mark(epoch, 0)))
        self._wake(job, 1.0)

    def wake(self) -> None:
        """Events were appended to a topic."""
        for job in self.running:
            self._wake(job, delay(self._rng, 5))

    # ------------------------------------------------ faults; nothing if no coordinator runs

    def fall_behind(self, for_ms: int) -> None:
        """The newest coordinator takes no batch for a while."""
        job = self.newest
        if job is not None:
            job.behind_until = max(job.behind_until, self._simulation.now + for_ms)

    def catch_up(self) -> None:
        """No coordinator is behind any more: each takes what has come meanwhile."""
        self.next_behind_until = 0.0
        for job in self.running:
            if self._simulation.now < job.behind_until:
                job.behind_until = 0.0
                job.is_woken = False  # it was to look when it is not behind any more
                self._wake(job, 1.0)

    def restart(self, written: int, *, checkpoint: bool) -> None:
        """The newest coordinator ends in the middle of a write, and soon starts again.

        Of its last batch `written` percent of the records are published.
        """
        job = self.newest
        if job is None:
            return
        if job.batch is not None:
            self._write(job, job.batch, written)
        self._end(job)
        checkpoint_left = job.checkpoint if checkpoint else None

        def again() -> None:
            if self.newest is None:  # otherwise another job has claimed the group meanwhile
                self.begin(checkpoint_left)

        self._simulation.at(self._simulation.now + delay(self._rng, 50), again)

    # ------------------------------------------------------------------------------- one batch

    def _wake(self, job: Job, after: float) -> None:
        if job.batch is None and not job.is_woken:
            job.is_woken = True
            self._simulation.at(self._simulation.now + after, lambda: self._compute(job))

    def _compute(self, job: Job) -> None:
        job.is_woken = False
        if job not in self.running or job.batch is not None:
            return
        now = self._simulation.now
        later = max(self._simulation.away_until, job.behind_until)
        if now < later:
            self._wake(job, later - now)
            return
        batch = job.take()
        if batch is not None:
            published_at = now + self._writing_ms(job)
            self._simulation.at(published_at, lambda: self._publish(job, batch))

    def _writing_ms(self, job: Job) -> float:
        """How long after a batch was computed its records reach Kafka."""
        return delay(self._rng, 12)

    def _publish(self, job: Job, batch: Batch) -> None:
        if job not in self.running or job.batch is not batch:
            return
        if self._simulation.now < self._simulation.away_until:
            again = self._simulation.away_until + delay(self._rng, 10)
            self._simulation.at(again, lambda: self._publish(job, batch))
            return
        self._write(job, batch, 100)
        job.commit()
        self._wake(job, delay(self._rng, 3))

    def _write(self, job: Job, batch: Batch, percent: int) -> None:
        records = [r for r in batch.step.records if self._rng.randrange(100) < percent]
        delivered = self._log.publish(records)
        if self._simulation.is_traced:
            self._trace(job, batch, delivered)
        for record in delivered:
            self._simulation.deliver(record)
        self._simulation.published()

    def _trace(self, job: Job, batch: Batch, records: Iterable[MemberRecord]) -> None:
        group = batch.step.group
        if batch.step.changed:
            self._simulation.trace_line(
                f"coordinator {job.epoch} publishes generation {group.generation} "
                f"({group.state.value}: {group.cause if group.generation else 'configured'})"
            )
        for record in records:
            self._simulation.trace_line(f"  to {record.member}: {record_text(record)}")

    # ------------------------------------------------------------------------------- ends

    def _end(self, job: Job) -> None:
        self.running.remove(job)
        if self.newest is job:
            self.newest = None
        self._simulation.trace_line(f"coordinator {job.epoch} has ended")
