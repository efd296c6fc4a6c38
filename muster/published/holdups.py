"""What holds up a group: members that have not released tasks, and tasks that wait for a copy.

The coordinator waits for members to release tasks. A group's newest record shows which member owes
which release; older ones show since when. Times are broker time. The coordinator fences a member
`rebalance.timeout.ms` after it has a proof that the member could read the request. The proof is a
tick whose wake-up was published after the request: the group's next event, at most a heartbeat
interval later, publishes the wake-up, and the tick follows within a step
(`state.session_clock.step_of`).

A task that is not at its destination yet, an active or a moving standby, waits until the copy there
has caught up. The newest record shows this alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from muster.kafka.client_settings import ClientSettings
from muster.output import ago, date_of, span, utc
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import GroupSnapshot, MemberEntry, MemberState
from muster.protocol.tasks import IntArray, TaskTable
from muster.published.snapshots import Published, Shown, history, names, newest
from muster.state.ownership import NO_MEMBER, Codes, codes, slot_of, task_of, union
from muster.state.session_clock import step_of

DAY_MS = 86_400_000
"""A fence that is further ahead is shown with its date."""
NAMED = 3
"""How many tasks a line names; the rest are counted."""
WAITS_SHOWN = 10
"""How many waiting tasks are shown; the rest are counted."""


class Holdup(NamedTuple):
    """A member that owes a release.

    Attributes:
        tasks: printed ids of what it has not stopped.
        asked_ms: when it was asked; later if the older records are gone.
        patience_ms: its `rebalance.timeout.ms`.
        fenced_ms: when it was fenced, or the latest time at which it will be.
        is_fenced: whether it was fenced.
        session_ms: its session timeout; this long after the fence others get its tasks.
    """

    member: str
    tasks: tuple[str, ...]
    asked_ms: int
    patience_ms: int
    fenced_ms: int
    is_fenced: bool
    session_ms: int

    def text(self, now_ms: int) -> str:
        """One line: the tasks, the member, since when it owes them, and when it is fenced."""
        more = len(self.tasks) - NAMED
        what = ", ".join(self.tasks[:NAMED]) + (f" and {more} more" if more > 0 else "")
        it = "it" if len(self.tasks) == 1 else "them"
        if self.is_fenced:
            return (
                f"{what}: {self.member} did not stop {it} within {span(self.patience_ms)} "
                f"(rebalance.timeout.ms) and was fenced {ago(now_ms, self.fenced_ms)}; others get "
                f"{it} when it says that it has stopped, or after its session "
                f"({span(self.session_ms)})"
            )
        is_soon = self.fenced_ms - now_ms < DAY_MS
        at = f"{date_of(self.fenced_ms):%H:%M:%S} UTC" if is_soon else utc(self.fenced_ms)
        return (
            f"{what}: {self.member} was asked to stop {it} {ago(now_ms, self.asked_ms)}; "
            f"fenced at {at}"
        )

    def as_json(self, now_ms: int) -> dict[str, Any]:
        """For ``--format json``."""
        values = self._asdict()
        del values["session_ms"], values["patience_ms"], values["is_fenced"]
        return {**values, "tasks": list(self.tasks), "text": self.text(now_ms)}

    def is_late(self, now_ms: int) -> bool:
        """Whether the member was fenced, or has taken longer than `patience_ms`."""
        return self.is_fenced or now_ms > self.asked_ms + self.patience_ms


class _Request(NamedTuple):
    """A pending response: the revision that asked for it, when, and when the member was fenced."""

    revision: int
    asked_ms: int
    fenced_ms: int | None


class PendingReleases:
    """Tracks since when members owe releases. `take` the records of `<prefix>.groups` in order."""

    def __init__(self) -> None:
        self._of: dict[GroupId, dict[MemberId, _Request]] = {}

    def noting(self, records: Iterable[Published]) -> Iterator[Published]:
        """Yield the same records; `take` each first."""
        for published in records:
            self.take(published)
            yield published

    def take(self, published: Published) -> None:
        """Take a group's next record."""
        record, at_ms = published.record, published.at_ms
        before = self._of.pop(record.group, {})
        if not isinstance(record, GroupSnapshot):
            return
        if owing := _owing(record):
            self._of[record.group] = {m.id: _next(before.get(m.id), m, at_ms) for m in owing}

    def only(self, group: GroupId) -> PendingReleases:
        """A copy with one group only, which later records do not change."""
        copy = PendingReleases()
        if group in self._of:
            copy._of[group] = self._of[group]
        return copy

    def holdups(self, snapshot: GroupSnapshot) -> tuple[Holdup, ...]:
        """The members that owe releases, longest first; `snapshot`: the group's newest record."""
        pending, shown = self._of.get(snapshot.group, {}), Shown(snapshot, {})
        owing = [(m, pending[m.id]) for m in snapshot.members if m.id in pending]
        holdups = [_holdup(shown, m, request) for m, request in owing if shown.revoking(m)]
        return tuple(sorted(holdups, key=lambda each: (each.asked_ms, each.member)))


def pending_releases(
    settings: ClientSettings, prefix: str, snapshots: dict[GroupId, GroupSnapshot]
) -> PendingReleases:
    """The releases that members of these groups owe; `snapshots` has their newest records.

    Reads the older records of groups with such members only. A group that has changed meanwhile
    gets its newest record.
    """
    pending = PendingReleases()
    owing = {group for group, snapshot in snapshots.items() if _owing(snapshot)}
    if owing:
        snapshots |= newest(pending.noting(history(settings, prefix, None, of=owing)))
    return pending


def _owing(snapshot: GroupSnapshot) -> list[MemberEntry]:
    return [m for m in snapshot.members if m.state is MemberState.UNREVOKED]


def _next(before: _Request | None, member: MemberEntry, at_ms: int) -> _Request:
    """The pending response after a record: the one before unless the revision has changed."""
    if before is None or before.revision != member.revoke_revision:
        before = _Request(member.revoke_revision, at_ms, None)
    if member.deadline_ms is None and before.fenced_ms is None:
        return before._replace(fenced_ms=at_ms)
    return before


def _holdup(shown: Shown, member: MemberEntry, request: _Request) -> Holdup:
    settings = shown.snapshot.settings
    patience_ms = member.rebalance_timeout_ms or settings.rebalance_timeout_ms
    proof_ms = settings.heartbeat_interval_ms + step_of(settings)
    latest_ms = request.asked_ms + patience_ms + proof_ms
    return Holdup(
        member=member.id,
        tasks=tuple(names(shown.revoking(member))),
        asked_ms=request.asked_ms,
        patience_ms=patience_ms,
        fenced_ms=latest_ms if request.fenced_ms is None else request.fenced_ms,
        is_fenced=request.fenced_ms is not None,
        session_ms=member.session_timeout_ms,
    )


class Wait(NamedTuple):
    """A task that is not at its destination yet.

    Attributes:
        task: printed task id.
        role: its role at the destination, active or standby.
        member: id of the destination member.
        behind: offsets the copy there is behind; None = not reported.
        restores: whether the member has a copy; if not, other tasks restore first.
    """

    task: str
    role: Role
    member: str
    behind: int | None
    restores: bool

    def __str__(self) -> str:
        subject = self.task if self.role is Role.ACTIVE else f"the standby of {self.task}"
        if not self.restores:
            why = "others restore first (max.warmup.replicas)"
        elif self.behind is None:
            why = "it has not said that its copy has caught up"
        else:
            why = f"its copy is {self.behind:,} offset{'s' * (self.behind != 1)} behind"
        return f"{subject} waits for {self.member}: {why}"


def waits_of(snapshot: GroupSnapshot) -> tuple[Wait, ...]:
    """The waits of a group: actives first, then standbys, both in the order of tasks."""
    table = TaskTable(snapshot.tasks)
    name = {member.slot: str(member.id) for member in snapshot.members}
    lag = {(int(task), int(slot)): int(offsets) for task, slot, offsets in snapshot.lags}
    standby, learner = _codes(snapshot.target_standby), _codes(snapshot.target_learner)
    placed_tasks = np.flatnonzero(snapshot.destination != NO_MEMBER).astype(np.int32)
    destinations = codes(placed_tasks, snapshot.destination[placed_tasks])
    waiting = destinations[snapshot.target[task_of(destinations)] != slot_of(destinations)]
    copies = union(standby, learner)
    restoring_standbys = np.setdiff1d(np.setdiff1d(learner, destinations), _codes(snapshot.ready))

    def wait(pair: int, role: Role) -> Wait:
        task, slot = pair >> 32, pair & 0xFFFFFFFF
        restores = bool(np.isin(pair, copies))
        behind = lag.get((task, slot)) if restores else None
        return Wait(str(table.task(task)), role, name.get(slot, "?"), behind, restores)

    actives = [wait(pair, Role.ACTIVE) for pair in waiting.tolist()]
    return (*actives, *(wait(pair, Role.STANDBY) for pair in restoring_standbys.tolist()))


def waits_json(snapshot: GroupSnapshot) -> list[dict[str, Any]]:
    """What each task that is not at its destination yet waits for."""
    return [
        {
            "task": wait.task,
            "role": str(wait.role),
            "member": wait.member,
            "behind": wait.behind,
            "text": str(wait),
        }
        for wait in waits_of(snapshot)
    ]


def waits_text(snapshot: GroupSnapshot) -> str:
    """The same as text, one per line, at most `WAITS_SHOWN`; empty = nothing waits."""
    waits = waits_of(snapshot)
    lines = [str(wait) for wait in waits[:WAITS_SHOWN]]
    if len(waits) > WAITS_SHOWN:
        lines.append(f"and {len(waits) - WAITS_SHOWN} more wait")
    return "\n".join(lines)


def _codes(pairs: IntArray) -> Codes:
    return codes(pairs[:, 0], pairs[:, 1])
