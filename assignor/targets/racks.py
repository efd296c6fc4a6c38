"""Rack awareness (KIP-925): whether it is on, what members read across racks, and the prices.

The cost of a task on a member is ``traffic`` x the topic partitions it reads there without a
replica in the member's rack, plus ``overlap`` if the member does not hold it already (S4-F04).
`muster.assignor.targets.standby` places copies in other racks than the active.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.assignor.copy_lags import Longs
from muster.assignor.model import BoolArray, GroupView
from muster.assignor.targets.traffic import UNKNOWN, Reads, reads


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of reading across racks and of moving.

    Attributes:
        traffic: of one topic partition read across racks.
        overlap: of a task on a member that does not hold it.
    """

    traffic: int
    overlap: int

    @property
    def tolls_first(self) -> bool:
        """Whether standbys are placed by traffic alone, with moves only as the tie-break.

        KIP-925's worked standby costs (EX-R9, EX-R10) are of traffic alone.
        """
        return self.traffic > self.overlap


AVAILABILITY = Prices(10, 1)
STICKINESS = Prices(1, 10)
STATELESS = Prices(1, 0)
"""Kafka's defaults: high-availability, sticky, and stateless tasks of either (S4-F02)."""


@dataclass(frozen=True, slots=True, eq=False)
class Racks:
    """Rack awareness that is switched on and has all data it needs.

    Attributes:
        inputs: what actives read.
        changelogs: what standbys read; None = no standbys are wanted.
        stateful: prices of stateful tasks.
        by_unit: whether each unit is spread over the members (`balance_subtopology`).
    """

    inputs: Reads
    changelogs: Reads | None
    stateful: Prices
    by_unit: bool

    def across(self, view: GroupView) -> tuple[Longs, Longs]:
        """int64[T, M]: partitions an active, and a standby, at a member reads across racks."""
        actives = self.inputs.across[self.inputs.class_of][:, view.rack]
        if self.changelogs is None:
            return actives, np.zeros_like(actives)
        standbys = np.zeros_like(actives)
        known = self.changelogs.class_of != UNKNOWN
        table = self.changelogs.across[self.changelogs.class_of[known]]
        standbys[known] = table[:, view.rack]
        return actives, standbys


def differ(view: GroupView, racks: Racks, usable: BoolArray) -> bool:
    """Whether traffic depends on the placement on `usable` (bool[M]) members at all (S4-F05)."""
    racks_in_use = np.unique(view.rack[usable])
    tables = [racks.inputs] if racks.changelogs is None else [racks.inputs, racks.changelogs]
    across = [table.across[:, racks_in_use] for table in tables]
    return any(bool((by_rack != by_rack[:, :1]).any()) for by_rack in across)


def racks_of(view: GroupView, default: Prices, *, standbys: bool) -> tuple[Racks | None, str]:
    """Rack awareness of a view; None where it is off, with a warning if that is not intended.

    It needs the rack of every member and of every replica of every partition that is read
    (S4-F05); without them it is off and the warning says what is missing.
    """
    settings = view.settings
    if settings.rack_aware_assignment_strategy == "none" or not len(view.tasks):
        return None, ""
    rackless = np.flatnonzero(view.rack == UNKNOWN)
    if len(rackless):
        return None, f"racks are ignored: member {view.members[rackless[0]]} has no rack"
    inputs = reads(view, changelog=False)
    missing = np.flatnonzero(inputs.class_of == UNKNOWN)
    partitions = "inputs"
    changelogs = None
    if len(missing) == 0 and standbys:
        changelogs = reads(view, changelog=True)
        missing = np.flatnonzero((changelogs.class_of == UNKNOWN) & view.tasks.stateful)
        partitions = "changelogs"
    if len(missing):
        task = view.tasks.task(int(missing[0]))
        return None, f"racks are ignored: racks of the {partitions} of task {task} are unknown"
    traffic = settings.rack_aware_assignment_traffic_cost
    overlap = settings.rack_aware_assignment_non_overlap_cost
    prices = Prices(
        default.traffic if traffic is None else traffic,
        default.overlap if overlap is None else overlap,
    )
    by_unit = settings.rack_aware_assignment_strategy == "balance_subtopology"
    return Racks(inputs, changelogs, prices, by_unit), ""
