"""Checks of `muster doctor`: which job is the coordinator, whether it is the only one and alive.

Only a newer record proves that the coordinator is alive: while a group has members, the coordinator
moves the group's wake-up before it is overdue, and it answers a join at once. A claim proves
nothing, because its process may have ended right after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import pairwise

from muster.doctor.facts import GRACE_MS, Claim, Facts, who
from muster.doctor.finding import Finding, Level
from muster.output import span
from muster.protocol.records import CoordinatorRole, GroupSnapshot
from muster.protocol.snapshot import GroupOutline
from muster.published.coordinator_last_seen import ANSWER_MS, NO_STANDBY, standing_by
from muster.streams.crash_loop import CLAIMS_MAX, CLAIMS_MS

START = "start `muster run` with the checkpoint it had"


def claims(facts: Facts, prefix: str) -> Iterator[Finding]:
    """Which job is the coordinator, whether it is the only one and alive, and its version."""
    found = partial(Finding, "claim", prefix)
    if not facts.claims:
        yield found(Level.FAIL, "no coordinator has ever run here", "start `muster run`")
        return
    newest = facts.claims[-1]
    late = [*_late_writes(facts, newest)]
    stopped = {s.sign.job for s in facts.signs if s.sign.role is CoordinatorRole.STOPPED}
    recent = [
        claim
        for claim in facts.claims
        if claim.at_ms > facts.now_ms - CLAIMS_MS and claim.record.job not in stopped
    ]
    if late:
        epoch = late[-1][1]
        known = next((who(c) for c in facts.claims if c.offset == epoch), f"epoch {epoch}")
        yield found(
            Level.FAIL,
            f"two coordinators: {known} still writes, {facts.ago(late[-1][0])} ago, although "
            f"{who(newest)} has claimed after it. Members ignore the older one",
            "stop the older one; it cannot read the claims (its log says why)",
        )
    elif doubt := _doubt(facts):
        yield found(
            Level.WARN,
            f"held by {who(newest)} for {facts.ago(newest.at_ms)}, life unproven: {doubt}",
            f"is it running? If not, {START} (a start takes up to a minute); if it runs, its log "
            "and /healthz say what it does",
        )
    elif len(recent) >= CLAIMS_MAX and not _has_settled(facts, recent):
        hosts = ", ".join(sorted({c.record.host for c in recent}))
        yield found(
            Level.WARN,
            f"{len(recent)} claims within {CLAIMS_MS // 60_000} minutes, from {hosts}",
            "unless it was killed on purpose, it crashes, or two jobs take the claim from each "
            "other: read their logs",
        )
    else:
        yield found(Level.OK, f"{_known(facts)}{_restarts(recent)}")
    own_version = version("muster-kafka")
    if newest.record.version != own_version:
        what = f"the coordinator is muster {newest.record.version}, this is {own_version}"
        yield found(Level.WARN, what, "use the same version for both")


def _late_writes(facts: Facts, newest: Claim) -> Iterator[tuple[int, int]]:
    """(time, epoch) of what older coordinators wrote long after the newest claim, and still may.

    A coordinator that was frozen finishes its batch when it goes on, then reads the claim and ends.
    Its records stay on the topic for days. So an old one counts only while its coordinator writes
    signs of life.
    """
    alive = {
        each.sign.epoch
        for each in facts.signs
        if each.sign.role is CoordinatorRole.RUNNING and not each.is_old(facts.now_ms)
    }
    for at_ms, epoch in facts.writes:
        is_new = at_ms > facts.now_ms - CLAIMS_MS or epoch in alive
        if epoch < newest.offset and at_ms > newest.at_ms + GRACE_MS and is_new:
            yield at_ms, epoch


def signs(facts: Facts, prefix: str) -> Iterator[Finding]:
    """Whether the coordinator's process writes signs of life, and whether another one stands by."""
    if not facts.claims or facts.claims[-1].record.follows is None:
        return  # this version of the coordinator writes no signs of life
    newest = facts.claims[-1]
    own = next((each for each in facts.signs if each.sign.job == newest.record.job), None)
    waiting = standing_by(facts.signs, facts.now_ms)
    remedy = "the standby coordinator takes over" if waiting else START
    if own is not None and own.sign.role.is_over:
        what = f"{who(newest)} ended {facts.ago(own.at_ms)} ago, and no other process has claimed"
        yield Finding("signs", prefix, Level.FAIL, what, remedy)
    elif own is None or own.is_old(facts.now_ms):
        since_ms = newest.at_ms if own is None else own.at_ms
        what = f"{who(newest)} has written no sign of life for {facts.ago(since_ms)}"
        action = f"was it killed, or is it frozen? {remedy}; its log and /healthz say what it does"
        # A process on a busy machine pauses for seconds.
        level = Level.FAIL if facts.now_ms - since_ms > GRACE_MS else Level.WARN
        yield Finding("signs", prefix, level, what, action)
    else:
        what = f"{who(newest)} wrote a sign of life {facts.ago(own.at_ms)} ago"
        yield Finding("signs", prefix, Level.OK, f"{what}; {waiting or NO_STANDBY}")


def _known(facts: Facts) -> str:
    newest = facts.claims[-1]
    claim = f"{who(newest)}, epoch {newest.offset}, for {facts.ago(newest.at_ms)}"
    if facts.published_ms > newest.at_ms:
        return f"{claim}; last seen {facts.ago(facts.published_ms)} ago"
    return f"{claim}; life unproven: nothing has asked it for an answer yet"


def _doubt(facts: Facts) -> str:
    """What a live coordinator would have answered by now, in words; empty = it has answered."""
    by_ms = facts.now_ms - ANSWER_MS
    overdue = [
        group for group, at_ms in facts.wakeups.items() if at_ms < by_ms and group in facts.groups
    ]
    open_joins = [h for h in facts.heard.values() if h.unanswered_ms > facts.published_ms]
    waits = any(heard.unanswered_ms < by_ms for heard in open_joins)
    joins = sum(len(heard.joined) for heard in open_joins) if waits else 0
    doubts = []
    if joins:
        doubts.append(f"{joins} join{'s' * (joins != 1)} waiting")
    if overdue:
        named = ", ".join(sorted(overdue)[:3])
        since = facts.ago(min(facts.wakeups[group] for group in overdue))
        doubts.append(f"it should have written about {named} {since} ago")
    if doubts and facts.published_ms:
        doubts.append(f"last seen {facts.ago(facts.published_ms)} ago")
    return ", ".join(doubts)


def _has_settled(facts: Facts, recent: Sequence[Claim]) -> bool:
    """Whether the newest job has run longer than every pause between the recent claims."""
    pauses = [b.at_ms - a.at_ms for a, b in pairwise(recent)]
    return facts.now_ms - recent[-1].at_ms > max(pauses)


def _restarts(recent: Sequence[Claim]) -> str:
    """A remark for a job that was restarted often lately and runs since; else empty."""
    if len(recent) < CLAIMS_MAX:
        return ""
    return f"; restarted {len(recent) - 1} times within {span(CLAIMS_MS)}, steady since"


def is_news(
    before: GroupOutline | GroupSnapshot | None, snapshot: GroupOutline | GroupSnapshot
) -> bool:
    """Whether a snapshot proves that the coordinator it names wrote it.

    A settled group is published again from time to time, with the epoch of the coordinator that
    last changed it. So only a new epoch or generation is a proof; a group's first snapshot is none.
    """
    now = (snapshot.coordinator_epoch, snapshot.generation)
    return before is not None and (before.coordinator_epoch, before.generation) != now
