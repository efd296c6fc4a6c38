"""The list of groups: one row each, with the doctor's findings on the group."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from muster.console.frames import Json, kind_of, text
from muster.console.history import History
from muster.console.store import GroupKey, Store
from muster.doctor import groups as doctor_groups
from muster.doctor import job as doctor_job
from muster.doctor.facts import Facts
from muster.doctor.finding import Finding, Level
from muster.protocol.records import GroupSnapshot

HOUR_MS = 3_600_000
STUCK_MS = 300_000
"""A group that has not settled for this long gets a finding, as in `muster doctor`."""


def facts_of(store: Store, prefix: str, now_ms: int) -> Facts:
    """The facts that the console has, for the doctor's checks."""
    groups: dict[Any, tuple[GroupSnapshot, int]] = {}
    holdups = {}
    for key, history in store.histories():
        moment = history.moments[-1] if history.moments else None
        if key.prefix == prefix and history.newest is not None and moment is not None:
            groups[history.newest.group] = (history.newest, moment.at_ms)
            holdups[history.newest.group] = moment.pending.holdups(history.newest)
    return Facts(
        now_ms=now_ms,
        groups=groups,
        holdups=holdups,
        rejected=store.letters(prefix),
        unapplied=store.unapplied(prefix, {g: each for g, (each, _) in groups.items()}, now_ms),
    )


def findings(store: Store, now_ms: int) -> dict[str, list[Finding]]:
    """The doctor's findings on groups and dead letters, by prefix; those that are OK too."""
    facts = {prefix: facts_of(store, prefix, now_ms) for prefix in store.prefixes}
    return {
        prefix: [*doctor_groups.look(known, prefix, STUCK_MS), *doctor_job.rejected(known, prefix)]
        for prefix, known in facts.items()
    }


def rows(store: Store, findings: dict[str, list[Finding]], now_ms: int) -> dict[str, Json]:
    """A row for each group that was not deleted, by "prefix|group"; `findings` are by prefix."""
    wrong: defaultdict[GroupKey, list[Finding]] = defaultdict(list)
    for prefix, all_of_it in findings.items():
        for finding in all_of_it:
            if finding.check == "group" and finding.level is not Level.OK:
                wrong[GroupKey(prefix, finding.subject)].append(finding)
    return {
        f"{key.prefix}|{key.group}": _row(key, history, wrong[key], now_ms)
        for key, history in store.histories()
    }


def _row(key: GroupKey, history: History, wrong: list[Finding], now_ms: int) -> Json:
    s = history.newest
    assert s is not None
    last = history.generations[-1] if history.generations else None
    worst = next((f for f in wrong if f.level is Level.FAIL), next(iter(wrong), None))
    return {
        "prefix": key.prefix,
        "id": key.group,
        "name": text(key.group),
        "state": s.state.value,
        "quarantined": s.quarantine is not None,
        "kind": kind_of(s, is_shadowed=history.is_shadowed),
        "members": len(s.members),
        "tasks": len(s.holder),
        "generation": s.generation,
        "cause": text(s.cause, 200),
        "at_ms": (last.at_ms if last is not None else 0),
        "moved": history.moved_since(now_ms - HOUR_MS),
        "level": "" if worst is None else worst.level.value,
        "wrong": [text(f.what, 300) for f in wrong],
        "action": "" if worst is None else text(worst.action, 300),
    }
