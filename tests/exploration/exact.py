"""The search of single steps in which two states are one only if all their moments are equal.

It leaves nothing out. So it is the check of what `alike.py` and `reduction.py` leave out: whenever
time has passed, both must have reached the same states.
"""

from __future__ import annotations

from typing import Any

from exploration.coordinator import whole
from exploration.model import QUANTUM_MS, Scenario, World
from exploration.values import Values, digest
from exploration.world import System


class Exact(System):
    """The steps of one scenario; its keys tell states apart by everything in them."""

    def __init__(self, scenario: Scenario, values: Values | None = None) -> None:
        super().__init__(scenario, values)
        self.coordinators.seen, self.members.seen = whole, vars

    def key(self, world: World) -> bytes:
        """16 bytes that two states share if they are equal but for when they happen."""
        values, now, end = self.values, world.now, world.end

        def behind(numbers: tuple[int, ...], true: int = now) -> list[bytes]:
            return [values.behind(n, true, end) for n in numbers]

        parts = (
            *behind((*world.log, 0, *world.repeats, 0, world.published, world.wake)),
            max(world.ticked - now, -QUANTUM_MS) if world.ticked else None,
            *[c.relative(values, now, end) for c in world.running],
            *[each for c in world.running for each in behind((c.group, *c.held))],
            *[self.members.relative(p, now) for p in world.processes],
            *[behind((p.session,), p.clock_ms(now)) for p in world.processes],
            *[behind((*p.outbox, 0, *p.inbox)) for p in world.processes],
            *[(str(task), *token) for task, *token in world.tokens],
            tuple(world.budget),
            *[c.relative(values, now) for c in world.clocks],
            *behind(tuple([c.sent for c in world.clocks])),
        )
        return digest(parts)


def moved(world: World, source: System, target: System) -> World:
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
        for p in world.processes
    ]
    running = [
        c._replace(group=put(c.group, target.coordinators.seen), held=each(c.held))
        for c in world.running
    ]
    clocks = [
        c._replace(fold=put(c.fold), unread=each(c.unread), sent=put(c.sent)) for c in world.clocks
    ]
    return world._replace(
        clocks=tuple(clocks),
        log=each(world.log),
        repeats=each(world.repeats),
        published=put(world.published),
        wake=put(world.wake),
        processes=tuple(processes),
        running=tuple(running),
    )
