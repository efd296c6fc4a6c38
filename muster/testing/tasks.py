"""Tasks of a group, as tests give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from muster.errors import BadInput

Tasks: TypeAlias = Mapping[str, int] | Sequence[Mapping[str, Any]]
"""Subtopology → partitions, or rows (``docs/formats.md``)."""


def rows_of(tasks: Tasks) -> list[dict[str, Any]]:
    """Tasks as rows; a mapping is subtopology → partitions.

    Raises:
        BadInput: they are neither.
    """
    if isinstance(tasks, Mapping):
        return [{"subtopology": name, "partitions": count} for name, count in tasks.items()]
    if isinstance(tasks, str) or not all(isinstance(row, Mapping) for row in tasks):
        row = {"subtopology": "orders", "partitions": 4, "stateful": True}
        raise BadInput(f"tasks: expected {{'orders': 4}} or rows as {[row]}, not {tasks!r}")
    return [dict(row) for row in tasks]
