"""Muster's assignors beside Kafka's own: how fast, and how good. See README.md.

python bench/assign.py [--only TEXT] [--repeat N] [--timeout S] [--short]
python bench/assign.py --quality N [--first SEED] [--only TEXT]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import ours
import problems
import quality
from harness import Kafka, Slow
from problems import Problem

# ---------------------------------------------------------------- how fast


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table; `kafka` is the class as the harness calls it, empty = there is none.

    `make` makes the problem, and the previous round for a class with memory.
    """

    name: str
    kafka: str
    make: Callable[[], tuple[Problem, Problem | None]]
    short: bool = False


def cells() -> Iterator[Cell]:
    """The whole table."""
    yield from _grid()
    yield from _connect()
    yield from _scale()
    yield from _stateful()
    yield from _rack_aware()


def _grid() -> Iterator[Cell]:
    for members in (100, 1_000, 10_000):
        for ratio in (5, 10, 50):
            for event in ("full", "join", "leave"):
                for mixed in (False, True):
                    yield Cell(
                        f"sticky, {'heterogeneous' if mixed else 'homogeneous'}, {event}",
                        "uniform",
                        partial(_alone, problems.grid, members, ratio, event, heterogeneous=mixed),
                        short=members == 1_000 and ratio == 10,
                    )
                yield Cell(
                    f"sticky, streams group, {event}",
                    "streams-group-sticky",
                    partial(_alone, problems.grid, members, ratio, event),
                    short=members == 1_000 and ratio == 10,
                )


def _connect() -> Iterator[Cell]:
    for workers, connectors, tasks in ((20, 100, 100), (1_000, 100, 100)):
        for event in ("join", "leave"):
            yield Cell(
                f"cooperative, {event}",
                "cooperative",
                partial(_rounds, workers, connectors, tasks, event),
                short=True,
            )
            pinned = partial(_static, workers, connectors, tasks, event)
            yield Cell(f"static, {event}", "", pinned, short=True)
        yield Cell("eager", "eager", partial(_eager, workers, connectors, tasks), short=True)


def _scale() -> Iterator[Cell]:
    rows = ((6_000, 2, 1, 1), (1_000, 1_000, 1, 1), (1_000, 100, 1, 50), (1_000, 10, 1_000, 1))
    for name, kafka in (
        ("high-availability", "high-availability"),
        ("sticky", "legacy-sticky"),
        ("fallback", "fallback"),
    ):
        for partitions, members, threads, standbys in rows:
            size, copies = (partitions, standbys)
            if name != "high-availability":
                size, copies = min(partitions, 2_000), min(standbys, 20)
            for event in ("first", "again"):
                yield Cell(
                    f"{name}, scale test, {threads} threads, {copies} standbys, {event}",
                    kafka,
                    partial(_scale_test, size, members, threads, copies, name, event),
                )


_LARGEST = (10_000, 100_000)
_STATEFUL = (("high-availability", "high-availability"), ("sticky", "legacy-sticky"))


def _stateful() -> Iterator[Cell]:
    for members, tasks in ((100, 1_000), (100, 10_000), (1_000, 1_000), (1_000, 10_000), _LARGEST):
        for name, kafka in (*_STATEFUL, ("learner", "")):
            for standbys in (0, 1):
                yield Cell(
                    f"{name}, join, {standbys} standbys",
                    kafka,
                    partial(_alone, problems.stateful_join, members, tasks, name, standbys),
                    short=members == 100 and tasks == 1_000,
                )


def _rack_aware() -> Iterator[Cell]:
    sizes = (
        *((10, 100), (50, 180), (50, 500), (100, 500)),
        *((100, 1_000), (1_000, 100), (100, 10_000)),
    )
    for strategy in ("min_traffic", "balance_subtopology"):
        for members, tasks in (*sizes, (1_000, 100_000)):
            yield Cell(
                f"high-availability, {strategy}",
                "high-availability",
                partial(_alone, problems.rack_aware, members, tasks, strategy),
                short=tasks <= 180,
            )


def _alone(make: Callable[..., Problem], *args: object, **kwargs: object) -> tuple[Problem, None]:
    return make(*args, **kwargs), None


def _rounds(workers: int, connectors: int, tasks: int, event: str) -> tuple[Problem, Problem]:
    before, after = problems.connect(workers, connectors, tasks, event)
    return after, before


def _static(
    workers: int, connectors: int, tasks: int, event: str
) -> tuple[Problem, Problem | None]:
    before, after = problems.pinned(problems.connect(workers, connectors, tasks, event))
    return after, before


def _eager(workers: int, connectors: int, tasks: int) -> tuple[Problem, None]:
    _, after = problems.connect(workers, connectors, tasks, "join")
    return {**after, "assignor": "eager"}, None


def _scale_test(
    partitions: int, members: int, threads: int, standbys: int, name: str, event: str
) -> tuple[Problem, None]:
    problem = problems.scale(partitions, members, threads, standbys, name)
    if event == "again":
        problem = quality.after(problem, ours.answer(problem))
    return problem, None


HEADER = (
    "case",
    "members x tasks",
    "ours: view + call, ms",
    "Kafka: objects + call, ms",
    "Kafka's call / ours",
    "like for like",
)


def speed(only: str, repeat: int, timeout_s: float, short: bool) -> None:
    """Print the table, line by line.

    "Kafka's call / ours" is the stricter ratio: it counts building muster's view but not Kafka's
    objects. "like for like" counts both.
    """
    print("| " + " | ".join(HEADER) + " |\n|---|--:|--:|--:|--:|--:|")
    too_slow: set[str] = set()
    with Kafka(timeout_s) as kafka:
        for cell in cells():
            if only in f"{cell.name} {cell.kafka}" and (cell.short or not short):
                print(_line(cell, kafka, repeat, too_slow), flush=True)


def _line(cell: Cell, kafka: Kafka, repeat: int, too_slow: set[str]) -> str:
    problem, before = cell.make()
    mine = ours.timed(problem, repeat, before)
    total = mine.view_ms + mine.call_ms
    shown = f"| {cell.name} | {problems.size(problem)} | "
    shown += f"{_ms(mine.view_ms)} + {_ms(mine.call_ms)} | "
    if not cell.kafka:
        return shown + "no such class | | |"
    if cell.name in too_slow:  # a smaller case was too slow already
        return shown + "- | - | - |"
    more = {} if before is None else {"before": before}
    try:
        theirs = kafka.ask(cell.kafka, problem, repeat=repeat, warmup_ms=1500, **more)
    except Slow:
        too_slow.add(cell.name)
        return shown + f"> {kafka.timeout_s:.0f} s | > {kafka.timeout_s * 1000 / total:,.0f} | |"
    except RuntimeError as error:
        return shown + f"{str(error)[:60]} | | |"
    call, objects = theirs["assign_us"] / 1000, theirs["build_us"] / 1000
    once = ", first call" if theirs["calls"] == 1 < repeat else ""
    shown += f"{_ms(objects)} + {_ms(call)}{once} | "
    return shown + f"{_times(call / total)} | {_times((call + objects) / total)} |"


def _times(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 10 else f"{ratio:,.0f}"


def _ms(value: float) -> str:
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


# ---------------------------------------------------------------- how good


@dataclass(frozen=True, slots=True)
class Match:
    """Muster against one of Kafka's classes on random problems.

    Attributes:
        assignor, kafka: the two sides.
        racks, tags, topics, threads, state: what the problems have (`problems.small`).
        events: place until converged, then again after each of this many joins and leaves; None =
            a single placement.
    """

    assignor: str
    kafka: str
    racks: bool = False
    tags: bool = False
    topics: bool = False
    threads: bool = True
    state: bool = True
    events: int | None = None

    @property
    def name(self) -> str:
        """The match's name in the table."""
        kinds = ("racks", self.racks), ("tags", self.tags), ("topics", self.topics)
        named = "".join(f", {kind}" for kind, on in kinds if on)
        life = "" if self.events is None else f", until converged, {self.events} events"
        return f"{self.assignor} against {self.kafka}{named}{life}"

    def problem(self, seed: int) -> Problem:
        """The random problem of a seed."""
        kinds = ("racks", "tags", "topics", "threads", "state")
        return problems.small(seed, self.assignor, **{kind: getattr(self, kind) for kind in kinds})


MATCHES = (
    Match("sticky", "uniform", threads=False, state=False),
    Match("sticky", "uniform", topics=True, threads=False, state=False),
    Match("sticky", "legacy-sticky"),
    Match("sticky", "sticky"),
    Match("sticky", "sticky", tags=True),
    Match("sticky", "streams-group-sticky", threads=False),
    Match("sticky", "legacy-sticky", racks=True),
    Match("fallback", "fallback"),
    Match("high-availability", "high-availability", events=0),
    Match("high-availability", "high-availability", events=7),
    Match("high-availability", "high-availability", racks=True, events=0),
    Match("high-availability", "high-availability", racks=True, events=7),
    Match("high-availability", "high-availability", tags=True, events=0),
    Match("high-availability", "high-availability", tags=True, events=7),
)


def compare(seeds: range, only: str) -> int:
    """Print wins, ties and losses per figure; return how many problems Kafka dominated."""
    dominated = 0
    with Kafka() as kafka:
        for match in MATCHES:
            if only in match.name:
                dominated += _match(match, kafka, seeds)
    return dominated


def _match(match: Match, kafka: Kafka, seeds: range) -> int:
    tally = {name: Counter[str]() for name in quality.NAMES}
    sums = {name: [0.0, 0.0] for name in quality.NAMES}
    worse: dict[str, Problem] = {}
    dominated = []
    for seed in seeds:
        problem = match.problem(seed)
        mine, theirs = figures(match, kafka, problem, seed)
        if quality.dominated(mine, theirs):
            dominated.append(seed)
            worse.setdefault("dominated", problem)
        for name in quality.NAMES:
            a, b = getattr(mine, name), getattr(theirs, name)
            tally[name]["win" if a < b else "tie" if a == b else "loss"] += 1
            sums[name][0] += a
            sums[name][1] += b
            if a > b:
                worse.setdefault(name, problem)
    print(f"\n## {match.name}: {len(seeds)} problems, ", end="")
    print(f"dominated in {len(dominated)} {dominated[:10]}\n")
    print("| figure | wins | ties | losses | ours, sum | Kafka, sum |\n|---|--:|--:|--:|--:|--:|")
    for name in quality.NAMES:
        row = tally[name]
        print(f"| {name} | {row['win']} | {row['tie']} | {row['loss']} ", end="")
        print(f"| {sums[name][0]:,.2f} | {sums[name][1]:,.2f} |")
    for name, problem in worse.items():
        print(f"first {'loss in ' if name != 'dominated' else ''}{name}: {json.dumps(problem)}")
    return len(dominated)


def figures(
    match: Match, kafka: Kafka, problem: Problem, seed: int
) -> tuple[quality.Figures, quality.Figures]:
    """Figures of both sides on one problem."""
    sides: list[Callable[[Problem], Problem]] = [
        ours.answer,
        lambda p: kafka.ask(match.kafka, p),
    ]
    if match.events is None:
        first, second = (quality.once(problem, place(problem)) for place in sides)
    else:
        history = list(problems.history(seed, match.events))
        first, second = (quality.life(problem, place, history) for place in sides)
    return first, second


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quality", type=int, metavar="N", help="compare N random problems each")
    parser.add_argument("--first", type=int, default=0, help="seed of the first random problem")
    parser.add_argument("--only", default="", help="lines whose name contains this")
    parser.add_argument("--repeat", type=int, default=5, help="timed calls per cell")
    parser.add_argument("--timeout", type=float, default=60, help="seconds Kafka may take")
    parser.add_argument("--short", action="store_true", help="a few cells of each kind")
    args = parser.parse_args()
    if args.quality:
        seeds = range(args.first, args.first + args.quality)
        return 1 if compare(seeds, args.only) else 0
    speed(args.only, args.repeat, args.timeout, args.short)
    return 0


if __name__ == "__main__":
    sys.exit(main())
