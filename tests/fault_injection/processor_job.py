"""Coordinators that are the real `GroupProcessor`, bytes in and bytes out, without a JVM.

A batch runs on the values that the last committed batch stored, so a job that starts again repeats
it on the same values. Some records end the process that works on them: then the job ends, and the
next one repeats the batch in child processes, as in `muster.streams.processor`; or another process
takes over without a checkpoint. In some runs every group batch with a config is computed aside. A
child process is played in this one.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from fault_injection.checker import LawBroken, forgotten_drain, misplaced
from fault_injection.faulty_jobs import FaultyJob, FaultyJobs
from pyspark.sql.streaming.tws_tester import TwsTester
from pyspark.sql.types import Row

from muster.protocol import codec
from muster.protocol.events import Event, Mark, Tick
from muster.protocol.keyring import Keyring
from muster.protocol.records import GroupGone, GroupSnapshot, Record, Rejected
from muster.protocol.topics import TOPICS, TopicKind
from muster.simulation.jobs import FIRST_EPOCH, Batch, Checkpoint, Offsets
from muster.simulation.log import GROUP, delay
from muster.state.assignor_outcome import Question
from muster.state.group import Group
from muster.state.machine import Step
from muster.streams import crash_loop, processor
from muster.streams.batch import batches_aside, group_batch, pace, quarantine, waiting_rows
from muster.streams.batch.child_process import ChildFailed
from muster.streams.batch.group_batch import BatchResult, Publisher, Rows
from muster.streams.batch.stored_values import Stored
from muster.streams.checkpoint.unverified_groups import UNVERIFIED_MS
from muster.streams.processor import GroupProcessor
from muster.streams.source import HEADER, Packing, input_topics, lane_of

if TYPE_CHECKING:
    from fault_injection.processor_run import ProcessorRun

PREFIX = "muster"
INPUT = input_topics([PREFIX])
LANE = lane_of(PREFIX, GROUP.encode())
_PARTITIONS = {topic.name(PREFIX): 1 for topic in TOPICS}
_REBUILD_MS = 20_000
NOTHING = Stored()
ASIDE_BATCHES_MAX = 6
"""A child process that computes a large group batch takes so many batches at most."""
_READ_AGAIN = (0, 0, 5, 50)
"""How many old rows a start without a checkpoint may read, because another group needs them."""
PACED_MS = 2_000
"""How much later a config is processed where groups are paced."""


class ProcessEnded(BaseException):
    """The process of the processor has ended."""


class DeadlyProcessor(GroupProcessor):
    """The processor; some records end its process.

    Attributes:
        deadly: whether these packed rows end the process; its second argument says that the process
            is a child.
    """

    deadly: Callable[[Sequence[bytes], bool], bool]
    _is_child = False

    def _run(self, rows: Rows) -> BatchResult:
        if self.deadly(rows.entries, self._is_child):
            raise ProcessEnded
        return super()._run(rows)

    def compute_aside(self, work: Callable[[], BatchResult]) -> BatchResult | str:
        """Play a child process that computes a large group batch while batches go on."""
        before = dict(vars(self))
        self._is_child = True
        try:
            return work()
        except ProcessEnded:
            return "its process was killed"
        finally:
            vars(self).clear()
            vars(self).update(before)

    def _in_child(self, work: Callable[[], BatchResult]) -> BatchResult:
        """Play a child process: its changes to memory are lost, and its answer is pickled."""
        before = deepcopy((self._letter_budget, self._large_configs))
        self._is_child = True
        try:
            taken = work()
            budget = self._letter_budget
        except ProcessEnded:
            raise ChildFailed("its process was killed") from None
        finally:
            self._is_child = False
            self._letter_budget, self._large_configs = before
        self._letter_budget = budget
        rows, stored = pickle.loads(pickle.dumps((taken.rows, taken.stored)))
        return BatchResult(rows, None, stored)


class ChildProcesses:
    """The child processes of a worker: an answer is there after some batches.

    Attributes:
        play: computes an answer as a child process does.
    """

    is_full = False

    def __init__(self) -> None:
        self.play: Callable[[Callable[[], BatchResult]], BatchResult | str] = lambda work: work()
        self._question: Question | None = None
        self._answer = b""
        self._batches_left = 0

    def ask(self, question: Question, work: Callable[[], BatchResult]) -> BatchResult | str | None:
        """Begin to compute an answer, or give it, as `Asides` does."""
        if question != self._question:
            self._question, self._answer = question, pickle.dumps(self.play(work))
            self._batches_left = Random(repr(question)).randrange(1, ASIDE_BATCHES_MAX + 1)
        self._batches_left -= 1
        return None if self._batches_left >= 0 else pickle.loads(self._answer)  # type: ignore[no-any-return]


@dataclass(slots=True)
class StoreCheckpoint(Checkpoint):
    """The checkpoint of a coordinator with a state store.

    Attributes:
        stored: what the state store has of the group.
        initial: the snapshot that was read back, for the first batch.
        unverified_until_ms: see `muster.streams.checkpoint.unverified_groups`.
        obeyed: whether all earlier coordinators obey its ticks.
        is_suspect: whether the batch that is begun is repeated in child processes.
        set_aside_through: newest offset of config that the quarantine has seen; -1 = none.
    """

    stored: Stored = NOTHING
    initial: GroupSnapshot | None = None
    unverified_until_ms: int = 0
    obeyed: bool = False
    is_suspect: bool = False
    set_aside_through: int = -1

    def taken_up(self) -> Stored:
        """The values with which the next batch begins."""
        if self.initial is None or self.initial.quarantine is None:
            return self.stored
        return Stored(quarantine.READ_BACK, codec.encode(self.initial).value)

    def restored(self) -> Group:
        """The group as the last committed batch left it, or as it was read back."""
        return group_of(self.stored) if self.initial is None else Group.recover(self.initial)


def waits(stored: Stored) -> bool:
    """Whether rows of the group wait for a later batch."""
    return waiting_rows.of(LANE, stored, Packing(INPUT, signed=False)) is not None


def group_of(stored: Stored) -> Group:
    """The group of stored values, without the rows that wait."""
    waiting = waiting_rows.of(LANE, stored, Packing(INPUT, signed=False))
    return group_batch.restore(GROUP, stored if waiting is None else waiting.before)


class ProcessorJob(FaultyJob):
    """One coordinator.

    Attributes:
        keyring: gives the keyring as the job has it now; None = it has no signing keys.
        is_careful: whether it runs every group batch in a child process.
    """

    checkpoint: StoreCheckpoint

    def __init__(
        self,
        world: ProcessorRun,
        epoch: int,
        checkpoint: StoreCheckpoint,
        keyring: Callable[[], Keyring] | None,
        *,
        is_careful: bool,
    ) -> None:
        super().__init__(world.log, epoch, checkpoint)
        self.keyring = keyring
        self.is_careful = is_careful
        self._world = world
        self._cache: Any = type(processor._cache)()
        self._pending = checkpoint.stored
        self._children = ChildProcesses()

    def decide(self, events: Sequence[Event]) -> Step:
        """Run the processor for the events of a batch.

        Raises:
            ProcessEnded: an event has ended its process.
            LawBroken: a drain was forgotten, a job is placed where it may not run, or a letter says
                that something is wrong in muster.
        """
        signed = self.keyring is not None
        rows = [Row(lane=LANE, entry=self._world.packed(e.origin, signed)) for e in events]
        before = self.checkpoint.taken_up()
        with self._process():
            tester = self._tester()
            written = tester.test(LANE, rows)
            values = [tester.peekValueState(name, LANE) for name in ("liveness", "snapshot")]
            kept = self._cache.get(LANE)
        after = Stored(*(None if value is None else value[0] for value in values))
        self._pending = after
        group = group_of(after) if kept is None or kept.stored != after else kept.group
        records = tuple(map(record_of, written))
        self._world.note_letters([r for r in records if isinstance(r, Rejected)])
        if quarantine.successor_of(after) <= self.epoch:  # else it reads nothing for the group
            self._world.note_quarantine(self, before, after, events)
        changed = any(isinstance(r, GroupSnapshot) for r in records)
        self.generations += group.generation > self.group.generation
        is_usual = not any(each.is_quarantined or waits(each) for each in (before, after))
        self._check(events, group, is_usual=is_usual)
        return Step(group, records, None, changed)

    def _check(self, events: Sequence[Event], group: Group, *, is_usual: bool) -> None:
        if not is_usual:
            return
        broken = forgotten_drain(self.group, events, group)
        is_placed = group.target.generation > self.group.target.generation
        if broken is None and is_placed and not group.target.is_overtaken:
            broken = misplaced(group)
        if broken is not None:
            raise LawBroken(broken)

    def commit(self) -> None:
        """The batch has been published."""
        assert self.batch is not None
        checkpoint = self.checkpoint
        checkpoint.stored, checkpoint.initial = self._pending, None
        checkpoint.through, checkpoint.begun = self.batch.end, None
        checkpoint.is_suspect = False
        self.batch = None

    @contextmanager
    def _process(self) -> Iterator[None]:
        """The memory of the job's Python process."""
        memory = processor._cache, processor._key_file
        limits = batches_aside.LARGE_CONFIG_BYTES, pace.AT_ONCE, pace.GAP_MS
        processor._cache = self._cache
        processor._key_file = lambda path: self  # type: ignore[assignment]  # see `current`
        if self._world.computes_aside:
            batches_aside.LARGE_CONFIG_BYTES = 0
        if self._world.is_paced:
            pace.AT_ONCE, pace.GAP_MS = 0, PACED_MS
        try:
            yield
        finally:
            processor._cache, processor._key_file = memory
            batches_aside.LARGE_CONFIG_BYTES, pace.AT_ONCE, pace.GAP_MS = limits

    def current(self) -> Keyring:
        """The keyring as the job has it now."""
        assert self.keyring is not None
        return self.keyring()

    def _tester(self) -> TwsTester:
        checkpoint = self.checkpoint
        publisher = Publisher(
            self.epoch,
            _PARTITIONS,
            _REBUILD_MS,
            unverified_until_ms=checkpoint.unverified_until_ms,
            check_share=1.0,
            predecessors_obey=checkpoint.obeyed,
        )
        signing_keys = None if self.keyring is None else "keys.json"
        run = DeadlyProcessor({PREFIX: publisher}, INPUT, signing_keys=signing_keys)
        run.deadly = self._world.deadly
        self._children.play = run.compute_aside
        initial = checkpoint.initial
        rows: list[tuple[bytes, Row]] = []
        if initial is not None:
            snapshot, quarantined = codec.encode(initial).value, initial.quarantine is not None
            rows.append((LANE, Row(lane=LANE, snapshot=snapshot, quarantined=quarantined)))
        tester = TwsTester(run, initialStateRow=rows or None)
        run._is_suspect = checkpoint.is_suspect or self.is_careful
        if self._world.computes_aside:  # every batch with a config, but no placement
            run._batches = self._children  # type: ignore[assignment]
        for name in ("liveness", "snapshot"):
            value = getattr(checkpoint.stored, name)
            if value is not None:
                tester.updateValueState(name, LANE, (value,))
        return tester


def record_of(row: Row) -> Record:
    """The record of a row that the processor wrote."""
    kind = TopicKind(row.topic.rpartition(".")[2])
    return codec.decode_record(kind, row.key, row.value)


class ProcessorJobs(FaultyJobs):
    """All running coordinators."""

    _simulation: ProcessorRun

    def begin(self, checkpoint: Checkpoint | None = None) -> None:
        """Start a coordinator; without a checkpoint it recovers from the published records."""
        world, epoch = self._simulation, next(self._epochs)
        is_new = checkpoint is None
        known = self._new_checkpoint(epoch) if checkpoint is None else checkpoint
        assert isinstance(known, StoreCheckpoint)
        is_careful = is_new and epoch >= FIRST_EPOCH + crash_loop.CLAIMS_MAX - 1
        job = ProcessorJob(world, epoch, known, world.keyring_of_job(), is_careful=is_careful)
        job.behind_until = self.next_behind_until
        self.newest = job
        self.running.append(job)
        world.send(Tick(group=GROUP, published=Mark(epoch, 0)))
        self._wake(job, 1.0)

    def _new_checkpoint(self, epoch: int) -> StoreCheckpoint:
        world, rng = self._simulation, Random(f"start/{epoch}/{self._simulation.seed}")
        snapshot = self._log.snapshot
        is_first = epoch == FIRST_EPOCH
        through: Offsets = {"membership": 0, "config": 0, "lag": 0}
        if snapshot is not None:
            for topic, _, offset in snapshot.through:
                kind = topic.rpartition(".")[2]
                again = 0 if kind == "config" else rng.choice(_READ_AGAIN)
                through[kind] = max(0, offset + 1 - again)
            through["config"] = 0
        return StoreCheckpoint(
            through=through,
            initial=snapshot,
            unverified_until_ms=0 if is_first else int(world.now) + UNVERIFIED_MS,
            obeyed=not is_first and world.predecessors_obey,
            set_aside_through=-1 if snapshot is None else world.set_aside_through(snapshot),
        )

    def restart(self, written: int, *, checkpoint: bool, in_order: bool = False) -> None:
        """The newest coordinator ends in the middle of a write, and soon starts again."""
        job = self.newest
        if job is not None:
            job.checkpoint.is_suspect = not in_order and job.checkpoint.begun is not None
        super().restart(written, checkpoint=checkpoint)

    def _compute(self, job: ProcessorJob) -> None:
        try:
            super()._compute(job)
        except ProcessEnded:
            self._died(job)

    def _died(self, job: ProcessorJob) -> None:
        """The process of a coordinator ended in a batch; it starts again, or another takes over."""
        was_newest = self.newest is job
        self._simulation.trace_line(f"coordinator {job.epoch}: its process is killed")
        self._end(job)
        job.checkpoint.is_suspect = True
        left = None if self._simulation.is_pair else job.checkpoint

        def again() -> None:
            if self.newest is None:
                self.begin(left)

        if was_newest:
            self._simulation.at(self._simulation.now + delay(self._rng, 50), again)

    def _write(self, job: ProcessorJob, batch: Batch, percent: int) -> None:
        super()._write(job, batch, percent)
        gone = [r for r in batch.step.records if isinstance(r, GroupGone)]
        if gone and percent == 100:
            self._log.snapshot = None


def offset_of(entry: bytes) -> tuple[str, int]:
    """Topic and offset of a packed row."""
    _, number, _, offset, _ = HEADER.unpack_from(entry)
    return INPUT[number].rpartition(".")[2], offset
