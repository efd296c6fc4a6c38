"""`muster demo` in a terminal: a live view of what members hold, what happened, and why.

It only draws the story so far, `FRAMES_PER_S` times a second.
"""

from __future__ import annotations

import time
from collections import deque

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from muster.demo.acts import Show
from muster.demo.demo_processes import DemoProcesses
from muster.demo.plain import NO_MEMBER
from muster.demo.startup import Part, StartUp
from muster.demo.story import News
from muster.demo.summary import Rows
from muster.demo.watcher import Watcher
from muster.protocol.ids import Role
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry, Move
from muster.protocol.tasks import TaskTable

FRAMES_PER_S = 10
BREATH_S = 2.5
LINES_KEPT = 200
WIDTH_MAX = 110
FIXED_LINES = 15
"""Lines of a frame that are not the log: panels, table, act."""
LOG_LINES_MIN = 5
"""Least height of the log; if the summary leaves less room, the log is not drawn."""
FIXED_COLUMNS = 27
"""Columns of a frame that are not tasks: border, member, state, count."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
STATE_COLOURS = {
    GroupState.STABLE: "green",
    GroupState.RECONCILING: "yellow",
    GroupState.ASSIGNING: "yellow",
}
RUNS, LEAVES, COMES, OTHER = "■", "◧", "□", "·"


class RichShow(Show):
    """The live view."""

    def __init__(self, acts: int, console: Console | None = None) -> None:
        self._acts = acts
        self._act = Text("")
        self._spinner = Spinner("dots", style="cyan")
        self._lines: deque[Text] = deque(maxlen=LINES_KEPT)
        self._below = 0  # rows of the summary, which must fit below the last frame
        self._known: list[str] = []  # present and former members, in the order they appeared
        self._watcher: Watcher | None = None
        self._processes: DemoProcesses | None = None
        self._parts: StartUp | None = None
        self._start = time.monotonic()
        self._console = console or Console()
        self._live = Live(
            get_renderable=self._frame,
            console=self._console,
            refresh_per_second=FRAMES_PER_S,
            vertical_overflow="crop",
        )
        self._live.start()

    def act(self, number: int, title: str) -> None:
        """An act begins."""
        self._act = Text.assemble((f"{number}/{self._acts} ", "dim"), (title, "bold"))
        self._say(Text.assemble(("▶ ", "cyan"), (title, "bold")))

    def note(self, text: str) -> None:
        """The demo itself did something."""
        self._say(Text(f"  {text}", "dim"))

    def news(self, news: News) -> None:
        """A generation with its moves; states are in the heading."""
        if isinstance(news, GroupState):
            return
        self._say(
            Text.assemble((f"  generation {news.number} ", "bold white"), (news.cause, "italic"))
        )
        alike: dict[tuple[object, ...], list[Move]] = {}
        for move in news.moves:
            key = (move.role, move.from_member, move.to_member, move.reason)
            alike.setdefault(key, []).append(move)
        for moves in alike.values():
            self._say(self._moves(moves))

    def starts(self, parts: StartUp, part: Part) -> None:
        """Draw the parts until there is a group."""
        self._parts = parts

    def settled(self, owners: dict[str, str]) -> None:
        """A line that the fleet has settled."""
        self._say(Text(f"  settled: {len(owners)} tasks, each with one owner", "green"))

    def watch(self, watcher: Watcher, processes: DemoProcesses) -> None:
        """Draw the watcher's group from now on."""
        self._watcher, self._processes = watcher, processes

    def breathe(self) -> None:
        """Pause, so that a person can read."""
        time.sleep(BREATH_S)

    def summary(self, rows: Rows) -> None:
        """The figures, below the last frame."""
        self._below = len(rows)
        self.close()
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim")
        grid.add_column(style="bold")
        for label, text in rows:
            grid.add_row(label, text)
        panel = Panel(grid, title="what you saw", border_style="green", width=self._width())
        self._console.print(panel)
        self._console.print("[dim]everything is being stopped[/]")

    def close(self) -> None:
        """Give the terminal back; the last frame stays."""
        self._live.stop()

    # ------------------------------------------------------------ drawing

    def _say(self, line: Text) -> None:
        stamp = Text(f"{time.monotonic() - self._start:5.1f} ", "dim")
        self._lines.append(stamp + line)

    def _width(self) -> int:
        return min(self._console.width, WIDTH_MAX)

    def _frame(self) -> RenderableType:
        snapshot = None
        if self._watcher is not None:
            with self._watcher.lock:
                snapshot = self._watcher.story.snapshot
        self._spinner.update(text=self._act)
        parts: list[RenderableType] = [self._fleet(snapshot)]
        room = self._console.height - FIXED_LINES - len(self._known) - self._below
        if not self._below:
            parts += [self._log(max(room, LOG_LINES_MIN)), self._spinner]
        elif room >= LOG_LINES_MIN:
            parts.append(self._log(room))
        return Group(*parts)

    def _fleet(self, snapshot: GroupSnapshot | None) -> Panel:
        body: RenderableType
        if snapshot is None:
            body = Text("") if self._parts is None else _start_up(self._parts)
            right = "starting"
        else:
            body = self._grid(snapshot)
            colour = STATE_COLOURS.get(snapshot.state, "white")
            state = f"[bold {colour}]{snapshot.state.value}[/]"
            right = f"generation [bold]{snapshot.generation}[/] · {state}"
        url = "" if self._processes is None else self._processes.console_url
        see = f" · see it at {url}" if url else ""
        return Panel(
            body,
            title=f"[bold]muster demo[/]{see}",
            subtitle=right,
            title_align="left",
            subtitle_align="right",
            border_style="cyan",
            width=self._width(),
        )

    def _grid(self, snapshot: GroupSnapshot) -> Table:
        """One row per member, one column per task."""
        tasks = TaskTable(snapshot.tasks)
        grid = Table(box=box.SIMPLE_HEAD, padding=(0, 0), pad_edge=False, expand=False)
        wide = self._width() >= FIXED_COLUMNS + 6 * len(tasks)
        grid.add_column("member ", width=8 if wide else 6)
        grid.add_column("", width=9, style="dim")  # "unrevoked", the longest state
        grid.add_column("#", width=2)
        for t in range(len(tasks)):
            label = str(tasks.task(t))
            grid.add_column(label, justify="center", width=6 if wide else len(label))
        slots: dict[str, MemberEntry] = {m.id: m for m in snapshot.members}
        self._known += [m for m in sorted(slots) if m not in self._known]
        for name in sorted(self._known):
            colour = self._colour(name)
            member = slots.get(name)
            if member is None:
                grid.add_row(Text(name, "dim strike"), "gone", *[""] * (len(tasks) + 1))
                continue
            cells = [_cell(snapshot, t, member.slot, colour) for t in range(len(tasks))]
            held = int((snapshot.holder == member.slot).sum())
            status = "draining" if member.draining else member.state.value
            if self._processes is not None and name not in self._processes.workers:
                status = "killed"
            grid.add_row(Text(name, f"bold {colour}"), status, str(held), *cells)
        legend = f"{RUNS} runs   {LEAVES} is being released   {COMES} is coming"
        grid.caption = Text(legend, "dim")
        return grid

    def _log(self, room: int) -> Panel:
        shown = list(self._lines)[-room:]
        shown += [Text("")] * (room - len(shown))
        for line in shown:
            line.no_wrap, line.overflow = True, "ellipsis"
        return Panel(
            Group(*shown),
            title="what happens, and why",
            title_align="left",
            border_style="dim",
            width=self._width(),
        )

    def _moves(self, moves: list[Move]) -> Text:
        """One line for moves that differ only in the task."""
        first = moves[0]
        role = "" if first.role is Role.ACTIVE else f" ({first.role})"
        return Text.assemble(
            "    ",
            self._name(first.from_member),
            (" → ", "dim"),
            self._name(first.to_member),
            f"{role}  {' '.join(move.task for move in moves)}",
            (f"  {first.reason}", "dim"),
        )

    def _name(self, member: str | None) -> Text:
        return Text(NO_MEMBER, "dim") if member is None else Text(member, self._colour(member))

    def _colour(self, member: str) -> str:
        if member not in self._known:
            self._known.append(member)
        return COLOURS[self._known.index(member) % len(COLOURS)]


def _start_up(parts: StartUp) -> Table:
    """What is being started, how long that takes, and how long it took last time."""
    rows = Table.grid(padding=(0, 2))
    for part in parts.parts:
        if part.since_s is None:
            mark, took = Text(OTHER, "dim"), ""
        else:
            up = part.took_s is not None
            mark = Text("✓", "green") if up else Text("●", "cyan")
            took = f"{parts.elapsed_s(part):5.1f} s"
        last = "" if part.last_s is None else f"last time {part.last_s:.1f} s"
        name = Text(part.name, "dim" if part.since_s is None else "")
        rows.add_row(mark, name, took, Text(last, "dim"))
    return rows


def _cell(snapshot: GroupSnapshot, task: int, slot: int, colour: str) -> Text:
    if snapshot.holder[task] == slot:
        return Text(LEAVES if snapshot.revoking[task] else RUNS, colour)
    return Text(COMES, colour) if snapshot.target[task] == slot else Text(OTHER, "dim")
