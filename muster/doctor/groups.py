"""Checks of `muster doctor` about groups that do not settle, and tasks that no member has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from muster.doctor.facts import GRACE_MS, Facts, Heard
from muster.doctor.finding import Finding, Level
from muster.kafka.command_options import connection_options
from muster.output import some, span
from muster.protocol.ids import GroupId, as_option
from muster.protocol.records import GroupSnapshot, GroupState, MemberState
from muster.protocol.unknown_names import there_are
from muster.published.snapshots import is_deleted

SIMILAR_MAX = 5
"""Most groups without tasks for which similar names are looked up: it takes milliseconds each."""
_UNSETTLED = (GroupState.ASSIGNING, GroupState.RECONCILING)


def look(facts: Facts, prefix: str, stuck_ms: int) -> Iterator[Finding]:
    """Groups that do not settle, and tasks that no member has; `prefix` is that of their topics."""
    fine = 0
    configured = _configured(facts)
    for name, (snapshot, at_ms) in sorted(facts.groups.items()):
        unchanged_ms = facts.now_ms - (snapshot.generation_ms or at_ms)
        is_gone = is_deleted(snapshot)
        of_group = " ".join([as_option("--group", name), *connection_options(None, None, prefix)])
        if is_gone:
            faults = [*_joins_of_deleted(facts, snapshot, of_group, at_ms)]
        else:
            faults = [*_faults(facts, snapshot, of_group, unchanged_ms, stuck_ms, configured)]
        faults += _config(facts, name, of_group)
        for level, what, action in faults:
            yield Finding("group", name, level, what, action)
        fine += not faults and not is_gone
    for missing in sorted(facts.unapplied.keys() - facts.groups.keys()):
        named = [as_option("--group", missing), *connection_options(None, None, prefix)]
        for level, what, action in _config(facts, missing, " ".join(named)):
            yield Finding("group", missing, level, what, action)
    if fine:
        yield Finding(
            "group",
            "all others" if fine < len(facts.groups) else "all",
            Level.OK,
            f"{fine} settled, or on their way",
        )


def _joins_of_deleted(
    facts: Facts, snapshot: GroupSnapshot, of_group: str, deleted_ms: int
) -> Iterator[tuple[Level, str, str]]:
    """A warning if workers still ask to join a deleted group."""
    joined = sorted(facts.heard.get(snapshot.group, Heard()).joined)
    if joined:
        ask = "worker asks" if len(joined) == 1 else "workers ask"
        yield (
            Level.WARN,
            f"was deleted {facts.ago(deleted_ms)} ago, and {len(joined)} {ask} to join it: "
            f"{some(joined)}",
            f"stop them, or: muster config set {of_group} --tasks FILE",
        )


def _config(facts: Facts, group: GroupId, of_group: str) -> Iterator[tuple[Level, str, str]]:
    """A warning if a group does not follow its newest configuration."""
    unapplied = facts.unapplied.get(group)
    if unapplied is None:
        return
    what = unapplied.what(facts.now_ms)
    if unapplied.refusal:
        follows = "there is no group yet" if unapplied.is_first else "it follows the one before"
        again = f"correct what the reason names, then: muster config set {of_group} --tasks FILE"
        yield Level.WARN, f"{what}; {follows}", again
    else:
        yield (
            Level.WARN,
            what,
            "a configuration of thousands of units takes some seconds, and so do those of a "
            "thousand groups; if this goes on, read the job's log and write the configuration "
            "again: it is applied, or a dead letter says why not",
        )


def _unheard(facts: Facts, snapshot: GroupSnapshot) -> Iterator[tuple[Level, str, str]]:
    """A failure if members heartbeat apart and the newest ticks show that no clock reads them.

    The first tick after a start may show nothing, because its clock has not read a heartbeat yet.
    """
    since_ms = facts.heard.get(snapshot.group, Heard()).uncovered_ms
    if snapshot.apart and 0 < since_ms < facts.now_ms - GRACE_MS:
        number = len(snapshot.apart)
        members = "member heartbeats" if number == 1 else "members heartbeat"
        yield (
            Level.FAIL,
            f"{number} {members} apart, and the coordinator does not read these heartbeats: if "
            "one dies, its tasks stay where they are",
            "grant the coordinator READ on the topic of heartbeats (muster topics create --acls), "
            "or restart the workers: they heartbeat on membership while no coordinator reads it",
        )


def _configured(facts: Facts) -> Callable[[str], str]:
    """A function that lists the groups with tasks, those similar to a given name first.

    After `SIMILAR_MAX` calls it returns only their number.
    """
    names = [name for name, (each, _) in facts.groups.items() if each.tasks]
    asked = count(1)
    return lambda name: there_are(name, names) if next(asked) <= SIMILAR_MAX else str(len(names))


def _faults(
    facts: Facts,
    snapshot: GroupSnapshot,
    of_group: str,
    unchanged_ms: int,
    stuck_ms: int,
    configured: Callable[[str], str],
) -> Iterator[tuple[Level, str, str]]:
    """The faults of a group that was not deleted; `of_group`: the options that name it."""
    if snapshot.quarantine is not None:
        yield (
            Level.FAIL,
            f"is quarantined for {facts.ago(snapshot.quarantine.since_ms)}: "
            f"{snapshot.quarantine.story}",
            f"correct the cause, then: muster groups release {of_group}",
        )
        return  # a quarantined group stands still: further findings would follow from that
    late = [h for h in facts.holdups.get(snapshot.group, ()) if h.is_late(facts.now_ms)]
    for holdup in late:
        yield (
            Level.WARN,
            f"waits for {holdup.member}: {holdup.text(facts.now_ms)}",
            f"read the log of {holdup.member}: what stops a task there (on_revoked, or the process "
            "of --exec) does not return; end its process if it hangs",
        )
    yield from _unheard(facts, snapshot)
    for drain in (each for each in snapshot.drains if each.expelled):
        yield (
            Level.WARN,
            f"{drain.member} was expelled before it was empty: its process may still run its tasks",
            f"end that process, then muster drain {of_group} "
            f"{as_option('--member', drain.member)} --cancel",
        )
    if snapshot.state is GroupState.NOT_READY:
        number = len(snapshot.members)
        yield (
            Level.FAIL if unchanged_ms > stuck_ms else Level.WARN,
            f"has {number} member{'' if number == 1 else 's'} and no tasks; configured groups: "
            f"{configured(snapshot.group)}",
            f"muster config set {of_group} --tasks FILE",
        )
    elif snapshot.state in _UNSETTLED and unchanged_ms > stuck_ms:
        yield (
            Level.FAIL,
            f"{snapshot.state.value} for {span(unchanged_ms)} (generation {snapshot.generation}, "
            f"{snapshot.cause or 'no cause'}): {_waits_for(snapshot)}",
            f"muster groups describe {of_group} --members --verbose",
        )
    if snapshot.tasks and not snapshot.members and unchanged_ms > stuck_ms:
        yield (
            Level.WARN,
            f"has no member for {span(unchanged_ms)}: no worker runs its "
            f"{len(snapshot.holder)} tasks",
            f"start its workers; if the group is no longer needed: muster config delete {of_group}",
        )
    unowned = int(np.count_nonzero(snapshot.holder < 0))
    is_settled = unchanged_ms > stuck_ms and snapshot.state not in _UNSETTLED
    if unowned and snapshot.members and is_settled and not _is_delayed(snapshot, facts.now_ms):
        yield (
            Level.WARN,
            f"{unowned} of {len(snapshot.holder)} tasks have no owner",
            f"muster explain {of_group}: no member takes their topics, or a "
            "static assignment names an absent member",
        )


def _is_delayed(snapshot: GroupSnapshot, now_ms: int) -> bool:
    """Whether tasks are kept for their last owner."""
    return snapshot.delay_until_ms is not None and snapshot.delay_until_ms > now_ms


def _waits_for(snapshot: GroupSnapshot) -> str:
    """What a group that has not settled waits for, in words."""
    if not snapshot.members:
        return "it has no members"
    named = {entry.slot: str(entry.id) for entry in snapshot.members}
    if snapshot.recovering:
        return f"waits for a report of {some([named[s] for s in snapshot.recovering])}"
    owing = [str(m.id) for m in snapshot.members if m.state is MemberState.UNREVOKED]
    if owing:
        return f"waits for {some(owing)} to release tasks"
    if len(snapshot.learner):
        slots = sorted({named[s] for s in snapshot.learner[:, 1].tolist()})
        return f"waits for learners on {some(slots)} to catch up"
    return "its assignor has not placed this generation (the cause says why)"
