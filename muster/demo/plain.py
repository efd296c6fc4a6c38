"""`muster demo --plain`: the demo as lines, for logs and tests."""

from __future__ import annotations

import time
from collections import defaultdict

from muster.demo.acts import Show
from muster.demo.startup import Part, StartUp
from muster.demo.story import News
from muster.demo.summary import Rows
from muster.protocol.ids import Role, parse_task
from muster.protocol.records import GroupState, Move

NO_MEMBER = "no member"


class PlainShow(Show):
    """Prints each thing when it happens, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def act(self, number: int, title: str) -> None:
        """A heading."""
        self._say(f"== {number}. {title}")

    def note(self, text: str) -> None:
        """One line."""
        self._say(text)

    def news(self, news: News) -> None:
        """A generation with its moves, or a state."""
        if isinstance(news, GroupState):
            self._say(f"group is {news.value}")
            return
        self._say(f"generation {news.number}: {news.cause}")
        for move in news.moves:
            self._say(f"  {move_text(move)}")

    def starts(self, parts: StartUp, part: Part) -> None:
        """One line per part."""
        last = "" if part.last_s is None else f" (last time {part.last_s:.1f} s)"
        self._say(f"starting {part.name}{last}")

    def settled(self, owners: dict[str, str]) -> None:
        """What each member holds, in one line."""
        held: dict[str, list[str]] = defaultdict(list)
        for task, member in owners.items():
            held[member].append(task)
        parts = [
            f"{member} {','.join(sorted(held[member], key=parse_task))}" for member in sorted(held)
        ]
        self._say(f"settled: {' | '.join(parts)}")

    def summary(self, rows: Rows) -> None:
        """One line per figure."""
        for label, text in rows:
            self._say(f"{label}: {text}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:6.1f}s  {text}", flush=True)


def move_text(move: Move) -> str:
    """A move in one line."""
    role = "" if move.role is Role.ACTIVE else f" ({move.role})"
    path = f"{move.from_member or NO_MEMBER} → {move.to_member or NO_MEMBER}"
    return f"{move.task}{role} {path}: {move.reason}"
