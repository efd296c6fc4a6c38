"""Every step that can happen next, from a state of the whole system (`model.SystemState`).

Kafka is a total order a partition: one input log of the group, and one partition for each member.
Time passes in heartbeat intervals. It passes freely when nothing is overdue; otherwise it costs one
of the budget `late`, so a message, a batch, a callback or a process can be late by that much. The
other budgets bound how many faults of each kind happen in one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from exploration.alike import Alike
from exploration.clocks import MARKER, Clock
from exploration.coordinator import (
    TOPIC,
    Batch,
    Coordinator,
    LawBroken,
    for_member,
    is_wake_up,
)
from exploration.laws import Laws
from exploration.member import GROUP, Outcome, Process
from exploration.model import DRIFT_MS, QUANTUM_MS, SETTINGS, SETTLES_WITHIN, Scenario, SystemState
from exploration.story import named, said
from exploration.values import OFFSET, TIME, Values

from muster.protocol.events import Drain, Heartbeat, Mark, Origin, Refused, Taken, Tick
from muster.protocol.ids import MemberId
from muster.protocol.records import GroupSnapshot, WakeUp
from muster.state.lost_checkpoint import NOTICES_MS

PASSES = "time passes"
FROZEN_BATCHES = 2
"""Batches that a coordinator may begin after a standby has claimed. When it begins them, and when
their records are published, is open: it never reads the claim."""
Step = tuple[str, SystemState | str]
"""What happens, and the state after it, or the law that it breaks."""


class System(Laws):
    """The steps of one scenario."""

    def __init__(self, scenario: Scenario, values: Values | None = None) -> None:
        super().__init__(scenario, values)
        self._alike = Alike(self.values, self.members, self.coordinators)
        self._own: dict[tuple[Process, int], list[tuple[str, Outcome]]] = {}

    # ------------------------------------------------------------------------------- the states

    def first(self) -> SystemState:
        """All members have sent their join and none is read yet, or the group has settled."""
        settings = {**SETTINGS, **dict(self.scenario.settings)}
        # Else it matters how long ago members joined and the group was placed; see `values.py`.
        assert settings["initial.rebalance.delay.ms"] == "0"
        assert "assignment.interval.ms" not in settings
        batch = self.coordinators.configured(settings, self.scenario.assignor, self.scenario.tasks)
        now = TIME + QUANTUM_MS
        processes = tuple(
            self.members.start(
                name, 0, now, self._instance(name), apart=bool(self.scenario.clocks)
            ).process
            for name in self.scenario.members
        )
        coordinator = Coordinator(1, batch.group, OFFSET)
        state = SystemState(
            now, (), OFFSET, (coordinator,), 0, 0, 0, processes, (), (), self.scenario.budget
        )
        for _ in range(self.scenario.clocks):
            state = self._clock_started(state)
        state = self._pruned(self._published(state, batch.records))
        for _ in range(SETTLES_WITHIN if self.scenario.settled else 0):
            _, then = self.calm_step(state)
            if self.unsettled(state) is None or isinstance(then, str):
                break
            state = then
        after = self.followed(state, self.scenario.after)
        assert isinstance(after, SystemState), after
        return after

    def followed(self, state: SystemState, story: Sequence[str]) -> SystemState | str:
        """The state at the end of a story of single steps, or the law that it breaks.

        Raises:
            LookupError: a step of the story cannot happen.
        """
        for line in story:
            steps = System.steps(self, state)
            then = next((then for what, then in steps if what == line), None)
            if then is None:
                raise LookupError(f"{line}: not one of {[what for what, _ in steps]}")
            if isinstance(then, str):
                return then
            state = then
        return state

    def key(self, state: SystemState) -> bytes:
        """16 bytes that two states share if no step tells them apart."""
        return self._alike.key(state)

    def _instance(self, name: str) -> str | None:
        return f"i-{name}" if name in self.scenario.static else None

    # -------------------------------------------------------------------------------- the steps

    def steps(self, state: SystemState) -> list[Step]:
        """Every step from a state. The first is the one that a calm system takes."""
        calm = [*self._calm(state)]
        may_pass = not calm
        if may_pass:
            calm.append((PASSES, state._replace(now=state.now + QUANTUM_MS)))
        faults = self._faults(state, may_pass=may_pass)
        return [
            self._judged(state, what, then) for what, then in [*calm, *self._frozen(state), *faults]
        ]

    def calm_and_faults(self, state: SystemState) -> tuple[list[Step], list[Step]]:
        """What happens without a fault, and every fault; neither has time that passes."""
        faults = self._faults(state, may_pass=False)
        return (
            [self._judged(state, *step) for step in self._calm(state)],
            [self._judged(state, *step) for step in faults if not step[0].startswith("time")],
        )

    def passed(self, state: SystemState) -> Step:
        """Time passes, whatever is overdue."""
        later = state._replace(now=state.now + QUANTUM_MS)
        return self._judged(state, PASSES, later)

    def calm_step(self, state: SystemState) -> Step:
        """The first of `steps`."""
        step = next(self._calm(state), None)
        if step is None:
            step = (PASSES, state._replace(now=state.now + QUANTUM_MS))
        return self._judged(state, *step)

    def _calm(self, state: SystemState) -> Iterator[Step]:
        """What happens without a fault, in the order of a calm system."""
        for place, process in enumerate(state.processes):
            for what, outcome in self._of_process_once(process, state.now):
                yield f"{process.name} {what}", self._with(state, place, outcome)
            yield from self._stores(state, place)
        for place, coordinator in enumerate(state.running):
            if not is_frozen(place, coordinator):
                yield from self._of_coordinator(state, place)
        yield from self._of_no_member(state)

    def _stores(self, state: SystemState, place: int) -> Iterator[Step]:
        """Kafka stores the oldest event that a process has sent."""
        outbox = state.processes[place].outbox
        if outbox:
            yield f"Kafka stores {said(self.values[outbox[0]].event)}", self._stored(state, place)

    def _of_coordinator(self, state: SystemState, place: int) -> Iterator[Step]:
        """What a coordinator does next, if it is not frozen."""
        coordinator = state.running[place]
        yield from self._batches(state, place)
        if coordinator.held:
            yield self._publishes_late(state, place)
        elif place and not is_frozen(place, coordinator):  # it has read the later claim
            yield f"coordinator {coordinator.epoch} ends", self._pruned(_ended(state, place))

    def _of_no_member(self, state: SystemState) -> Iterator[Step]:
        """What happens by itself: Kafka stores a send again, clocks write."""
        for index, number in enumerate(state.repeats):
            event = self.values[number].event
            rest = state._replace(repeats=state.repeats[:index] + state.repeats[index + 1 :])
            yield f"Kafka stores again {said(event)}", self._appended(rest, event)
        if self.scenario.clocks:
            yield from self._clocks(state)
        else:
            yield from self._clock(state)

    def _clock(self, state: SystemState) -> Iterator[Step]:
        """The tick of a clock that hears no heartbeats."""
        wake = self.values[state.wake]
        is_due = wake is not None and wake.at_ms is not None and wake.at_ms <= state.now
        if is_due and not (state.ticked and state.now - state.ticked < QUANTUM_MS):
            tick = Tick(group=GROUP, published=wake.published)
            yield "the clock writes a tick", self._appended(state._replace(ticked=state.now), tick)

    def _clocks(self, state: SystemState) -> Iterator[Step]:
        """What clocks do: they read heartbeats, and write a tick when the group is to be woken."""
        wake, now = self.values[state.wake], state.now
        is_due = wake is not None and wake.at_ms is not None and wake.at_ms <= now
        for place, clock in enumerate(state.clocks):
            if clock.unread:
                read = _clocks_with(state, place, self.clocks.read(clock))
                yield f"clock {clock.name} reads {len(clock.unread)} heartbeats", read
            if clock.sent:
                after = self._tick_stored(state, place, written=True)
                yield f"Kafka stores a tick of clock {clock.name}", after
            elif is_due and not (clock.ticked and now - clock.ticked < QUANTUM_MS):
                if self.scenario.waits and self.clocks.waits(clock, wake.agreement, now):
                    continue
                if wake.apart and not clock.marked:
                    marked = _clocks_with(state, place, clock._replace(marked=True))
                    yield f"clock {clock.name} writes a marker", self._marked(marked)
                elif not clock.unread:
                    ticks = self.clocks.ticks(clock, wake.published, now)
                    yield f"clock {clock.name} writes a tick", _clocks_with(state, place, ticks)
        if not state.clocks:
            yield "a clock starts", self._clock_started(state)

    def _clock_faults(self, state: SystemState) -> Iterator[Step]:
        budget, wake = state.budget, self.values[state.wake]
        is_due = wake is not None and wake.at_ms is not None and wake.at_ms <= state.now
        for place, clock in enumerate(state.clocks):
            name = f"clock {clock.name}"
            if budget.hurry and is_due and clock.unread and not clock.sent:
                less = state._replace(budget=budget.less("hurry"))
                ticks = self.clocks.ticks(clock, wake.published, state.now)
                yield f"{name} writes a tick in a hurry", _clocks_with(less, place, ticks)
            if budget.early and self._is_early(wake, clock, state.now):
                less = state._replace(budget=budget.less("early"))
                ticks = self.clocks.ticks(clock, wake.published, state.now)
                yield f"{name} writes a tick early", _clocks_with(less, place, ticks)
            if budget.lost and clock.sent:
                less = state._replace(budget=budget.less("lost"))
                lost = self.clocks.done(clock, written=False)
                yield f"a tick of {name} is lost", _clocks_with(less, place, lost)
            if budget.doubt and clock.sent:
                less = state._replace(budget=budget.less("doubt"))
                after = self._tick_stored(less, place, written=False)
                yield f"Kafka stores a tick of {name}, which does not know it", after
            if budget.halt:
                rest = state.clocks[:place] + state.clocks[place + 1 :]
                yield f"{name} ends", state._replace(clocks=rest, budget=budget.less("halt"))
        if budget.more:
            less = state._replace(budget=budget.less("more"))
            yield "one more clock starts", self._clock_started(less)

    def _is_early(self, wake: WakeUp | None, clock: Clock, now: int) -> bool:
        """Whether a tick may be written before its time: once for a wake-up, a little before."""
        if wake is None or wake.at_ms is None or not wake.apart or clock.sent or clock.ticked:
            return False
        return now < wake.at_ms <= now + QUANTUM_MS

    def _clock_started(self, state: SystemState) -> SystemState:
        """A clock begins to read at the end, and writes a marker to read something at once."""
        name = max((clock.name for clock in state.clocks), default=0) + 1
        clocks = (*state.clocks, self.clocks.started(name))
        return self._marked(state._replace(clocks=clocks))

    def _marked(self, state: SystemState) -> SystemState:
        return self._heard(state, MARKER)

    def _heard(self, state: SystemState, event: Heartbeat | Tick) -> SystemState:
        """Kafka has stored a record of the heartbeats topic."""
        number = self.clocks.stored(event, state.now + self.scenario.skew_ms)
        clocks = [clock._replace(unread=(*clock.unread, number)) for clock in state.clocks]
        return state._replace(clocks=tuple(clocks))

    def _tick_stored(self, state: SystemState, place: int, *, written: bool) -> SystemState:
        clock = state.clocks[place]
        after = _clocks_with(state, place, self.clocks.done(clock, written=written))
        return self._appended(after, self.values[clock.sent])

    def _of_process_once(self, process: Process, now: int) -> list[tuple[str, Outcome]]:
        """What a process does next by itself; computed once, and other processes differ."""
        known = self._own.get((process, now))
        if known is None:
            known = self._own[process, now] = [*self._of_process(process, now)]
        return known

    def _of_process(self, process: Process, now: int) -> Iterator[tuple[str, Outcome]]:
        """What a process does next by itself."""
        members = self.members
        if process.inbox:
            yield f"reads {said(self.values[process.inbox[0]])}", members.read(process, now)
        for index, (role, tasks) in enumerate(process.stopping):
            yield f"has stopped {named(tasks)} ({role})", members.stopped(process, index, now)
        if process.losing:
            yield "has stopped everything", members.lost(process, now)
        if process.copies:
            yield (
                f"has restored {named(process.copies[0])}",
                members.ready(process, now, lags=self.scenario.lags),
            )
        if members.is_due(process, now):
            yield "sees the time", members.clock(process, now)

    def _frozen(self, state: SystemState) -> Iterator[Step]:
        """What a frozen coordinator does when it runs again; it may be at any time, or never."""
        for place, coordinator in enumerate(state.running):
            if is_frozen(place, coordinator):
                yield from self._of_coordinator(state, place)

    def _publishes_late(self, state: SystemState, place: int) -> Step:
        coordinator = state.running[place]
        after = self._published(state, coordinator.held)
        after = running_with(after, place, coordinator._replace(held=()))
        return f"coordinator {coordinator.epoch} publishes late", self._pruned(after)

    def _batches(self, state: SystemState, place: int) -> Iterator[Step]:
        """Every end that the next batch of a coordinator may have, the longest first."""
        coordinator = state.running[place]
        if coordinator.held or not coordinator.begins(state.now):
            return
        ends = range(state.end, coordinator.through, -1)
        if coordinator.begun:
            ends = range(coordinator.begun, coordinator.begun - 1, -1)
        for end in ends:
            what = f"coordinator {coordinator.epoch} takes {end - coordinator.through} events"
            yield what, self._batch(state, place, end)

    def _faults(self, state: SystemState, *, may_pass: bool) -> Iterator[Step]:
        if state.budget.late or may_pass:
            passes = self._time_passes(state, may_pass=may_pass)
            yield from (step for step in passes if step[0] != PASSES)
        for place, process in enumerate(state.processes):
            yield from self._deaths(state, place)
            yield from self._process_faults(state, place, process)
        yield from self._coordinator_faults(state)
        yield from self._faults_of_no_member(state)

    def _deaths(self, state: SystemState, place: int) -> Iterator[Step]:
        """A process dies."""
        if state.budget.crash:
            rest = state.processes[:place] + state.processes[place + 1 :]
            less = state._replace(processes=rest, budget=state.budget.less("crash"))
            yield f"{state.processes[place].name} dies", less

    def _faults_of_no_member(self, state: SystemState) -> Iterator[Step]:
        """Faults that are not those of a process or a coordinator that runs."""
        budget = state.budget
        if budget.start:
            running = {process.name for process in state.processes if not process.ended}
            for name in self.scenario.members:
                if name not in running:
                    yield f"{name} starts again", self._started(state, name)
        yield from self._clock_faults(state)
        if budget.drain:
            for name in self.scenario.members:
                order = Drain(group=GROUP, member=MemberId(name))
                yield (
                    f"an operator drains {name}",
                    self._appended(state._replace(budget=budget.less("drain")), order),
                )

    def _time_passes(self, state: SystemState, *, may_pass: bool) -> Iterator[Step]:
        """Time passes: freely, or although something is overdue."""
        budget, later = state.budget, state._replace(now=state.now + QUANTUM_MS)
        if may_pass:
            yield PASSES, later
        if budget.drift:
            yield from self._drifts(state, may_pass=may_pass)
        if not may_pass:
            less = later._replace(budget=budget.less("late"))
            yield f"{PASSES}, and something is late", less

    def _drifts(self, state: SystemState, *, may_pass: bool) -> Iterator[Step]:
        """Time passes, and one clock passes it 1 % slower or faster."""
        budget = state.budget.less("drift")
        budget = budget if may_pass else budget.less("late")
        less = state._replace(now=state.now + QUANTUM_MS, budget=budget)
        for place, process in enumerate(state.processes):
            for slow_ms, word in ((DRIFT_MS, "slow"), (-DRIFT_MS, "fast")):
                drifted = process._replace(slow_ms=process.slow_ms + slow_ms)
                rest = (*state.processes[:place], drifted, *state.processes[place + 1 :])
                yield (
                    f"time passes, and the clock of {process.name} is {word}",
                    less._replace(processes=rest),
                )

    def _process_faults(self, state: SystemState, place: int, process: Process) -> Iterator[Step]:
        budget, now = state.budget, state.now
        if process.outbox:
            sent = self.values[process.outbox[0]]
            text = said(sent.event)
            if budget.repeat:
                again = state._replace(
                    repeats=(*state.repeats, process.outbox[0]), budget=budget.less("repeat")
                )
                yield f"Kafka stores {text}, and will once more", self._stored(again, place)
            if budget.refuse:
                less = state._replace(budget=budget.less("refuse"))
                refused = self._stored(less, place, refused=True)
                yield f"Kafka stores {text}, and its signature is refused", refused
            if budget.fail and not process.ended:
                less = state._replace(budget=budget.less("fail"))
                shorter = process._replace(outbox=process.outbox[1:])
                failed = self.members.failed(shorter, process.outbox[0], now)
                yield f"Kafka does not store {text}", self._with(less, place, failed)
        if budget.behind and process.copies and not process.told:
            less = state._replace(budget=budget.less("behind"))
            told = self.members.behind(process, now)
            yield (
                f"{process.name} is behind with {named(process.copies[0])}",
                self._with(less, place, told),
            )
        for kind, word in (("leave", "is closed"), ("away", "is closed for a while")):
            if getattr(budget, kind) and self.members.may_leave(process):
                less = state._replace(budget=budget.less(kind))
                left = self.members.leave(process, now, temporary=kind == "away")
                yield f"{process.name} {word}", self._with(less, place, left)

    def _coordinator_faults(self, state: SystemState) -> Iterator[Step]:
        budget, coordinator = state.budget, state.running[0]
        can = len(state.running) == 1 and not coordinator.begun
        if budget.stop and can:
            less = state._replace(budget=budget.less("stop"))
            for end in range(coordinator.through + 1, state.end + 1):
                for written, batch in self._parts(state, coordinator, end):
                    yield (
                        f"coordinator {coordinator.epoch} dies in a batch of "
                        f"{end - coordinator.through} events and has published {written}",
                        self._died(less, batch, end),
                    )
        if budget.lose and can:
            less = state._replace(budget=budget.less("lose"))
            text = f"coordinator {coordinator.epoch} dies and its checkpoint is lost"
            yield text, self._recovered(less, ())
            for end in range(coordinator.through + 1, state.end + 1):
                for written, batch in self._parts(state, coordinator, end):
                    yield (
                        f"{text}; of a batch of {end - coordinator.through} events it has "
                        f"published {written}",
                        self._recovered(self._published(less, batch.records), ()),
                    )
        if budget.usurp and can:
            less = state._replace(budget=budget.less("usurp"))
            until = state.now + NOTICES_MS
            old = coordinator._replace(batches=1, until=until, obeys=False)
            yield "a second coordinator starts", self._recovered(less, (old,))
        if budget.standby and can:
            less = state._replace(budget=budget.less("standby"))
            old = coordinator._replace(batches=FROZEN_BATCHES)
            yield "a standby takes over", self._recovered(less, (old,), predecessors_obey=True)

    # ------------------------------------------------------------------------ effects of steps

    def _with(self, state: SystemState, place: int, outcome: Outcome) -> SystemState | str:
        """The state after a process has become another value; checks the tokens it was granted."""
        process, granted = outcome
        processes = (*state.processes[:place], process, *state.processes[place + 1 :])
        if process.ended and not process.outbox:
            processes = state.processes[:place] + state.processes[place + 1 :]
        state = state._replace(processes=processes)
        if not granted:
            return state
        tokens = {task: (generation, epoch, name) for task, generation, epoch, name in state.tokens}
        for task, token in granted:
            *newest, owner = tokens.get(task, (-1, -1, process.name))
            if token < tuple(newest) or (token == tuple(newest) and owner != process.name):
                return f"{process.name} has {task} with token {token}; {owner} had {newest}"
            tokens[task] = (*token, process.name)
        return state._replace(tokens=tuple((task, *tokens[task]) for task in sorted(tokens)))

    def _stored(
        self, state: SystemState, place: int, *, refused: bool = False
    ) -> SystemState | str:
        process = state.processes[place]
        number, *rest = process.outbox
        process = process._replace(outbox=tuple(rest))
        sent = self.values[number]
        if sent.apart:
            state = self._heard(state, sent.event)
        elif refused:
            state = self._appended(state, Refused(group=GROUP, member=MemberId(process.name)))
        else:
            state = self._appended(state, sent.event)
        return self._with(state, place, self.members.stored(process, number, state.now, acked=True))

    def _appended(self, state: SystemState, event: Taken) -> SystemState:
        origin = Origin(TOPIC, 0, state.end, state.now)
        number = self.values.put(replace(event, origin=origin))
        return state._replace(log=(*state.log, number), end=state.end + 1)

    def _started(self, state: SystemState, name: str) -> SystemState | str:
        less = state._replace(budget=state.budget.less("start"))
        number = self.scenario.budget.start - less.budget.start
        apart = bool(self.scenario.clocks)
        outcome = self.members.start(name, number, state.now, self._instance(name), apart=apart)
        processes = sorted([*state.processes, outcome.process], key=lambda p: p.name)
        return less._replace(processes=tuple(processes))

    def _computed(self, state: SystemState, coordinator: Coordinator, end: int) -> Batch:
        base = state.end - len(state.log)
        events = state.log[coordinator.through - base : end - base]
        published = state.published if coordinator is state.running[0] else 0
        return self.coordinators.batch(
            coordinator.group, events, coordinator.epoch, published, obeys=coordinator.obeys
        )

    def _batch(self, state: SystemState, place: int, end: int) -> SystemState | str:
        coordinator = state.running[place]
        try:
            batch = self._computed(state, coordinator, end)
        except LawBroken as law:
            return str(law)
        after = coordinator._replace(group=batch.group, through=end, begun=0)
        if coordinator.batches > 0:  # superseded: its records reach Kafka later
            late = after._replace(held=batch.records, batches=coordinator.batches - 1)
            return self._pruned(running_with(state, place, late))
        return self._pruned(self._published(running_with(state, place, after), batch.records))

    def _parts(
        self, state: SystemState, coordinator: Coordinator, end: int
    ) -> Iterator[tuple[str, Batch]]:
        """The parts of a batch's records that a dying coordinator may have published."""
        try:
            batch = self._computed(state, coordinator, end)
        except LawBroken:
            return  # the batch itself is a step, and tells it
        count = len(batch.records)
        sizes = range(count + 1) if count < 4 else (0, 1, count - 1, count)
        for size in sizes:
            for part in combinations(batch.records, size):
                names = ", ".join(said(self.values[n]) for n in part) or "nothing"
                yield names, batch._replace(records=part)

    def _died(self, state: SystemState, batch: Batch, end: int) -> SystemState:
        coordinator = state.running[0]
        again = Coordinator(coordinator.epoch + 1, coordinator.group, coordinator.through, end)
        state = self._published(state._replace(running=(again,)), batch.records)
        return self._pruned(self._appended(state, _first_tick(again)))

    def _recovered(
        self,
        state: SystemState,
        others: tuple[Coordinator, ...],
        *,
        predecessors_obey: bool = False,
    ) -> SystemState:
        group, through = self.coordinators.recovered(
            state.published, predecessors_obey=predecessors_obey
        )
        again = Coordinator(state.running[0].epoch + 1, group, through)
        return self._appended(
            self._pruned(state._replace(running=(again, *others))), _first_tick(again)
        )

    def _published(self, state: SystemState, records: tuple[int, ...]) -> SystemState:
        processes, published = list(state.processes), state.published
        wake, ticked = state.wake, state.ticked
        for number in records:
            record = self.values[number]
            if for_member(record):
                processes = [
                    p._replace(inbox=(*p.inbox, number))
                    if p.name == record.member and not p.ended
                    else p
                    for p in processes
                ]
            elif isinstance(record, GroupSnapshot):
                before = self.values[published]
                if before is None or before.generation <= record.generation:
                    published = number
            elif is_wake_up(record):
                wake, ticked = number, 0
                fresh = [c._replace(ticked=0, marked=False) for c in state.clocks]
                state = state._replace(clocks=tuple(fresh))
        return state._replace(
            processes=tuple(processes), published=published, wake=wake, ticked=ticked
        )

    def _pruned(self, state: SystemState) -> SystemState:
        """Without events and snapshots that no process takes any more."""
        needed = min(c.through for c in state.running)
        if not (state.budget.lose or state.budget.usurp or state.budget.standby):
            state = state._replace(published=0)
        elif state.published:
            needed = min(needed, self.coordinators.recovered(state.published)[1])
        taken = len(state.log) - (state.end - needed)
        return state._replace(log=state.log[taken:])


def is_frozen(place: int, coordinator: Coordinator) -> bool:
    """Whether a coordinator was superseded, obeys ticks, and has something left to do."""
    return place > 0 and coordinator.obeys and bool(coordinator.batches or coordinator.held)


def _first_tick(coordinator: Coordinator) -> Tick:
    """What a coordinator writes when it starts."""
    return Tick(group=GROUP, published=Mark(coordinator.epoch, 0))


def _clocks_with(state: SystemState, place: int, clock: Clock) -> SystemState:
    clocks = (*state.clocks[:place], clock, *state.clocks[place + 1 :])
    return state._replace(clocks=clocks)


def running_with(state: SystemState, place: int, coordinator: Coordinator) -> SystemState:
    running = (*state.running[:place], coordinator, *state.running[place + 1 :])
    return state._replace(running=running)


def _ended(state: SystemState, place: int) -> SystemState:
    """The state without one of the coordinators."""
    return state._replace(running=state.running[:place] + state.running[place + 1 :])
