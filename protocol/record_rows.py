"""Records and their Avro rows: one pair of functions per record, ``*_row`` and ``*_from``.

Snapshots have a file of their own.
"""

from __future__ import annotations

from typing import Any

from muster.protocol import rows
from muster.protocol.errors import DecodeError
from muster.protocol.events import Origin
from muster.protocol.framing import Row
from muster.protocol.keys import Key
from muster.protocol.records import (
    CoordinatorClaim,
    Fault,
    MemberAssignment,
    Rejected,
    WakeUp,
)
from muster.protocol.taskset import decode_set

REJECTED_BYTES_MAX = 500_000
"""Of a dead letter's original key and value together; longer ones are clipped."""

_ASSIGNMENT_NUMBERS = (
    *("coordinator_epoch", "generation", "epoch", "revision"),
    *("session_timeout_ms", "heartbeat_interval_ms"),
)
_ROLES = ("active", "standby", "learner")


def assignment_row(record: MemberAssignment) -> Row:
    """The Avro row of an assignment."""
    return {
        "incarnation": rows.u64(record.incarnation),
        **{name: getattr(record, name) for name in (*_ASSIGNMENT_NUMBERS, "report", "message")},
        "fault": "" if record.fault is None else record.fault.value,
        **rows.sets_row({role: getattr(record, role) for role in _ROLES}),
    }


def assignment_from(key: Key, row: Row) -> MemberAssignment:
    """An assignment from its row, checked."""
    if key.member is None:
        raise DecodeError("the key of an assignment names no member; expected group|member")
    units = rows.units_from(row["units"])
    sets: dict[str, Any] = {role: decode_set(row[role], units) for role in _ROLES}
    return MemberAssignment(
        group=key.group,
        member=key.member,
        incarnation=rows.u64_from(row["incarnation"]),
        **{name: row[name] for name in (*_ASSIGNMENT_NUMBERS, "report", "message")},
        **sets,
        fault=_fault(row["fault"]),
    )


def _fault(name: str) -> Fault | None:
    if not name:
        return None
    # A fault only newer coordinators know: whoever is told of it has to stop either way.
    return Fault.__members__.get(name, Fault.INVALID_REQUEST)


def wake_up_row(record: WakeUp) -> Row:
    """The Avro row of a wake-up."""
    return {"at_ms": record.at_ms}


def wake_up_from(key: Key, row: Row) -> WakeUp:
    """A wake-up from its row, checked."""
    return WakeUp(group=key.group, at_ms=row["at_ms"])


def rejected_row(record: Rejected) -> Row:
    """The Avro row of a dead letter."""
    key = record.key[:REJECTED_BYTES_MAX]
    return {
        **record.origin._asdict(),
        "reason": record.reason,
        "message": record.message,
        "key": key,
        "value": record.value[: REJECTED_BYTES_MAX - len(key)],
        "value_size": len(record.value),
    }


def rejected_from(row: Row) -> Rejected:
    """A dead letter from its row, checked."""
    origin = Origin(row["topic"], row["partition"], row["offset"], row["at_ms"])
    return Rejected(
        origin=origin,
        reason=row["reason"],
        message=row["message"],
        key=row["key"],
        value=row["value"],
    )


def claim_row(record: CoordinatorClaim) -> Row:
    """The Avro row of a claim."""
    return {"job": record.job, "host": record.host, "version": record.version}


def claim_from(row: Row) -> CoordinatorClaim:
    """A claim from its row, checked."""
    return CoordinatorClaim(job=row["job"], host=row["host"], version=row["version"])
