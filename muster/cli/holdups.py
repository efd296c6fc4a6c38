"""Whom everybody waits for: members that were asked to stop tasks and have not said that they did.

A group's newest record says who owes what; since when, its older records say. Times are the
broker's. A member is fenced `rebalance.timeout.ms` after it can have read what it was asked, which
the coordinator knows a step (two heartbeat intervals, `state.deadlines`) later at the latest.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from muster.cli.ages import ago, span
from muster.cli.snapshots import Published, Shown, names
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, MemberEntry, MemberState
from muster.state.deadlines import step_of

NAMED = 3
"""So many tasks are named one by one."""


class Holdup(NamedTuple):
    """A member that owes a release.

    Attributes:
        member: its id.
        tasks: printed ids of what it has not stopped.
        asked_ms: when it was asked, or later where the older records are gone.
        patience_ms: its `rebalance.timeout.ms`.
        fenced_ms: when it is fenced at the latest, or was.
        is_fenced: whether it was.
        session_ms: its session timeout: so long after the fence its tasks go to others.
    """

    member: str
    tasks: tuple[str, ...]
    asked_ms: int
    patience_ms: int
    fenced_ms: int
    is_fenced: bool
    session_ms: int

    def text(self, now_ms: int) -> str:
        """One line: what, who, since when, until when."""
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
        at = datetime.fromtimestamp(self.fenced_ms / 1000, UTC).strftime("%H:%M:%S")
        return (
            f"{what}: {self.member} was asked to stop {it} {ago(now_ms, self.asked_ms)}; "
            f"fenced at {at} UTC"
        )

    def as_json(self, now_ms: int) -> dict[str, Any]:
        """For ``--format json``."""
        told = self._asdict()
        del told["session_ms"], told["patience_ms"], told["is_fenced"]
        return {**told, "tasks": list(self.tasks), "text": self.text(now_ms)}

    def is_late(self, now_ms: int) -> bool:
        """Whether it has had its time."""
        return self.is_fenced or now_ms > self.asked_ms + self.patience_ms


class _Debt(NamedTuple):
    """What a member was asked for: under which revision and when, and when it was fenced for it."""

    revision: int
    asked_ms: int
    fenced_ms: int | None


class Debts:
    """Since when members owe releases. Feed it the records of `<prefix>.groups`, oldest first."""

    def __init__(self) -> None:
        self._of: dict[GroupId, dict[MemberId, _Debt]] = {}

    def take(self, published: Published) -> None:
        """A group's next record."""
        record, at_ms = published.record, published.at_ms
        before = self._of.pop(record.group, {})
        if not isinstance(record, GroupSnapshot):
            return
        owing = [m for m in record.members if m.state is MemberState.UNREVOKED]
        if owing:
            self._of[record.group] = {m.id: _next(before.get(m.id), m, at_ms) for m in owing}

    def holdups(self, snapshot: GroupSnapshot) -> tuple[Holdup, ...]:
        """Who owes a release of a group whose newest record this is, longest first."""
        debts, shown = self._of.get(snapshot.group, {}), Shown(snapshot, {})
        owing = [(m, debts[m.id]) for m in snapshot.members if m.id in debts]
        found = [_holdup(shown, m, debt) for m, debt in owing if shown.revoking(m)]
        return tuple(sorted(found, key=lambda each: (each.asked_ms, each.member)))


def _next(before: _Debt | None, member: MemberEntry, at_ms: int) -> _Debt:
    """A debt goes on while the member is asked under the same revision."""
    if before is None or before.revision != member.revoke_revision:
        before = _Debt(member.revoke_revision, at_ms, None)
    if member.deadline_ms is None and before.fenced_ms is None:
        return before._replace(fenced_ms=at_ms)
    return before


def _holdup(shown: Shown, member: MemberEntry, debt: _Debt) -> Holdup:
    settings = shown.snapshot.settings
    patience_ms = member.rebalance_timeout_ms or settings.rebalance_timeout_ms
    latest_ms = debt.asked_ms + patience_ms + step_of(settings)
    return Holdup(
        member=member.id,
        tasks=tuple(names(shown.revoking(member))),
        asked_ms=debt.asked_ms,
        patience_ms=patience_ms,
        fenced_ms=latest_ms if debt.fenced_ms is None else debt.fenced_ms,
        is_fenced=debt.fenced_ms is not None,
        session_ms=member.session_timeout_ms,
    )
