"""A search that leaves out orders of steps that cannot be told apart.

A step is *local* if it changes its actor only, and of the actor nothing that a law looks at: a
process sees the time, or reads a record that gives it no task; a coordinator takes events and
publishes nothing. A local step changes places with every step of every other actor: the state
after both is the same, and so is each law's verdict. So it is put off until its actor's next step
that is not local, or until time passes. What is taken instead of single steps is a *block*: local
steps of one actor and, behind them, one step that is not; or local steps of all actors, and then
time passes.

Every state right after time has passed, and every broken law, is found as by the search of single
steps. README.md says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

from exploration.coordinator import LawBroken
from exploration.member import Process
from exploration.model import SystemState
from exploration.steps import Step, System, is_frozen, running_with

THEN = "; "
"""Between the steps of a block, in a story."""
STUCK = "nothing happens any more"


class Next(NamedTuple):
    """A step of an actor.

    Attributes:
        step: what happens, and the state after it or the law that it breaks.
        is_local: no other actor and no law can tell whether it has happened.
        may_wait: time may pass before it happens: it is a fault, or the actor is frozen.
    """

    step: Step
    is_local: bool = False
    may_wait: bool = False


class Node(NamedTuple):
    """A state within a block.

    Attributes:
        said: what has happened since the block began.
        state: the state of the whole system at that moment.
        nexts: the steps that its actor may do next.
    """

    said: tuple[str, ...]
    state: SystemState
    nexts: list[Next]

    @property
    def is_done(self) -> bool:
        """Whether the actor lets time pass."""
        return all(each.may_wait for each in self.nexts)


class Blocks(System):
    """The steps of one scenario, in blocks."""

    def steps(self, state: SystemState) -> list[Step]:
        """Every block from a state. The first is one without a fault."""
        chains = [self._of_process_chain(state, place) for place in range(len(state.processes))]
        chains += [self._of_coordinator_chain(state, place) for place in range(len(state.running))]
        calm, faults = list[Step](), list[Step]()
        for node in (node for chain in chains for node in chain):
            for (what, then), is_local, may_wait in node.nexts:
                if not is_local:
                    (faults if may_wait else calm).append((_told((*node.said, what)), then))
        by_itself = [self._judged(state, *step) for step in self._of_no_member(state)]
        calm += by_itself
        faults += [self._judged(state, *step) for step in self._faults_of_no_member(state)]
        for place, _ in enumerate(state.processes):
            faults += [self._judged(state, *step) for step in self._deaths(state, place)]
        calm += self._time(state, chains, waits=bool(by_itself))
        if not calm:  # an actor does the same again and again, and time does not pass
            calm.append((STUCK, state))
        if state.budget.late:
            faults += self._late(state, chains, waits=bool(by_itself))
        return [(what, self.without_silent(then)) for what, then in [*calm, *faults]]

    def without_silent(self, state: SystemState | str) -> SystemState | str:
        """The state in which coordinators have taken the events that are silent for them.

        A superseded one has then begun no batch for it; it may as well have ended.
        """
        if isinstance(state, str) or state.budget.stop:
            return state  # a coordinator that dies within a batch takes the same batch again
        alone = len(state.running) == 1 or not state.published
        for place, coordinator in enumerate(state.running):
            busy = coordinator.begun or coordinator.held or not coordinator.begins(state.now)
            if busy or not alone or is_frozen(place, coordinator):
                continue
            while coordinator.through < state.end:
                after = self.coordinators.silent(
                    coordinator.group,
                    state.log[coordinator.through - state.end],
                    coordinator.epoch,
                    0 if place else state.published,
                    obeys=coordinator.obeys,
                )
                if after is None:
                    break
                coordinator = coordinator._replace(group=after, through=coordinator.through + 1)
                state = running_with(state, place, coordinator)
        return self._pruned(state)

    # ----------------------------------------------------------------------------- local steps

    def _of_process_chain(self, state: SystemState, place: int) -> list[Node]:
        """The states to which local steps of a process lead. It may die in the first only.

        A process that dies after a local step leaves the same state as one that dies before it.
        """

        def nexts(now: SystemState) -> Iterator[Next]:
            process = now.processes[place]
            for what, outcome in self._of_process_once(process, now.now):
                is_local = not outcome.granted and self._looks_same(process, outcome.process, now)
                then = self._with(now, place, outcome)
                yield self._next(now, f"{process.name} {what}", then, is_local=is_local)
            for step in self._stores(now, place):
                yield self._next(now, *step)
            for step in self._process_faults(now, place, process):
                yield self._next(now, *step, may_wait=True)

        return _chain(state, nexts, lambda now: now.processes[place])

    def _of_coordinator_chain(self, state: SystemState, place: int) -> list[Node]:
        """The states to which local steps of a coordinator lead."""
        frozen = is_frozen(place, state.running[place])

        def nexts(now: SystemState) -> Iterator[Next]:
            for what, then in self._of_coordinator(now, place):
                is_local = not frozen and self._is_silent(now, then, place)
                yield self._next(now, what, then, is_local=is_local, may_wait=frozen)
            for step in self._coordinator_faults(now) if not place else ():
                yield self._next(now, *step, may_wait=True)

        return _chain(state, nexts, lambda now: now.running[place])

    def _next(
        self,
        state: SystemState,
        what: str,
        then: SystemState | str,
        *,
        is_local: bool = False,
        may_wait: bool = False,
    ) -> Next:
        step = self._judged(state, what, then)
        return Next(step, is_local and not isinstance(step[1], str), may_wait)

    def _looks_same(self, before: Process, after: Process, state: SystemState) -> bool:
        """Whether the laws look at two states of a process alike, until time passes."""
        return self._look(before, state.now) == self._look(after, state.now)

    def _look(self, process: Process, now: int) -> tuple[Any, ...]:
        session, clock_ms = self.members.session(process), process.clock_ms(now)
        return (
            process.using,
            process.ended,
            process.guard_ms > clock_ms,
            session.lease_ms is not None and session.lease_ms > clock_ms,
            session.state,
            session.incarnation,
        )

    def _is_silent(self, before: SystemState, then: SystemState | str, place: int) -> bool:
        """Whether a batch publishes nothing, and leaves its group as the laws see it.

        Beside a second coordinator, what a batch publishes may depend on when the other does.
        """
        if isinstance(then, str) or len(then.running) != len(before.running):
            return False
        was, now = before.running[place], then.running[place]
        alone = len(before.running) == 1 or not before.published
        if not alone or was.batches != -1 or was.held or was.begun:
            return False
        try:
            batch = self._computed(before, was, now.through)
        except LawBroken:
            return False
        old, new = self.values[was.group], self.values[now.group]
        return (
            not batch.records
            and old.recovery.asked == new.recovery.asked
            and [(m.id, m.incarnation) for m in old.roster]
            == [(m.id, m.incarnation) for m in new.roster]
            and old.owned.holder.tolist() == new.owned.holder.tolist()
        )

    # -------------------------------------------------------------------------------------- time

    def _time(self, state: SystemState, chains: list[list[Node]], *, waits: bool) -> Iterator[Step]:
        """All actors do what is left to do, as far as it is local, and time passes."""
        if waits:
            return
        for nodes in product(*[[n for n in chain if n.is_done] for chain in chains]):
            done, said = self._together(state, nodes)
            for what, then in self._time_passes(done, may_pass=True):
                yield self._judged(done, _told((*said, what)), then)

    def _late(self, state: SystemState, chains: list[list[Node]], *, waits: bool) -> Iterator[Step]:
        """Some actors have done some local steps, and time passes although something is left."""
        for nodes in product(*chains):
            if waits or not all(node.is_done for node in nodes):
                some, said = self._together(state, nodes)
                for what, then in self._time_passes(some, may_pass=False):
                    yield self._judged(some, _told((*said, what)), then)

    def _together(
        self, state: SystemState, nodes: tuple[Node, ...]
    ) -> tuple[SystemState, tuple[str, ...]]:
        """The state in which each actor is where its own local steps lead."""
        count = len(state.processes)
        processes = tuple([node.state.processes[i] for i, node in enumerate(nodes[:count])])
        running = tuple([node.state.running[i] for i, node in enumerate(nodes[count:])])
        both = state._replace(processes=processes, running=running)
        if running != state.running:
            both = self._pruned(both)
        return both, tuple([line for node in nodes for line in node.said])


def _chain(
    state: SystemState,
    nexts: Callable[[SystemState], Iterable[Next]],
    part: Callable[[SystemState], Any],
) -> list[Node]:
    """A state and all that local steps of one actor lead to; `part`: that actor in a state."""
    nodes, seen = [Node((), state, [*nexts(state)])], {part(state)}
    for node in nodes:
        for (what, then), is_local, _ in node.nexts:
            if is_local and not isinstance(then, str) and part(then) not in seen:
                seen.add(part(then))
                nodes.append(Node((*node.said, what), then, [*nexts(then)]))
    return nodes


def _told(said: tuple[str, ...]) -> str:
    return THEN.join(said)
