"""How a member reacts to the records it reads, one after the other: `protocol/vectors/talk.json`.

A step is a record that is read, or tasks that have stopped. After each: whether a `Report` is due
at once, what is held, and its digest. The process restores its copies, so none is ready at once.
"""

from __future__ import annotations

from typing import Any

from support.protocol.event_vectors import hex64

from muster.protocol.codec import encode
from muster.protocol.digest import Holding
from muster.protocol.records import MemberAssignment, MemberGone
from muster.protocol.tasks import TaskSet

FIRST, SECOND = 0x0102030405060708, 0x1112131415161718
Held = dict[str, list[str]]


def reads(revision: int, held: Held, **more: Any) -> dict[str, Any]:
    """A step that reads a record, with its tasks by role in `more`; and the holding afterwards."""
    speaks = more.pop("speaks", FIRST)
    report, obeyed = more.pop("due", False), more.pop("obeyed", True)
    roles = {role: TaskSet.of(more.pop(role, ())) for role in ("active", "standby", "learner")}
    record = MemberAssignment(
        **{
            "group": "fleet",
            "member": "W1",
            "incarnation": FIRST,
            "coordinator_epoch": 41,
            "generation": 7,
            "epoch": 6,
            "revision": revision,
            "session_timeout_ms": 45_000,
            "heartbeat_interval_ms": 5_000,
            **roles,
            **more,
        }
    )
    return {
        "incarnation": hex64(speaks),
        "read": encode(record).value.hex(),
        "obeyed": obeyed,
        **_after(held, due=report),
    }


def gone(held: Held) -> dict[str, Any]:
    """A step that reads the member's tombstone; then every task has stopped."""
    assert encode(MemberGone(group="fleet", member="W1")).value is None
    return {"incarnation": hex64(FIRST), "read": None, "obeyed": True, **_after(held, due=False)}


def stopped(role: str, tasks: list[str], held: Held, *, due: bool) -> dict[str, Any]:
    """A step in which tasks have stopped."""
    return {"incarnation": hex64(FIRST), "stopped": {role: tasks}, **_after(held, due=due)}


def _after(held: Held, *, due: bool) -> dict[str, Any]:
    sets = {name: held.get(name, []) for name in ("active", "standby", "learner", "releasing")}
    holding = Holding(**{name: TaskSet.of(tasks) for name, tasks in sets.items()})
    return {"report": due, "held": sets, "digest": hex64(holding.digest())}


TALKS: dict[str, list[dict[str, Any]]] = {
    "a record that only adds": [
        reads(1, {"active": ["0_0"]}, active=["0_0"]),
        reads(2, {"active": ["0_0", "0_1"]}, active=["0_0", "0_1"]),
    ],
    "a release, task by task": [
        reads(1, {"active": ["0_0", "0_1", "0_2"]}, active=["0_0", "0_1", "0_2"]),
        reads(2, {"active": ["0_0", "0_1", "0_2"], "releasing": ["0_1", "0_2"]}, active=["0_0"]),
        stopped("active", ["0_1", "0_2"], {"active": ["0_0"]}, due=True),
    ],
    "given back while it stops": [
        reads(1, {"active": ["0_0", "0_1"]}, active=["0_0", "0_1"]),
        reads(2, {"active": ["0_0", "0_1"], "releasing": ["0_1"]}, active=["0_0"]),
        reads(3, {"active": ["0_0", "0_1"]}, active=["0_0", "0_1"]),
        stopped("active", ["0_1"], {"active": ["0_0", "0_1"]}, due=True),
    ],
    "a standby becomes active": [
        reads(1, {"standby": ["1_7"]}, standby=["1_7"]),
        reads(2, {"active": ["1_7"]}, active=["1_7"]),
    ],
    "a learner keeps its copy until it becomes active": [
        reads(1, {"active": ["0_0"], "learner": ["1_8"]}, active=["0_0"], learner=["1_8"]),
        reads(
            2,
            {"learner": ["1_8"], "active": ["0_1", "0_0"], "releasing": ["0_0"]},
            active=["0_1"],
            learner=["1_8"],
        ),
        stopped("active", ["0_0"], {"active": ["0_1"], "learner": ["1_8"]}, due=True),
        reads(3, {"active": ["0_1", "1_8"]}, active=["0_1", "1_8"]),
    ],
    "a learner becomes a standby": [
        reads(1, {"learner": ["1_8"]}, learner=["1_8"]),
        reads(2, {"standby": ["1_8"]}, standby=["1_8"]),
    ],
    "an active becomes a copy in two records": [
        reads(1, {"active": ["1_7"]}, active=["1_7"]),
        reads(2, {"active": ["1_7"], "releasing": ["1_7"]}),
        stopped("active", ["1_7"], {}, due=True),
        reads(3, {"standby": ["1_7"]}, standby=["1_7"]),
    ],
    "a rejoin with restarted revisions": [
        reads(11, {"active": ["0_0"]}, active=["0_0"]),
        gone({}),
        reads(1, {"active": ["0_1"]}, speaks=SECOND, incarnation=SECOND, active=["0_1"]),
        reads(12, {"active": ["0_1"]}, speaks=SECOND, active=["0_0"], obeyed=False),
    ],
    "records that are too old": [
        reads(5, {"active": ["0_0"]}, active=["0_0"]),
        reads(4, {"active": ["0_0"]}, active=["0_1"], obeyed=False),
        reads(6, {"active": ["0_0"]}, active=["0_1"], coordinator_epoch=40, obeyed=False),
    ],
    "a shorter session timeout is reported": [
        reads(1, {"active": ["0_0"]}, active=["0_0"]),
        reads(2, {"active": ["0_0"]}, active=["0_0"], session_timeout_ms=20_000, due=True),
        reads(3, {"active": ["0_0"]}, active=["0_0"], session_timeout_ms=20_000),
        reads(4, {"active": ["0_0"]}, active=["0_0"]),
    ],
    "a new coordinator asks under an older revision": [
        reads(5, {"active": ["0_0"]}, active=["0_0"]),
        reads(
            4,
            {"active": ["0_0"]},
            active=["0_1"],
            coordinator_epoch=42,
            report=True,
            obeyed=False,
            due=True,
        ),
        reads(6, {"active": ["0_0"]}, active=["0_1"], obeyed=False),
    ],
}


def talk_vectors() -> list[dict[str, Any]]:
    """Every script with its steps."""
    return [{"name": name, "key": "fleet|W1", "steps": steps} for name, steps in TALKS.items()]
