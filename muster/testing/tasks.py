"""Tasks of a group, as tests give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

Tasks: TypeAlias = Mapping[str, int] | Sequence[Mapping[str, Any]]
"""Subtopology → partitions, or rows (``docs/formats.md``)."""


def rows_of(tasks: Tasks) -> list[dict[str, Any]]:
    """Tasks as rows; a mapping is subtopology → partitions."""
    if isinstance(tasks, Mapping):
        return [{"subtopology": name, "partitions": count} for name, count in tasks.items()]
    return [dict(row) for row in tasks]
