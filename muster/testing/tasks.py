"""Tasks of a group, as tests give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from muster.documents.units import parse_tasks
from muster.errors import BadInput
from muster.protocol.tasks import Unit

Tasks: TypeAlias = Mapping[str, int] | Sequence[Mapping[str, Any]]
"""Subtopology → partitions, or rows (``docs/formats.md``)."""


def units_of(tasks: Tasks) -> tuple[Unit, ...]:
    """The units that a test gives.

    Raises:
        BadInput, ConfigError: they are neither a mapping nor rows, or not valid.
    """
    if isinstance(tasks, Mapping):
        tasks = [{"subtopology": name, "partitions": count} for name, count in tasks.items()]
    if isinstance(tasks, str) or not all(isinstance(row, Mapping) for row in tasks):
        row = {"subtopology": "orders", "partitions": 4, "stateful": True}
        raise BadInput(f"tasks: expected {{'orders': 4}} or rows as {[row]}, not {tasks!r}")
    return parse_tasks([dict(row) for row in tasks])
