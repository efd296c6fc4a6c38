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
from muster.state import expected_digests, lost_checkpoint
from muster.state.errors import InvariantViolation
from muster.state.group import Group
from muster.state.liveness import FENCED, UNREAD
from muster.state.ownership import NO_MEMBER, codes, slot_of, task_of


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
    held_sets: dict[Role, TaskSet] = {
        Role.ACTIVE: _set(group, np.flatnonzero(group.owned.holder == slot))
    }
    releasing_tasks: list[NDArray[np.integer[Any]]]
    releasing_tasks = [np.flatnonzero((group.owned.holder == slot) & group.owned.revoking)]
    for role, copies in group.owned.copies.items():
        member_pairs = np.union1d(copies.kept, copies.releasing)
        held_sets[role] = _set(group, task_of(member_pairs[slot_of(member_pairs) == slot]))
        releasing_tasks.append(task_of(copies.releasing[slot_of(copies.releasing) == slot]))
    duplicate = task_of(group.owned.duplicate[slot_of(group.owned.duplicate) == slot])
    held_sets[Role.ACTIVE] |= _set(group, duplicate)
    releasing = TaskSet()
    for tasks in (*releasing_tasks, duplicate):
        releasing |= _set(group, tasks)
    for orphan in group.owned.orphans:
        if orphan.slot == slot:
            task = TaskSet.of([orphan.task])
            held_sets[Role(orphan.role)] |= task
            releasing |= task
    return Holding(
        active=held_sets[Role.ACTIVE],
        standby=held_sets[Role.STANDBY],
        learner=held_sets[Role.LEARNER],
        releasing=releasing,
    )


def _require(is_satisfied: bool, group: Group, invariant: str) -> None:
    if not is_satisfied:
        details = (
            f"group {group.id}, generation {group.generation} ({group.cause or 'no cause'})",
            f"state {group.state.value}, clock {group.sessions.clock_ms} ms",
            *(f"{m.id}: {m.state.value}, epoch {m.epoch}, slot {m.slot}" for m in group.roster),
        )
        raise InvariantViolation(invariant, details)


def _set(group: Group, tasks: NDArray[np.integer[Any]]) -> TaskSet:
    return group.table.set_of(tasks.astype(np.int32))


def _members_are_listed_once(group: Group) -> None:
    taken_slots = {slot for slot, member in enumerate(group.roster.by_slot) if member is not None}
    _require(set(group.roster.slots) == taken_slots, group, "every member is in the roster")
    names = [member.id for member in group.roster]
    _require(names == sorted(names), group, "the roster is in the order of ids")
    _require(
        set(group.roster.by_id.items()) == {(m.id, m.slot) for m in group.roster},
        group,
        "by_id has every member",
    )
    static_members = {(m.instance_id, m.slot) for m in group.roster if m.instance_id is not None}
    _require(
        set(group.roster.by_instance.items()) == static_members,
        group,
        "by_instance has every static member",
    )
    in_session = set(np.flatnonzero(group.sessions.timeout_ms > 0).tolist())
    _require(in_session == taken_slots, group, "every member, and no other slot, has a session")
    columns_agree = group.roster.columns.agree_with(group.roster.by_slot)
    _require(columns_agree, group, "the columns have the members' fields")


def _only_members_have_tasks(group: Group) -> None:
    is_member = np.zeros(len(group.roster.by_slot) + 1, dtype=np.bool_)
    is_member[list(group.roster.slots)] = is_member[NO_MEMBER] = True
    target = group.target
    vectors = {"target": target.active, "destination": target.destination}
    for name, vector in {**vectors, "holder": group.owned.holder}.items():
        _require(len(vector) == len(group.table), group, f"{name} has an entry for every task")
        _require(bool(is_member[vector].all()), group, f"{name} names members")
    _require(
        not (group.owned.revoking & (group.owned.holder == NO_MEMBER)).any(),
        group,
        "only held tasks are being given up",
    )
    for role, copies in group.owned.copies.items():
        for pairs in (*copies, group.owned.ready, group.owned.duplicate):
            _require(bool(is_member[slot_of(pairs)].all()), group, f"a {role} belongs to a member")
            _require(bool((np.diff(pairs) > 0).all()), group, "pairs ascend")
    all_copies = np.concatenate([part for copies in group.owned.copies.values() for part in copies])
    ready_is_held = bool(np.isin(group.owned.ready, all_copies).all())
    _require(ready_is_held, group, "a ready pair is a copy, held or wanted")
    orphans = group.owned.orphans
    _require(list(orphans) == sorted(orphans), group, "orphans ascend")


def _no_member_has_two_roles_of_a_task(group: Group) -> None:
    tasks = np.flatnonzero(group.owned.holder != NO_MEMBER).astype(np.int32)
    role_pairs = [codes(tasks, group.owned.holder[tasks]), group.owned.duplicate]
    for copies in group.owned.copies.values():
        role_pairs += [copies.kept, copies.releasing]
    all_pairs = np.concatenate(role_pairs)
    _require(
        len(np.unique(all_pairs)) == len(all_pairs), group, "no member holds two roles of a task"
    )
    tasks = np.flatnonzero(group.target.active != NO_MEMBER).astype(np.int32)
    target_pairs = [codes(tasks, group.target.active[tasks])]
    target_pairs += [copies.wanted for copies in group.owned.copies.values()]
    all_pairs = np.concatenate(target_pairs)
    _require(
        len(np.unique(all_pairs)) == len(all_pairs),
        group,
        "no member has two roles of a task in the target",
    )


def _epochs_are_ordered(group: Group) -> None:
    _require(group.target.generation <= group.generation, group, "targets follow generations")
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
    if lost_checkpoint.is_halted(group):
        return
    owing_slots = [group.owned.holder[group.owned.revoking], slot_of(group.owned.duplicate)]
    owing_slots += [slot_of(copies.releasing) for copies in group.owned.copies.values()]
    owing = {*np.concatenate(owing_slots).tolist(), *(o.slot for o in group.owned.orphans)}
    is_kept = ~group.owned.revoking & (group.owned.holder != NO_MEMBER)
    differs = group.target.active != group.owned.holder
    holding_too_much = {*group.owned.holder[is_kept & differs].tolist()}
    lacking = {*group.target.active[differs].tolist()}
    wanted_copies = np.union1d(*(copies.wanted for copies in group.owned.copies.values()))
    for copies in group.owned.copies.values():
        surplus_copies = np.setdiff1d(copies.kept, wanted_copies)
        slots = slot_of(surplus_copies)
        holding_too_much |= {*slots[group.target.active[task_of(surplus_copies)] != slots].tolist()}
        lacking |= set(slot_of(np.setdiff1d(copies.wanted, copies.kept)).tolist())
    for member in group.roster:
        if group.sessions.flags[member.slot] & FENCED:
            continue
        name, slot = member.id, member.slot
        unrevoked = member.state is MemberState.UNREVOKED
        _require(
            unrevoked == (slot in owing), group, f"{name} is UNREVOKED while it owes a release"
        )
        if not unrevoked:
            _require(slot not in holding_too_much, group, f"{name} keeps nothing beyond its target")
            is_unreleased = member.state is MemberState.UNRELEASED
            _require(
                is_unreleased == (slot in lacking), group, f"{name} is UNRELEASED while it waits"
            )


def _demands_are_of_members_that_owe(group: Group) -> None:
    for member in group.roster:
        slot = member.slot
        owes_answer = bool(group.sessions.flags[slot] & FENCED) or slot in group.recovery.asked
        owes_answer |= member.state is MemberState.UNREVOKED
        owes_answer |= bool(group.sessions.flags[slot] & UNREAD)
        _require(
            owes_answer == bool(group.sessions.response_due[slot]),
            group,
            f"{member.id} has a demand while it owes",
        )


def _digests_are_those_of_the_holdings(group: Group) -> None:
    every_slot = np.arange(len(group.roster.by_slot) + 1) < len(group.roster.by_slot)
    expected = expected_digests.of_members(group.owned, group.hashes, every_slot)
    for member in group.roster:
        is_equal = expected[member.slot] == group.sessions.digest[member.slot]
        is_exempt = bool(group.sessions.flags[member.slot] & FENCED) or member.away
        invariant = f"the digest expected of {member.id} is of what it holds"
        _require(bool(is_equal) or is_exempt, group, invariant)
