"""The invariants of a group, which hold after every `advance` (docs/requirements/invariants.md).

`check` runs after every step in tests, and after a sample of the steps in production. Simulations
check invariants over time, such as that no task is granted while another member runs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.protocol.digest import Holding
from muster.protocol.ids import Role
from muster.protocol.records import MemberState
from muster.protocol.tasks import TaskSet
from muster.state import digests, recovery
from muster.state.errors import InvariantViolation
from muster.state.group import Group
from muster.state.liveness import FENCED, UNREAD
from muster.state.ownership import NO_MEMBER, Codes, codes, slot_of, task_of


def check(group: Group) -> None:
    """Check all invariants of a group.

    Raises:
        InvariantViolation: the first invariant that is broken, with the group's story.
    """
    _members_are_listed_once(group)
    _only_members_have_tasks(group)
    _no_member_has_two_roles_of_a_task(group)
    _epochs_are_ordered(group)
    _states_fit_what_is_waited_for(group)
    _demands_are_of_members_that_owe(group)
    _digests_are_those_of_the_holdings(group)


def holding_of(group: Group, slot: int) -> Holding:
    """What a member should report to hold once it has read its newest record."""
    held: dict[Role, TaskSet] = {
        Role.ACTIVE: _set(group, np.flatnonzero(group.owned.holder == slot))
    }
    going: list[NDArray[np.integer[Any]]] = []
    going.append(np.flatnonzero((group.owned.holder == slot) & group.owned.revoking))
    for role, copies in group.owned.copies.items():
        mine = np.union1d(copies.kept, copies.going)
        held[role] = _set(group, task_of(mine[slot_of(mine) == slot]))
        going.append(task_of(copies.going[slot_of(copies.going) == slot]))
    duplicate = task_of(group.owned.duplicate[slot_of(group.owned.duplicate) == slot])
    held[Role.ACTIVE] |= _set(group, duplicate)
    releasing = TaskSet()
    for tasks in (*going, duplicate):
        releasing |= _set(group, tasks)
    for orphan in group.owned.orphans:
        if orphan.slot == slot:
            task = TaskSet.of([orphan.task])
            held[Role(orphan.role)] |= task
            releasing |= task
    return Holding(
        active=held[Role.ACTIVE],
        standby=held[Role.STANDBY],
        learner=held[Role.LEARNER],
        releasing=releasing,
    )


def _require(holds: bool, group: Group, law: str) -> None:
    if not holds:
        story = (
            f"group {group.id}, generation {group.generation} ({group.cause or 'no cause'})",
            f"state {group.state.value}, clock {group.sessions.clock_ms} ms",
            *(f"{m.id}: {m.state.value}, epoch {m.epoch}, slot {m.slot}" for m in group.roster),
        )
        raise InvariantViolation(law, story)


def _set(group: Group, tasks: NDArray[np.integer[Any]]) -> TaskSet:
    return group.table.set_of(tasks.astype(np.int32))


def _members_are_listed_once(group: Group) -> None:
    taken = {slot for slot, member in enumerate(group.roster.by_slot) if member is not None}
    _require(set(group.roster.slots) == taken, group, "every member is in the roster")
    names = [member.id for member in group.roster]
    _require(names == sorted(names), group, "the roster is in the order of ids")
    _require(
        set(group.roster.by_id.items()) == {(m.id, m.slot) for m in group.roster},
        group,
        "by_id has every member",
    )
    static = {(m.instance_id, m.slot) for m in group.roster if m.instance_id is not None}
    _require(
        set(group.roster.by_instance.items()) == static,
        group,
        "by_instance has every static member",
    )
    in_session = set(np.flatnonzero(group.sessions.timeout_ms > 0).tolist())
    _require(in_session == taken, group, "every member, and no other slot, has a session")
    agree = group.roster.columns.agree_with(group.roster.by_slot)
    _require(agree, group, "the columns have the members' fields")


def _only_members_have_tasks(group: Group) -> None:
    known = np.zeros(len(group.roster.by_slot) + 1, dtype=np.bool_)
    known[list(group.roster.slots)] = known[NO_MEMBER] = True
    target = group.target
    vectors = {"target": target.active, "destination": target.destination}
    for name, vector in {**vectors, "holder": group.owned.holder}.items():
        _require(len(vector) == len(group.table), group, f"{name} has an entry for every task")
        _require(bool(known[vector].all()), group, f"{name} names members")
    _require(
        not (group.owned.revoking & (group.owned.holder == NO_MEMBER)).any(),
        group,
        "only held tasks are being given up",
    )
    for role, copies in group.owned.copies.items():
        for pairs in (*copies, group.owned.ready, group.owned.duplicate):
            _require(bool(known[slot_of(pairs)].all()), group, f"a {role} belongs to a member")
            _require(bool((np.diff(pairs) > 0).all()), group, "pairs ascend")
    everywhere = np.concatenate([part for copies in group.owned.copies.values() for part in copies])
    _require(
        _within(group.owned.ready, everywhere), group, "a ready pair is a copy, held or wanted"
    )


def _within(part: Codes, whole: Codes) -> bool:
    return bool(np.isin(part, whole).all())


def _no_member_has_two_roles_of_a_task(group: Group) -> None:
    held = np.flatnonzero(group.owned.holder != NO_MEMBER).astype(np.int32)
    roles = [codes(held, group.owned.holder[held]), group.owned.duplicate]
    for copies in group.owned.copies.values():
        roles += [copies.kept, copies.going]
    together = np.concatenate(roles)
    _require(
        len(np.unique(together)) == len(together), group, "no member holds two roles of a task"
    )
    target_pairs = [
        codes(
            held := np.flatnonzero(group.target.active != NO_MEMBER).astype(np.int32),
            group.target.active[held],
        )
    ]
    target_pairs += [copies.wanted for copies in group.owned.copies.values()]
    together = np.concatenate(target_pairs)
    _require(
        len(np.unique(together)) == len(together),
        group,
        "no member has two roles of a task in the target",
    )


def _epochs_are_ordered(group: Group) -> None:
    _require(
        group.target.generation <= group.generation,
        group,
        "targets follow generations",
    )
    for member in group.roster:
        _require(
            member.epoch <= group.generation,
            group,
            f"the epoch of {member.id} is at most the generation",
        )
        _require(
            member.revoke_revision <= member.revision, group, f"{member.id} has a record that asks"
        )


def _states_fit_what_is_waited_for(group: Group) -> None:
    if recovery.is_halted(group):
        return
    owed = [group.owned.holder[group.owned.revoking], slot_of(group.owned.duplicate)]
    owed += [slot_of(copies.going) for copies in group.owned.copies.values()]
    owes = {*np.concatenate(owed).tolist(), *(o.slot for o in group.owned.orphans)}
    kept = ~group.owned.revoking & (group.owned.holder != NO_MEMBER)
    beyond = {*group.owned.holder[kept & (group.owned.holder != group.target.active)].tolist()}
    missing = {*group.target.active[(group.target.active != group.owned.holder)].tolist()}
    wanted = np.union1d(*(copies.wanted for copies in group.owned.copies.values()))
    for copies in group.owned.copies.values():
        less = np.setdiff1d(copies.kept, wanted)
        beyond |= set(slot_of(less[group.target.active[task_of(less)] != slot_of(less)]).tolist())
        missing |= set(slot_of(np.setdiff1d(copies.wanted, copies.kept)).tolist())
    for member in group.roster:
        if group.sessions.flags[member.slot] & FENCED:
            continue
        name, slot = member.id, member.slot
        unrevoked = member.state is MemberState.UNREVOKED
        _require(unrevoked == (slot in owes), group, f"{name} is UNREVOKED while it owes a release")
        if not unrevoked:
            _require(slot not in beyond, group, f"{name} keeps nothing beyond its target")
            waits = member.state is MemberState.UNRELEASED
            _require(waits == (slot in missing), group, f"{name} is UNRELEASED while it waits")


def _demands_are_of_members_that_owe(group: Group) -> None:
    for member in group.roster:
        slot = member.slot
        owes = bool(group.sessions.flags[slot] & FENCED) or slot in group.recovery.asked
        owes |= member.state is MemberState.UNREVOKED
        owes |= bool(group.sessions.flags[slot] & UNREAD)
        _require(
            owes == bool(group.sessions.response_due[slot]),
            group,
            f"{member.id} has a demand while it owes",
        )


def _digests_are_those_of_the_holdings(group: Group) -> None:
    expected = digests.expected(group.owned, group.hashes, len(group.roster.by_slot))
    for member in group.roster:
        same = expected[member.slot] == group.sessions.digest[member.slot]
        fenced = bool(group.sessions.flags[member.slot] & FENCED) or member.away
        law = f"the digest expected of {member.id} is of what it holds"
        _require(bool(same) or fenced, group, law)
