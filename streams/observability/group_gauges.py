"""Gauges about groups, computed from a `GroupStats` whenever they are read.

Nothing is kept here, so a group that is forgotten or loses its label has no gauges any more. Groups
without a label of their own share one: figures that can be added are summed up (`SUMS`), of the
others the highest counts (`PEAKS`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.metric_labels import REST

_GROUP = ("prefix", "group")
SUMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "groups": (("prefix", "state"), "groups, by state"),
    "groups_quarantined": (("prefix",), "groups that are quarantined until they are released"),
    "member_state": (("prefix", "state"), "members, by where they stand on their way"),
    "group_members": (_GROUP, "members"),
    "group_tasks": (_GROUP, "tasks declared"),
    "unassigned_tasks": (_GROUP, "tasks that no member holds"),
    "learner_tasks": (_GROUP, "learners that are restoring or waiting to take over"),
    "copy_lag_offsets": (_GROUP, "offsets that copies are behind, summed over those that tell"),
    "cross_rack_tasks": (_GROUP, "active tasks that read from another rack"),
}
PEAKS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "group_generation": (_GROUP, "group epoch"),
    "imbalance_ratio": (_GROUP, "load of the fullest member by its fair share; 1 = balanced"),
    "group_unsettled_seconds": (_GROUP, "how long the group has not been Stable or Empty"),
}


class GroupsCollector(Collector):
    """Computes the gauges from a `GroupStats` at each scrape.

    `now_ms` gives the estimated broker time, in epoch milliseconds.
    """

    def __init__(self, fold: GroupStats, now_ms: Callable[[], int]) -> None:
        self._fold = fold
        self._now_ms = now_ms

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All gauges about groups."""
        now_ms = self._now_ms()
        sums: dict[str, Counter[tuple[str, ...]]] = {name: Counter() for name in SUMS}
        peaks: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in PEAKS}
        value: float | None
        for prefix, group, seen in self._fold.rows():
            sums["groups"][prefix, seen.state.value] += 1
            sums["groups_quarantined"][(prefix,)] += int(seen.quarantined)
            for state, number in seen.members.items():
                sums["member_state"][prefix, state.value] += number
            place: tuple[str, ...] = (prefix, group)
            sums["group_members"][place] += seen.members.total()
            sums["group_tasks"][place] += len(seen.holder)
            # In a sum an alert cannot tell which tasks have a member that could hold them.
            if group != REST or seen.members:
                sums["unassigned_tasks"][place] += seen.unassigned
            sums["learner_tasks"][place] += seen.learners
            sums["copy_lag_offsets"][place] += seen.lag
            sums["cross_rack_tasks"][place] += seen.cross_rack
            spent_ms = 0 if seen.unsettled_ms is None else max(now_ms - seen.unsettled_ms, 0)
            for name, value in (
                ("group_generation", seen.generation if group != REST else None),
                ("imbalance_ratio", seen.imbalance),
                ("group_unsettled_seconds", float(spent_ms) / 1000),
            ):
                if value is not None:
                    peaks[name][place] = max(peaks[name].get(place, 0), value)
        values: Mapping[str, Mapping[tuple[str, ...], float]] = {**sums, **peaks}
        for name, (labels, meaning) in {**SUMS, **PEAKS}.items():
            family = GaugeMetricFamily(f"muster_{name}", meaning, labels=labels)
            for place in sorted(values[name]):
                family.add_metric(place, values[name][place])
            yield family
