"""Play a group's life from a scenario: no Kafka, no Spark, the same result on every run.

Simulated members and a simulated clock drive the real coordinator. The answer lists every
generation, with what each member held after it acted, and sums up moves and downtime.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any, cast

from muster import plugins
from muster.assignor.errors import UnknownAssignor
from muster.cli.options import add_answers, positive
from muster.documents.json_files import STDIN, answer_lines, load
from muster.documents.scenario import parse_scenario
from muster.errors import BadInput
from muster.output import table
from muster.protocol.ids import Role
from muster.published.generations import move_json
from muster.random_lives import lives, smallest
from muster.random_lives.random_scenario import random_scenario
from muster.simulation.scenario import Configured, Scenario
from muster.simulation.scenario_player import SimulatedGroup
from muster.simulation.timeline import Entry

BROKEN = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "scenario", metavar="SCENARIO.json", nargs="?", help="the scenario; - = standard input"
    )
    add_answers(parser, "scenario")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="make random members and events from this number, for the scenario's group if there"
        " is one",
    )
    parser.add_argument(
        "--lives",
        type=positive,
        metavar="N",
        help="play this many random lives from --seed (default 1) on, and report those that break"
        " a promise of every group; the first is shrunk and printed as a scenario",
    )
    parser.add_argument(
        "--changes",
        action="store_true",
        help="operators change most random groups after their first events: settings, assignor,"
        " tasks, weights, drains",
    )
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="P",
        help=f"processes that share the lives (default: {os.cpu_count() or 1})",
    )


def run(args: argparse.Namespace) -> int:
    """Play one scenario; with --lines, one per line; with --lives, many."""
    if args.lives is not None:
        if args.lines:
            raise BadInput("--lines reads many scenarios, --lives plays one many times: give one")
        return _live(args)
    if args.processes is not None:
        raise BadInput("--processes share the lives of --lives N: give it too")
    if args.scenario is None and args.seed is None:
        raise BadInput("nothing to play: give a SCENARIO.json, or --seed N to invent one")
    if args.changes and args.seed is None:
        raise BadInput("--changes adds to what is invented: give --seed N or --lives N too")
    if args.lines:
        answer_lines(
            args.scenario or STDIN, lambda raw: as_json(play(raw, args.seed, changes=args.changes))
        )
        return 0
    raw = None if args.scenario is None else load(args.scenario)
    world = play(raw, args.seed, changes=args.changes)
    if args.format == "json":
        print(json.dumps(as_json(world), ensure_ascii=False))
    else:
        print(as_text(world))
    return 0


def _live(args: argparse.Namespace) -> int:
    """Play many lives; print every one that broke a promise, and shrink the first."""
    scenario: Any = None if args.scenario is None else load(args.scenario)
    if scenario is not None:
        _check_group(scenario)
    tally = lives.Tally()
    seed = 1 if args.seed is None else args.seed
    processes = args.processes or os.cpu_count() or 1
    for life in lives.lives(seed, args.lives, scenario, processes, changes=args.changes):
        tally.add(life)
        if life.broken:
            print(life, flush=True)
    if tally.broken:
        print(smallest.smallest(tally.broken[0], scenario, changes=args.changes))
    print(tally)
    return BROKEN if tally.broken else 0


def play(raw: object, seed: int | None = None, *, changes: bool = False) -> SimulatedGroup:
    """The world after a scenario; with a seed, members and faults are invented for it.

    Without a scenario all of it is invented, with `changes` also what operators do to the group.

    Raises:
        BadInput: the scenario is malformed.
        MusterError: it cannot be played.
    """
    if seed is not None:
        if raw is not None:
            _check_group(raw)
        fixed = cast("dict[str, Any] | None", raw)
        raw = random_scenario(seed, fixed, changes=changes)
    scenario = parse_scenario(raw)
    world = SimulatedGroup(lookup=plugins.get)
    _check_assignors(scenario)
    world.play(scenario)
    return world


def _check_assignors(scenario: Scenario) -> None:
    """Check that every assignor of a scenario is known.

    Raises:
        BadInput: one is not.
    """
    changes = [event for _, event in scenario.events if isinstance(event, Configured)]
    for place, configured in [("group", scenario.group), *(("events", each) for each in changes)]:
        try:
            plugins.get(configured.assignor)
        except UnknownAssignor as error:
            raise BadInput(f"{place}.assignor: {error}") from None


def _check_group(raw: object) -> None:
    """Check the scenario to which random members and events are added.

    A fault is then one of the user's file, not of the random part.

    Raises:
        BadInput: it is malformed, or has no tasks, so that its members would wait for some.
    """
    scenario = parse_scenario(raw)
    changes = [event.tasks for _, event in scenario.events if isinstance(event, Configured)]
    if not any([scenario.group.tasks, *changes]):
        raise BadInput("group.tasks: missing or empty; expected tasks for the random members")


def as_json(world: SimulatedGroup) -> list[dict[str, Any]]:
    """The generations, then the summary."""
    return [*map(_entry, world.timeline.entries), _summary(world)]


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "generation": entry.generation,
        "at_ms": entry.at_ms,
        "cause": entry.cause,
        "state": entry.state.value,
        "members": {
            member: {
                **{str(role): list(held[role]) for role in Role},
                "revoked": sorted(entry.revoked.get(member, ())),
            }
            for member, held in entry.members.items()
        },
        "unassigned": list(entry.unassigned),
        "moves": [move_json(move) for move in entry.moves],
        "delay_ms": entry.delay_ms,
        "followup_ms": entry.followup_ms,
        "score": asdict(entry.score),
    }


def _summary(world: SimulatedGroup) -> dict[str, Any]:
    timeline = world.timeline
    return {
        "converged_at_ms": timeline.changed_ms if timeline.settled else None,
        "generations": len(timeline.entries),
        "tasks_moved": timeline.moved,
        "task_downtime_ms": timeline.downtime_ms,
    }


def as_text(world: SimulatedGroup) -> str:
    """A timeline for people."""
    lines: list[str] = []
    for entry in world.timeline.entries:
        delay = f", lost work waits {entry.delay_ms:,} ms" if entry.delay_ms else ""
        lines.append(f"{entry.at_ms:,} ms  generation {entry.generation}: {entry.cause}{delay}")
        columns = ("MEMBER", "ACTIVE", "STANDBY", "LEARNER", "REVOKED")
        rows = [
            (member, *(held[role] for role in Role), sorted(entry.revoked.get(member, ())))
            for member, held in entry.members.items()
        ]
        lines += [f"  {line}" for line in table(columns, rows).splitlines()]
        for move in entry.moves:
            parties = f"{move.from_member or 'no member'} → {move.to_member or 'no member'}"
            lines.append(f"  {move.task} {move.role}: {parties} ({move.reason})")
        lines.append(f"  then {entry.state.value}")
        lines.append("")
    lines += [f"{key}: {'-' if v is None else v}" for key, v in _summary(world).items()]
    return "\n".join(lines)
