"""Which topics the patterns of groups mean, found out by a process that may not take long.

A pattern comes from a group's config. Python's `re` may take for ever on it, and all threads of the
process stand still meanwhile: a coordinator would give no sign of life, nor would each one that
takes over from it. So another process matches (`pattern_program`), and one pattern may take a
second of it. Each pair of a pattern and a name is matched once.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable
from itertools import islice

from muster.discovery import pattern_program

SLOW_MAX = 3
"""Patterns that may turn out to be too slow in one look; the rest waits for the next look."""
WALL_S = 60.0


class Patterns:
    """Remembers the topics of each pattern, among the names of the last look."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._topics: dict[str, set[str]] = {}
        self._waiting: dict[str, set[str]] = {}
        """Pattern → names that it was not matched against yet."""
        self._known: set[str] = set()
        """Patterns that were matched against all names of some look."""
        self._faults: dict[str, str] = {}

    def look(self, patterns: Collection[str], names: Iterable[str]) -> None:
        """Match new patterns against these names, and all patterns against new names.

        Only these patterns and names are remembered.

        Raises:
            TimeoutError: the process does not answer in time; the next look asks again.
        """
        now = frozenset(names)
        new, gone = now - self._names, self._names - now
        self._names = now
        for pattern in [each for each in (*self._topics, *self._faults) if each not in patterns]:
            self._forget(pattern)
        for pattern in patterns:
            if pattern in self._faults:
                continue
            if pattern not in self._topics:
                self._topics[pattern], self._waiting[pattern] = set(), set(now)
            else:
                self._topics[pattern] -= gone
                self._waiting[pattern] = (self._waiting[pattern] | new) - gone
        for _ in range(SLOW_MAX):
            if self._is_matched():
                return

    def topics(self, pattern: str) -> set[str] | None:
        """The topics that a pattern means; None = not known yet, or never (`fault`)."""
        return self._topics[pattern] if pattern in self._known else None

    def fault(self, pattern: str) -> str:
        """Why a pattern cannot be used; empty = it can."""
        return self._faults.get(pattern, "")

    def _forget(self, pattern: str) -> None:
        self._known.discard(pattern)
        self._topics.pop(pattern, None)
        self._waiting.pop(pattern, None)
        self._faults.pop(pattern, None)

    def _is_matched(self) -> bool:
        """Match what waits; False if a pattern was too slow, and others may wait still."""
        asked = [(pattern, sorted(names)) for pattern, names in self._waiting.items() if names]
        self._known |= {pattern for pattern, names in self._waiting.items() if not names}
        if not asked:
            return True
        answers, code = _asked(asked)
        for (pattern, names), answer in zip(asked, answers, strict=False):
            if isinstance(answer, str):
                self._refuse(pattern, answer)
                continue
            self._topics[pattern] |= {names[place] for place in answer}
            self._waiting[pattern] = set()
            self._known.add(pattern)
        unanswered = next(islice(asked, len(answers), None), None)
        if unanswered is None:
            return True
        is_slow = code == -signal.SIGPROF
        why = f"it takes more than {pattern_program.CPU_S:g} s" if is_slow else f"exit code {code}"
        self._refuse(unanswered[0], why)
        return False

    def _refuse(self, pattern: str, why: str) -> None:
        self._forget(pattern)
        self._faults[pattern] = why


def _asked(asked: list[tuple[str, list[str]]]) -> tuple[list[list[int] | str], int]:
    """The answers for the first of these patterns, as many as there are, and the exit code.

    Raises:
        TimeoutError: no end within `WALL_S`.
    """
    command = [sys.executable, "-I", "-S", pattern_program.__file__]
    lines = "".join(json.dumps(each) + "\n" for each in asked)
    try:
        done = subprocess.run(
            command, input=lines, capture_output=True, text=True, timeout=WALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"patterns of topics were not matched within {WALL_S:.0f} s") from None
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode
