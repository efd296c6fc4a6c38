"""Faults in random order on real processes: no overlap of owners, nothing lost.

===================  ====================================================================
MUSTER_CHAOS_SEED    of every choice; repeats a run, except for its timing
MUSTER_CHAOS_MINUTES how long; not set = the brief faults once each, for CI
MUSTER_CHAOS_ONLY    names of faults, separated by commas: no others
MUSTER_CHAOS_REPORT  file for the report, as JSON or (``*.md``) as a table
===================  ====================================================================

A long run draws from all faults, every third time two at once. After each fault all groups must
settle. A worker is also restarted in order, to show that the group can still change: after the
fault, or, in a short run and if there is a coordinator, during the fault. Tokens of a task only
grow, and a pinned job never runs on a worker that does not name it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from chaos.chaos_system import ChaosSystem
from chaos.faults import DISK_FULL, FAULTS, ORDERLY, WORKER, Fault
from chaos.report import Played, Report, ownerless_s, stopped
from support.worker import overlap
from support.worker.overlap import Tenure, now_ns

from muster.protocol.records import GroupState
from muster.protocol.topics import TopicKind

SEED = int(os.environ.get("MUSTER_CHAOS_SEED", "1"))
MINUTES = float(os.environ.get("MUSTER_CHAOS_MINUTES", "0"))
ONLY = os.environ.get("MUSTER_CHAOS_ONLY", "")
REPORT = os.environ.get("MUSTER_CHAOS_REPORT")
NOISE_S = 60.0
"""How much longer than its bound a task may have no owner, because machines are busy: a JVM that
starts in 3 s on a quiet machine takes 30 s on a busy one."""

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.timeout(900 + int(MINUTES * 60))
def test_no_fault_gives_a_task_two_owners_or_none(tmp_path: Path) -> None:
    """All faults, one after the other; the printed report must show no overlap and no loss."""
    rng = random.Random(SEED)
    report = Report(SEED)
    with ChaosSystem(tmp_path, rng) as system:
        began_ns = now_ns()
        try:
            for faults in drawn(rng, possible(report, is_small=system.is_small), MINUTES):
                play(system, report, began_ns, *faults)
        finally:
            sum_up(system, report, began_ns)
        assert report.overlaps == 0, [overlap.overlaps(fleet.tenures()) for fleet in system.fleets]
        nothing_lost(system)
        late = [played for played in report.played if played.ownerless_s > played.bound_s + NOISE_S]
        assert late == [], "tasks were without an owner for longer than stated"


def possible(report: Report, *, is_small: bool) -> list[Fault]:
    """The faults that `ONLY` names and this machine allows."""
    only = [name.strip() for name in ONLY.split(",") if name.strip()]
    unknown = set(only) - {fault.name for fault in FAULTS}
    assert not unknown, f"MUSTER_CHAOS_ONLY: no fault {sorted(unknown)}"
    chosen = [fault for fault in FAULTS if fault.name in only or not only]
    if not is_small and DISK_FULL in chosen:
        report.skipped[DISK_FULL.name] = "no file system may be mounted here"
        chosen.remove(DISK_FULL)
    return chosen


def drawn(rng: random.Random, chosen: list[Fault], minutes: float) -> Iterator[tuple[Fault, ...]]:
    """The faults of the run, one or two at a time; of two, the fault of a worker is first."""
    if not minutes:
        brief = [fault for fault in chosen if fault.brief or ONLY]
        for fault in rng.sample(brief, len(brief)):
            if fault.hits == WORKER:
                yield (fault,)
            elif fault.ends_coordinator:
                yield from ((fault,), (ORDERLY,))
            else:
                yield (ORDERLY, fault)
        return
    end = time.monotonic() + minutes * 60
    outer = [ORDERLY, *(fault for fault in FAULTS if fault.hits == WORKER)]
    for turn in count():
        # Each fault once, then all in another order: drawn independently, some would hardly occur.
        for number, fault in enumerate(rng.sample(chosen, len(chosen)), turn):
            if time.monotonic() >= end:
                return
            if fault.hits == WORKER:
                yield (fault,)
            elif number % 3 == 2:
                yield (rng.choice(outer), fault)
            else:
                yield from ((fault,), (ORDERLY,))


def play(system: ChaosSystem, report: Report, began_ns: int, *faults: Fault) -> None:
    """Cause the faults, repair them, wait until all groups settle, and report the result."""
    from_ns = now_ns()
    name = " + ".join(fault.name for fault in faults)
    print(f"{(from_ns - began_ns) / 1e9:7.1f} s  {name} ...", flush=True)
    outer, *inner = faults
    with outer.inject(system):
        for fault in inner:
            with fault.inject(system):
                pass
    system.settle()
    to_ns = now_ns()
    by_fleet: list[list[Tenure]] = [fleet.tenures() for fleet in system.fleets]
    played = Played(
        fault=name,
        began_s=round((from_ns - began_ns) / 1e9, 3),
        settled_s=round((to_ns - from_ns) / 1e9, 3),
        ownerless_s=round(max(ownerless_s(tenures, from_ns, to_ns) for tenures in by_fleet), 3),
        stopped=sum(stopped(tenures, from_ns, to_ns) for tenures in by_fleet),
        bound_s=sum(fault.bound_s for fault in faults),
    )
    report.played.append(played)
    print(
        f"{'':10} settled after {played.settled_s:.1f} s, {played.stopped} tasks stopped, "
        f"ownerless {played.ownerless_s:.1f} s at most (bound {played.bound_s:.0f} s)",
        flush=True,
    )
    for fleet in system.fleets:
        overlap.check(fleet.folder)
        assert fleet.misplaced() == []
        assert fleet.backward() == []


def sum_up(system: ChaosSystem, report: Report, began_ns: int) -> None:
    """Complete, print and write the report, also after a failure."""
    by_fleet = [fleet.tenures() for fleet in system.fleets]
    report.elapsed_s = round((now_ns() - began_ns) / 1e9, 3)
    report.overlaps = sum(len(overlap.overlaps(tenures)) for tenures in by_fleet)
    report.starts = sum(len(tenures) for tenures in by_fleet)
    report.rejected = len(system.fleets[0].topics.records(TopicKind.REJECTED))
    newest = [fleet.newest() for fleet in system.fleets]
    report.generations = sum(0 if group is None else group.generation for group in newest)
    report.show()
    if REPORT:
        report.write(Path(REPORT))


def nothing_lost(system: ChaosSystem) -> None:
    """No dead letters; groups keep their config; the newest coordinator wrote the last record."""
    assert system.fleets[0].topics.records(TopicKind.REJECTED) == []
    for fleet in system.fleets:
        published = [record for record in fleet.snapshots() if record.state is not GroupState.DEAD]
        assert {str(record.assignor) for record in published} == {fleet.config.assignor}
        assert {tuple(record.tasks) for record in published} == {tuple(fleet.config.tasks)}
        order = [(record.coordinator_epoch, record.generation) for record in published]
        for epoch in {epoch for epoch, _ in order}:
            generations = [generation for by, generation in order if by == epoch]
            assert generations == sorted(generations)
        assert order[-1] == max(order)  # a frozen coordinator may write late, but not last
