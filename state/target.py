"""From group to view, from placement to target: one call of the assignor for a generation.

An assignor that raises, or whose answer breaks the law, changes nothing but the cause: the group
keeps its target, the generation waits (state Assigning), and the next change tries again. An
error that says it is retriable is tried again at once, then every heartbeat interval (S1-F09).

What a plug-in answers is kept for one batch before it is taken (`outcome.py` says why).

What a task's previous owner is: the member that has it; while the task is on its way, the one it is
on its way to. So a generation that overtakes a hand-over does not turn it around.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce

import numpy as np

from muster.assignor import check
from muster.assignor.errors import AssignorError
from muster.assignor.ignored import ignored_pins
from muster.assignor.model import GroupView, Pairs, Reason, group_view
from muster.assignor.model import Lags as ViewLags
from muster.assignor.registry import BUILT_IN
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.ids import Role
from muster.protocol.records import Move
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.protocol.tasks import IntArray
from muster.state import causes, config, deadlines, lag
from muster.state.columns import seated
from muster.state.draft import Draft
from muster.state.group import NO_MEMBER, Codes, codes, places, slot_of, task_of, union
from muster.state.liveness import FENCED
from muster.state.outcome import Answer, Failure, Outcome
from muster.state.texts import cut

WARNINGS_MAX = 10
"""So many of an assignor's warnings are told."""


def place(draft: Draft) -> None:
    """Run the assignor for the present generation."""
    found = _asked(draft)
    if draft.assignor in BUILT_IN:
        _take(draft, found)
    else:
        draft.kept = found


def could_change(draft: Draft) -> bool:
    """Whether the assignor, asked now, answers otherwise than the group has it already.

    A built-in assignor of tasks is a function, so it is simply asked. If all stays, it is asked
    again when it wants to be. A plug-in may answer anything, and Connect's remember their rounds.
    """
    is_function = draft.assignor in BUILT_IN and draft.assignor not in CONNECT_ASSIGNORS
    if not is_function or deadlines.is_pending(draft) or not _may_ask(draft):
        return True
    found = _asked(draft)
    if isinstance(found, Failure) or not _stands(draft, found):
        return True
    later = None if found.followup_ms is None else draft.soft.clock_ms + found.followup_ms
    if draft.followup_ms != later:
        draft.followup_ms = later
        draft.changed = True
    return False


def _stands(draft: Draft, found: Answer) -> bool:
    """Whether an answer is what the group is to be already."""
    return (
        np.array_equal(found.active, draft.target)
        and np.array_equal(found.destination, draft.destination)
        and all(np.array_equal(p, draft.copies[role].wanted) for role, p in found.copies.items())
    )


def take_kept(draft: Draft) -> bool:
    """Take what a plug-in answered in the batch before; whether there was anything."""
    if draft.kept is None:
        return False
    found, draft.kept = draft.kept, None
    _take(draft, found)
    draft.changed = True
    draft.answered = isinstance(found, Answer)  # a failure leaves nothing to be carried out
    return True


def _asked(draft: Draft) -> Outcome:
    seated = seats(draft)
    view = view_of(draft, seated)
    try:
        assignor = draft.lookup(draft.assignor)
        placement = assignor.assign(view)
        check.valid(view, placement)
        memory = _plain(placement.memory)
    except Exception as failure:  # a plug-in may raise anything; the group must not
        what = str(failure) if isinstance(failure, AssignorError) else repr(failure)
        retriable = bool(getattr(failure, "retriable", False))
        return Failure(
            f"assignor {draft.assignor} failed, the target stays: {what}", retriable, draft.newest
        )
    slots = np.append(seated, NO_MEMBER).astype(np.int32)
    active = slots[placement.active]
    same = placement.destination is placement.active
    copies = ((Role.STANDBY, placement.standby), (Role.LEARNER, placement.learner))
    return Answer(
        active=active,
        destination=active if same else slots[placement.destination],
        copies={role: codes(pairs.task, slots[pairs.member]) for role, pairs in copies},
        moves=moves_of(draft, view, placement.reasons),
        again=placement.again,
        delay_ms=placement.delay_ms,
        followup_ms=placement.followup_ms,
        memory=memory,
        warnings=(*placement.warnings, *ignored_pins(draft.assignor, view)),
    )


def seats(draft: Draft) -> IntArray:
    """Slots of the members that take part, in the order of their ids."""
    roster = np.array(draft.roster, dtype=np.int32)
    if len(roster) == 0:
        return roster
    fenced = (draft.soft.flags[roster] & FENCED) != 0
    out = fenced | draft.mask(deadlines.let_go(draft))[roster]
    if out.all():
        out = fenced
    seated: IntArray = roster[~out]
    return seated


def view_of(draft: Draft, seats: IntArray) -> GroupView:
    """The group as an assignor sees it; members are those of `seats`, in that order."""
    index = np.full(len(draft.members) + 1, NO_MEMBER, dtype=np.int32)
    index[seats] = np.arange(len(seats), dtype=np.int32)
    said = draft.columns
    owner = _previous(draft)
    copies = draft.copies[Role.LEARNER]
    learner = _beside(union(copies.kept, copies.wanted), owner)
    copies = draft.copies[Role.STANDBY]
    standby = _beside(union(copies.kept, copies.going), owner)
    caught_up = _staying(draft, lag.caught_up(draft))
    return group_view(
        tasks=draft.table,
        settings=draft.settings,
        members=tuple(said.id[seats].tolist()),
        capacity=said.capacity[seats],
        active=index[owner],
        standby=_pairs(standby, index),
        learner=_pairs(learner, index),
        ready=_pairs(np.intersect1d(caught_up, learner, assume_unique=True), index),
        lags=_view_lags(draft, np.setdiff1d(caught_up, learner, assume_unique=True), index),
        draining=said.draining[seats],
        rack=seated(said.rack, seats),
        tags=seated(said.tags, seats),
        topics=seated(said.topics, seats),
        static=seated(said.static, seats),
        protocols=seated(said.protocols, seats),
        also_active=_pairs(draft.duplicate, index),
        config_offsets=said.config_offset[seats],
        config_offset=config.offset_of(draft.soft.through),
        now_ms=draft.soft.clock_ms,
        memory=draft.memory,
        whole_generation=not (draft.soft.misses[seats] > 0).any(),
    )


def _staying(draft: Draft, caught_up: Codes) -> Codes:
    """Copies that have caught up, without those that are being given up where another one stays."""
    going = reduce(union, (copies.going for copies in draft.copies.values()))
    leaving = np.isin(caught_up, going, assume_unique=True)
    if not leaving.any():
        return caught_up
    said, slot = draft.columns, slot_of(caught_up)
    stays = ~leaving & ~said.draining[slot] & ~said.away[slot]
    spare = leaving & np.isin(task_of(caught_up), task_of(caught_up[stays]))
    return caught_up[~spare]


def _pairs(pairs: Codes, index: IntArray) -> Pairs:
    member = index[slot_of(pairs)]
    there = member != NO_MEMBER
    return Pairs.of(task_of(pairs)[there], member[there])


def _beside(pairs: Codes, owner: IntArray) -> Codes:
    """Copies of tasks that their member is not to run anyway."""
    beside: Codes = pairs[owner[task_of(pairs)] != slot_of(pairs)]
    return beside


def _view_lags(draft: Draft, caught_up: Codes, index: IntArray) -> ViewLags:
    """Lags that are believed; 0 where a member has said no more than that its copy is ready.

    A member that a task is on its way to counts as its owner in the view, and an owner as caught
    up. Where its copy is cold and another member's is not, a lag says so.
    """
    told, sure = draft.lags, lag.believed(draft)
    silent = np.setdiff1d(caught_up, told.pair[sure], assume_unique=True)
    cold, limit = _overtaken(draft), min(draft.settings.acceptable_recovery_lag, lag.OFFSETS_MAX)
    pairs = np.concatenate((told.pair[sure], silent, cold))
    offsets = np.concatenate(
        (told.offsets[sure], np.zeros(len(silent), np.int64), np.full(len(cold), limit + 1))
    )
    task, member = task_of(pairs), index[slot_of(pairs)]
    order = np.lexsort((member, task))
    order = order[member[order] != NO_MEMBER]
    return ViewLags(task[order], member[order], offsets[order])


def _overtaken(draft: Draft) -> Codes:
    """Actives on their way to a cold copy, while another member's copy has caught up."""
    cold = lag.unstarted(draft)
    if len(cold) == 0:
        return cold
    warm = lag.usable(draft, lag.caught_up(draft), task_of(cold))
    found: Codes = cold[np.isin(task_of(cold), task_of(warm))]
    return found


def _take(draft: Draft, found: Outcome) -> None:
    if isinstance(found, Failure):
        _failed(draft, found)
        return
    draft.target, draft.destination = found.active, found.destination
    for role, pairs in found.copies.items():
        draft.set_copies(role, wanted=pairs)
    draft.moves, draft.memory, draft.again = found.moves, found.memory, found.again
    now = draft.soft.clock_ms
    draft.generation = max(draft.generation, draft.floor + 1)
    draft.floor = 0
    draft.target_generation = draft.generation
    draft.generation_ms = now
    draft.delay_until_ms = now + found.delay_ms if found.delay_ms else None
    draft.followup_ms = None if found.followup_ms is None else now + found.followup_ms
    if found.warnings:
        draft.cause = "; ".join((draft.cause, *map(cut, found.warnings[:WARNINGS_MAX])))


def _failed(draft: Draft, failure: Failure) -> None:
    draft.cause = f"{draft.cause.partition('; assignor ')[0]}; {cut(failure.story)}"
    draft.moves = ()
    draft.reject(failure.origin, DeadLetter.ASSIGNOR_FAILED, failure.story)
    first = draft.followup_ms is None
    draft.followup_ms = None
    if failure.retriable:
        patience = 0 if first else draft.settings.heartbeat_interval_ms
        draft.followup_ms = draft.soft.clock_ms + patience


def moves_of(draft: Draft, view: GroupView, reasons: Iterable[Reason]) -> tuple[Move, ...]:
    """An assignor's reasons as moves, from members that it did not see as well."""
    if len(view.members) < len(draft.roster):
        _note_unseen(draft)
    return draft.departed.moves(draft.table, view.members, reasons)


def _note_unseen(draft: Draft) -> None:
    """Members that take no part, and what they had."""
    unseen = draft.mask(draft.roster)
    unseen[seats(draft)] = False
    for slot in np.flatnonzero(unseen).tolist():
        draft.departed.note(slot, draft.member(slot).id, _unseen(draft, slot))
    owner = _previous(draft)
    had = np.flatnonzero(unseen[owner]).astype(np.int32)
    draft.departed.had(Role.ACTIVE, codes(had, owner[had]))
    for role, copies in draft.copies.items():
        pairs = union(copies.kept, copies.going)
        draft.departed.had(role, pairs[unseen[slot_of(pairs)]])


def _unseen(draft: Draft, slot: int) -> str:
    fenced = draft.soft.flags[slot] & FENCED
    return causes.FENCED if fenced else "drained for scale.down.timeout.ms"


def _previous(draft: Draft) -> IntArray:
    """int32[T], slot of each task's previous owner."""
    moving = np.flatnonzero((draft.target != NO_MEMBER) & (draft.target != draft.holder))
    if len(moving) == 0:
        return draft.holder
    owner = draft.holder.copy()
    owner[moving] = draft.target[moving]
    return owner


def _plain(memory: object) -> dict[str, object] | None:
    """What an assignor remembers, as it will be after a restart.

    Raises:
        AssignorError: it is not made of JSON values.
    """
    if memory is None:
        return None
    try:
        text = json.dumps(dict(memory), sort_keys=True)  # type: ignore[call-overload]  # a mapping
    except (TypeError, ValueError) as failure:
        raise AssignorError(f"memory that is not JSON: {failure}") from failure
    read: dict[str, object] = json.loads(text)
    return read


def due(draft: Draft) -> bool:
    """Whether the assignor is to run now."""
    if not deadlines.is_pending(draft) or not _may_ask(draft):
        return False
    return deadlines.gate_ms(draft) <= draft.soft.clock_ms


def _may_ask(draft: Draft) -> bool:
    """Whether there is something to place, and all is known that must be."""
    if draft.recovering or not draft.roster or not places(draft.table, draft.assignor):
        return False
    return not (draft.again and deadlines.is_releasing(draft))
