"""The report of a chaos run: every fault, how long tasks then had no owner, and overlaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table
from support.worker.overlap import FOREVER, Tenure

S = 1_000_000_000
COLUMNS = ("fault", "times", "tasks stopped", "longest ownerless, s", "bound, s", "settled, s")


@dataclass(frozen=True, slots=True)
class Played:
    """One fault, from its beginning until everything had settled again.

    Attributes:
        fault: its name; two at once are joined by `` + ``.
        began_s: since the run began.
        settled_s: how long until all groups had settled again.
        ownerless_s: longest time a task had no owner.
        stopped: how many times a task stopped.
        bound_s: upper bound of `ownerless_s` on a quiet machine.
    """

    fault: str
    began_s: float
    settled_s: float
    ownerless_s: float
    stopped: int
    bound_s: float


@dataclass(slots=True)
class Report:
    """A whole run.

    Attributes:
        seed: of every choice.
        played: faults in order.
        overlaps: pairs of owners that one task had at the same time; must be 0.
        starts: how often a task was started.
        rejected: number of dead letters; must be 0.
        generations: generations of all groups.
        skipped: faults that are impossible here, and why.
        elapsed_s: how long it took.
    """

    seed: int
    played: list[Played] = field(default_factory=list)
    overlaps: int = 0
    starts: int = 0
    rejected: int = 0
    generations: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def by_fault(self) -> Iterator[tuple[str, list[Played]]]:
        """Every fault with its results, in order of first appearance."""
        names = dict.fromkeys(played.fault for played in self.played)
        for name in names:
            yield name, [played for played in self.played if played.fault == name]

    def rows(self) -> Iterator[tuple[str, ...]]:
        """`COLUMNS` of every fault."""
        for name, plays in self.by_fault():
            yield (
                name,
                str(len(plays)),
                str(sum(play.stopped for play in plays)),
                f"{max(play.ownerless_s for play in plays):.1f}",
                f"{plays[0].bound_s:.0f}",
                f"{max(play.settled_s for play in plays):.1f}",
            )

    def summary(self) -> str:
        """The main figures, in a sentence."""
        return (
            f"{len(self.played)} faults, {self.starts} starts of a task, {self.generations} "
            f"generations: {self.overlaps} overlaps of owners, {self.rejected} dead letters"
        )

    def write(self, file: Path) -> None:
        """Write it as Markdown into a file ``*.md``, otherwise as JSON."""
        text = self.markdown() if file.suffix == ".md" else json.dumps(asdict(self), indent=1)
        file.write_text(text + "\n")

    def markdown(self) -> str:
        """The table as the docs show it."""
        rule = ("---", *("--:" for _ in COLUMNS[1:]))
        rows = (COLUMNS, rule, *self.rows())
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        head = f"Seed {self.seed}, {self.elapsed_s / 60:.0f} minutes: {self.summary()}."
        return "\n".join([head, "", *lines])

    def show(self) -> None:
        """Print the table."""
        table = Table(title=f"chaos, seed {self.seed}, {self.elapsed_s:.0f} s")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "fault" else "right")
        for row in self.rows():
            table.add_row(*row)
        console = Console(width=100)
        console.print(table)
        console.print(self.summary())
        for name, why in self.skipped.items():
            console.print(f"not done: {name} ({why})")


def ownerless_s(tenures: Iterable[Tenure], from_ns: int, to_ns: int) -> float:
    """Longest time, in seconds, that a task had no owner within a window.

    Args:
        tenures: of one group; those of a task do not overlap.
        from_ns: start of the window; every task has an owner then.
        to_ns: end of the window.
    """
    longest = 0
    by_task: dict[str, list[Tenure]] = {}
    for tenure in sorted(tenures, key=lambda one: one.start_ns):
        by_task.setdefault(tenure.task, []).append(tenure)
    for owners in by_task.values():
        ends = [(one.stop_ns, other.start_ns) for one, other in pairwise(owners)]
        if owners[-1].stop_ns != FOREVER:
            ends.append((owners[-1].stop_ns, FOREVER))
        for stopped, started in ends:
            longest = max(longest, min(started, to_ns) - max(stopped, from_ns))
    return longest / S


def stopped(tenures: Iterable[Tenure], from_ns: int, to_ns: int) -> int:
    """How many tenures ended within a window."""
    return sum(from_ns <= tenure.stop_ns < to_ns for tenure in tenures)
