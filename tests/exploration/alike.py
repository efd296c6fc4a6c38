"""When two states are one: no step that can still happen tells them apart.

Moments count relative to now. Beyond that three things are left out. README.md says why.

1. Counts of records (`Liveness.taken`, marks, demands) are only compared. Of those that are older
   than any that can still be made, the order counts.
2. A later coordinator gives no time to members by marks of an earlier one. So such marks do not
   count, nor those of events that only a later coordinator reads.
3. Heartbeats that were stored at one time, and that only a later coordinator reads, have no order.
"""

from __future__ import annotations

from itertools import groupby

from exploration.coordinator import Coordinator, Coordinators
from exploration.member import Members
from exploration.model import QUANTUM_MS, SystemState
from exploration.values import COUNT, Values, digest, ranked

from muster.protocol.events import Heartbeat, Tick
from muster.protocol.records import WakeUp


class Alike:
    """The keys of the states of one scenario."""

    def __init__(self, values: Values, members: Members, coordinators: Coordinators) -> None:
        self._values, self._members, self._coordinators = values, members, coordinators
        self._ordered: dict[tuple[int, ...], tuple[int, ...]] = {}

    def key(self, state: SystemState) -> bytes:
        """16 bytes that two states share if no step tells them apart."""
        values, now, end = self._values, state.now, state.end
        through = min(c.through for c in state.running)
        taken = len(state.log) - (end - through)
        old, new = self._in_order(state.log[:taken]), state.log[taken:]
        numbers = [state.wake, *new, *state.repeats, *(clock.sent for clock in state.clocks)]
        for coordinator in state.running:
            numbers += (coordinator.group, *coordinator.held)
        epoch = min(map(self._epoch, state.running))
        counts = [count for number in numbers for count in self._counts(number, epoch)]
        parts = (
            ranked(counts, through + COUNT - 1, end),
            tuple([values.relative(n, now) for n in old]),
            tuple([values.relative(n, now) for n in new]),
            tuple([c.relative(values, now, end) for c in state.running]),
            values.relative(state.published, now),
            state.published and self._coordinators.recovered(state.published)[1] - end,
            values.relative(state.wake, now),
            max(state.ticked - now, -QUANTUM_MS) if state.ticked else None,
            tuple([self._members.relative(p, now) for p in state.processes]),
            tuple([values.relative(n, now) for n in state.repeats]),
            tuple([(str(task), *token) for task, *token in state.tokens]),
            tuple(state.budget),
            tuple([c.relative(values, now) for c in state.clocks]),
        )
        return digest(parts)

    def _epoch(self, coordinator: Coordinator) -> int:
        """Marks of earlier coordinators give no time to members of its group."""
        epoch: int = self._values[coordinator.group].coordinator_epoch
        return coordinator.epoch if epoch < 0 else epoch  # below 0: it was just read back

    def _counts(self, number: int, epoch: int) -> tuple[int, ...]:
        """The counts of records in a value, if its mark is not of a coordinator before `epoch`."""
        value = self._values[number]
        mark = value.published if isinstance(value, Tick | WakeUp) else None
        is_old = mark is not None and mark.coordinator_epoch < epoch
        return () if is_old else self._values.counts(number)

    def _in_order(self, events: tuple[int, ...]) -> tuple[int, ...]:
        """Events that only a later coordinator reads: heartbeats of one time by member."""
        known = self._ordered.get(events)
        if known is None:
            runs = groupby(events, key=self._beaten)
            parts = [sorted(run, key=self._sender) if at else run for at, run in runs]
            known = self._ordered[events] = tuple([number for part in parts for number in part])
        return known

    def _beaten(self, number: int) -> int:
        """When an event was stored if it is a heartbeat; 0 = it is none."""
        event = self._values[number]
        return event.origin.at_ms if isinstance(event, Heartbeat) else 0

    def _sender(self, number: int) -> str:
        return str(self._values[number].member)
