"""Warnings about settings and pins that the assignor of a group does not use.

`muster config set`, `plan` and `assign` print those about settings, `groups describe` the one about
standbys. Those about pinned jobs (`--static`) are in the cause of every generation, and so in
`groups describe`, `explain` and the workers' logs. A plug-in's use of settings is
unknown, so its group gets no warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from muster.assignor.connect.protocols import negotiated
from muster.assignor.errors import AssignorError
from muster.assignor.model import GroupView
from muster.assignor.registry import BUILT_IN
from muster.protocol.settings import CONNECT_ASSIGNORS, SETTINGS, Setting, Settings
from muster.protocol.tasks import Subtopology, TaskTable

_Counts = Callable[[str, Settings, TaskTable], bool]


def _racks(_assignor: str, settings: Settings, _table: TaskTable) -> bool:
    return settings.rack_aware_assignment_strategy != "none"


def _standbys(_assignor: str, settings: Settings, _table: TaskTable) -> bool:
    return settings.num_standby_replicas > 0


def _state(_assignor: str, _settings: Settings, table: TaskTable) -> bool:
    """Whether tasks have state; True for a group without tasks, because that is not known yet."""
    return not table.units or any(
        isinstance(unit, Subtopology) and unit.stateful for unit in table.units
    )


CONDITIONS: Mapping[str, _Counts] = {
    "num.standby.replicas": _state,
    "rack.aware.assignment.traffic_cost": _racks,
    "rack.aware.assignment.non_overlap_cost": _racks,
    "rack.aware.assignment.tags": _standbys,
    "rack.aware.standby.strategy": lambda *group: _racks(*group) and _standbys(*group),
    "rack.aware.standby.reliable.replicas": lambda _assignor, settings, _table: (
        settings.rack_aware_standby_strategy == "reliability_then_traffic"
    ),
    "stream.imbalance.percentage": lambda assignor, _settings, table: (
        assignor == "learner" or not table.weigh_alike
    ),
    "subtopology.imbalance.max": lambda _assignor, _settings, table: table.weigh_alike,
}
"""Per setting, its `condition` as code: whether the setting has an effect in a group."""


def ignored_settings(assignor: str, settings: Settings, table: TaskTable) -> tuple[str, ...]:
    """A line for each setting that differs from its default and has no effect.

    A plug-in gets no lines, because only it knows what it uses.
    """
    return _lines(assignor, settings, table, SETTINGS)


def ignored_standbys(assignor: str, settings: Settings, table: TaskTable) -> tuple[str, ...]:
    """The line about `num.standby.replicas` alone, for a group that counts on standbys."""
    standbys = [s for s in SETTINGS if s.key == "num.standby.replicas"]
    return _lines(assignor, settings, table, standbys)


def _lines(
    assignor: str, settings: Settings, table: TaskTable, candidates: Sequence[Setting]
) -> tuple[str, ...]:
    if assignor not in BUILT_IN:
        return ()
    changed = [s for s in candidates if getattr(settings, s.field) != s.default_for(assignor)]
    lines = (_line(setting, assignor, settings, table) for setting in changed)
    return tuple(line for line in lines if line)


def _line(setting: Setting, assignor: str, settings: Settings, table: TaskTable) -> str:
    users = setting.assignors
    if users is not None and assignor not in users:
        known = ", ".join(users) or "plug-ins"
        return f"{setting.key} is ignored: {assignor} does not use it (used by: {known})"
    if setting.key in CONDITIONS and not CONDITIONS[setting.key](assignor, settings, table):
        return f"{setting.key} is ignored: it counts only where {setting.condition}"
    return ""


def ignored_pins(assignor: str, view: GroupView) -> tuple[str, ...]:
    """A line when workers are pinned to jobs and nothing is pinned in this group."""
    pinned = [member for member, jobs in zip(view.members, view.static, strict=True) if jobs]
    if not pinned or assignor not in BUILT_IN:
        return ()
    workers = pinned[0] if len(pinned) == 1 else f"{pinned[0]} and {len(pinned) - 1} more"
    if assignor not in CONNECT_ASSIGNORS or assignor == "eager":
        return (f"--static of {workers} is ignored: {assignor} pins nothing (static does)",)
    try:
        spoken = negotiated(view)
    except AssignorError:
        return ()
    if spoken == "static":
        return ()
    why = "connect.protocol and every worker must speak static"
    return (f"--static of {workers} is ignored: the group speaks {spoken}; {why}",)
