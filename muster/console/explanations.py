"""Explains a group for the pages: why a task is where it is, or why it does not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from muster.console.frames import Json, task_text, text
from muster.console.history import GenerationFigures, History, Moment
from muster.output import ago, date_of, some
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot, MemberEntry, MemberState, Move
from muster.protocol.tasks import TaskTable
from muster.published.copies import copies_of
from muster.published.holdups import Holdup, PendingReleases, Wait, waits_of
from muster.published.snapshots import NO_MEMBER, drains_text

NOTES_MAX = 30
"""Most sentences shown for a whole group; the rest are counted."""
OWING_MAX = 200
"""With more members that owe releases, they are counted and not described one by one."""
MOVES_SHOWN = 20
"""Most moves of one task that are shown."""
LOOKED_THROUGH_MAX = 200
"""How many generations are searched for moves of a task; each must be decoded."""


class Explainer:
    """Sentences about the tasks and the group of one snapshot; ages count up to `now_ms`."""

    def __init__(self, snapshot: GroupSnapshot, pending: PendingReleases, now_ms: int) -> None:
        self.snapshot = snapshot
        self.table = TaskTable(snapshot.tasks)
        self.now_ms = now_ms
        self._member: Mapping[int, MemberEntry] = {m.slot: m for m in snapshot.members}
        owing = sum(m.state is MemberState.UNREVOKED for m in snapshot.members)
        # The coordinator fences no member of a quarantined group, whatever the times of a holdup.
        is_told = owing <= OWING_MAX and snapshot.quarantine is None
        self._holdups: Mapping[str, Holdup] = (
            {h.member: h for h in pending.holdups(snapshot)} if is_told else {}
        )
        self._owing = owing

    def name(self, slot: int) -> str:
        """A member's id, ready to be shown."""
        member = self._member.get(slot)
        return "no member" if member is None else text(member.id)

    # ------------------------------------------------------------------------------ one task

    def sentence(self, task: int) -> str:
        """One sentence: where the task is, why it does not run, or what it waits for."""
        s, printed = self.snapshot, task_text(str(self.table.task(task)))
        holder, target = int(s.holder[task]), int(s.target[task])
        if s.quarantine is not None:
            stays = f"stays on {self.name(holder)}" if holder != NO_MEMBER else "has no owner"
            return f"{printed} {stays}: the group is quarantined, {text(s.quarantine.story, 400)}"
        if holder == NO_MEMBER:
            return f"{printed} has no owner: {self._ownerless(target)}"
        who = self.name(holder)
        if bool(s.revoking[task]):
            return self._asked(printed, holder, target)
        wait = self._active_waits.get(str(self.table.task(task)))
        if wait is not None:
            return f"{printed} runs on {who}. {text(str(wait), 400)}"
        if target not in (holder, NO_MEMBER):
            return f"{printed} runs on {who} and goes to {self.name(target)} next"
        return f"{printed} runs on {who}"

    def _asked(self, printed: str, holder: int, target: int) -> str:
        who, goes = self.name(holder), f", for {self.name(target)},"
        after = goes if target not in (holder, NO_MEMBER) else ""
        member = self._member.get(holder)
        holdup = None if member is None else self._holdups.get(member.id)
        if holdup is None:
            return f"{printed}: {who} has been asked to stop it{after} and has not answered"
        if holdup.is_fenced:
            end = "the task moves on when the member answers, or when its session ends"
            since = ago(self.now_ms, holdup.fenced_ms)
            return f"{printed}: {who} did not stop it in time and was fenced {since}; {end}"
        asked = ago(self.now_ms, holdup.asked_ms)
        return (
            f"{printed}: {who} has been asked to stop it {asked}{after} and has not answered; "
            f"the coordinator waits until {clock(holdup.fenced_ms)}"
        )

    def _ownerless(self, target: int) -> str:
        s = self.snapshot
        if not s.members:
            return "the group has no members"
        if s.target_generation < s.generation:
            return f"generation {s.generation} has not been placed yet"
        if s.recovering:
            return (
                "the coordinator has lost its checkpoint and asks every member what it holds; "
                f"it waits for {some([self.name(slot) for slot in s.recovering])}"
            )
        if target == NO_MEMBER:
            if s.delay_until_ms is not None and s.delay_until_ms > self.now_ms:
                return f"it is kept for its last owner until {clock(s.delay_until_ms)}"
            return (
                "the assignor gives it to no member; no member takes its topic, or a static "
                "assignment names a member that is not in the group"
            )
        member = self._member.get(target)
        holdup = None if member is None else self._holdups.get(member.id)
        if holdup is not None:
            first = ", ".join(task_text(task) for task in holdup.tasks[:3])
            return f"{self.name(target)} gets it when it has stopped {first}"
        return f"{self.name(target)} gets it next"

    @cached_property
    def _waits(self) -> tuple[Wait, ...]:
        return waits_of(self.snapshot)

    @cached_property
    def _active_waits(self) -> Mapping[str, Wait]:
        return {wait.task: wait for wait in self._waits if wait.role is Role.ACTIVE}

    def unsettled(self, most: int) -> list[int]:
        """The first tasks that do not run, that a member is to stop, or that wait for a copy."""
        s = self.snapshot
        is_moving = (s.holder == NO_MEMBER) | s.revoking | (s.holder != s.destination)
        return [int(task) for task in np.flatnonzero(is_moving)[:most]]

    # ------------------------------------------------------------------------------ the group

    def notes(self) -> list[Json]:
        """What the group waits for, most urgent first: rows {"level", "text", "task"?}."""
        notes = list(self._notes())
        left_out = len(notes) - NOTES_MAX
        if left_out > 0:
            notes = [*notes[:NOTES_MAX], _note("info", f"and {left_out} more")]
        return notes

    def _notes(self) -> Iterator[Json]:
        s, now_ms = self.snapshot, self.now_ms
        if s.quarantine is not None:
            since = ago(now_ms, s.quarantine.since_ms)
            yield _note("bad", f"quarantined {since}: {s.quarantine.story}")
        if s.recovering:
            yield _note(
                "warn",
                f"the checkpoint was lost: {len(s.recovering)} members have not reported yet what "
                "they hold; until then the coordinator grants nothing",
            )
        for holdup in self._holdups.values():
            level = "bad" if holdup.is_fenced else "warn"
            yield _note(level, holdup.text(now_ms), holdup.tasks[0] if holdup.tasks else None)
        if self._owing > OWING_MAX:
            yield _note("warn", f"{self._owing} members have been asked to stop tasks")
        ownerless = np.flatnonzero(s.holder == NO_MEMBER)
        if len(ownerless) and s.members:
            first = int(ownerless[0])
            more = f" (and {len(ownerless) - 1} more like it)" if len(ownerless) > 1 else ""
            task = str(self.table.task(first))
            yield _note("bad", f"{self.sentence(first)}{more}", task)
        elif len(ownerless):
            yield _note("bad", f"{len(ownerless)} tasks have no owner: the group has no members")
        for wait in self._waits:
            yield _note("info", str(wait), wait.task)
        for line in drains_text(s, now_ms):
            yield _note("info", line)


def _note(level: str, sentence: str, task: str | None = None) -> Json:
    note = {"level": level, "text": text(sentence, 600)}
    return note if task is None else {**note, "task": task}


def clock(at_ms: int) -> str:
    """Epoch milliseconds as a time of day, UTC."""
    return date_of(at_ms).strftime("%H:%M:%S UTC")


# ---------------------------------------------------------------- the facts about a task


def task_json(history: History, moment: Moment, task: str, now_ms: int) -> Json | None:
    """The facts about a task at a moment; None = the group has no such task.

    Its moves are those of the kept generations, newest first, each with the loads of both members
    before and after it.
    """
    snapshot = history.snapshot(moment)
    why = Explainer(snapshot, moment.pending, now_ms)
    index = why.table.index(task) if task else None
    if index is None:
        return None
    unit = why.table.units[int(why.table.unit_of[index])]
    return {
        "task": task_text(task),
        "id": task,
        "index": index,
        "sentence": why.sentence(index),
        "weight": float(why.table.weight[index]),
        "stateful": bool(why.table.stateful[index]),
        "unit": task_text(unit.name),
        "holder": why.name(int(snapshot.holder[index])),
        "copies": list(_copies_of(why, index)),
        "moves": _moves_of(history, moment, task),
    }


def _copies_of(explainer: Explainer, index: int) -> Iterator[Json]:
    for copy in copies_of(explainer.snapshot):
        if copy.task == index:
            member, state = explainer.name(copy.slot), copy.state.name.lower()
            yield {"role": str(copy.role), "member": member, "state": state, "lag": copy.lag}


def _moves_of(history: History, moment: Moment, task: str) -> list[Json]:
    moves: list[Json] = []
    generations = [g for g in list(history.generations) if g.first <= moment.number and g.moves]
    for each in reversed(generations[-LOOKED_THROUGH_MAX:]):
        if len(moves) >= MOVES_SHOWN:
            break
        last = history.moment(min(each.last, moment.number))
        if last is None:
            continue
        snapshot = history.snapshot(last)
        mine = [m for m in snapshot.moves if m.task == task]
        if mine:
            loads = _loads_around(history, each, snapshot)
            moves += [move_json(each, move, loads) for move in mine]
    return moves[:MOVES_SHOWN]


class Loads:
    """The load of members before a generation and at its target: sums of the weights of actives.

    `before` is the record before the generation; None = it is not kept.
    """

    def __init__(self, before: GroupSnapshot | None, after: GroupSnapshot) -> None:
        self._before = None if before is None else _loads(before, before.holder)
        self._after = _loads(after, after.destination)

    def of(self, member: str | None) -> list[float | None] | None:
        """[before, after] of a member; None for no member."""
        if member is None:
            return None
        before = None if self._before is None else self._before.get(member, 0.0)
        return [before, self._after.get(member, 0.0)]


def _loads_around(history: History, each: GenerationFigures, after: GroupSnapshot) -> Loads:
    before = history.moment(each.first - 1)
    return Loads(None if before is None else history.snapshot(before), after)


def _loads(snapshot: GroupSnapshot, owner: np.ndarray[Any, Any]) -> dict[str, float]:
    weight = TaskTable(snapshot.tasks).weight
    slots = max((m.slot for m in snapshot.members), default=-1) + 1
    summed = np.bincount(owner + 1, weights=weight, minlength=slots + 1)[1:]
    return {m.id: round(float(summed[m.slot]), 6) for m in snapshot.members}


def move_json(each: GenerationFigures, move: Move, loads: Loads) -> Json:
    """One move of a generation."""
    return {
        "generation": each.generation,
        "at_ms": each.at_ms,
        "cause": text(each.cause, 400),
        "task": task_text(move.task),
        "role": str(move.role),
        "from": None if move.from_member is None else text(move.from_member),
        "to": None if move.to_member is None else text(move.to_member),
        "reason": text(move.reason, 400),
        "load_from": loads.of(move.from_member),
        "load_to": loads.of(move.to_member),
    }


def generation_json(each: GenerationFigures, now_ms: int) -> Json:
    """One generation in the timeline."""
    return {
        "generation": each.generation,
        "at_ms": each.at_ms,
        "cause": text(each.cause, 400),
        "moves": each.moves,
        "moved": each.moved,
        "members": each.members,
        "first": each.first,
        "last": each.last,
        "settled_ms": None if each.settled_ms is None else each.settled_ms - each.at_ms,
        "ended_ms": each.ended_ms,
        "ownerless_ms": each.ownerless_until(now_ms),
    }


def generation_with_moves(
    history: History, generation: int, now_ms: int, most: int = 500
) -> Json | None:
    """A generation with its moves; None = it is not kept."""
    each = history.figures_of(generation)
    last = None if each is None else history.moment(each.last)
    if each is None or last is None:
        return None
    snapshot = history.snapshot(last)
    loads = _loads_around(history, each, snapshot)
    return {
        **generation_json(each, now_ms),
        "left_out": max(len(snapshot.moves) - most, 0),
        "shown": [move_json(each, move, loads) for move in snapshot.moves[:most]],
    }
