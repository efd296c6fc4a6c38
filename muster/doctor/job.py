"""Checks of `muster doctor` about the job and its groups, from records on muster's topics.

All functions are pure functions of `Facts`, which is read from Kafka, so the checks need no access
to the job's machine. How they tell a live coordinator from a dead one:

* A group with members has a wake-up (``<prefix>.clock``) that is at most one step away
  (`state.session_clock.step_of`). If it is long past and newer events exist, **the job** does not
  work.
* If it is long past and not even a tick is newer, **no clock** runs, and a group whose members have
  all died is not noticed.
* A group without members has no wake-up. If it has not answered a join, and the coordinator has
  written nothing since, **the job** does not work.
* The coordinator regularly writes a test event and answers it (`streams.canary`). Until the next
  answer is overdue, **the job** works, even if no group has a member.
* A coordinator, and one that stands by, writes a sign of life once a second: **the process** runs.
* If an older claim's records are written after a newer claim, **two jobs** run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from muster.doctor.coordinators import START, claims, signs
from muster.doctor.facts import GRACE_MS, Facts, Heard, who
from muster.doctor.finding import Finding, Level
from muster.output import some, span
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, GroupState, MemberState
from muster.protocol.unknown_names import there_are
from muster.published.snapshots import is_deleted

REJECTED_MS = 600_000
"""How far back dead letters are reported."""
SKEW_MS = 5_000
SLOW_MS = 5_000
"""A canary event whose answer takes longer gives a warning."""
SIMILAR_MAX = 5
"""Most groups without tasks for which similar names are looked up: it takes milliseconds each."""
_UNSETTLED = (GroupState.ASSIGNING, GroupState.RECONCILING)


def look(facts: Facts, prefix: str, stuck_ms: int) -> Iterator[Finding]:
    """All findings about the job and its groups."""
    yield from claims(facts, prefix)
    yield from signs(facts, prefix)
    yield from job(facts, prefix)
    yield from canary(facts, prefix)
    yield from groups(facts, stuck_ms)
    yield from rejected(facts, prefix)


# ---------------------------------------------------------------- is it alive?


def job(facts: Facts, prefix: str) -> Iterator[Finding]:
    """Whether the job answers events, and whether a clock acts on wake-ups."""
    if not facts.claims:
        return
    found = partial(Finding, "job", prefix)
    newest_ms = max((h.event_ms for h in facts.heard.values()), default=0)
    ahead_ms = newest_ms - max(facts.read_ms, facts.now_ms)
    if ahead_ms > SKEW_MS:
        what = f"this machine's clock is {ahead_ms / 1000:.0f} s behind Kafka's"
        yield Finding(
            "clock", "this machine", Level.WARN, what, "set the clock; the times below are wrong"
        )
    joined = _unanswered(facts)
    joined_ms = min(joined.values(), default=0)
    overdue = {
        group: at_ms
        for group, at_ms in facts.wakeups.items()
        if at_ms < facts.now_ms - GRACE_MS and group in facts.groups
    }
    quiet = sorted(g for g, at_ms in overdue.items() if not _is_asked(facts, g, at_ms))
    asked = sorted(set(overdue) - set(quiet))
    if asked:
        names, since_ms = _named(asked), min(overdue[g] for g in asked)
        yield found(
            Level.FAIL,
            f"does not answer: events of {names} have waited for {facts.ago(since_ms)}",
            f"is {who(facts.claims[-1])} running? {START}; if it runs: /healthz, its log, and "
            "muster_rows_behind say whether it is stuck or behind",
        )
    elif joined and facts.published_ms < joined_ms:
        yield found(
            Level.FAIL,
            f"does not answer: joins of {_named(sorted(joined))} have waited for "
            f"{facts.ago(joined_ms)}",
            f"is {who(facts.claims[-1])} running? {START}; if it runs, its log says why",
        )
    elif facts.wakeups:
        awake = "1 group" if len(facts.wakeups) == 1 else f"{len(facts.wakeups)} groups"
        what = f"answers; {awake} with members, no wake-up is overdue"
        yield found(Level.OK, what if not quiet else "nothing waits to be read")
    elif joined or _canary_answers(facts):
        yield found(Level.OK, "answers")
    else:
        yield found(Level.SKIPPED, "no group has members, so no record shows whether it works")
    if joined and facts.published_ms >= joined_ms:
        what = f"joins of {_named(sorted(joined))} have no effect, but the job answers others"
        action = f"muster decode --topic {prefix}.rejected says what is wrong with them"
        yield Finding("job", "joins", Level.WARN, what, action)
    if quiet:
        yield Finding(
            "clock",
            prefix,
            Level.FAIL,
            f"no clock: the wake-up of {_named(quiet)} was due "
            f"{facts.ago(min(overdue[g] for g in quiet))} ago, and no clock has written a tick",
            f"a clock runs in every coordinator: {START}; may it write to {prefix}.membership?",
        )


def canary(facts: Facts, prefix: str) -> Iterator[Finding]:
    """How long the answer to the coordinator's newest canary event took."""
    answer = facts.canary
    if answer is None or not facts.claims or answer.epoch != facts.claims[-1].offset:
        return  # the coordinator writes no such event, or has not answered one yet
    took_ms = max(answer.answer_ms - answer.event_ms, 0)
    found = partial(Finding, "canary", prefix)
    what = f"an event of its own was answered in {took_ms} ms, {facts.ago(answer.answer_ms)} ago"
    if not _canary_answers(facts):
        yield found(
            Level.FAIL,
            f"{what}; the next answer is {facts.ago(answer.next_ms)} overdue",
            f"is {who(facts.claims[-1])} running? {START}; if it runs: /healthz and its log say "
            "whether it is stuck or behind",
        )
    elif took_ms > SLOW_MS:
        action = "muster_rows_behind and muster_batch_phase_seconds say where the time goes"
        yield found(Level.WARN, what, action)
    else:
        yield found(Level.OK, what)


def _canary_answers(facts: Facts) -> bool:
    """Whether the newest coordinator answers canary events, and the next answer is not overdue."""
    answer = facts.canary
    if answer is None or not facts.claims or answer.epoch != facts.claims[-1].offset:
        return False
    return facts.now_ms <= answer.next_ms + GRACE_MS


def _unanswered(facts: Facts) -> dict[GroupId, int]:
    """Groups without members, and the oldest join each has not answered within `GRACE_MS`."""
    return {
        group: heard.unanswered_ms
        for group, heard in facts.heard.items()
        if 0 < heard.unanswered_ms < facts.now_ms - GRACE_MS
        and not (group in facts.groups and _is_answered(facts.groups[group][0]))
    }


def _is_answered(snapshot: GroupSnapshot) -> bool:
    """Whether a join was answered: by a group with members, or by a deleted one to the member."""
    return bool(snapshot.members) or is_deleted(snapshot)


def _is_asked(facts: Facts, group: GroupId, since_ms: int) -> bool:
    heard = facts.heard.get(group, Heard())
    return max(heard.event_ms, heard.tick_ms) >= since_ms


def _named(groups: Sequence[GroupId]) -> str:
    names = ", ".join(groups[:3])
    return f"group {names}" if len(groups) == 1 else f"{len(groups)} groups ({names}, …)"


# ---------------------------------------------------------------- groups


def groups(facts: Facts, stuck_ms: int) -> Iterator[Finding]:
    """Groups that do not settle, and tasks that no member has."""
    fine = 0
    configured = _Configured(facts)
    for name, (snapshot, at_ms) in sorted(facts.groups.items()):
        unchanged_ms = facts.now_ms - (snapshot.generation_ms or at_ms)
        is_gone = is_deleted(snapshot)
        if is_gone:
            faults = [*_joins_of_deleted(facts, snapshot, at_ms)]
        else:
            faults = [*_faults(facts, snapshot, unchanged_ms, stuck_ms, configured)]
        for level, what, action in faults:
            yield Finding("group", name, level, what, action)
        fine += not faults and not is_gone
    if fine:
        yield Finding(
            "group",
            "all others" if fine < len(facts.groups) else "all",
            Level.OK,
            f"{fine} settled, or on their way",
        )


def _joins_of_deleted(
    facts: Facts, snapshot: GroupSnapshot, deleted_ms: int
) -> Iterator[tuple[Level, str, str]]:
    """A warning if workers still ask to join a deleted group."""
    joined = sorted(facts.heard.get(snapshot.group, Heard()).joined)
    if joined:
        ask = "worker asks" if len(joined) == 1 else "workers ask"
        yield (
            Level.WARN,
            f"was deleted {facts.ago(deleted_ms)} ago, and {len(joined)} {ask} to join it: "
            f"{some(joined)}",
            f"stop them, or: muster config set --group {snapshot.group} --tasks FILE",
        )


def _unheard(facts: Facts, snapshot: GroupSnapshot) -> Iterator[tuple[Level, str, str]]:
    """A failure if members heartbeat apart and the newest ticks show that no clock reads them."""
    heard = facts.heard.get(snapshot.group, Heard())
    if snapshot.apart and heard.tick_ms - heard.covered_ms > GRACE_MS:
        count = len(snapshot.apart)
        members = "member heartbeats" if count == 1 else "members heartbeat"
        yield (
            Level.FAIL,
            f"{count} {members} apart, and the coordinator does not read these heartbeats: if "
            "one dies, its tasks stay where they are",
            "grant the coordinator READ on the topic of heartbeats (muster topics create --acls), "
            "or restart the workers: they heartbeat on membership while no coordinator reads it",
        )


class _Configured:
    """The names of the groups that have tasks."""

    def __init__(self, facts: Facts) -> None:
        self._names = [name for name, (each, _) in facts.groups.items() if each.tasks]
        self._asked = 0

    def beside(self, group: str) -> str:
        """The names as text, similar ones first; only their number after `SIMILAR_MAX` groups."""
        self._asked += 1
        if self._asked > SIMILAR_MAX:
            return str(len(self._names))
        return there_are(group, self._names)


def _faults(
    facts: Facts,
    snapshot: GroupSnapshot,
    unchanged_ms: int,
    stuck_ms: int,
    configured: _Configured,
) -> Iterator[tuple[Level, str, str]]:
    if snapshot.quarantine is not None:
        yield (
            Level.FAIL,
            f"is quarantined for {facts.ago(snapshot.quarantine.since_ms)}: "
            f"{snapshot.quarantine.story}",
            f"correct the cause, then: muster groups release --group {snapshot.group}",
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
            f"end that process, then muster drain --group {snapshot.group} "
            f"--member {drain.member} --cancel",
        )
    if snapshot.state is GroupState.NOT_READY:
        count = len(snapshot.members)
        yield (
            Level.FAIL if unchanged_ms > stuck_ms else Level.WARN,
            f"has {count} member{'' if count == 1 else 's'} and no tasks; configured groups: "
            f"{configured.beside(snapshot.group)}",
            f"muster config set --group {snapshot.group} --tasks FILE",
        )
    elif snapshot.state in _UNSETTLED and unchanged_ms > stuck_ms:
        yield (
            Level.FAIL,
            f"{snapshot.state.value} for {span(unchanged_ms)} (generation {snapshot.generation}, "
            f"{snapshot.cause or 'no cause'}): {_waits_for(snapshot)}",
            f"muster groups describe --group {snapshot.group} --members --verbose",
        )
    if snapshot.tasks and not snapshot.members and unchanged_ms > stuck_ms:
        yield (
            Level.WARN,
            f"has no member for {span(unchanged_ms)}: no worker runs its "
            f"{len(snapshot.holder)} tasks",
            f"start its workers; if the group is no longer needed: muster config delete --group "
            f"{snapshot.group}",
        )
    unowned = int(np.count_nonzero(snapshot.holder < 0))
    is_settled = unchanged_ms > stuck_ms and snapshot.state not in _UNSETTLED
    if unowned and snapshot.members and is_settled and not _is_delayed(snapshot, facts.now_ms):
        yield (
            Level.WARN,
            f"{unowned} of {len(snapshot.holder)} tasks have no owner",
            f"muster explain --group {snapshot.group}: no member takes their topics, or a "
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


# ---------------------------------------------------------------- dead letters


def rejected(facts: Facts, prefix: str) -> Iterator[Finding]:
    """Dead letters of the last minutes, one finding per reason."""
    minutes = REJECTED_MS // 60_000
    recent = [r for at_ms, r in facts.rejected if at_ms > facts.now_ms - REJECTED_MS]
    if not recent:
        yield Finding("rejected", prefix, Level.OK, f"no dead letters in {minutes} minutes")
    for reason, number in sorted(Counter(r.reason for r in recent).items()):
        last = next(r for r in reversed(recent) if r.reason == reason)
        last_line = last.message.strip().splitlines()[-1] if last.message.strip() else ""
        yield Finding(
            "rejected",
            reason,
            Level.FAIL if reason == DeadLetter.GROUP_FAILED else Level.WARN,
            f"{number} in {minutes} minutes ({number / minutes:.1f} a minute); the last, "
            f"{last.origin.topic}-{last.origin.partition}@{last.origin.offset}: {last_line}",
            f"{_action(reason)}all of them: muster decode --topic {prefix}.rejected",
        )


def _action(reason: str) -> str:
    """The operator action for a reason; empty for one that only a newer version knows."""
    known = DeadLetter.__members__.get(reason)
    return f"{known.action}; " if known else ""
