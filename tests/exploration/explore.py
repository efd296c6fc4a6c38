"""Breadth-first search over all states of a scenario, each visited once.

A state is remembered by 128 bits. The search keeps for each state by which step it was reached, so
the story of a broken law is a shortest one; and which state a calm system reaches from it, so that
liveness is checked from every state: following calm steps must lead to a settled group.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from exploration.model import SETTLES_WITHIN, Scenario, World
from exploration.values import TIME
from exploration.world import System

SAMPLES = 100
"""Of the states that an incomplete search has not expanded, about so many must settle."""


class Found(NamedTuple):
    """The result of an exploration.

    Attributes:
        states: states visited. steps: steps taken. depth: longest of the shortest ways to a state.
        complete: whether no state is left to visit.
        seconds: how long it took.
        longest: most calm steps from a state to a settled group.
        law: the law that is broken; empty = none.
        story: how, one line for each step.
    """

    states: int
    steps: int
    depth: int
    complete: bool
    seconds: float
    longest: int = 0
    law: str = ""
    story: tuple[str, ...] = ()


class Exploration:
    """One exploration of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.system = System(scenario)
        self._index: dict[int, int] = {}
        self._parent = array("q")
        self._choice = array("H")
        self._calm = array("q")  # the state after a calm step; -1 = settled, -2 = not expanded
        self._steps = 0
        self._depth = 0
        self._began = time.process_time()

    def run(self, states_max: int | None = None) -> Found:
        """Visit all states, or about so many, until a law is broken."""
        system = self.system
        first = system.first()
        frontier = [(self._seen(system.key(first), -1, 0), first)]
        complete = True
        while frontier:
            if states_max is not None and len(self._index) >= states_max:
                complete = False
                break
            following: list[tuple[int, World]] = []
            for place, world in frontier:
                law = self._expand(place, world, following)
                if law:
                    return self._found(complete=False, law=law[0], story=law[1])
            frontier = following
            self._depth += 1
        return self._live(frontier, complete=complete)

    def _seen(self, key: int, parent: int, choice: int) -> int:
        place = self._index[key] = len(self._index)
        self._parent.append(parent)
        self._choice.append(choice)
        self._calm.append(-2)
        return place

    def _expand(
        self, place: int, world: World, following: list[tuple[int, World]]
    ) -> tuple[str, tuple[str, ...]] | None:
        system, index = self.system, self._index
        for choice, (what, then) in enumerate(system.steps(world)):
            self._steps += 1
            if isinstance(then, str):
                return then, (*self.story(place), self._line(world, what))
            key = system.key(then)
            known = index.get(key)
            if known is None:
                known = self._seen(key, place, choice)
                following.append((known, then))
            if choice == 0:
                self._calm[place] = known
        if system.unsettled(world) is None:
            self._calm[place] = -1
        return None

    # ---------------------------------------------------------------------------------- liveness

    def _live(self, frontier: list[tuple[int, World]], *, complete: bool) -> Found:
        """From every state that was expanded, and from each of the last ones, the group settles."""
        longest = 0
        for place, world in frontier[:: max(1, len(frontier) // SAMPLES)]:
            law, calm = self._settles(world)
            if law:
                return self._found(complete=complete, law=law, story=(*self.story(place), *calm))
        distance = array("i", [-1]) * len(self._calm)
        for start in range(len(self._calm)):
            way, place = [], start
            while place >= 0 and distance[place] < 0 and self._calm[place] >= 0:
                distance[place] = SETTLES_WITHIN  # for a way that returns to itself
                way.append(place)
                place = self._calm[place]
            far = distance[place] if distance[place] >= 0 else 0
            distance[place] = far
            for visited in reversed(way):
                far = min(far + 1, SETTLES_WITHIN)
                distance[visited] = far
            if far >= SETTLES_WITHIN:
                return self._found(
                    complete=complete, law="the group never settles", story=self.story(start)
                )
            longest = max(longest, far)
        return self._found(complete=complete, longest=longest)

    def _settles(self, world: World) -> tuple[str, list[str]]:
        """The law that calm steps from a state break, and these steps."""
        system, calm = self.system, ["from here on, nothing fails:"]
        for _ in range(SETTLES_WITHIN):
            if system.unsettled(world) is None:
                return "", []
            what, then = system.calm_step(world)
            calm.append(self._line(world, what))
            if isinstance(then, str):
                return then, calm
            world = then
        return f"the group never settles: {system.unsettled(world)}", calm[:100]

    # ------------------------------------------------------------------------------------- story

    def _found(
        self, *, complete: bool, longest: int = 0, law: str = "", story: tuple[str, ...] = ()
    ) -> Found:
        return Found(
            states=len(self._index),
            steps=self._steps,
            depth=self._depth,
            complete=complete,
            seconds=time.process_time() - self._began,
            longest=longest,
            law=law,
            story=story,
        )

    def story(self, place: int) -> tuple[str, ...]:
        """What happened on the shortest way to a state."""
        choices: list[int] = []
        while self._parent[place] >= 0:
            choices.append(self._choice[place])
            place = self._parent[place]
        world, lines = self.system.first(), []
        for choice in reversed(choices):
            what, then = self.system.steps(world)[choice]
            assert not isinstance(then, str)
            lines.append(self._line(world, what))
            world = then
        return tuple(lines)

    def _line(self, world: World, what: str) -> str:
        return f"{(world.now - TIME) / 1000:4.0f} s  {what}"


def replayed(scenario: Scenario, story: Sequence[str]) -> str:
    """The law that a story breaks; empty = none.

    Raises:
        LookupError: a step of the story cannot happen.
    """
    system = System(scenario)
    world = system.first()
    for line in story:
        then = next((then for what, then in system.steps(world) if what == line), None)
        if then is None:
            raise LookupError(f"{line}: not one of {[what for what, _ in system.steps(world)]}")
        if isinstance(then, str):
            return then
        world = then
    return ""
