"""Measured weights of tasks from Kafka: what each weighs, and when new ones replace the old ones.

Weights are relative: the mean of a source's partitions weighs 1. New weights replace the old ones
only if at least one differs by more than a threshold, because every change of a weight makes a
generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.protocol.sources import Source
from muster.protocol.tasks import Subtopology

Loads = Mapping[tuple[str, int], float]
"""(topic, partition) → what it carries, in any unit."""
CHANGED_SHARE = 0.25
"""A weight has changed if old and new differ by more than this share of the larger one, and ..."""
CHANGED_MIN = 0.2
"""... by more than this. The mean weight of a source's partitions is 1."""
IDLE_WEIGHT = 0.05
"""What a partition weighs at least, so that idle partitions are spread over the members too."""
LAG_NEWEST_SHARE = 0.3
"""The newest measurement's share of a smoothed lag. A lag goes up and down with every fetch of its
consumer. (Rates need no smoothing: they are means over minutes.)"""


def smoothed(before: Loads, now: Loads) -> dict[tuple[str, int], float]:
    """Lags smoothed over the measurements; a partition that is new has the lag that it has now."""
    return {
        place: LAG_NEWEST_SHARE * lag + (1 - LAG_NEWEST_SHARE) * before.get(place, lag)
        for place, lag in now.items()
    }


def weighed(
    source: Source,
    units: Sequence[Subtopology],
    old: Mapping[str, Subtopology],
    loads: Loads | None,
) -> list[Subtopology]:
    """The units with measured weights: the old ones, unless a weight has changed.

    `units` are those of all topics of the source, `old` what they were before, by name. Without
    loads nothing was measured this time.
    """
    if not source.measure:
        return list(units)
    fresh = None if loads is None else _weights(source, units, loads)
    if fresh is not None and any(
        _has_changed(old.get(unit.name), unit, fresh[unit.name]) for unit in units
    ):
        return [replace(unit, weights=fresh[unit.name]) for unit in units]
    unchanged = []
    for unit in units:
        before = old.get(unit.name)
        weights = None if before is None else before.weights
        fits = weights is not None and len(weights) == unit.partitions
        unchanged.append(replace(unit, weights=weights if fits else None))
    return unchanged


def _weights(
    source: Source, units: Sequence[Subtopology], loads: Loads
) -> dict[str, tuple[float, ...]]:
    """Unit → the weight of each task; the mean over the source is 1."""
    raw = {
        unit.name: [
            sum(loads.get((topic, number), 0.0) for topic in _read_by(source, unit))
            for number in range(unit.partitions)
        ]
        for unit in units
    }
    values = [value for row in raw.values() for value in row]
    mean = sum(values) / len(values) if values else 0.0
    return {
        name: tuple(_rounded(max(value / mean, IDLE_WEIGHT)) if mean > 0 else 1 for value in row)
        for name, row in raw.items()
    }


def _read_by(source: Source, unit: Subtopology) -> Sequence[str]:
    return source.topics if source.co_partitioned and source.topics else (unit.name,)


def _rounded(value: float) -> float:
    """Two significant digits."""
    return float(f"{value:.1e}")


def _has_changed(before: Subtopology | None, unit: Subtopology, fresh: tuple[float, ...]) -> bool:
    weights = None if before is None else before.weights
    if weights is None or len(weights) != unit.partitions:
        weights = (1.0,) * unit.partitions
    return any(
        abs(new - old) > max(CHANGED_SHARE * max(new, old), CHANGED_MIN)
        for new, old in zip(fresh, weights, strict=True)
    )
