"""Breadth-first search over all states of a scenario, each visited once.

A state is remembered by 128 bits. The search keeps for each state by which step it was reached, so
the story of a broken law is a shortest one; and which state a calm system reaches from it, so that
liveness is checked from every state: following calm steps must lead to a settled group.

A search can stop after any state, be saved in a file and go on later from there.
"""

from __future__ import annotations

import gc
import pickle
import time
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from exploration.model import SETTLES_WITHIN, Scenario, SystemState
from exploration.steps import System
from exploration.values import TIME

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
    """One exploration of a scenario, step by step (`System`) or block by block (`Blocks`)."""

    def __init__(self, scenario: Scenario, kind: type[System] = System) -> None:
        self.scenario = scenario
        self.kind = kind
        self.system = kind(scenario)
        self._index: dict[bytes, int] = {}
        self._parent = array("q")
        self._choice = array("H")
        self._calm = array("q")  # the state after a calm step; -1 = settled, -2 = not expanded
        self._steps = 0
        self._depth = 0
        self._seconds = 0.0
        self._began = 0.0
        first = self.system.first()
        self._waiting = deque([(self._seen(self.system.key(first), -1, 0), first)])
        self._left = 1  # states of the present depth that wait

    def run(self, states_max: int | None = None, seconds_max: float | None = None) -> Found:
        """Visit all states, or go on until there are so many or so much time has passed.

        It also ends when a law is broken.

        Args:
            states_max: about how many states; None = all.
            seconds_max: seconds of this process' CPU; None = no limit.
        """
        self._began = time.process_time()
        was_on = gc.isenabled()
        gc.disable()  # states have no cycles, and to look for some takes a third of the time
        try:
            return self._run(states_max, seconds_max)
        finally:
            self._seconds += time.process_time() - self._began
            if was_on:
                gc.enable()

    def _run(self, states_max: int | None, seconds_max: float | None) -> Found:
        waiting = self._waiting
        until = None if seconds_max is None else self._began + seconds_max
        while waiting:
            is_enough = states_max is not None and len(self._index) >= states_max
            if is_enough or (until is not None and time.process_time() >= until):
                break
            place, state = waiting.popleft()
            law = self._expand(place, state, waiting)
            if law:
                return self._found(complete=False, law=law[0], story=law[1])
            self._left -= 1
            if not self._left:
                self._left = len(waiting)
                self._depth += bool(waiting)
        return self._live()

    # ----------------------------------------------------------------------------------- a file

    def save(self, path: Path) -> None:
        """Write the search to a file, from which `resumed` goes on."""
        state = {name: held for name, held in vars(self).items() if name not in ("system",)}
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            pickle.dump((state, self.system.values), file, pickle.HIGHEST_PROTOCOL)
        part.replace(path)

    @classmethod
    def resumed(cls, path: Path) -> Exploration:
        """The search of a file that `save` wrote with the same code.

        Raises:
            OSError: the file cannot be read.
        """
        with path.open("rb") as file:
            state, values = pickle.load(file)  # a file of this command
        found = cls(state["scenario"], state["kind"])
        vars(found).update(state)
        found.system = found.kind(found.scenario, values)
        return found

    def _seen(self, key: bytes, parent: int, choice: int) -> int:
        place = self._index[key] = len(self._index)
        self._parent.append(parent)
        self._choice.append(choice)
        self._calm.append(-2)
        return place

    def _expand(
        self, place: int, state: SystemState, following: deque[tuple[int, SystemState]]
    ) -> tuple[str, tuple[str, ...]] | None:
        system, index = self.system, self._index
        for choice, (what, then) in enumerate(system.steps(state)):
            self._steps += 1
            if isinstance(then, str):
                return then, (*self.story(place), self._line(state, what))
            key = system.key(then)
            known = index.get(key)
            if known is None:
                known = self._seen(key, place, choice)
                following.append((known, then))
            if choice == 0:
                self._calm[place] = known
        if system.unsettled(state) is None:
            self._calm[place] = -1
        return None

    # ---------------------------------------------------------------------------------- liveness

    def _live(self) -> Found:
        """From every state that was expanded, and from a sample of the last, the group settles."""
        longest, complete = 0, not self._waiting
        last = [*self._waiting]
        for place, state in last[:: max(1, len(last) // SAMPLES)]:
            law, calm = self._settles(state)
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

    def _settles(self, state: SystemState) -> tuple[str, list[str]]:
        """The law that calm steps from a state break, and these steps."""
        system, calm = self.system, ["from here on, nothing fails:"]
        for _ in range(SETTLES_WITHIN):
            if system.unsettled(state) is None:
                return "", []
            what, then = system.calm_step(state)
            calm.append(self._line(state, what))
            if isinstance(then, str):
                return then, calm
            state = then
        return f"the group never settles: {system.unsettled(state)}", calm[:100]

    # ------------------------------------------------------------------------------------- story

    def _found(
        self, *, complete: bool, longest: int = 0, law: str = "", story: tuple[str, ...] = ()
    ) -> Found:
        return Found(
            states=len(self._index),
            steps=self._steps,
            depth=self._depth,
            complete=complete,
            seconds=self._seconds + time.process_time() - self._began,
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
        state, lines = self.system.first(), []
        for choice in reversed(choices):
            what, then = self.system.steps(state)[choice]
            assert not isinstance(then, str)
            lines.append(self._line(state, what))
            state = then
        return tuple(lines)

    def _line(self, state: SystemState, what: str) -> str:
        return f"{(state.now - TIME) / 1000:4.0f} s  {what}"


def replayed(scenario: Scenario, story: Sequence[str]) -> str:
    """The law that a story breaks; empty = none.

    Raises:
        LookupError: a step of the story cannot happen.
    """
    system = System(scenario)
    end = system.followed(system.first(), story)
    return end if isinstance(end, str) else ""
