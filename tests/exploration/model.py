"""What a scenario is, and one state of the whole system, as values."""

from __future__ import annotations

from typing import NamedTuple

from exploration.clocks import Clock
from exploration.coordinator import REBUILD_MS, Coordinator
from exploration.member import Process

from muster.protocol.ids import Task

SETTLES_WITHIN = 600
"""Most calm steps from any state until the group has settled."""
QUANTUM_MS = 1_000
"""The heartbeat interval, and the step of time."""
DRIFT_MS = QUANTUM_MS // 100
"""What a clock that is 1 % slow or fast loses or gains in a step of time."""
SETTINGS = {
    "session.timeout.ms": "3000",
    "heartbeat.interval.ms": "1000",
    "rebalance.timeout.ms": "2000",
    "initial.rebalance.delay.ms": "0",
}


class Budget(NamedTuple):
    """How many faults of each kind may still happen.

    Attributes:
        crash: a process dies. start: a process starts again under the name of a dead one.
        late: time passes although something is overdue.
        repeat: an event is stored twice, the second time behind later ones.
        fail: an event is not stored, and its sender knows it.
        stop: the coordinator dies within a batch; a part of the records is published.
        lose: the coordinator's checkpoint is lost; it recovers from the published records.
        usurp: a second coordinator recovers while the first, of an old version, lives on.
        standby: the same, but the first obeys ticks, and may be frozen for any time.
        leave: a member is closed. away: it is closed and will return.
        drain: an operator drains a member.
        refuse: an event is stored, and the coordinator refuses its signature.
        drift: a process' clock is 1 % slow or fast for a heartbeat interval.
        behind: a copy reports that it is behind before it reports that it has caught up.
        hurry: a clock writes a tick before it has read the newest heartbeats.
        lost: a tick of a clock is not stored. doubt: it is stored, and its clock does not know it.
        halt: a clock ends; where it was the only one, another starts. more: one more starts.
        early: a clock writes a tick up to `QUANTUM_MS` before its time, beside another one.
    """

    crash: int = 0
    start: int = 0
    late: int = 0
    repeat: int = 0
    fail: int = 0
    stop: int = 0
    lose: int = 0
    usurp: int = 0
    standby: int = 0
    leave: int = 0
    away: int = 0
    drain: int = 0
    refuse: int = 0
    drift: int = 0
    behind: int = 0
    hurry: int = 0
    lost: int = 0
    doubt: int = 0
    halt: int = 0
    more: int = 0
    early: int = 0

    def less(self, kind: str) -> Budget:
        """The budget after one fault of this kind."""
        return self._replace(**{kind: getattr(self, kind) - 1})


class Scenario(NamedTuple):
    """What is explored.

    Attributes:
        members: names of the members; all are there from the beginning.
        static: those that have an instance id.
        tasks: number of tasks.
        budget: the faults.
        settings: settings of the group besides `SETTINGS`.
        assignor: its assignor.
        lags: copies report how far they are behind, not that they are ready.
        settled: begin with a group that has settled, not with the joins.
        after: single steps that have happened before the search begins, in words.
        clocks: clocks that read heartbeats; 0 = members write them to the group's own log.
        waits: clocks write no tick while all heartbeats are as agreed; False = an old clock.
        rebuild_ms: a published snapshot that is older is published again.
        skew_ms: how much the broker of the heartbeats is ahead of that of the group's log.
    """

    members: tuple[str, ...]
    tasks: int
    budget: Budget = Budget()
    static: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    assignor: str = "sticky"
    lags: bool = False
    settled: bool = False
    after: tuple[str, ...] = ()
    clocks: int = 0
    skew_ms: int = 0
    waits: bool = True
    rebuild_ms: int = REBUILD_MS


class SystemState(NamedTuple):
    """One state of the whole system. Groups, events, records and sends are numbers of `Values`.

    Attributes:
        now: true time, and the broker's.
        log: events that a coordinator may still take; the last has offset `end` - 1.
        end: end offset of the log.
        running: the coordinator, and behind it one that it has superseded.
        published: newest snapshot of the group; 0 = not needed any more.
        wake: newest wake-up; 0 = none.
        ticked: when the clock last wrote a tick for it; 0 = not yet.
        processes: those that run.
        repeats: sends that will be stored a second time.
        tokens: for each task (generation, epoch, owner) of its newest grant.
        budget: faults that may still happen.
        clocks: clocks that read heartbeats, where members heartbeat apart.
    """

    now: int
    log: tuple[int, ...]
    end: int
    running: tuple[Coordinator, ...]
    published: int
    wake: int
    ticked: int
    processes: tuple[Process, ...]
    repeats: tuple[int, ...]
    tokens: tuple[tuple[Task, int, int, str], ...]
    budget: Budget
    clocks: tuple[Clock, ...] = ()
