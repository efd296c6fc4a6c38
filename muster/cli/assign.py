"""Place the tasks of a problem file: no Kafka, no Spark.

The problem is JSON: tasks, members and what they hold. The answer says which member gets which
tasks, what moves and why, and how good the placement is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from muster import plugins
from muster.assignor.check import UNKNOWN_TASK_ID, valid
from muster.assignor.errors import UnknownAssignor, answer_of
from muster.assignor.ignored_settings import ignored_pins, ignored_settings
from muster.assignor.kip924.plugin_answer import TaskAssignmentException, unchanged
from muster.assignor.kip924.validation import Claim, first_violation
from muster.assignor.model import Assignor, GroupView, Placement
from muster.assignor.targets.racks_with_kept_counts import FromPrevious
from muster.cli.options import add_answers, positive
from muster.documents.json_files import answer_lines, load
from muster.documents.problem import Problem, answer, as_text, parse_problem
from muster.errors import BadInput
from muster.output import one_line


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("problem", metavar="PROBLEM.json", help="the problem; - = standard input")
    add_answers(parser, "problem")
    parser.add_argument(
        "--repeat",
        type=positive,
        metavar="N",
        help='place N times and add "elapsed_us", the median from parsed problem to placement',
    )


def run(args: argparse.Namespace) -> int:
    """Answer one problem; with --lines, one per line."""
    if args.lines:
        answer_lines(args.problem, lambda raw: solve(raw, args.repeat))
        return 0
    document = solve(load(args.problem), args.repeat)
    for warning in document.pop("warnings", ()):
        print(f"muster assign: {one_line(warning)}", file=sys.stderr)
    if args.format == "json":
        print(json.dumps(document, ensure_ascii=False))
    else:
        print(as_text(document))
    return 0


def solve(raw: object, repeat: int | None = None) -> dict[str, Any]:
    """The output for one problem; ``warnings`` names settings and pins that have no effect.

    Raises:
        BadInput: the problem is malformed.
        AssignorError: the assignor has no valid answer.
    """
    problem = parse_problem(raw)
    assignor = _assignor(problem)
    if problem.validate is not None:
        return validated(problem)
    started = time.perf_counter_ns()
    view, placement = _placed(problem, assignor)
    elapsed_ns = [time.perf_counter_ns() - started]
    with answer_of(problem.assignor):
        valid(view, placement)
    document = answer(problem, view, placement)
    for _ in range((repeat or 1) - 1):
        started = time.perf_counter_ns()
        _placed(problem, assignor)
        elapsed_ns.append(time.perf_counter_ns() - started)
    if repeat:
        document["elapsed_us"] = round(statistics.median(elapsed_ns) / 1000, 1)
    warnings = [
        *ignored_settings(problem.assignor, problem.settings, problem.names.table),
        *ignored_pins(problem.assignor, view),
        *placement.warnings,
    ]
    if warnings:
        document["warnings"] = warnings
    return document


def _placed(problem: Problem, assignor: Assignor) -> tuple[GroupView, Placement]:
    view = problem.view()
    try:
        with answer_of(problem.assignor):
            return view, assignor.assign(view)
    except TaskAssignmentException as later:
        return view, unchanged(view, later)


def _assignor(problem: Problem) -> Assignor:
    try:
        assignor = plugins.get(problem.assignor)
    except UnknownAssignor as error:
        raise BadInput(f"assignor: {error}") from None
    return FromPrevious(problem.assignor) if problem.from_previous else assignor


def validated(problem: Problem) -> dict[str, Any]:
    """Check the answer that the problem contains: valid, or its first fault."""
    assert problem.validate is not None
    tasks = problem.names

    def stateful(printed: str) -> bool | None:
        index = tasks.index.get(printed)
        return None if index is None else bool(tasks.table.stateful[index])

    claims = {
        member: Claim(
            tuple(held.get("active", ())),
            (*held.get("standby", ()), *held.get("learner", ())),
        )
        for member, held in problem.validate.items()
    }
    violation = first_violation(claims, [row.id for row in problem.members], stateful)
    if violation is None:
        return {"valid": True}
    about = {"task": violation.task, "member": violation.member}
    if violation.error == UNKNOWN_TASK_ID:  # `docs/formats.md` shows this answer's exact keys
        del about["member"]
    shown = {key: value for key, value in about.items() if value is not None}
    return {"valid": False, "error": violation.error, **shown}
