"""Faults on the real thing, in an order chance gives: no overlap of owners, nothing lost.

===================  ====================================================================
MUSTER_CHAOS_SEED    of every choice; a run is repeated with it (timing excepted)
MUSTER_CHAOS_MINUTES how long; not set = the brief faults once each, for CI
MUSTER_CHAOS_ONLY    names of faults, separated by commas: no others
MUSTER_CHAOS_REPORT  file the report is written to, as JSON or (``*.md``) as a table
===================  ====================================================================

A long run draws from all faults, every third time two at once. After each fault all groups must
settle, and a worker is restarted in order, to see that the group can still change: afterwards, or,
in a short run and where there is a coordinator to see it, while the fault is on. Tokens of a task
only grow, and a pinned job never runs on a worker that does not name it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from chaos.faults import DISK_FULL, FAULTS, ORDERLY, WORKER, Fault
from chaos.report import Played, Report, ownerless_s, stopped
from chaos.stage import Stage
from support import overlap
from support.overlap import Tenure, now_ns

from muster.protocol.records import GroupState
from muster.protocol.topics import TopicKind

SEED = int(os.environ.get("MUSTER_CHAOS_SEED", "1"))
MINUTES = float(os.environ.get("MUSTER_CHAOS_MINUTES", "0"))
ONLY = os.environ.get("MUSTER_CHAOS_ONLY", "")
REPORT = os.environ.get("MUSTER_CHAOS_REPORT")
NOISE_S = 60.0
"""How much longer than stated a task may have no owner: machines are busy, and a JVM that takes
three seconds to start on a quiet one takes half a minute there."""

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.mark.timeout(900 + int(MINUTES * 60))
def test_no_fault_gives_a_task_two_owners_or_none(tmp_path: Path) -> None:
    """Every fault in turn; the report is printed, and must show no overlap and no loss."""
    chance = random.Random(SEED)
    report = Report(SEED)
    with Stage(tmp_path, chance) as stage:
        began_ns = now_ns()
        try:
            for faults in drawn(chance, possible(report, is_small=stage.is_small), MINUTES):
                play(stage, report, began_ns, *faults)
        finally:
            sum_up(stage, report, began_ns)
        assert report.overlaps == 0, [overlap.overlaps(crew.tenures()) for crew in stage.crews]
        nothing_lost(stage)
        late = [one for one in report.played if one.ownerless_s > one.bound_s + NOISE_S]
        assert late == [], "tasks were without an owner for longer than stated"


def possible(report: Report, *, is_small: bool) -> list[Fault]:
    """The faults that are wanted and can be done."""
    wanted = [name.strip() for name in ONLY.split(",") if name.strip()]
    unknown = set(wanted) - {fault.name for fault in FAULTS}
    assert not unknown, f"MUSTER_CHAOS_ONLY: no fault {sorted(unknown)}"
    chosen = [fault for fault in FAULTS if fault.name in wanted or not wanted]
    if not is_small and DISK_FULL in chosen:
        report.skipped[DISK_FULL.name] = "no file system may be mounted here"
        chosen.remove(DISK_FULL)
    return chosen


def drawn(
    chance: random.Random, chosen: list[Fault], minutes: float
) -> Iterator[tuple[Fault, ...]]:
    """What comes next; of two at once the fault of a worker first."""
    if not minutes:
        brief = [fault for fault in chosen if fault.brief or ONLY]
        for fault in chance.sample(brief, len(brief)):
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
        # Each once, then in another order: left to chance alone some would hardly be seen.
        for number, fault in enumerate(chance.sample(chosen, len(chosen)), turn):
            if time.monotonic() >= end:
                return
            if fault.hits == WORKER:
                yield (fault,)
            elif number % 3 == 2:
                yield (chance.choice(outer), fault)
            else:
                yield from ((fault,), (ORDERLY,))


def play(stage: Stage, report: Report, began_ns: int, *faults: Fault) -> None:
    """Inject, mend, wait until all is well; note what it cost."""
    from_ns = now_ns()
    name = " + ".join(fault.name for fault in faults)
    print(f"{(from_ns - began_ns) / 1e9:7.1f} s  {name} ...", flush=True)
    outer, *inner = faults
    with outer.inject(stage):
        for fault in inner:
            with fault.inject(stage):
                pass
    stage.settle()
    to_ns = now_ns()
    found: list[list[Tenure]] = [crew.tenures() for crew in stage.crews]
    played = Played(
        fault=name,
        began_s=round((from_ns - began_ns) / 1e9, 3),
        settled_s=round((to_ns - from_ns) / 1e9, 3),
        ownerless_s=round(max(ownerless_s(one, from_ns, to_ns) for one in found), 3),
        stopped=sum(stopped(one, from_ns, to_ns) for one in found),
        bound_s=sum(fault.bound_s for fault in faults),
    )
    report.played.append(played)
    print(
        f"{'':10} settled after {played.settled_s:.1f} s, {played.stopped} tasks stopped, "
        f"ownerless {played.ownerless_s:.1f} s at most (bound {played.bound_s:.0f} s)",
        flush=True,
    )
    for crew in stage.crews:
        overlap.check(crew.folder)
        assert crew.misplaced() == []
        assert crew.backward() == []


def sum_up(stage: Stage, report: Report, began_ns: int) -> None:
    """Complete the report, whatever came of the run, and hand it out."""
    found = [crew.tenures() for crew in stage.crews]
    report.elapsed_s = round((now_ns() - began_ns) / 1e9, 3)
    report.overlaps = sum(len(overlap.overlaps(one)) for one in found)
    report.starts = sum(len(one) for one in found)
    report.rejected = len(stage.crews[0].topics.records(TopicKind.REJECTED))
    newest = [crew.newest() for crew in stage.crews]
    report.generations = sum(0 if one is None else one.generation for one in newest)
    report.show()
    if REPORT:
        report.write(Path(REPORT))


def nothing_lost(stage: Stage) -> None:
    """No dead letter; every group keeps its configuration; the newest coordinator speaks last."""
    assert stage.crews[0].topics.records(TopicKind.REJECTED) == []
    for crew in stage.crews:
        published = [one for one in crew.snapshots() if one.state is not GroupState.DEAD]
        assert {str(one.assignor) for one in published} == {crew.config.assignor}
        assert {tuple(one.tasks) for one in published} == {tuple(crew.config.tasks)}
        order = [(one.coordinator_epoch, one.generation) for one in published]
        for epoch in {epoch for epoch, _ in order}:
            told = [generation for by, generation in order if by == epoch]
            assert told == sorted(told)
        assert order[-1] == max(order)  # frozen ones may write late; it does not stand
