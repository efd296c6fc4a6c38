"""The events of a member, as bytes and as fields: `protocol/vectors/events.json`."""

from __future__ import annotations

import zlib
from dataclasses import fields, replace
from typing import Any

from muster.protocol.codec import encode
from muster.protocol.digest import Holding
from muster.protocol.events import Heartbeat, Join, Lag, LagReport, Leave, Report
from muster.protocol.framing import KNOWN, write
from muster.protocol.ids import Task
from muster.protocol.tasks import TaskSet
from muster.protocol.taskset import UnitRef, units_text


def hex64(number: int) -> str:
    """A 64-bit number as text."""
    return f"{number:016x}"


HOLDINGS = {
    "nothing": Holding(),
    "one active": Holding(active=TaskSet.of(["0_0"])),
    "connector": Holding(active=TaskSet.of(["c1", "c1-0"])),
    "same name, both kinds": Holding(active=TaskSet.of(["x_0", "x-0"])),
    "all roles": Holding(
        active=TaskSet.of(["0_0", "0_1"]),
        standby=TaskSet.of(["1_7"]),
        learner=TaskSet.of(["1_8"]),
        ready=TaskSet.of(["1_8"]),
    ),
    "releasing": Holding(
        active=TaskSet.of(["0_0", "0_1"]),
        standby=TaskSet.of(["1_7"]),
        releasing=TaskSet.of(["0_1", "1_7"]),
    ),
    "not ascii": Holding(active=TaskSet.of(["größe_3"])),
}


def event_vectors() -> list[dict]:
    """The vectors of events."""
    who = {"group": "fleet", "member": "W1"}
    one = {**who, "incarnation": 0x0102030405060708}
    holding = HOLDINGS["releasing"]
    events = {
        "first join": Join(**one),
        "join with all": Join(
            **one,
            instance_id="i-1",
            rack="r0",
            capacity=4,
            tags=(("cluster", "x"), ("zone", "a")),
            protocols=("sessioned",),
            topics=("0", "1"),
            static=("c1",),
            config_offset=300,
            rebalance_timeout_ms=60_000,
            make_before_break=False,
        ),
        "report": Report(**one, epoch=3, revision=9, holding=holding),
        "report of learners": Report(**one, epoch=3, revision=9, holding=HOLDINGS["all roles"]),
        "report of nothing": Report(
            **one, epoch=3, revision=9, holding=Holding(), coordinator_epoch=5
        ),
        "report of some of a release": Report(
            **one,
            epoch=3,
            revision=10,
            holding=Holding(active=TaskSet.of(["0_0", "0_1"]), releasing=TaskSet.of(["0_1"])),
            coordinator_epoch=5,
        ),
        "report with lags": Report(
            **one,
            epoch=3,
            revision=9,
            holding=replace(HOLDINGS["all roles"], ready=TaskSet.of(["1_7", "1_8"])),
            lags=(
                Lag(Task("0", 1), 2_000_000),
                Lag(Task("1", 7), 0),
                Lag(Task("1", 8), 300),
            ),
            coordinator_epoch=5,
        ),
        "join with lags": Join(
            **one, lags=(Lag(Task("0", 4), 70_000), Lag(Task("c1", 0, True), 1))
        ),
        "lags alone": LagReport(
            **who, lags=(Lag(Task("0", 4), 2**40), Lag(Task("c1", -1, True), 5))
        ),
        "heartbeat": Heartbeat(**who, epoch=3, digest=holding.digest()),
        "heartbeat of nothing": Heartbeat(**who, epoch=0, digest=0),
        "heartbeat, large numbers": Heartbeat(**who, epoch=2**31 - 1, digest=2**64 - 1),
        "leave": Leave(**one),
        "leave for a while": Leave(**one, temporary=True),
    }
    rows = [
        {
            "name": name,
            "schema": type(event).__name__,
            "key": encode(event).key.decode(),
            "value": encode(event).value.hex(),
            "fields": shown(event),
        }
        for name, event in events.items()
    ]
    report = events["report"]
    return [*rows, _of_names(report)]


def _of_names(report: Report) -> dict:
    """The report with its units in a stored zlib stream, so its bytes do not depend on zlib."""
    _, row = KNOWN.read(encode(report).value)
    units = [UnitRef(**unit) for unit in row["units"]]
    names = {"units": zlib.compress(units_text(units), 0)}
    value = write("Report", row | {"units": [], "extras": row["extras"] | names})
    return {
        "name": "report with units by name",
        "schema": "Report",
        "key": "fleet",
        "value": value.hex(),
        "fields": shown(report),
    }


SETS = ("active", "standby", "learner", "ready", "releasing")


def shown(event: Join | Report | Heartbeat | Leave | LagReport) -> dict[str, Any]:
    """The fields of an event in readable form: tasks by printed id, 64-bit numbers as text."""
    readable: dict[str, Any] = {}
    for each in fields(event):
        value = getattr(event, each.name)
        if each.name in ("group", "origin", "apart"):
            continue
        if each.name == "holding":
            readable |= {role: [str(task) for task in getattr(value, role)] for role in SETS}
        elif each.name == "lags":
            readable["lags"] = [[str(lag.task), lag.offsets] for lag in value]
        elif each.name in ("incarnation", "digest"):
            readable[each.name] = hex64(value)
        elif each.name == "tags":
            readable["tags"] = dict(value)
        else:
            readable[each.name] = list(value) if isinstance(value, tuple) else value
    return readable
