"""Avro rows of events: a pair of functions ``*_row`` and ``*_from`` for each."""

from __future__ import annotations

from muster.protocol import rows, source_rows, task_rows
from muster.protocol.errors import DecodeError
from muster.protocol.events import (
    Drain,
    GroupConfig,
    Heartbeat,
    Join,
    LagReport,
    Leave,
    Origin,
    Report,
    Tick,
    TopicsFound,
)
from muster.protocol.framing import INT_MAX, Row
from muster.protocol.ids import GroupId, check_names, member_from
from muster.protocol.sources import source_json
from muster.protocol.taskset import SET_TASKS_MAX, units_of
from muster.protocol.tick_covers import HEARD_MAX, cover_from, cover_row
from muster.protocol.unit_names import units_fields
from muster.protocol.unit_names import units_from as event_units

_JOIN = ("instance_id", "rack", "capacity", "config_offset", "rebalance_timeout_ms")
"""The fields of a join that are written as they are."""


def join_row(event: Join) -> Row:
    """The Avro row of a join."""
    own = {
        **{name: getattr(event, name) for name in ("member", *_JOIN)},
        "incarnation": rows.u64(event.incarnation),
        "tags": dict(sorted(event.tags)),
        "protocols": list(event.protocols),
        "topics": None if event.topics is None else list(event.topics),
        "static": list(event.static),
        "make_before_break": event.make_before_break,
    }
    return rows.with_extras(
        own, rows.holding_row(event.holding, event.lags), rows.apart_row(event.apart)
    )


def join_from(group: GroupId, row: Row, origin: Origin, tasks_max: int = SET_TASKS_MAX) -> Join:
    """A join from its row, checked; it names at most `tasks_max` tasks in each role."""
    if row["capacity"] < 1:
        raise DecodeError(f"capacity {row['capacity']}; expected at least 1")
    timeout_ms = row["rebalance_timeout_ms"]
    if timeout_ms is not None and not 0 <= timeout_ms <= INT_MAX:
        raise DecodeError(f"rebalance_timeout_ms is {timeout_ms}; expected 0 to {INT_MAX}")
    check_names("an instance id", (row["instance_id"],))
    check_names("a rack", (row["rack"],))
    check_names("a tag", (word for tag in row["tags"].items() for word in tag))
    for field in ("protocols", "topics", "static"):
        check_names(field, row[field] or ())
    holding, lags = rows.holding_from(row, tasks_max)
    return Join(
        group=group,
        member=member_from(row["member"]),
        incarnation=rows.u64_from(row["incarnation"]),
        tags=tuple(sorted(row["tags"].items())),
        protocols=tuple(row["protocols"]),
        topics=None if row["topics"] is None else tuple(row["topics"]),
        static=tuple(row["static"]),
        make_before_break=row["make_before_break"],
        holding=holding,
        lags=lags,
        apart=rows.apart_from(row),
        origin=origin,
        **{name: row[name] for name in _JOIN},
    )


def report_row(event: Report) -> Row:
    """The Avro row of a report."""
    own = {
        "member": event.member,
        "incarnation": rows.u64(event.incarnation),
        "epoch": event.epoch,
        "revision": event.revision,
    }
    epoch = event.coordinator_epoch
    extras = {} if epoch is None or epoch < 0 else {"coordinator_epoch": rows.u64(epoch)}
    return rows.with_extras(own, rows.holding_row(event.holding, event.lags), {"extras": extras})


def report_from(group: GroupId, row: Row, origin: Origin, tasks_max: int = SET_TASKS_MAX) -> Report:
    """A report from its row, checked; it names at most `tasks_max` tasks in each role."""
    holding, lags = rows.holding_from(row, tasks_max)
    return Report(
        group=group,
        member=member_from(row["member"]),
        incarnation=rows.u64_from(row["incarnation"]),
        epoch=row["epoch"],
        revision=row["revision"],
        holding=holding,
        lags=lags,
        coordinator_epoch=rows.number_from(row["extras"], "coordinator_epoch"),
        origin=origin,
    )


def heartbeat_row(event: Heartbeat) -> Row:
    """The Avro row of a heartbeat."""
    return {"member": event.member, "epoch": event.epoch, "digest": rows.u64(event.digest)}


def heartbeat_from(group: GroupId, row: Row, origin: Origin) -> Heartbeat:
    """A heartbeat from its row, checked."""
    return Heartbeat(
        group=group,
        member=member_from(row["member"]),
        epoch=row["epoch"],
        digest=rows.u64_from(row["digest"]),
        origin=origin,
    )


def leave_row(event: Leave) -> Row:
    """The Avro row of a leave."""
    incarnation = rows.u64(event.incarnation)
    return {"member": event.member, "incarnation": incarnation, "temporary": event.temporary}


def leave_from(group: GroupId, row: Row, origin: Origin) -> Leave:
    """A leave from its row, checked."""
    return Leave(
        group=group,
        member=member_from(row["member"]),
        incarnation=rows.u64_from(row["incarnation"]),
        temporary=row["temporary"],
        origin=origin,
    )


def drain_row(event: Drain) -> Row:
    """The Avro row of a drain."""
    return {"member": event.member, "on": event.on}


def drain_from(group: GroupId, row: Row, origin: Origin) -> Drain:
    """A drain from its row, checked."""
    member = member_from(row["member"])
    return Drain(group=group, member=member, on=row["on"], origin=origin)


def lag_report_row(event: LagReport) -> Row:
    """The Avro row of a lag report."""
    units = units_of((), (lag.task for lag in event.lags))
    lags = rows.lags_row(event.lags, units)
    return {"member": event.member, **units_fields(units), "lags": lags}


def lag_report_from(
    group: GroupId, row: Row, origin: Origin, units_max: int = SET_TASKS_MAX
) -> LagReport:
    """A lag report from its row, checked; it names at most `units_max` units."""
    member = member_from(row["member"])
    lags = rows.lags_from(row["lags"], event_units(row, units_max))
    return LagReport(group=group, member=member, lags=lags, origin=origin)


def config_row(event: GroupConfig) -> Row:
    """The Avro row of a config."""
    settings = rows.settings_row(event.settings, event.assignor)
    return rows.with_extras(
        {"assignor": event.assignor, "settings": settings},
        task_rows.tasks_row(event.tasks),
        source_rows.sources_row(event.sources),
    )


def config_from(group: GroupId, row: Row, origin: Origin) -> GroupConfig:
    """A config from its row, checked."""
    assignor = row["assignor"]
    check_names("an assignor", (assignor,))
    tasks = task_rows.tasks_from(row)
    task_rows.check_unit_names(tasks)
    return GroupConfig(
        group=group,
        assignor=assignor,
        settings=rows.settings_from(row["settings"], assignor),
        tasks=tasks,
        sources=source_rows.sources_from(row["extras"]),
        origin=origin,
    )


def found_row(event: TopicsFound) -> Row:
    """The Avro row of what was found."""
    units = tuple(unit for each in event.found for unit in each.units)
    place = {unit.name: number for number, unit in enumerate(units)}
    by_source = [
        {
            "source": rows.json_bytes(source_json(each.source)).decode(),
            "units": [place[unit.name] for unit in each.units],
            "ids": dict(each.ids),
        }
        for each in event.found
    ]
    return {**task_rows.tasks_row(units), "found": by_source}


def found_from(group: GroupId, row: Row, origin: Origin) -> TopicsFound:
    """What was found, from its row, checked."""
    units = task_rows.tasks_from(row)
    task_rows.check_unit_names(units)
    return TopicsFound(
        group=group, found=source_rows.found_from(row["found"], units), origin=origin
    )


def tick_row(event: Tick) -> Row:
    """The Avro row of a tick."""
    return rows.with_extras(rows.mark_row(event.published), cover_row(event.cover))


def tick_from(group: GroupId, row: Row, origin: Origin, heard_max: int = HEARD_MAX) -> Tick:
    """A tick from its row, checked; it carries heartbeats of at most `heard_max` members."""
    published, cover = rows.mark_from(row), cover_from(row, heard_max)
    return Tick(group=group, published=published, cover=cover, origin=origin)
