"""Reconciliation compared with Kafka's rules (KIP-848), written a second time with sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from support.suite.examples import examples

from muster.assignor.registry import get
from muster.protocol.digest import table_hashes
from muster.protocol.ids import GroupId, Role
from muster.protocol.records import MemberEntry, MemberState
from muster.protocol.tasks import Subtopology, TaskTable
from muster.state import invariants, member_records, reconcile
from muster.state.draft import Draft
from muster.state.group import Group, Target
from muster.state.liveness import Liveness
from muster.state.ownership import Copies, Ownership, codes, slot_of, task_of
from muster.state.roster import Roster

TASKS = 4
STABLE, UNREVOKED, UNRELEASED = MemberState.STABLE, MemberState.UNREVOKED, MemberState.UNRELEASED
COPIES = (Role.STANDBY, Role.LEARNER)
Sets = dict[Role, frozenset[int]]


@dataclass(frozen=True)
class Stand:
    """A member: epoch, state, assigned A, pending revocation R, target X, release acknowledged."""

    epoch: int
    state: MemberState
    assigned: Sets
    pending: Sets
    target: Sets
    acknowledged: bool = False


Case = tuple[Stand, tuple[MemberState, int, str, str]]


def kafka(members: list[Stand], target_epoch: int) -> list[Stand]:
    """One step of every member by Kafka's rules, member by member."""
    before = [replace(m, pending=_none()) if m.acknowledged else m for m in members]
    return [_step(n, before, target_epoch) for n in range(len(members))]


def _step(n: int, members: list[Stand], target_epoch: int) -> Stand:
    me = members[n]
    if me.state is UNREVOKED and not me.acknowledged:
        return me
    epoch = me.epoch + 1 if me.state is UNREVOKED else me.epoch
    keeps = {r: me.target[r] for r in Role}
    for role in COPIES:  # a copy stays until its member has the task in its other role
        keeps[role] = frozenset().union(*me.target.values())
    assigned = {r: me.assigned[r] & keeps[r] for r in Role}
    pending = {r: me.assigned[r] - keeps[r] for r in Role}
    if any(pending.values()):
        return replace(me, epoch=epoch, state=UNREVOKED, assigned=assigned, pending=pending)
    missing = {r: me.target[r] - me.assigned[r] for r in Role}
    unreleased = {r: frozenset(t for t in missing[r] if _held(r, t, members)) for r in Role}
    new = {r: missing[r] - unreleased[r] for r in Role}
    granted = {r: assigned[r] | new[r] for r in Role}
    for role in COPIES:
        granted[role] -= frozenset().union(*(new[r] for r in Role if r is not role))
    state = UNRELEASED if any(unreleased.values()) else STABLE
    return replace(me, epoch=target_epoch, state=state, assigned=granted, pending=_none())


def _held(role: Role, task: int, members: list[Stand]) -> bool:
    """Whether a task is not free; an active is not free while any member has it."""
    return role is Role.ACTIVE and any(task in m.assigned[role] | m.pending[role] for m in members)


def _none() -> Sets:
    return {role: frozenset() for role in Role}


def ours(members: list[Stand], target_epoch: int) -> list[Stand]:
    """One step of every member by `reconcile.settle`."""
    draft = Draft(_group(members, target_epoch), 1, get)
    draft.touched = set(range(len(members)))
    for slot, member in enumerate(members):
        if member.acknowledged:
            from muster.state import releases

            releases.acknowledge(draft, slot)
    member_records.write(draft, reconcile.settle(draft))
    group = draft.finished(changed=draft.changed)
    invariants.check(group)
    return [_stand(group, slot, members[slot]) for slot in range(len(members))]


def _group(members: list[Stand], target_epoch: int) -> Group:
    table = TaskTable([Subtopology("0", TASKS, stateful=True)])
    holder = np.full(TASKS, -1, dtype=np.int32)
    target, revoking = holder.copy(), np.zeros(TASKS, dtype=np.bool_)
    pairs: dict[tuple[str, Role], list[tuple[int, int]]] = {}
    for slot, member in enumerate(members):
        for task in member.assigned[Role.ACTIVE] | member.pending[Role.ACTIVE]:
            holder[task] = slot
        revoking[list(member.pending[Role.ACTIVE])] = True
        target[list(member.target[Role.ACTIVE])] = slot
        for role in COPIES:
            for part in ("target", "assigned", "pending"):
                listed = pairs.setdefault((part, role), [])
                listed += [(t, slot) for t in getattr(member, part)[role]]

    def code(part: str, role: Role) -> np.ndarray:
        rows = np.array(pairs[part, role], dtype=np.int32).reshape(-1, 2)
        return codes(rows[:, 0], rows[:, 1])

    sessions = Liveness.new(len(members))
    sessions.clock_ms = sessions.session_ms = 1_000
    entries = []
    for slot, member in enumerate(members):
        sessions.start(slot, 45_000)
        waits = member.state is UNREVOKED
        if waits:
            sessions.demand(slot)
        entries.append(
            MemberEntry(
                id=f"m{slot}",
                slot=slot,
                incarnation=slot + 1,
                epoch=member.epoch,
                state=member.state,
                revision=3,
                revoke_revision=3 if waits else 0,
            )
        )
    copies = {r: Copies(code("target", r), code("assigned", r), code("pending", r)) for r in COPIES}
    return Group(
        id=GroupId("g"),
        generation=target_epoch,
        table=table,
        hashes=table_hashes(table),
        roster=Roster.of(entries),
        target=Target(generation=target_epoch, active=target, destination=target),
        owned=Ownership(holder=holder, revoking=revoking, copies=copies),
        sessions=sessions,
    )


def _stand(group: Group, slot: int, was: Stand) -> Stand:
    held = group.owned.holder == slot
    assigned = {Role.ACTIVE: np.flatnonzero(held & ~group.owned.revoking)}
    pending = {Role.ACTIVE: np.flatnonzero(held & group.owned.revoking)}
    for role, copies in group.owned.copies.items():
        assigned[role] = task_of(copies.kept[slot_of(copies.kept) == slot])
        pending[role] = task_of(copies.releasing[slot_of(copies.releasing) == slot])
    member = group.roster.by_slot[slot]
    assert member is not None
    as_sets = lambda sets: {r: frozenset(v.tolist()) for r, v in sets.items()}  # noqa: E731
    return Stand(
        member.epoch,
        member.state,
        as_sets(assigned),
        as_sets(pending),
        was.target,
        was.acknowledged,
    )


@st.composite
def groups(draw: st.DrawFn) -> list[Stand]:
    """Any reachable state of 1 to 4 members: distinct roles of a task on each, one holder."""
    count = draw(st.integers(1, 4))
    held = [{role: set() for role in Role} for _ in range(count)]
    targets = [{role: set() for role in Role} for _ in range(count)]
    for sets in (held, targets):
        for task in range(TASKS):
            owner = draw(st.integers(-1, count - 1))
            for slot in range(count):
                role = draw(st.sampled_from((None, None, *COPIES)))
                if slot == owner:
                    sets[slot][Role.ACTIVE].add(task)
                elif role is not None:
                    sets[slot][role].add(task)
    members = []
    for slot in range(count):
        target = {r: frozenset(targets[slot][r]) for r in Role}
        assigned = {r: frozenset(held[slot][r]) for r in Role}
        going = (
            draw(st.sets(st.sampled_from([(r, t) for r in Role for t in assigned[r]])))
            if any(assigned.values())
            else set()
        )
        pending = {r: frozenset(t for role, t in going if role is r) for r in Role}
        assigned = {r: assigned[r] - pending[r] for r in Role}
        waiting = (STABLE, UNRELEASED) if target != assigned else (STABLE,)
        state = UNREVOKED if going else draw(st.sampled_from(waiting))
        epoch = draw(st.integers(1, 6))
        acknowledged = state is UNREVOKED and draw(st.booleans())
        members.append(Stand(epoch, state, assigned, pending, target, acknowledged))
    return members


@given(groups())
@settings(max_examples=examples(150), deadline=None)
def test_every_step_is_kafkas(members: list[Stand]) -> None:
    """One step from any state gives Kafka's sets, states and epochs, with two exceptions.

    A copy stays until its member has the task in its other role. Kafka's broker has no learners,
    and its clients keep the state of a standby that becomes active.

    Kafka raises the epoch of a member whose target does not change; muster does not, so that it
    needs no record.
    """
    for mine, theirs, was in zip(ours(members, 7), kafka(members, 7), members, strict=True):
        untouched = was.assigned == was.target and was.state is not UNREVOKED
        if untouched:
            assert (mine.assigned, mine.pending) == (theirs.assigned, theirs.pending)
        else:
            assert mine == theirs


def sets(active: str = "", standby: str = "", learner: str = "") -> Sets:
    """Sets from digits."""
    texts = {Role.ACTIVE: active, Role.STANDBY: standby, Role.LEARNER: learner}
    return {role: frozenset(map(int, text)) for role, text in texts.items()}


def case(
    state: MemberState,
    assigned: str | tuple[str, ...],
    target: str | tuple[str, ...],
    expected: tuple[MemberState, int, str, str],
    *,
    pending: str = "",
    acknowledged: bool = False,
) -> Case:
    """A member of epoch 5 and its state after a step; sets as digits, of actives or by role."""
    had, aims = ((each,) if isinstance(each, str) else each for each in (assigned, target))
    return Stand(5, state, sets(*had), sets(pending), sets(*aims), acknowledged), expected


TABLE = {
    "stable, all as wanted": case(STABLE, "01", "01", (STABLE, 5, "01", "")),
    "stable, something free to take": case(STABLE, "0", "01", (STABLE, 7, "01", "")),
    "stable, something to give up": case(STABLE, "01", "02", (UNREVOKED, 5, "0", "1")),
    "stable, wanted but held elsewhere": case(STABLE, "0", "03", (UNRELEASED, 7, "0", "")),
    "stable, part free, part held elsewhere": case(STABLE, "0", "013", (UNRELEASED, 7, "01", "")),
    "unrevoked, silent": case(UNREVOKED, "0", "02", (UNREVOKED, 5, "0", "1"), pending="1"),
    "unrevoked, released": case(
        UNREVOKED, "0", "02", (STABLE, 7, "02", ""), pending="1", acknowledged=True
    ),
    "unrevoked, released, target moved on": case(
        UNREVOKED, "0", "2", (UNREVOKED, 6, "", "0"), pending="1", acknowledged=True
    ),
    "unrevoked, released and wanted again": case(
        UNREVOKED, "0", "01", (STABLE, 7, "01", ""), pending="1", acknowledged=True
    ),
    "unreleased, still held": case(UNRELEASED, "0", "03", (UNRELEASED, 7, "0", "")),
    "unreleased, free now": case(UNRELEASED, "0", "02", (STABLE, 7, "02", "")),
    "unreleased, wanted no more": case(UNRELEASED, "0", "1", (UNREVOKED, 5, "", "0")),
    "learner to active changes its role at once": case(
        STABLE, ("", "", "1"), "1", (STABLE, 7, "1", "")
    ),
    "learner to active held elsewhere keeps its copy": case(
        STABLE, ("", "", "3"), "3", (UNRELEASED, 7, "", "")
    ),
    "owner to standby gives the active up first": case(
        STABLE, "1", ("", "1"), (UNREVOKED, 5, "", "1")
    ),
    "a standby needs no release": case(STABLE, "", ("", "3"), (STABLE, 7, "", "")),
}


@pytest.mark.parametrize("name", TABLE)
def test_every_state_and_case(name: str) -> None:
    """Each state in each case of Kafka's rules: state, epoch, assigned and pending actives."""
    me, expected = TABLE[name]
    other = Stand(7, STABLE, sets("3"), sets(), sets("3"))
    if "3" in "".join(map(str, me.target[Role.ACTIVE])):  # two targets of one task cannot be
        other = replace(other, target=sets())
    stepped = ours([me, other], 7)[0]
    sets_after = tuple(
        "".join(map(str, sorted(part[Role.ACTIVE]))) for part in (stepped.assigned, stepped.pending)
    )
    assert (stepped.state, stepped.epoch, *sets_after) == expected
