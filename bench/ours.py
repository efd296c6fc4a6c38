"""The muster side of the comparison, as `muster assign` does it.

The time is that of a generation: building the view and running the assignor. Reading JSON, checking
the answer's invariants and writing it are not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from muster.assignor.model import Placement
from muster.assignor.registry import get
from muster.cli.assign import solve as answer
from muster.documents.problem import Problem, parse_problem

__all__ = ["Times", "answer", "timed"]


@dataclass(frozen=True, slots=True)
class Times:
    """Median CPU milliseconds of one placement, all threads."""

    view_ms: float
    call_ms: float


def timed(
    problem: Mapping[str, Any],
    repeat: int,
    before: Mapping[str, Any] | None = None,
    limit_s: float = 60,
) -> Times:
    """Time placements of one problem, after a warm-up; no more once `limit_s` is over.

    `before` is the previous round, for assignors with memory.
    """
    memory = None if before is None else _call(parse_problem(before), None)[0].memory
    parsed = parse_problem(problem)
    _call(parsed, memory)
    taken: list[Times] = []
    end = time.perf_counter() + limit_s
    while len(taken) < repeat and (not taken or time.perf_counter() < end):
        taken.append(_call(parsed, memory)[1])
    return Times(
        statistics.median(t.view_ms for t in taken), statistics.median(t.call_ms for t in taken)
    )


def _call(problem: Problem, memory: Mapping[str, object] | None) -> tuple[Placement, Times]:
    start = time.process_time_ns()
    view = problem.view()
    built = time.process_time_ns()
    if memory is not None:
        view = replace(view, memory=memory)
    placement = get(problem.assignor).assign(view)
    end = time.process_time_ns()
    return placement, Times((built - start) / 1e6, (end - built) / 1e6)
