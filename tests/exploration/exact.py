"""The search of single steps in which two states are one only if all their moments are equal.

It leaves nothing out. So it is the check of what `alike.py` and `reduction.py` leave out: whenever
time has passed, both must have reached the same states.
"""

from __future__ import annotations

from typing import Any

from exploration.coordinator import whole
from exploration.model import QUANTUM_MS, Scenario, SystemState
from exploration.steps import System
from exploration.values import Values, digest


class Exact(System):
    """The steps of one scenario; its keys tell states apart by everything in them."""

    def __init__(self, scenario: Scenario, values: Values | None = None) -> None:
        super().__init__(scenario, values)
        self.coordinators.seen, self.members.seen = whole, vars

    def key(self, state: SystemState) -> bytes:
        """16 bytes that two states share if they are equal but for when they happen."""
        values, now, end = self.values, state.now, state.end

        def behind(numbers: tuple[int, ...], true: int = now) -> list[bytes]:
            return [values.behind(n, true, end) for n in numbers]

        parts = (
            *behind((*state.log, 0, *state.repeats, 0, state.published, state.wake)),
            max(state.ticked - now, -QUANTUM_MS) if state.ticked else None,
            *[c.relative(values, now, end) for c in state.running],
            *[each for c in state.running for each in behind((c.group, *c.held))],
            *[self.members.relative(p, now) for p in state.processes],
            *[behind((p.session,), p.clock_ms(now)) for p in state.processes],
            *[behind((*p.outbox, 0, *p.inbox)) for p in state.processes],
            *[(str(task), *token) for task, *token in state.tokens],
            tuple(state.budget),
            *[c.relative(values, now) for c in state.clocks],
            *behind(tuple([c.sent for c in state.clocks])),
        )
        return digest(parts)


def moved(state: SystemState, source: System, target: System) -> SystemState:
    """The same state with the numbers of another system."""

    def put(number: int, seen: Any = None) -> int:
        return target.values.put(source.values[number], seen) if number > 0 else number

    def each(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([put(number) for number in numbers])

    processes = [
        p._replace(
            session=put(p.session, target.members.seen),
            outbox=each(p.outbox),
            inbox=each(p.inbox),
        )
        for p in state.processes
    ]
    running = [
        c._replace(group=put(c.group, target.coordinators.seen), held=each(c.held))
        for c in state.running
    ]
    clocks = [
        c._replace(fold=put(c.fold), unread=each(c.unread), sent=put(c.sent)) for c in state.clocks
    ]
    return state._replace(
        clocks=tuple(clocks),
        log=each(state.log),
        repeats=each(state.repeats),
        published=put(state.published),
        wake=put(state.wake),
        processes=tuple(processes),
        running=tuple(running),
    )
