"""A run whose coordinators are the real processor: a group is quarantined, events are signed.

Beside the faults of `faults.py` records end the processes that work on them, operators release the
group, and signing is turned on, required, turned off and its keys are rotated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from fault_injection import faults
from fault_injection.checker import LawBroken
from fault_injection.fault_run import Apart, FaultRun
from fault_injection.faults import Fault
from fault_injection.keyrings import Keyrings
from fault_injection.process import Process
from fault_injection.processor_job import INPUT, PREFIX, ProcessorJob, ProcessorJobs, offset_of
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Event, GroupConfig, GroupDeleted, LagReport, Origin, Tick
from muster.protocol.framing import PREFIX as PREFIX_OF
from muster.protocol.keyring import Keyring, caller_of
from muster.protocol.keys import whole_key
from muster.protocol.records import GroupSnapshot, Rejected
from muster.protocol.signing import Subject, sign
from muster.simulation.log import GROUP, topic_of
from muster.streams.batch.stored_values import Stored
from muster.worker.session_messages import Send

JOB, OPERATORS = "the job", "operators"
"""Who signs, beside the members: the job with its clock; operators and exporters."""
FOREVER_MS = 10**9
LOOKS_MS = 1_000
"""How often operators look whether the group is quarantined, when the faults are over."""


@dataclass(frozen=True, slots=True)
class Kills:
    """The next record of a topic ends each process that works on it.

    Attributes:
        topic: membership, config or lag.
        cured_ms: how long; then the cause is corrected.
        spares_first: the first attempt goes well, and only children end: a lack of memory.
    """

    topic: str
    cured_ms: int = FOREVER_MS
    spares_first: bool = False


@dataclass(frozen=True, slots=True)
class ReleasesGroup:
    """An operator releases the group if it is quarantined (`muster groups release`)."""


@dataclass(frozen=True, slots=True)
class MakesKeys:
    """An operator makes a keyring."""


@dataclass(frozen=True, slots=True)
class Signs:
    """The job (which ends in order and starts again), operators, or members that start later.

    They sign from now on, or do not any more.
    """

    who: str
    on: bool


@dataclass(frozen=True, slots=True)
class Requires:
    """Signatures are required after the spread, or not any more."""

    on: bool


@dataclass(frozen=True, slots=True)
class Rotates:
    """The keys are rotated; a compromised one ends as soon as the new one signs."""

    is_compromised: bool = False


OperatorFault: TypeAlias = Kills | ReleasesGroup | MakesKeys | Signs | Requires | Rotates


class Signed(NamedTuple):
    """An event on its way, with its signature."""

    event: Event
    signature: bytes


class _Raw(NamedTuple):
    """A record: what the event does not have."""

    value: bytes | None
    signature: bytes


class _Deadly(NamedTuple):
    until: float
    spares_first: bool


_OF_SIGNATURES = (
    DeadLetter.UNKNOWN_KEY,
    DeadLetter.WRONG_SIGNATURE,
    DeadLetter.KEY_NOT_ALLOWED,
    DeadLetter.KEY_RETIRED,
    DeadLetter.STALE_SIGNATURE,
    DeadLetter.MALFORMED_SIGNATURE,
    DeadLetter.REPEATED_SIGNATURE,
)


class ProcessorRun(FaultRun):
    """The simulated world.

    Attributes:
        seed: of the run.
        is_pair: when a coordinator's process ends, another takes over without a checkpoint.
        computes_aside: whether every group batch with a config is computed aside.
        is_paced: whether a group batch with a config waits, as if hundreds of groups had one.
        predecessors_obey: coordinators without a checkpoint know that all earlier ones obey.
        quarantines, releases: how often each happened.
        signed: how many events of members were signed.
    """

    jobs_type = ProcessorJobs

    def __init__(self, seed: int, *, traced: bool = False, **_: object) -> None:
        self.seed = seed
        self.is_pair = seed % 5 == 0
        self.computes_aside = seed % 3 == 0
        self.is_paced = seed % 3 == 1
        self.predecessors_obey = seed % 2 == 0
        self.quarantines = self.releases = self.signed = 0
        self._raw: dict[tuple[str, int], _Raw] = {}
        self._repeated: set[tuple[str, int]] = set()
        self._is_compromised = self._is_required = False
        self._armed: list[Kills] = []
        self._deadly: dict[tuple[str, int], _Deadly] = {}
        self._set_aside: dict[tuple[int, int], int] = {}
        """Coordinator epoch and begin of a quarantine → newest offset of config it has seen."""
        self._looked = 0.0
        self._keyrings = Keyrings(seed)
        self._signs: set[str] = set()
        self._keyed: set[Process] = set()
        self._newest: dict[Process, Any] = {}
        super().__init__(seed, traced=traced)

    # ---------------------------------------------------------------------------------- bytes

    def packed(self, origin: Origin, signed: bool) -> bytes:
        """The row of a record; `signed`: the job reads signatures."""
        raw = self._raw[origin.topic, origin.offset]
        whole = origin._replace(topic=f"{PREFIX}.{origin.topic}")
        return pack(whole, raw.value, INPUT, raw.signature if signed else None)

    def write_event(self, sender: Process, sent: Send, done: Callable[[], None]) -> None:
        """Write an event of a process, signed if it has keys."""
        if sent.apart:
            super().write_event(sender, sent, done)
            return
        keyed = sender in self._keyed
        self.signed += keyed
        event = self._signed(sent.event, sender.name) if keyed else Signed(sent.event, b"")
        self._newest[sender] = event
        self.write(sender, event, done)  # type: ignore[arg-type]  # see `_append`

    def send(self, event: Any) -> None:
        """A client outside the group writes an event."""
        if not isinstance(event, Signed):
            who = JOB if isinstance(event, Tick) else OPERATORS
            event = self._signed(event, who) if who in self._signs else Signed(event, b"")
        super().send(event)

    def _signed(self, event: Event, who: str) -> Signed:
        encoded = codec.encode(event)
        topic = f"{PREFIX}.{topic_of(event)}"
        subject = Subject(topic, whole_key(encoded.key), encoded.value)
        ring, now_ms = self._keyrings.of(who, self.now), self._keyrings.clock_ms(who, self.now)
        return Signed(event, sign(ring, GROUP, caller_of(event), subject, now_ms))

    def _append(self, event: Any) -> None:
        if isinstance(event, Apart):
            super()._append(event)
            return
        if isinstance(event, LagReport):  # of the exporter
            signs = OPERATORS in self._signs
            event = self._signed(event, OPERATORS) if signs else Signed(event, b"")
        bare, signature = event
        topic = topic_of(bare)
        place = topic, len(self.log.inputs[topic])
        if signature and any(raw.signature == signature for raw in self._raw.values()):
            self._repeated.add(place)
        self._raw[place] = _Raw(codec.encode(bare).value, signature)
        for kills in [each for each in self._armed if each.topic == topic]:
            self._armed.remove(kills)
            self._deadly[place] = _Deadly(self.now + kills.cured_ms, kills.spares_first)
        super()._append(bare)

    # ---------------------------------------------------------------------------------- deaths

    def deadly(self, entries: Sequence[bytes], is_child: bool) -> bool:
        """Whether packed rows end the process that works on them."""
        for place in map(offset_of, entries):
            each = self._deadly.get(place)
            if each is not None and self.now < each.until and (is_child or not each.spares_first):
                return True
        return False

    def set_aside_through(self, snapshot: GroupSnapshot) -> int:
        """Newest offset of config that the quarantine of a published snapshot has seen."""
        if snapshot.quarantine is None:
            return -1
        return self._set_aside[snapshot.coordinator_epoch, snapshot.quarantine.since_ms]

    def note_quarantine(
        self, job: ProcessorJob, before: Stored, after: Stored, events: Sequence[Event]
    ) -> None:
        """Note what a batch of a coordinator does with a quarantine.

        Raises:
            LawBroken: it releases the group, and no operator has asked for that.
        """
        written = [e.origin.offset for e in events if isinstance(e, GroupConfig | GroupDeleted)]
        newest = max(written, default=-1)
        checkpoint = job.checkpoint
        if after.is_quarantined:
            self.quarantines += not before.is_quarantined
            checkpoint.set_aside_through = max(checkpoint.set_aside_through, newest)
            record = after.record(GROUP)
            assert record is not None
            assert record.quarantine is not None
            begin = record.coordinator_epoch, record.quarantine.since_ms
            self._set_aside[begin] = checkpoint.set_aside_through
        elif before.is_quarantined:
            self.releases += 1
            if newest <= checkpoint.set_aside_through:
                raise LawBroken("the group is released, and no operator has asked for that")

    def note_letters(self, letters: Sequence[Rejected]) -> None:
        """Look at dead letters.

        Raises:
            LawBroken: the code failed, or a record was refused that is signed in order.
        """
        for letter in letters:
            place = letter.origin.topic.rpartition(".")[2], letter.origin.offset
            if letter.reason == DeadLetter.GROUP_FAILED:
                raise LawBroken(letter.message)
            may_be = self._is_compromised or place in self._repeated
            if letter.reason in _OF_SIGNATURES and not may_be:
                raise LawBroken(f"a signed record is refused: {letter.reason}: {letter.message}")
            is_tick = letter.value.startswith(PREFIX_OF["Tick"])  # with unsigned heartbeats
            if letter.reason == DeadLetter.UNSIGNED and self._raw[place].signature and not is_tick:
                raise LawBroken(f"a signed record is refused: {letter.message}")

    # ---------------------------------------------------------------------------------- signing

    def keyring_of_job(self) -> Callable[[], Keyring] | None:
        """The keyring of a job that starts now; None = it has no signing keys."""
        if JOB not in self._signs:
            return None
        return lambda: self._keyrings.of(JOB, self.now)

    def offers_apart(self, process: Process) -> bool:
        """Whether a process that begins can heartbeat apart."""
        return super().offers_apart(process) and process not in self._keyed

    def _start_as(self, name: str, instance_id: str | None) -> None:
        before = len(self.processes)
        super()._start_as(name, instance_id)
        if name in self._signs:
            self._keyed.update(self.processes[before:])

    # -------------------------------------------------------------------------- what happens

    def happen(self, fault: Fault | OperatorFault) -> None:  # type: ignore[override]
        """Simulate a fault now."""
        match fault:
            case Kills():
                self._armed.append(fault)
            case ReleasesGroup():
                self._release()
            case MakesKeys() if not self._keyrings.exist:
                self._keyrings.create(self.now)
            case Signs(who, on) if self._keyrings.exist:
                self._sign(who, on)
            case Requires(on) if self._keyrings.exist:
                self._require(on)
            case Rotates(is_compromised) if self._keyrings.exist:
                self._is_compromised |= is_compromised
                self._keyrings.rotate(self.now, is_compromised=is_compromised)
            case MakesKeys() | Signs() | Requires() | Rotates():
                return
            case faults.Repeats(name):
                for process in self.processes:
                    if process.name == name and process in self._newest:
                        self.send(self._newest[process])
            case _:
                super().happen(fault)
                return
        self.trace_line(f"* {fault}")

    def _sign(self, who: str, on: bool) -> None:
        (self._signs.add if on else self._signs.discard)(who)
        if who == JOB:
            assert isinstance(self.jobs, ProcessorJobs)
            self.jobs.restart(100, checkpoint=True, in_order=True)

    def _require(self, on: bool) -> None:
        if on != self._is_required:
            self._is_required = on
            self._keyrings.require(self.now, on=on)

    def _release(self) -> None:
        snapshot = self.log.snapshot
        if snapshot is None or snapshot.quarantine is None:
            return
        written = [
            e for e in self.log.inputs["config"] if isinstance(e, GroupConfig | GroupDeleted)
        ]
        if isinstance(written[-1], GroupDeleted):
            self.send(GroupDeleted(group=GROUP))
        else:
            self.configure(self._config)

    def _unsettled(self) -> str | None:
        snapshot = self.log.snapshot
        if snapshot is not None and snapshot.quarantine is not None:
            if self.now - self._looked >= LOOKS_MS:
                self._looked = self.now
                self._release()
            return f"the group is quarantined: {snapshot.quarantine.story}"
        self._armed.clear()
        return super()._unsettled()
