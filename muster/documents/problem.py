"""Reads a problem (`docs/formats.md`), turns it into a view, and writes the answer.

Reading resolves every name once. Building a view is then a few array operations, as in the running
job; ``--repeat`` measures it together with the placement. Every fault names its place
(``members[1].active[0]``) and says what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muster.assignor.model import NO_MEMBER, GroupView, Lags, Pairs, Placement, group_view
from muster.assignor.score import score
from muster.documents.json_files import refuse_unknown
from muster.documents.members import MemberRow, Names, parse_member
from muster.documents.units import parse_tasks
from muster.errors import BadInput
from muster.output import shown, table
from muster.protocol.settings import CONNECT_ASSIGNORS, DEFAULT_ASSIGNOR, Settings, parse_settings
from muster.protocol.tasks import IntArray, TaskTable

KEYS = ("assignor", "config", "tasks", "members", "now_ms", "start", "validate")
ANSWER_KEYS = (
    *("members", "unassigned", "followup_ms", "delay_ms", "moves", "score"),
    *("elapsed_us", "left_out", "warnings"),
)
ROLES = ("active", "standby", "learner", "revoked")
_LATEST_MS = 2**62 - 1
MAY_SAY = ("rack", "tags", "topics", "static", "protocols")
"""Optional columns of members; most groups do not use them."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem that has been read.

    Attributes:
        assignor: name, or ``module:Class``.
        names: the tasks, by index and by printed id.
        members: sorted by id.
        from_previous: whether only racks are optimised, with the counts of the previous placement.
        validate: an answer to check instead of computing one, as it was given.
    """

    assignor: str
    settings: Settings
    names: Names
    members: tuple[MemberRow, ...]
    now_ms: int = 0
    from_previous: bool = False
    validate: Mapping[str, Any] | None = None
    _held: Mapping[str, tuple[IntArray, IntArray]] = field(default_factory=dict)

    def view(self) -> GroupView:
        """The group as an assignor sees it, built from columns as in the running job."""
        columns, lags = self._columns, self._reported
        task, member = self._held["active"]
        owner = np.full(len(self.names.table), NO_MEMBER, dtype=np.int32)
        owner[task[::-1]] = member[::-1]  # of several claims the first one counts
        more: dict[str, Any] = {n: tuple(columns[n].tolist()) for n in MAY_SAY if n in columns}
        view = group_view(
            tasks=self.names.table,
            settings=self.settings,
            members=tuple(columns["id"].tolist()),
            capacity=columns["capacity"].copy(),
            active=owner,
            standby=Pairs.of(*self._held["standby"]),
            learner=Pairs.of(*self._held["learner"]),
            ready=self._ready,
            lags=Lags(lags[0].astype(np.int32), lags[1].astype(np.int32), lags[2].copy()),
            draining=columns["draining"].copy(),
            now_ms=self.now_ms,
            **more,
        )
        return self._with_claims(view) if self.assignor in CONNECT_ASSIGNORS else view

    def _with_claims(self, view: GroupView) -> GroupView:
        """The view with further claims to a task, and each task's place in its holder's report."""
        task, member = self._held["active"]
        place = np.zeros(len(view.tasks), dtype=np.int32)
        place[task] = np.arange(len(task), dtype=np.int32)
        also = view.active[task] != member
        return replace(view, also_active=Pairs.of(task[also], member[also]), report_order=place)

    @cached_property
    def _columns(self) -> dict[str, NDArray[Any]]:
        """The members' fields as columns, like `state.member_columns`; unused ones are left out."""
        same: dict[object, object] = {}  # members with equal topics share one object

        def column(name: str) -> NDArray[Any]:
            values = (getattr(row, name) for row in self.members)
            shared = (same.setdefault(v, v) for v in values) if name == "topics" else values
            return np.fromiter(shared, dtype=object, count=len(self.members))

        rows, default = self.members, MemberRow(id="")
        columns = {
            name: column(name)
            for name in MAY_SAY
            if any(getattr(row, name) != getattr(default, name) for row in rows)
        }
        columns["id"] = column("id")
        columns["capacity"] = column("capacity").astype(np.int64)
        columns["draining"] = column("draining").astype(np.bool_)
        return columns

    @property
    def _ready(self) -> Pairs:
        """The ready learners; a ready standby has lag 0 instead."""
        ready, learner = (Pairs.of(*self._held[role]) for role in ("ready", "learner"))
        return ready.only(np.isin(ready.code, learner.code, assume_unique=True))

    @cached_property
    def _reported(self) -> NDArray[np.int64]:
        """int64[3, K], sorted: task, member and offsets of every lag; a ready standby has 0."""
        lag = [
            (t, m, n)
            for m, row in enumerate(self.members)
            for t, n in {**dict.fromkeys(row.ready, 0), **row.lag}.items()
            if t in row.lag or t in row.standby
        ]
        return np.array(sorted(lag), dtype=np.int64).reshape(len(lag), 3).T


def parse_problem(raw: object) -> Problem:
    """Read a problem.

    Raises:
        BadInput: the message names the place and says what would be right.
        ConfigError: the same for a setting, or for tasks that clash.
    """
    if not isinstance(raw, dict):
        raise BadInput(f"expected an object with tasks and members, got {_kind(raw)}")
    refuse_unknown(raw, KEYS)
    for key in ("tasks", "members"):
        if key not in raw:
            raise BadInput(f"{key}: missing; a problem needs tasks and members")
    assignor = raw.get("assignor", DEFAULT_ASSIGNOR)
    if not isinstance(assignor, str):
        raise BadInput("assignor: expected a name")
    config = raw.get("config", {})
    if not isinstance(config, dict):
        raise BadInput("config: expected an object of settings")
    names = Names(TaskTable(parse_tasks(raw["tasks"])))
    members = _members(raw["members"], names, assignor in CONNECT_ASSIGNORS)
    return Problem(
        assignor=assignor,
        settings=parse_settings(config, assignor),
        names=names,
        members=members,
        now_ms=_now(raw.get("now_ms", 0)),
        from_previous=_start(raw.get("start"), assignor),
        validate=_answer(raw["validate"]) if "validate" in raw else None,
        _held={role: _flat(members, role) for role in ("active", "standby", "learner", "ready")},
    )


def _kind(raw: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(raw), "a number")


def _members(rows: object, names: Names, connect: bool) -> tuple[MemberRow, ...]:
    if not isinstance(rows, list):
        raise BadInput("members: expected a list of members")
    by_id: dict[str, MemberRow] = {}
    owner: dict[int, str] = {}
    for number, raw in enumerate(rows):
        place = f"members[{number}]"
        row = parse_member(raw, names, place, foreign=connect)
        if row.id in by_id:
            raise BadInput(f"{place}.id: {row.id!r} appears twice; expected each member once")
        by_id[row.id] = row
        if connect:  # workers may claim the same job; the assignor decides
            continue
        for nth, task in enumerate(row.active):
            if task in owner:
                raise BadInput(
                    f"{place}.active[{nth}]: {names.printed(task)} is active on {owner[task]}"
                    " already; expected one owner"
                )
            owner[task] = row.id
    return tuple(by_id[name] for name in sorted(by_id))


def _flat(members: tuple[MemberRow, ...], role: str) -> tuple[IntArray, IntArray]:
    held = [getattr(row, role) for row in members]
    sizes = [len(tasks) for tasks in held]
    task = np.fromiter((t for tasks in held for t in tasks), dtype=np.int32, count=sum(sizes))
    return task, np.repeat(np.arange(len(members), dtype=np.int32), sizes)


def _now(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LATEST_MS:
        raise BadInput(f"now_ms: expected a whole number of milliseconds, 0 to {_LATEST_MS}")
    return value


def _start(value: object, assignor: str) -> bool:
    if value not in (None, "previous"):
        raise BadInput(f"start: {shown(value)}; expected 'previous', or leave it out")
    if value is not None and assignor in CONNECT_ASSIGNORS:
        raise BadInput(f"start: {assignor} ignores racks; expected one of Streams' assignors")
    return value is not None


def _answer(raw: object) -> Mapping[str, Any]:
    """The members of the answer to check; names are not checked here."""
    members = raw.get("members") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(members, dict):
        raise BadInput('validate: expected an object with "members", as in an answer')
    refuse_unknown(raw, ANSWER_KEYS, "validate")
    for member, held in members.items():
        if not isinstance(held, dict):
            raise BadInput(f"validate.members.{member}: expected an object with {', '.join(ROLES)}")
        for role, tasks in held.items():
            place = f"validate.members.{member}.{role}"
            if role not in ROLES:
                raise BadInput(f"{place}: unknown key; known: {', '.join(ROLES)}")
            if not isinstance(tasks, list) or not all(isinstance(t, str) for t in tasks):
                raise BadInput(f"{place}: expected a list of task ids")
    return members


def answer(problem: Problem, view: GroupView, placement: Placement) -> dict[str, Any]:
    """A placement in the form of an answer (`docs/formats.md`)."""
    members = _holdings(problem, view, placement)
    names, printed = view.members, problem.names.printed
    waiting = placement.active == NO_MEMBER
    waiting[placement.revoked.task] = False

    def who(member: int) -> str | None:
        return None if member == NO_MEMBER else names[member]

    return {
        "members": members,
        "unassigned": [printed(task) for task in np.flatnonzero(waiting).tolist()],
        "followup_ms": placement.followup_ms,
        "delay_ms": placement.delay_ms,
        "moves": [
            {
                "task": printed(reason.task),
                "role": str(reason.role),
                "from": who(reason.source),
                "to": who(reason.destination),
                "reason": reason.text,
            }
            for reason in placement.reasons
        ],
        "score": asdict(score(view, placement)),
    }


def _holdings(problem: Problem, view: GroupView, placement: Placement) -> dict[str, Any]:
    holdings: dict[str, dict[str, list[str]]] = {
        name: {role: [] for role in ROLES} for name in view.members
    }
    printed = problem.names.printed
    for task, member in enumerate(placement.active.tolist()):
        if member != NO_MEMBER:
            holdings[view.members[member]]["active"].append(printed(task))
    for role in ROLES[1:]:
        pairs: Pairs = getattr(placement, role)
        for task, member in zip(pairs.task.tolist(), pairs.member.tolist(), strict=True):
            holdings[view.members[member]][role].append(printed(task))
    for row in problem.members:  # jobs that are no longer configured stop at once
        holdings[row.id]["revoked"].extend(row.foreign)
    return holdings


def as_text(document: dict[str, Any]) -> str:
    """Tables: what each member holds, what moves and why, how good the placement is."""
    if "valid" in document:
        columns = ("VALID", "ERROR", "TASK", "MEMBER")
        return table(columns, [[document.get(c.lower()) for c in columns]])
    members = [[name, *(held[r] for r in ROLES)] for name, held in document["members"].items()]
    moves = [
        [move[k] for k in ("task", "role", "from", "to", "reason")] for move in document["moves"]
    ]
    score = {k: v for k, v in document["score"].items() if k != "moved"}
    figures = {"moves": len(moves), "from_staying": document["score"]["moved"], **score}
    figures |= {"followup_ms": document["followup_ms"], "delay_ms": document["delay_ms"]}
    if "elapsed_us" in document:
        figures["elapsed_us"] = document["elapsed_us"]
    parts = [table(("MEMBER", *map(str.upper, ROLES)), members)]
    if document.get("left_out"):
        parts.append(table(("LEFT-OUT", "WHY"), [[*row] for row in document["left_out"].items()]))
    if document["unassigned"]:
        parts.append(table(("UNASSIGNED",), [[task] for task in document["unassigned"]]))
    if moves:
        parts.append(table(("TASK", "ROLE", "FROM", "TO", "REASON"), moves))
    parts.append(table([k.upper().replace("_", "-") for k in figures], [list(figures.values())]))
    return "\n\n".join(parts)
