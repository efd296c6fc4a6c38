"""Avro rows of records: a pair of functions ``*_row`` and ``*_from`` for each.

Snapshots are in `snapshot.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from muster.protocol import rows
from muster.protocol.errors import DecodeError, UnknownDictionary
from muster.protocol.events import Origin
from muster.protocol.expected_heartbeats import agreement_from, agreement_row
from muster.protocol.framing import Row
from muster.protocol.keys import SIGN_GROUP, Key
from muster.protocol.records import (
    CoordinatorClaim,
    CoordinatorRole,
    CoordinatorSign,
    Dictionary,
    Fault,
    MemberAssignment,
    Rejected,
    WakeUp,
)
from muster.protocol.tasks import TaskSet
from muster.protocol.taskset import LABELS_CHARS_MAX, Layout, UnitRef, encode_set, units_of

REJECTED_BYTES_MAX = 500_000
"""Limit of a dead letter's original key and value together; longer ones are clipped."""

Dictionaries: TypeAlias = Mapping[int, Sequence[UnitRef]]
"""Dictionary version → units."""

_ASSIGNMENT_NUMBERS = (
    *("coordinator_epoch", "generation", "epoch", "revision"),
    *("session_timeout_ms", "heartbeat_interval_ms"),
)
_ROLES = ("active", "standby", "learner")
_SIGN = ("job", "host", "version", "epoch", "interval_ms")


def assignment_row(record: MemberAssignment) -> Row:
    """The Avro row of an assignment."""
    own = {
        "incarnation": rows.u64(record.incarnation),
        **{name: getattr(record, name) for name in (*_ASSIGNMENT_NUMBERS, "report", "message")},
        "fault": "" if record.fault is None else record.fault.value,
    }
    return rows.with_extras(own, _sets_row(record), rows.apart_row(record.apart))


def _sets_row(record: MemberAssignment) -> Row:
    sets = {role: getattr(record, role) for role in _ROLES}
    units, dictionary = units_of((*sets.values(), record.next)), record.dictionary
    labels = sum(len(unit.label) for unit in units)
    if dictionary is None or labels <= LABELS_CHARS_MAX or not dictionary.layout.covers(units):
        named: Row = {"units": [unit._asdict() for unit in units]}
        return named | _encoded(record, sets, Layout(units))
    return {"dictionary": rows.u64(dictionary.version)} | _encoded(record, sets, dictionary.layout)


def _encoded(record: MemberAssignment, sets: Mapping[str, TaskSet], layout: Layout) -> Row:
    row: Row = {role: encode_set(tasks, layout) for role, tasks in sets.items()}
    return row | ({"extras": {"next": encode_set(record.next, layout)}} if record.next else {})


def assignment_from(key: Key, row: Row, dictionaries: Dictionaries) -> MemberAssignment:
    """An assignment from its row, checked.

    Raises:
        UnknownDictionary: it refers to a dictionary that was not given.
    """
    if key.member is None:
        raise DecodeError("the key of an assignment names no member; expected group|member")
    units: Sequence[UnitRef] = rows.units_from(row["units"])
    if row["dictionary"] is not None:
        version = rows.u64_from(row["dictionary"])
        if version not in dictionaries:
            raise UnknownDictionary(version)
        units = dictionaries[version]
    layout = Layout.of(units)
    sets: dict[str, Any] = rows.sets_from(row, _ROLES, layout)
    if "next" in row["extras"]:
        sets |= rows.sets_from(row["extras"], ("next",), layout)
    return MemberAssignment(
        group=key.group,
        member=key.member,
        incarnation=rows.u64_from(row["incarnation"]),
        **{name: row[name] for name in (*_ASSIGNMENT_NUMBERS, "report", "message")},
        **sets,
        apart=rows.apart_from(row),
        fault=_fault(row["fault"]),
    )


def _fault(name: str) -> Fault | None:
    if not name:
        return None
    # A fault that only newer coordinators know counts as INVALID_REQUEST: the member stops.
    return Fault.__members__.get(name, Fault.INVALID_REQUEST)


def dictionary_row(record: Dictionary) -> Row:
    """The Avro row of a dictionary."""
    units = [{"label": label, "size": size} for label, size in record.units]
    return {"version": rows.u64(record.version), "units": units}


def dictionary_from(key: Key, row: Row) -> Dictionary:
    """A dictionary from its row, checked."""
    dictionary = Dictionary(group=key.group, units=rows.units_from(row["units"]))
    if rows.u64_from(row["version"]) != dictionary.version:
        raise DecodeError("a dictionary whose version does not follow from its units")
    return dictionary


def wake_up_row(record: WakeUp) -> Row:
    """The Avro row of a wake-up."""
    own = {"at_ms": record.at_ms}
    extras = (rows.mark_row(record.published), rows.apart_row(record.apart))
    return rows.with_extras(own, *extras, agreement_row(record.agreement))


def wake_up_from(key: Key, row: Row) -> WakeUp:
    """A wake-up from its row, checked."""
    return WakeUp(
        group=key.group,
        at_ms=row["at_ms"],
        published=rows.mark_from(row),
        apart=rows.apart_from(row),
        agreement=agreement_from(row),
    )


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
    plain = ("reason", "message", "key", "value")
    return Rejected(origin=origin, **{name: row[name] for name in plain})


def claim_row(record: CoordinatorClaim) -> Row:
    """The Avro row of a claim."""
    extras = {}
    if record.follows is not None:
        extras["follows"] = rows.u64(record.follows + 1)
    if record.alone:
        extras["alone"] = b"\x01"
    return {"job": record.job, "host": record.host, "version": record.version, "extras": extras}


def claim_from(row: Row) -> CoordinatorClaim:
    """A claim from its row, checked.

    Raises:
        DecodeError: `follows` is not a number of 8 bytes.
    """
    follows = rows.number_from(row["extras"], "follows")
    return CoordinatorClaim(
        job=row["job"],
        host=row["host"],
        version=row["version"],
        follows=None if follows is None else follows - 1,
        alone="alone" in row["extras"],
    )


def sign_row(record: CoordinatorSign) -> Row:
    """The Avro row of a coordinator's sign of life."""
    return {**{name: getattr(record, name) for name in _SIGN}, "role": record.role.value}


def sign_from(key: Key, row: Row) -> CoordinatorSign:
    """A sign of life from its row, checked.

    Raises:
        DecodeError: it has the key of another job.
    """
    if (key.group, key.member) != (SIGN_GROUP, row["job"]):
        raise DecodeError(f"a sign of job {row['job']!r} under the key of another record")
    known = {role.value: role for role in CoordinatorRole}
    role = known.get(row["role"], CoordinatorRole.UNKNOWN)
    return CoordinatorSign(role=role, **{name: row[name] for name in _SIGN})
