"""Reads a scenario (`docs/formats.md`) from JSON; every fault names its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from muster.documents.json_files import refuse_unknown
from muster.documents.members import KEYS as MEMBER_KEYS
from muster.documents.members import Names, parse_member, whole
from muster.documents.units import parse_tasks
from muster.errors import BadInput
from muster.output import shown
from muster.protocol.digest import Holding
from muster.protocol.events import Join, Lag
from muster.protocol.ids import MemberId, Task, parse_task
from muster.protocol.setting_values import LONG_MAX
from muster.protocol.settings import CONNECT_ASSIGNORS, DEFAULT_ASSIGNOR, parse_settings
from muster.protocol.tasks import TaskSet, TaskTable
from muster.simulation import scenario as s
from muster.simulation.member import READY, TELLS
from muster.simulation.scenario import Configured, Joins, Scenario, ScenarioEvent
from muster.simulation.scenario_player import GROUP

KEYS = ("group", "defaults", "events", "until_ms")
GROUP_KEYS = ("assignor", "config", "tasks")
SPANS = ("ack_ms", "ack_step_ms", "restore_ms", "heartbeat_ms")
TELLS_KEY = "tells"
DEFAULTS = {"ack_ms": 0, "ack_step_ms": 0, "restore_ms": 0, "heartbeat_ms": 3_000}
AT_ONCE = {"initial.rebalance.delay.ms": 0}
"""Members that start together in a scenario join at one instant, so no delay is needed."""
SETTLE_MS = 600_000
"""A scenario without ``until_ms`` is played this long after its last event."""
_MOST_MS = 2**53


def parse_scenario(raw: object) -> Scenario:
    """Read a scenario.

    Raises:
        BadInput: the message names the place and says what would be right.
        ConfigError: the same for a setting.
    """
    top = _object(raw, "scenario", KEYS)
    if "group" not in top:
        raise BadInput("group: missing; a scenario needs a group with tasks")
    return _Reader(top).scenario()


class _Reader:
    """Reads events in time order, because a task name refers to the configuration at that time."""

    def __init__(self, top: Mapping[str, Any]) -> None:
        self.top = top
        group = _object(top["group"], "group", GROUP_KEYS)
        self.assignor = group.get("assignor", DEFAULT_ASSIGNOR)
        if not isinstance(self.assignor, str):
            raise BadInput("group.assignor: expected a name")
        self.values = dict(_object(group.get("config", {}), "group.config"))
        self.units = parse_tasks(group.get("tasks", []), "group.tasks")
        self.names = Names(TaskTable(self.units))
        self.defaults: dict[str, int | None] = dict(DEFAULTS)
        defaults_row = dict(_object(top.get("defaults", {}), "defaults", (*SPANS, TELLS_KEY)))
        self.tells = _tells(defaults_row.pop(TELLS_KEY, READY), f"defaults.{TELLS_KEY}")
        for key, value in defaults_row.items():
            self.defaults[key] = _span(value, f"defaults.{key}", key)
        self.known: dict[str, None] = {}
        self.joining = frozenset(_joining(top.get("events", [])))

    def scenario(self) -> Scenario:
        """The whole scenario, its events in the order of time."""
        first = self._configured()
        rows = self.top.get("events", [])
        if not isinstance(rows, list):
            raise BadInput("events: expected a list")
        timed = []
        for number, row in enumerate(rows):
            place = f"events[{number}]"
            if not isinstance(row, dict) or "at_ms" not in row:
                raise BadInput(f"{place}: expected an object with 'at_ms' and one event")
            timed.append((_time(row["at_ms"], f"{place}.at_ms"), number, row, place))
        timed.sort(key=lambda each: each[:2])
        events = tuple((at, self._event(row, place)) for at, _, row, place in timed)
        last = timed[-1][0] if timed else 0
        until = self.top.get("until_ms", min(last + SETTLE_MS, _MOST_MS))
        return Scenario(group=first, events=events, until_ms=_time(until, "until_ms"))

    def _configured(self) -> Configured:
        settings = parse_settings({**AT_ONCE, **self.values}, self.assignor)
        return Configured(assignor=self.assignor, settings=settings, tasks=self.units)

    def _event(self, row: Mapping[str, Any], place: str) -> ScenarioEvent:
        kinds = [key for key in row if key in EVENTS]
        refuse_unknown(row, ("at_ms", *EVENTS, "temporary"), place)
        if len(kinds) != 1:
            raise BadInput(f"{place}: expected exactly one of {', '.join(EVENTS)}")
        key = kinds[0]
        if "temporary" in row and key != "leave":
            raise BadInput(f"{place}.temporary: only a 'leave' is temporary")
        event = _READERS[key](self, row[key], f"{place}.{key}")
        if isinstance(event, s.Leaves):
            temporary = row.get("temporary", False)
            if not isinstance(temporary, bool):
                raise BadInput(f"{place}.temporary: expected true or false")
            event = replace(event, temporary=temporary)
        return event

    # ------------------------------------------------------------------------- one kind of event

    def join(self, raw: object, place: str) -> Joins:
        extra = (*SPANS, TELLS_KEY, "instance_id")
        row = _object(raw, place, (*MEMBER_KEYS, *extra))
        connect = self.assignor in CONNECT_ASSIGNORS
        plain = {key: value for key, value in row.items() if key not in extra}
        member = parse_member(plain, self.names, place, foreign=connect)
        instance_id = row.get("instance_id")
        if instance_id is not None and not (isinstance(instance_id, str) and instance_id):
            raise BadInput(f"{place}.instance_id: expected a name")
        strangers = [parse_task(text) for text in member.foreign]
        task = self.names.table.task
        join = Join(
            group=GROUP,
            member=MemberId(member.id),
            incarnation=0,
            instance_id=instance_id,
            rack=member.rack,
            capacity=member.capacity,
            tags=tuple(sorted(member.tags.items())),
            protocols=member.protocols,
            topics=None if member.topics is None else tuple(sorted(member.topics)),
            static=tuple(sorted(member.static)),
            holding=Holding(
                active=TaskSet.of([*map(task, member.active), *strangers]),
                standby=TaskSet.of(map(task, member.standby)),
                learner=TaskSet.of(map(task, member.learner)),
                ready=TaskSet.of(map(task, member.ready)),
            ),
            lags=tuple(Lag(task(t), behind) for t, behind in sorted(member.lag.items())),
        )
        spans: dict[str, Any] = {
            key: _span(row.get(key, self.defaults[key]), f"{place}.{key}", key) for key in SPANS
        }
        self.known[member.id] = None
        tells = _tells(row.get(TELLS_KEY, self.tells), f"{place}.{TELLS_KEY}")
        return Joins(join=join, draining=member.draining, tells=tells, **spans)

    def forget(self, raw: object, place: str) -> ScenarioEvent:
        if raw is not True:
            raise BadInput(f"{place}: expected true")
        return s.Forgets()

    def undelivered(self, raw: object, place: str) -> ScenarioEvent:
        if not isinstance(raw, list) or not all(isinstance(name, str) for name in raw):
            raise BadInput(f"{place}: expected a list of member ids")
        for nth, name in enumerate(raw):
            if name not in self.joining:
                raise BadInput(f"{place}[{nth}]: {shown(name)}; expected a member that joins")
        return s.Undelivered(frozenset(raw))

    def lag(self, raw: object, place: str) -> ScenarioEvent:
        row = _object(raw, place)
        member = self.member(row.get("member"), f"{place}.member")
        offsets = []
        for text, behind in row.items():
            if text == "member":
                continue
            at = f"{place}.{text}"
            offsets.append((self.task(text, at), whole(behind, 0, at, LONG_MAX)))
        return s.Lagging(member, tuple(offsets))

    def ready(self, raw: object, place: str) -> ScenarioEvent:
        row = _object(raw, place, ("member", "task"))
        member = self.member(row.get("member"), f"{place}.member")
        return s.Ready(member, self.task(row.get("task"), f"{place}.task"))

    def config(self, raw: object, place: str) -> ScenarioEvent:
        self.values |= _object(raw, place)
        return self._configured()

    def choose_assignor(self, raw: object, place: str) -> ScenarioEvent:
        if not isinstance(raw, str):
            raise BadInput(f"{place}: expected a name")
        self.assignor = raw
        return self._configured()

    def tasks(self, raw: object, place: str) -> ScenarioEvent:
        self.units = parse_tasks(raw, place)
        self.names = Names(TaskTable(self.units))
        return self._configured()

    def member(self, raw: object, place: str) -> str:
        if not isinstance(raw, str) or raw not in self.known:
            known = ", ".join(self.known) or "none"
            raise BadInput(f"{place}: {shown(raw)}; expected a member that joined before: {known}")
        return raw

    def task(self, raw: object, place: str) -> Task:
        index = self.names.index.get(raw) if isinstance(raw, str) else None
        if index is None:
            raise BadInput(f"{place}: {shown(raw)}; expected a task of the group, such as 0_1")
        return self.names.table.task(index)


def _of_member(event_of: Callable[[str], ScenarioEvent]) -> _Read:
    """Reads an event that names a member and nothing else."""
    return lambda reader, raw, place: event_of(reader.member(raw, place))


_Read: TypeAlias = Callable[[_Reader, Any, str], ScenarioEvent]
_READERS: Mapping[str, _Read] = {
    "join": _Reader.join,
    "leave": _of_member(s.Leaves),
    "crash": _of_member(s.Crashes),
    "return": _of_member(s.Returns),
    "drain": _of_member(s.Drains),
    "undrain": _of_member(partial(s.Drains, on=False)),
    "lag": _Reader.lag,
    "ready": _Reader.ready,
    "config": _Reader.config,
    "tasks": _Reader.tasks,
    "assignor": _Reader.choose_assignor,
    "rejoin": _of_member(s.Rejoins),
    "forget": _Reader.forget,
    "undelivered": _Reader.undelivered,
}
"""Key of an event → the function that reads its value."""
EVENTS = tuple(_READERS)


def _joining(rows: object) -> Iterator[str]:
    """Ids of all members that join at any time; malformed events are skipped."""
    for row in rows if isinstance(rows, list) else ():
        join = row.get("join") if isinstance(row, dict) else None
        name = join.get("id") if isinstance(join, dict) else None
        if isinstance(name, str):
            yield name


def _object(raw: object, place: str, known: tuple[str, ...] | None = None) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise BadInput(f"{place}: expected an object")
    if known is not None:
        refuse_unknown(raw, known, place)
    return raw


def _time(value: object, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_MS:
        raise BadInput(f"{place}: expected a whole number of milliseconds, 0 or more")
    return value


def _tells(value: object, place: str) -> str:
    if value not in TELLS:
        raise BadInput(f"{place}: {shown(value)}; expected {' or '.join(TELLS)}")
    return str(value)


def _span(value: object, place: str, key: str) -> int | None:
    if value is None and key == "restore_ms":
        return None
    span = _time(value, place)
    if key == "heartbeat_ms" and span == 0:
        raise BadInput(f"{place}: expected 1 or more")
    return span
