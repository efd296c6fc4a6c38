"""Placement of a generation: the group becomes a view, the assignor's placement a target.

If the assignor raises or its placement is invalid, the group keeps its target, the cause gets the
error, the generation stays pending (state Assigning), and the next change tries again. Without a
change the assignor runs again after `probing.rebalance.interval.ms`: a plug-in that once took too
long on a busy machine must not leave a dead member's tasks without an owner. After a retriable
error it runs again at once, then every heartbeat interval (S1-F09).

In the view, a task's previous owner is the member that holds it, or the target member if the task
is moving there, so a new generation does not reverse a move that is under way.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

import numpy as np

from muster.assignor import check
from muster.assignor.errors import AssignorError
from muster.assignor.ignored_settings import ignored_pins
from muster.assignor.model import GroupView, Pairs, Reason, group_view
from muster.assignor.model import Lags as ViewLags
from muster.assignor.registry import BUILT_IN
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.ids import MemberId, Role
from muster.protocol.records import Move
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.protocol.tasks import IntArray
from muster.protocol.taskset import units_of_table, units_version
from muster.state import causes, config_events, deadlines, lag, lost_checkpoint, placement_pauses
from muster.state.assignor_outcome import Answer, Aside, Failure, Outcome
from muster.state.causes import Causes
from muster.state.draft import Draft
from muster.state.group import places
from muster.state.liveness import DEAF, FENCED, MISSES_OF_A_LOSS, later
from muster.state.member_columns import values_of
from muster.state.ownership import NO_MEMBER, Codes, codes, slot_of, task_of, union
from muster.state.printable import cut

SIZE_MAX = 1 << 22
"""A placement is large if its tasks, times their copies, times the kinds of members are more. One
of this size takes a quarter of a second."""
WEIGHED = 8
"""Tasks of different weights cost about so many times as much."""
WARNINGS_MAX = 10
"""At most this many of an assignor's warnings go into the cause."""


def place(draft: Draft) -> None:
    """Run the assignor for the pending generation; a plug-in's outcome is deferred."""
    if draft.aside is not None and is_large(draft):
        _ask_aside(draft, draft.aside)
        return
    # The group may have become small while it waited for an answer; all causes so far are placed.
    draft.target.asked_ms, draft.target.is_overtaken = None, False
    outcome = _ask_assignor(draft)
    if draft.assignor in BUILT_IN:
        _apply(draft, outcome)
    else:
        draft.target.deferred = outcome
        draft.publishes_again = True  # so that a replay knows where the batch ended


def is_large(draft: Draft) -> bool:
    """Whether a placement may take so long that it is computed aside.

    Built-in assignors place tasks by kinds of members: those with equal racks, tags, topics and
    capacity, as far as these count. Connect's are quick, whatever members there are.
    """
    if draft.assignor not in BUILT_IN or draft.assignor in CONNECT_ASSIGNORS:
        return False
    settings = draft.settings
    cost = len(draft.table) * (1 + settings.num_standby_replicas)
    cost *= 1 if draft.table.weigh_alike else WEIGHED
    if cost * len(draft.roster) <= SIZE_MAX:
        return False
    has_racks = settings.rack_aware_assignment_strategy != "none"
    has_tags = bool(settings.rack_aware_assignment_tags)
    kinds = {
        (m.capacity, m.topics, has_racks and m.rack, has_tags and m.tags) for m in draft.roster
    }
    return cost * len(kinds) > SIZE_MAX


def _ask_aside(draft: Draft, aside: Aside) -> None:
    """Begin a placement aside, or defer its outcome if it is there."""
    target = draft.target
    if target.asked_ms is None:
        target.asked_ms, target.is_overtaken = draft.sessions.clock_ms, False
    config_offset = config_events.offset_of(draft.sessions.through)
    table_version = units_version(units_of_table(draft.table))
    question = (str(draft.id), draft.generation, target.asked_ms, config_offset, table_version)
    outcome = aside(question, lambda: _ask_assignor(draft))
    if isinstance(outcome, str):
        message = f"assignor {draft.assignor} failed, the target stays: {outcome}"
        outcome = Failure(message, origin=draft.newest)
    draft.target.deferred = outcome


def follow_overtaken(draft: Draft) -> None:
    """Open another generation for the causes that came while a placement was computed aside.

    Not in the batch that applies the answer: it publishes what it applied, and adds its causes to
    those of the answered generation.
    """
    target = draft.target
    if not draft.roster:
        target.is_overtaken = False
    elif draft.was_aside and draft.causes:
        draft.cause = cut(causes.added(draft.cause, str(draft.causes)))
        draft.causes, target.is_overtaken = Causes(), True
    elif target.is_overtaken and target.asked_ms is None and not draft.was_aside:
        draft.causes.add("changes that arrived while the previous placement was computed")
        target.is_overtaken = False


def could_change(draft: Draft) -> bool:
    """Whether the assignor may give another answer now than the present target.

    Built-in assignors are functions and are asked; if their answer is the present target, only the
    follow-up's time is updated. True for plug-ins and for Connect's, which remember rounds. Where
    placements are computed aside, a follow-up is asked for; its answer says it in a later batch.
    """
    is_function = draft.assignor in BUILT_IN and draft.assignor not in CONNECT_ASSIGNORS
    if not is_function or placement_pauses.is_pending(draft) or not _may_ask(draft):
        return True
    if draft.aside is not None and is_large(draft):
        is_follow_up = str(draft.possible_causes) == causes.FOLLOW_UP
        if not is_follow_up or draft.target.is_overtaken:
            return True
        _ask_follow_up(draft, draft.aside)
        return False
    outcome = _ask_assignor(draft)
    if isinstance(outcome, Failure) or not _is_target(draft, outcome):
        return True
    draft.timers.followup_ms = _followup_ms(outcome, draft.sessions.clock_ms)
    return False


def _ask_follow_up(draft: Draft, aside: Aside) -> None:
    """Ask aside whether a follow-up would change the target; no generation is opened for it.

    The time of the next follow-up is set now, as if nothing changes: built-in assignors ask for one
    after this interval. So the record shows which batch asked, a replay asks at the same time, and
    an answer that changes nothing is not published.
    """
    interval_ms = draft.settings.probing_rebalance_interval_ms
    draft.timers.followup_ms = later(draft.sessions.clock_ms, interval_ms)
    if draft.target.asked_ms is None:
        _ask_aside(draft, aside)


def ask_follow_up_again(draft: Draft) -> None:
    """Ask for the answer to a follow-up that an earlier batch has asked for aside."""
    target = draft.target
    if target.asked_ms is None or target.deferred is not None or placement_pauses.is_pending(draft):
        return
    if draft.aside is not None and _may_ask(draft) and is_large(draft):
        _ask_aside(draft, draft.aside)
    else:
        target.asked_ms, draft.timers.followup_ms = None, draft.sessions.clock_ms


def _take_follow_up(draft: Draft, outcome: Outcome) -> None:
    """Take the answer to a follow-up: another target is a cause, for which the assignor is asked.

    Whatever opened a generation since the question has dropped it, so the target is still the same.
    After a failure the target stays as well, and the next follow-up asks again.
    """
    draft.target.asked_ms = None
    if isinstance(outcome, Failure):
        draft.reject(outcome.origin, DeadLetter.ASSIGNOR_FAILED, outcome.story)
    elif not _is_target(draft, outcome):
        draft.causes.add(causes.FOLLOW_UP)
    elif outcome.followup_ms is None:
        draft.timers.followup_ms = None


def _followup_ms(answer: Answer, since_ms: int) -> int | None:
    return None if answer.followup_ms is None else later(since_ms, answer.followup_ms)


def _is_target(draft: Draft, answer: Answer) -> bool:
    """Whether an answer is the group's present target."""
    return (
        np.array_equal(answer.active, draft.target.active)
        and np.array_equal(answer.destination, draft.target.destination)
        and all(
            np.array_equal(p, draft.owned.copies[role].wanted) for role, p in answer.copies.items()
        )
    )


def take_deferred(draft: Draft) -> bool:
    """Apply the outcome that an earlier batch deferred; False = there is none to apply.

    Since the question a copy may have caught up, before the answer made it a learner, or a member
    may have said that it is behind, before the answer made it the owner. It does not report that
    again. So this is a cause now, as the report would be.
    """
    target = draft.target
    if target.deferred is None:
        return False
    outcome, target.deferred = target.deferred, None
    if target.asked_ms is not None and not placement_pauses.is_pending(draft):
        _take_follow_up(draft, outcome)
        return False
    if target.asked_ms is not None and isinstance(outcome, Answer):
        outcome = _of_present(draft, outcome, target.asked_ms)
    _apply(draft, outcome)
    draft.was_aside, target.asked_ms = target.asked_ms is not None, None
    draft.publishes_again = True  # so that a replay knows where the batch ended
    draft.applied_answer = isinstance(outcome, Answer)
    if isinstance(outcome, Answer):
        lag.note_reported_since(draft, outcome.caught_up, outcome.behind)
    return True


def _of_present(draft: Draft, answer: Answer, asked_ms: int) -> Answer:
    """An answer without the members that have left, or were fenced, since it was asked for."""
    is_present = np.zeros(len(draft.roster.by_slot) + 1, dtype=np.bool_)
    for member in draft.roster:
        is_present[member.slot] = member.joined_ms <= asked_ms
    flags = draft.sessions.flags[: len(is_present) - 1]
    is_present[: len(flags)] &= (flags & (FENCED | DEAF)) == 0

    def present_slots(slots: IntArray) -> IntArray:
        known_slots = np.where(slots < len(is_present) - 1, slots, NO_MEMBER)
        return np.where(is_present[known_slots], known_slots, NO_MEMBER).astype(np.int32)

    return replace(
        answer,
        active=present_slots(answer.active),
        destination=present_slots(answer.destination),
        copies={
            role: pairs[present_slots(slot_of(pairs)) != NO_MEMBER]
            for role, pairs in answer.copies.items()
        },
    )


def _ask_assignor(draft: Draft) -> Outcome:
    placeable = placeable_slots(draft)
    view = view_of(draft, placeable)
    try:
        assignor = draft.lookup(draft.assignor)
        placement = assignor.assign(view)
        check.valid(view, placement)
        memory = _plain(placement.memory)
    except Exception as error:  # a plug-in may raise anything; `advance` must not
        error_text = str(error) if isinstance(error, AssignorError) else repr(error)
        retriable = bool(getattr(error, "retriable", False))
        message = f"assignor {draft.assignor} failed, the target stays: {error_text}"
        return Failure(message, retriable, draft.newest)
    slots = np.append(placeable, NO_MEMBER).astype(np.int32)
    active = slots[placement.active]
    is_same_vector = placement.destination is placement.active
    copies = {Role.STANDBY: placement.standby, Role.LEARNER: placement.learner}
    return Answer(
        active=active,
        destination=active if is_same_vector else slots[placement.destination],
        copies={role: codes(pairs.task, slots[pairs.member]) for role, pairs in copies.items()},
        moves=moves_of(draft, view, placement.reasons),
        again=placement.again,
        delay_ms=placement.delay_ms,
        followup_ms=placement.followup_ms,
        memory=memory,
        warnings=(*placement.warnings, *ignored_pins(draft.assignor, view)),
        caught_up=lag.caught_up(draft),
        behind=lag.behind(draft),
    )


def placeable_slots(draft: Draft) -> IntArray:
    """Slots of the members that a placement may use, in the order of their ids.

    Fenced and deaf members are left out. Members drained for `scale.down.timeout.ms` are left out
    too, unless no other member is there.
    """
    roster = np.array(draft.roster.slots, dtype=np.int32)
    if len(roster) == 0:
        return roster
    is_fenced = (draft.sessions.flags[roster] & (FENCED | DEAF)) != 0
    is_left_out = is_fenced | draft.mask(draft.timers.drained(draft.sessions.clock_ms))[roster]
    if is_left_out.all():
        is_left_out = is_fenced
    slots: IntArray = roster[~is_left_out]
    return slots


def view_of(draft: Draft, placeable: IntArray) -> GroupView:
    """The group as an assignor sees it, with the members of `placeable` in that order."""
    index = np.full(len(draft.roster.by_slot) + 1, NO_MEMBER, dtype=np.int32)
    index[placeable] = np.arange(len(placeable), dtype=np.int32)
    columns = draft.roster.columns
    owner = _previous(draft)
    copies = draft.owned.copies[Role.LEARNER]
    learner = _beside(union(copies.kept, copies.wanted), owner)
    copies = draft.owned.copies[Role.STANDBY]
    standby = _beside(union(copies.kept, copies.releasing), owner)
    caught_up = lag.caught_up(draft)
    spare = _spare(draft, caught_up)
    caught_up = np.setdiff1d(caught_up, spare, assume_unique=True)
    return group_view(
        tasks=draft.table,
        settings=draft.settings,
        members=tuple(columns.id[placeable].tolist()),
        capacity=columns.capacity[placeable],
        active=index[owner],
        pending=(owner != draft.owned.holder) | draft.owned.revoking,
        standby=_pairs(standby, index),
        learner=_pairs(learner, index),
        ready=_pairs(np.intersect1d(caught_up, learner, assume_unique=True), index),
        lags=_view_lags(draft, np.setdiff1d(caught_up, learner, assume_unique=True), spare, index),
        draining=columns.draining[placeable],
        rack=values_of(columns.rack, placeable),
        tags=values_of(columns.tags, placeable),
        topics=values_of(columns.topics, placeable),
        static=values_of(columns.static, placeable),
        protocols=values_of(columns.protocols, placeable),
        also_active=_pairs(draft.owned.duplicate, index),
        config_offsets=columns.config_offset[placeable],
        config_offset=config_events.offset_of(draft.sessions.through),
        now_ms=draft.sessions.clock_ms,
        memory=draft.target.memory,
        whole_generation=not (draft.sessions.misses[placeable] >= MISSES_OF_A_LOSS).any(),
    )


def _spare(draft: Draft, caught_up: Codes) -> Codes:
    """Copies that their members are giving up while the task's owner or another warm copy stays.

    The state may be gone before such a member gets the task, so it counts as cold. If nothing else
    is warm, a copy that is being given up still counts.
    """
    releasing_copies = reduce(union, (copies.releasing for copies in draft.owned.copies.values()))
    is_releasing = np.isin(caught_up, releasing_copies, assume_unique=True)
    if not is_releasing.any():
        return caught_up[:0]
    columns = draft.roster.columns
    is_unsteady = np.append(columns.draining | columns.away, True)  # the last stands for no member
    steady_copies = caught_up[~is_releasing & ~is_unsteady[slot_of(caught_up)]]
    tasks = task_of(caught_up)
    is_run = ~is_unsteady[draft.owned.holder[tasks]]
    spare: Codes = caught_up[is_releasing & (is_run | np.isin(tasks, task_of(steady_copies)))]
    return spare


def _pairs(pairs: Codes, index: IntArray) -> Pairs:
    member = index[slot_of(pairs)]
    in_view = member != NO_MEMBER
    return Pairs.of(task_of(pairs)[in_view], member[in_view])


def _beside(pairs: Codes, owner: IntArray) -> Codes:
    """The copies whose member is not the task's owner in the view."""
    others: Codes = pairs[owner[task_of(pairs)] != slot_of(pairs)]
    return others


def _view_lags(draft: Draft, caught_up: Codes, spare: Codes, index: IntArray) -> ViewLags:
    """The lags that are believed; 0 for copies that are ready and have no reported lag.

    The view counts owners as caught up, and the member that a task moves to as its owner. If its
    copy is cold and another is not, the view gets a lag above `acceptable.recovery.lag` for it.
    """
    reported = draft.owned.lags
    is_believed = lag.believed(draft) & ~np.isin(reported.pair, spare, assume_unique=True)
    ready_without_lag = np.setdiff1d(caught_up, reported.pair[is_believed], assume_unique=True)
    cold_copies = _overtaken(draft)
    lag_limit = min(draft.settings.acceptable_recovery_lag, lag.OFFSETS_MAX)
    pairs = np.concatenate((reported.pair[is_believed], ready_without_lag, cold_copies))
    offsets = np.concatenate(
        (
            reported.offsets[is_believed],
            np.zeros(len(ready_without_lag), np.int64),
            np.full(len(cold_copies), lag_limit + 1),
        )
    )
    task, member = task_of(pairs), index[slot_of(pairs)]
    order = np.lexsort((member, task))
    order = order[member[order] != NO_MEMBER]
    return ViewLags(task[order], member[order], offsets[order])


def _overtaken(draft: Draft) -> Codes:
    """Actives moving to a member with a cold copy while another member's copy has caught up."""
    cold_copies = lag.unstarted(draft)
    if len(cold_copies) == 0:
        return cold_copies
    warm_copies = lag.usable(draft, lag.caught_up(draft), task_of(cold_copies))
    outdone: Codes = cold_copies[np.isin(task_of(cold_copies), task_of(warm_copies))]
    return outdone


def _apply(draft: Draft, outcome: Outcome) -> None:
    if isinstance(outcome, Failure):
        _failed(draft, outcome)
        return
    draft.cause = causes.parted(draft.cause)[0]  # an earlier attempt may have failed
    draft.target.active, draft.target.destination = outcome.active, outcome.destination
    for role, pairs in outcome.copies.items():
        draft.owned.set_copies(role, wanted=pairs)
    draft.target.moves, draft.target.memory = outcome.moves, outcome.memory
    draft.target.again = outcome.again
    asked_ms = draft.target.asked_ms
    placed_ms = draft.sessions.clock_ms if asked_ms is None else asked_ms
    draft.generation = max(draft.generation, draft.recovery.floor + 1)
    draft.recovery.floor = 0
    draft.target.generation = draft.generation
    draft.target.placed_ms = placed_ms
    draft.timers.delay_until_ms = later(placed_ms, outcome.delay_ms) if outcome.delay_ms else None
    draft.timers.followup_ms = _followup_ms(outcome, placed_ms)
    if outcome.warnings:
        draft.cause = "; ".join((draft.cause, *map(cut, outcome.warnings[:WARNINGS_MAX])))


def _failed(draft: Draft, failure: Failure) -> None:
    draft.cause = "; ".join(filter(None, (causes.parted(draft.cause)[0], cut(failure.story))))
    draft.target.moves = ()
    draft.reject(failure.origin, DeadLetter.ASSIGNOR_FAILED, failure.story)
    is_first = draft.timers.followup_ms is None
    if failure.retriable:
        pause_ms = 0 if is_first else draft.settings.heartbeat_interval_ms
    else:
        pause_ms = draft.settings.probing_rebalance_interval_ms
    draft.timers.followup_ms = later(draft.sessions.clock_ms, pause_ms)


def moves_of(draft: Draft, view: GroupView, reasons: Iterable[Reason]) -> tuple[Move, ...]:
    """An assignor's reasons as moves; a source may be a member that the view did not have."""
    if len(view.members) < len(draft.roster):
        _note_unseen(draft)
    reasons = list(reasons)
    if draft.assignor in BUILT_IN and draft.assignor not in CONNECT_ASSIGNORS:
        reasons = [*_given_back(draft, view, reasons), *reasons]
    return draft.departed.moves(draft.table, view.members, reasons)


def _given_back(draft: Draft, view: GroupView, reasons: Iterable[Reason]) -> list[Reason]:
    """Reasons for tasks that go back to the member that is stopping them for one that is gone.

    To the assignor such a task stays with its owner. An assignor of this group explains every other
    active that changes hands or that no member gets.
    """
    tasks = draft.departed.tasks(Role.ACTIVE)
    tasks = tasks[draft.owned.revoking[tasks] & (view.active[tasks] != NO_MEMBER)]
    if len(tasks) == 0:
        return []
    explained = {reason.task for reason in reasons if reason.role is Role.ACTIVE}
    given_back = [task for task in tasks.tolist() if task not in explained]
    owners: list[int] = view.active[given_back].tolist()
    return [
        Reason(task, Role.ACTIVE, NO_MEMBER, owner, f"{view.members[owner]} was stopping it")
        for task, owner in zip(given_back, owners, strict=True)
    ]


def _note_unseen(draft: Draft) -> None:
    """Note the members that the view leaves out, and what they had."""
    is_unseen = draft.mask(draft.roster.slots)
    is_unseen[placeable_slots(draft)] = False
    for slot in np.flatnonzero(is_unseen).tolist():
        draft.departed.note(slot, draft.member(slot).id, _unseen(draft, slot))
    owner = _previous(draft)
    held_tasks = np.flatnonzero(is_unseen[owner]).astype(np.int32)
    draft.departed.note_tasks(Role.ACTIVE, codes(held_tasks, owner[held_tasks]))
    for role, copies in draft.owned.copies.items():
        pairs = union(copies.kept, copies.releasing)
        draft.departed.note_tasks(role, pairs[is_unseen[slot_of(pairs)]])


def left_out(draft: Draft) -> dict[MemberId, str]:
    """The members that placements leave out, and why."""
    placeable = set(placeable_slots(draft).tolist())
    return {m.id: _unseen(draft, m.slot) for m in draft.roster if m.slot not in placeable}


def _unseen(draft: Draft, slot: int) -> str:
    is_out = draft.sessions.flags[slot] & (FENCED | DEAF)
    return causes.FENCED if is_out else "drained for scale.down.timeout.ms"


def _previous(draft: Draft) -> IntArray:
    """int32[T]: slot of each task's previous owner, as this file's docstring defines it."""
    moving_tasks = np.flatnonzero(
        (draft.target.active != NO_MEMBER) & (draft.target.active != draft.owned.holder)
    )
    if len(moving_tasks) == 0:
        return draft.owned.holder
    owners = draft.owned.holder.copy()
    owners[moving_tasks] = draft.target.active[moving_tasks]
    return owners


def _plain(memory: object) -> dict[str, object] | None:
    """An assignor's memory, passed through JSON so that a restart does not change it.

    Raises:
        AssignorError: the memory is not made of JSON values.
    """
    if memory is None:
        return None
    try:
        text = json.dumps(dict(memory), sort_keys=True)  # type: ignore[call-overload]  # a mapping
    except (TypeError, ValueError) as failure:
        raise AssignorError(f"memory that is not JSON: {failure}") from failure
    memory_read: dict[str, object] = json.loads(text)
    return memory_read


def forget_rounds(draft: Draft) -> None:
    """A group that was without members plays its next round like a new Connect leader (S3-F10).

    It does so too if its next members joined in the batch in which the last ones left: whether the
    work of those waits for them must not depend on where a batch ends. And it does so if they
    joined before the sessions of the last ones, which had crashed, were over.
    """
    draft.target.memory, draft.target.again, draft.timers.delay_until_ms = None, False, None


def due(draft: Draft) -> bool:
    """Whether the assignor must run now."""
    if not placement_pauses.is_pending(draft) or not _may_ask(draft):
        return False
    return placement_pauses.gate_ms(draft) <= draft.sessions.clock_ms


def _may_ask(draft: Draft) -> bool:
    """Whether there are tasks and members to place, the group may act, and no round is open."""
    if (
        lost_checkpoint.is_halted(draft)
        or not draft.roster
        or not places(draft.table, draft.assignor)
    ):
        return False
    return not (draft.target.again and deadlines.is_releasing(draft))
