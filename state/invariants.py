"""The invariants of a group, which hold after every `advance` (docs/requirements/invariants.md).

`check` runs after every step in tests, and after a sample of the steps in production. Simulations
check invariants over time, such as that no task is granted while another member runs it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.protocol.digest import RELEASING, Holding, mixed, set_hashes
from muster.protocol.ids import Role, Task
from muster.protocol.records import MemberState
from muster.protocol.tasks import TaskSet
from muster.state.errors import InvariantViolation
from muster.state.group import COPY_ROLES, NO_MEMBER, Codes, Copies, Group, codes, slot_of, task_of
from muster.state.liveness import FENCED, UNREAD


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
    held: dict[Role, TaskSet] = {Role.ACTIVE: _set(group, np.flatnonzero(group.holder == slot))}
    going: list[NDArray[np.integer[Any]]] = []
    going.append(np.flatnonzero((group.holder == slot) & group.revoking))
    for role, copies in _copies(group):
        mine = np.union1d(copies.kept, copies.going)
        held[role] = _set(group, task_of(mine[slot_of(mine) == slot]))
        going.append(task_of(copies.going[slot_of(copies.going) == slot]))
    duplicate = task_of(group.duplicate[slot_of(group.duplicate) == slot])
    held[Role.ACTIVE] |= _set(group, duplicate)
    releasing = TaskSet()
    for tasks in (*going, duplicate):
        releasing |= _set(group, tasks)
    for orphan in group.orphans:
        if orphan.slot == slot:
            task = TaskSet.of([Task(orphan.unit, orphan.number, orphan.connector)])
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
            f"state {group.state.value}, clock {group.soft.clock_ms} ms",
            *(f"{m.id}: {m.state.value}, epoch {m.epoch}, slot {m.slot}" for m in group.live()),
        )
        raise InvariantViolation(law, story)


def _set(group: Group, tasks: NDArray[np.integer[Any]]) -> TaskSet:
    return group.table.set_of(tasks.astype(np.int32))


def _copies(group: Group) -> tuple[tuple[Role, Copies], ...]:
    return tuple(zip(COPY_ROLES, (group.standby, group.learner), strict=True))


def _members_are_listed_once(group: Group) -> None:
    taken = {slot for slot, member in enumerate(group.members) if member is not None}
    _require(set(group.roster) == taken, group, "every member is in the roster")
    names = [member.id for member in group.live()]
    _require(names == sorted(names), group, "the roster is in the order of ids")
    _require(
        set(group.by_id.items()) == {(m.id, m.slot) for m in group.live()},
        group,
        "by_id has every member",
    )
    static = {(m.instance_id, m.slot) for m in group.live() if m.instance_id is not None}
    _require(set(group.by_instance.items()) == static, group, "by_instance has every static member")
    seated = set(np.flatnonzero(group.soft.timeout_ms > 0).tolist())
    _require(seated == taken, group, "every member, and no other slot, has a session")
    agree = group.columns is None or group.columns.agree_with(group.members)
    _require(agree, group, "the columns have the members' fields")


def _only_members_have_tasks(group: Group) -> None:
    known = np.zeros(len(group.members) + 1, dtype=np.bool_)
    known[list(group.roster)] = known[NO_MEMBER] = True
    for name in ("target", "destination", "holder"):
        vector = getattr(group, name)
        _require(len(vector) == len(group.table), group, f"{name} has an entry for every task")
        _require(bool(known[vector].all()), group, f"{name} names members")
    _require(
        not (group.revoking & (group.holder == NO_MEMBER)).any(),
        group,
        "only held tasks are being given up",
    )
    for role, copies in _copies(group):
        for pairs in (*copies, group.ready, group.duplicate):
            _require(bool(known[slot_of(pairs)].all()), group, f"a {role} belongs to a member")
            _require(bool((np.diff(pairs) > 0).all()), group, "pairs ascend")
    everywhere = np.concatenate([part for _, copies in _copies(group) for part in copies])
    _require(_within(group.ready, everywhere), group, "a ready pair is a copy, held or wanted")


def _within(part: Codes, whole: Codes) -> bool:
    return bool(np.isin(part, whole).all())


def _no_member_has_two_roles_of_a_task(group: Group) -> None:
    held = np.flatnonzero(group.holder != NO_MEMBER).astype(np.int32)
    roles = [codes(held, group.holder[held]), group.duplicate]
    for _, copies in _copies(group):
        roles += [copies.kept, copies.going]
    together = np.concatenate(roles)
    _require(
        len(np.unique(together)) == len(together), group, "no member holds two roles of a task"
    )
    target_pairs = [
        codes(
            held := np.flatnonzero(group.target != NO_MEMBER).astype(np.int32), group.target[held]
        )
    ]
    target_pairs += [copies.wanted for _, copies in _copies(group)]
    together = np.concatenate(target_pairs)
    _require(
        len(np.unique(together)) == len(together),
        group,
        "no member has two roles of a task in the target",
    )


def _epochs_are_ordered(group: Group) -> None:
    _require(
        group.target_generation <= group.generation,
        group,
        "targets follow generations",
    )
    for member in group.live():
        _require(
            member.epoch <= group.generation,
            group,
            f"the epoch of {member.id} is at most the generation",
        )
        _require(
            member.revoke_revision <= member.revision, group, f"{member.id} has a record that asks"
        )


def _states_fit_what_is_waited_for(group: Group) -> None:
    if group.recovering:
        return
    owed = [group.holder[group.revoking], slot_of(group.duplicate)]
    owed += [slot_of(copies.going) for _, copies in _copies(group)]
    owes = {*np.concatenate(owed).tolist(), *(o.slot for o in group.orphans)}
    kept = ~group.revoking & (group.holder != NO_MEMBER)
    beyond = {*group.holder[kept & (group.holder != group.target)].tolist()}
    missing = {*group.target[(group.target != group.holder)].tolist()}
    wanted = np.union1d(group.standby.wanted, group.learner.wanted)
    for _, copies in _copies(group):
        less = np.setdiff1d(copies.kept, wanted)
        beyond |= set(slot_of(less[group.target[task_of(less)] != slot_of(less)]).tolist())
        missing |= set(slot_of(np.setdiff1d(copies.wanted, copies.kept)).tolist())
    for member in group.live():
        if group.soft.flags[member.slot] & FENCED:
            continue
        name, slot = member.id, member.slot
        unrevoked = member.state is MemberState.UNREVOKED
        _require(unrevoked == (slot in owes), group, f"{name} is UNREVOKED while it owes a release")
        if not unrevoked:
            _require(slot not in beyond, group, f"{name} keeps nothing beyond its target")
            waits = member.state is MemberState.UNRELEASED
            _require(waits == (slot in missing), group, f"{name} is UNRELEASED while it waits")


def _demands_are_of_members_that_owe(group: Group) -> None:
    for member in group.live():
        slot = member.slot
        owes = bool(group.soft.flags[slot] & FENCED) or slot in group.recovering
        owes |= member.state is MemberState.UNREVOKED
        owes |= bool(group.soft.flags[slot] & UNREAD)
        _require(
            owes == bool(group.soft.response_due[slot]),
            group,
            f"{member.id} has a demand while it owes",
        )


def _digests_are_those_of_the_holdings(group: Group) -> None:
    expected = _digests(group)
    for member in group.live():
        same = expected[member.slot] == group.soft.digest[member.slot]
        fenced = bool(group.soft.flags[member.slot] & FENCED) or member.away
        law = f"the digest expected of {member.id} is of what it holds"
        _require(bool(same) or fenced, group, law)


def _digests(group: Group) -> NDArray[np.uint64]:
    """uint64[slots]: the digest of `holding_of` for every slot, computed from the vectors."""
    digests = np.zeros(len(group.members), dtype=np.uint64)
    held = np.flatnonzero(group.holder != NO_MEMBER).astype(np.int32)
    active = codes(held, group.holder[held])
    going = group.revoking[held]
    parts = [
        (active[~going], int(Role.ACTIVE)),
        (active[going], Role.ACTIVE + RELEASING),
        (group.duplicate, Role.ACTIVE + RELEASING),
    ]
    for role, copies in _copies(group):
        parts += [(copies.kept, int(role)), (copies.going, role + RELEASING)]
    with np.errstate(over="ignore"):
        for pairs, number in parts:
            np.add.at(digests, slot_of(pairs), mixed(group.hashes[task_of(pairs)], number))
        for orphan in group.orphans:
            task = TaskSet.of([Task(orphan.unit, orphan.number, orphan.connector)])
            digests[orphan.slot] += mixed(set_hashes(task), orphan.role + RELEASING)[0]
    return digests
