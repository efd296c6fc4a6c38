"""A job as `muster doctor` reads it, healthy or changed; and the doctor's findings."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

import numpy as np
from support.state.snapshots import orders

from muster.doctor import job as doctor_job
from muster.doctor.facts import Claim, Facts, Heard
from muster.doctor.finding import Finding, Level
from muster.protocol.ids import GroupId
from muster.protocol.records import CoordinatorClaim, GroupState

NOW = 10_000_000
ORDERS = GroupId("orders")
VERSION = version("muster-kafka")
STUCK_MS = 300_000


def claim(offset: int, at_ms: int, job: str = "a", host: str = "h1") -> Claim:
    """A claim of a job of this version."""
    return Claim(offset, at_ms, CoordinatorClaim(job=job, host=host, version=VERSION))


def facts(**changes: object) -> Facts:
    """A healthy group whose newest record is new."""
    snapshot = replace(orders(), state=GroupState.STABLE, generation_ms=NOW - 5_000)
    snapshot = replace(snapshot, holder=np.zeros(5, dtype=np.int32))
    well = Facts(
        now_ms=NOW,
        claims=(claim(3, NOW - 3_600_000),),
        groups={ORDERS: (snapshot, NOW - 5_000)},
        writes=((NOW - 5_000, 3),),
        wakeups={ORDERS: NOW + 2_000},
        heard={ORDERS: Heard(event_ms=NOW - 1_000, tick_ms=NOW - 4_000)},
        published_ms=NOW - 3_000,
    )
    return replace(well, **changes)  # type: ignore[arg-type]


def levels(facts: Facts) -> dict[tuple[str, str], Level]:
    """(check, subject) → level, of all findings."""
    return {(f.check, f.subject): f.level for f in doctor_job.look(facts, "muster", STUCK_MS)}


def first_finding(facts: Facts, check: str) -> Finding:
    """The first finding of a check that is not fine."""
    findings = doctor_job.look(facts, "muster", STUCK_MS)
    return next(f for f in findings if f.check == check and f.level is not Level.OK)
