"""A group's configuration as a JSON object, and its next version after a user's change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muster.assignor.registry import names as assignor_names
from muster.documents.units import tasks_json
from muster.errors import BadInput
from muster.output import shown
from muster.protocol.codec import decode, encode
from muster.protocol.errors import ConfigError, DecodeError
from muster.protocol.events import NOWHERE, GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.rows import settings_row
from muster.protocol.settings import DEFAULT_ASSIGNOR, KEYS, SETTINGS, Settings, parse_settings
from muster.protocol.sources import Source, source_json
from muster.protocol.tasks import TaskTable, Unit
from muster.protocol.taskset import units_of_table
from muster.protocol.topics import EVENT_BYTES_MAX, TopicKind
from muster.protocol.unit_names import names_fault

FILE_KEYS = ("assignor", "config", "tasks")


@dataclass(frozen=True, slots=True)
class Change:
    """The change that the user asks for; None, or an empty `config`, changes nothing.

    Attributes:
        assignor: name, or ``module:Class``.
        config: settings by Kafka's name; None or an empty text = back to the default.
        tasks: the group's whole list of tasks.
        sources: the topics of Kafka in that list; without effect where `tasks` is None.
    """

    assignor: str | None
    config: Mapping[str, object]
    tasks: tuple[Unit, ...] | None
    sources: tuple[Source, ...] = ()


def merged(group: GroupId, old: GroupConfig | None, change: Change) -> GroupConfig:
    """The configuration after the change; settings not set have the new assignor's defaults.

    Raises:
        BadInput: an unknown assignor.
        ConfigError: an unknown setting, a value out of bounds, settings that do harm together, or
            tasks that clash.
    """
    assignor = change.assignor or (old.assignor if old else DEFAULT_ASSIGNOR)
    module, _, attribute = assignor.partition(":")
    if not (module and attribute) and assignor not in assignor_names():
        known = ", ".join(assignor_names())
        raise BadInput(f"assignor {shown(assignor)}: expected module:Class or one of {known}")
    values: dict[str, object] = dict(settings_row(old.settings, old.assignor)) if old else {}
    for key, value in change.config.items():
        if key in KEYS and value in (None, ""):
            values.pop(key, None)
        else:
            values[key] = value
    tasks = change.tasks if change.tasks is not None else (old.tasks if old else ())
    stays = change.tasks is None and old is not None
    TaskTable(tasks)
    settings = parse_settings(values, assignor)
    check_together(settings)
    return GroupConfig(
        group=group,
        assignor=assignor,
        settings=settings,
        tasks=tasks,
        sources=old.sources if stays and old else change.sources,
    )


def check_together(settings: Settings) -> None:
    """Refuse settings that are valid one by one but harmful together.

    Only commands refuse them; the coordinator goes on with a group that has them.

    Raises:
        ConfigError: it names the setting to change, and the reason.
    """
    interval_ms, session_ms = settings.heartbeat_interval_ms, settings.session_timeout_ms
    if 2 * interval_ms >= session_ms:
        raise ConfigError(
            "heartbeat.interval.ms",
            interval_ms,
            f"less than half of session.timeout.ms ({session_ms}): otherwise one lost heartbeat, or"
            " one pause in the log, ends the session of a healthy member",
        )


def check_fits(group: GroupConfig) -> None:
    """Refuse a configuration that does not fit into a record, or whose names no report can hold.

    Raises:
        BadInput: the message names the limit.
    """
    fault = names_fault(units_of_table(TaskTable(group.tasks)))
    if fault is None:
        encoded = encode(group)
        size = len(encoded.value or b"")
        if size > EVENT_BYTES_MAX:
            fault = f"a configuration of {size} bytes when packed; {EVENT_BYTES_MAX} are accepted"
        else:
            try:
                decode(TopicKind.CONFIG, encoded.key, encoded.value, NOWHERE)
            except DecodeError as error:
                fault = error.reason
    if fault is not None:
        raise BadInput(
            f"{group.group}: {fault}. Use shorter or more similar names, or split the group"
        )


def as_json(group: GroupConfig) -> dict[str, Any]:
    """The object that `config set --file` reads, without settings at the assignor's default."""
    tuned = settings_row(group.settings, group.assignor)
    return {
        "assignor": group.assignor,
        "config": {s.key: getattr(group.settings, s.field) for s in SETTINGS if s.key in tuned},
        "tasks": [*map(source_json, group.sources), *tasks_json(group.tasks)],
    }
