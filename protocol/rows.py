"""Avro rows of the values that events and records share.

One pair of functions per value: ``*_row`` writes and ``*_from`` reads. The readers check the values
and raise `DecodeError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from muster.protocol.digest import Holding
from muster.protocol.errors import ConfigError, DecodeError, EncodeError
from muster.protocol.events import Lag, Mark
from muster.protocol.framing import Row
from muster.protocol.ids import Task
from muster.protocol.setting_values import Value
from muster.protocol.settings import Settings, accepted_settings, defaults_of, parse_settings
from muster.protocol.tasks import (
    TaskSet,
)
from muster.protocol.taskset import (
    SET_TASKS_MAX,
    Layout,
    UnitRef,
    check_units,
    decode_set,
    encode_set,
    units_of,
)
from muster.protocol.unit_names import units_fields
from muster.protocol.unit_names import units_from as event_units

HOLDING_SETS = ("active", "standby", "learner", "ready", "releasing")
MAX_U64 = 2**64 - 1


def u64(number: int) -> bytes:
    """An unsigned 64-bit number, little endian."""
    if not 0 <= number <= MAX_U64:
        raise EncodeError(f"{number} is no unsigned 64-bit number")
    return number.to_bytes(8, "little")


def u64_from(data: bytes) -> int:
    """Read what `u64` wrote."""
    return int.from_bytes(data, "little")


def mark_row(mark: Mark | None) -> Row:
    """The extra ``published`` of a wake-up and of a tick."""
    return {} if mark is None else {"extras": {"published": b"".join(map(u64, mark))}}


def mark_from(row: Row) -> Mark | None:
    """Read what `mark_row` wrote; None if there is no mark."""
    data = row["extras"].get("published")
    if data is None:
        return None
    if len(data) != 16:
        raise DecodeError(f"published is {len(data)} bytes; expected two numbers of 8")
    return Mark(u64_from(data[:8]), u64_from(data[8:]))


def number_from(extras: Row, name: str) -> int | None:
    """Read an extra that `u64` wrote; None if there is none."""
    data = extras.get(name)
    if data is None:
        return None
    if len(data) != 8:
        raise DecodeError(f"{name} is {len(data)} bytes; expected a number of 8")
    return u64_from(data)


def apart_row(apart: bool) -> Row:
    """The extra ``apart`` of a join and of an assignment; it is there, and empty, or not."""
    return {"extras": {"apart": b""}} if apart else {}


def apart_from(row: Row) -> bool:
    """Read what `apart_row` wrote."""
    return "apart" in row["extras"]


def with_extras(*rows: Row) -> Row:
    """Rows merged into one, their extras too."""
    extras = {name: data for row in rows for name, data in row.get("extras", {}).items()}
    together = {name: value for row in rows for name, value in row.items()}
    return together | {"extras": extras} if extras else together


def units_from(rows: list[Row]) -> tuple[UnitRef, ...]:
    """`UnitRef` list, checked."""
    units = tuple(UnitRef(row["label"], row["size"]) for row in rows)
    check_units(units)
    return units


def holding_row(holding: Holding, lags: tuple[Lag, ...]) -> Row:
    """Units, sets and lags of a join or report."""
    sets = {name: getattr(holding, name) for name in HOLDING_SETS}
    units = units_of(sets.values(), (lag.task for lag in lags))
    layout = Layout(units)
    row: Row = {name: encode_set(tasks, layout) for name, tasks in sets.items()}
    return row | units_fields(units) | {"lags": lags_row(lags, units)}


def holding_from(row: Row, tasks_max: int = SET_TASKS_MAX) -> tuple[Holding, tuple[Lag, ...]]:
    """Holding and lags of a join or report; at most `tasks_max` tasks in each role."""
    units = event_units(row, len(HOLDING_SETS) * tasks_max)
    holding = Holding(**sets_from(row, HOLDING_SETS, Layout(units), tasks_max))
    return holding, lags_from(row["lags"], units)


def sets_from(
    row: Row,
    names: Iterable[str],
    units: Sequence[UnitRef] | Layout,
    tasks_max: int = SET_TASKS_MAX,
) -> dict[str, TaskSet]:
    """The task sets of a row, at most `tasks_max` tasks in each; an error names the field."""
    sets: dict[str, TaskSet] = {}
    for name in names:
        try:
            sets[name] = decode_set(row[name], units, tasks_max)
        except DecodeError as error:
            raise error.within(name) from None
    return sets


def lags_row(lags: tuple[Lag, ...], units: tuple[UnitRef, ...]) -> list[Row]:
    """`Lag` list; the rows refer to the units by index."""
    index = {(unit.name, unit.connector): i for i, unit in enumerate(units)}
    return [
        {
            "unit": index[lag.task.unit, lag.task.connector],
            "position": lag.task.number + lag.task.connector,
            "offsets": lag.offsets,
        }
        for lag in lags
    ]


def lags_from(rows: list[Row], units: tuple[UnitRef, ...]) -> tuple[Lag, ...]:
    """`Lag` list, checked."""
    lags: list[Lag] = []
    for row in rows:
        if not 0 <= row["unit"] < len(units):
            raise DecodeError(f"a lag in unit {row['unit']}; there are {len(units)}")
        unit = units[int(row["unit"])]
        if not 0 <= row["position"] < unit.size:
            raise DecodeError(f"a lag at position {row['position']} of {unit.label[:40]!r}")
        if row["offsets"] < 0:
            raise DecodeError(f"offsets is {row['offsets']}; expected 0 or more")
        task = Task(unit.name, row["position"] - unit.connector, unit.connector)
        lags.append(Lag(task, row["offsets"]))
    return tuple(lags)


def settings_row(settings: Settings, assignor: str) -> dict[str, str]:
    """The settings that differ from the assignor's defaults, by Kafka's name."""
    return {key: _text(value) for key, value in settings.tuned(defaults_of(assignor)).items()}


def _text(value: Value) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def settings_from(row: Mapping[str, str], assignor: str) -> Settings:
    """Settings, checked."""
    try:
        return parse_settings(row, assignor)
    except ConfigError as error:
        raise DecodeError(str(error)) from None


def kept_settings_from(row: Mapping[str, str], assignor: str) -> Settings:
    """Settings of a snapshot, of which a newer version may have written some.

    One that this version does not have is left out, and one whose value it does not accept has its
    default: a coordinator of this version must be able to go on with the group.
    """
    return settings_from(accepted_settings(row), assignor)


def json_bytes(value: object) -> bytes:
    """JSON text as an extra has it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def json_from(extras: Row, name: str) -> Any:  # noqa: ANN401  # checked by its readers
    """The JSON value of an extra; None = there is none."""
    if name not in extras:
        return None
    try:
        return json.loads(extras[name])
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"{name} that is not JSON: {error}") from None
