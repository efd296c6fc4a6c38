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

from muster.doctor import groups
from muster.doctor.coordinators import START, claims, signs
from muster.doctor.facts import GRACE_MS, Facts, Heard, who
from muster.doctor.finding import Finding, Level
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot
from muster.published.snapshots import is_deleted

REJECTED_MS = 600_000
"""How far back dead letters are reported."""
SKEW_MS = 5_000
SLOW_MS = 5_000
"""A canary event whose answer takes longer gives a warning."""


def look(facts: Facts, prefix: str, stuck_ms: int) -> Iterator[Finding]:
    """All findings about the job and its groups."""
    yield from claims(facts, prefix)
    yield from signs(facts, prefix)
    yield from job(facts, prefix)
    yield from canary(facts, prefix)
    yield from groups.look(facts, prefix, stuck_ms)
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
