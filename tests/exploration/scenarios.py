"""What is explored: the table of bounds, short enough for every run or long.

The short ones take every interleaving of a small group; together at most two minutes of one core.
"""

from __future__ import annotations

from exploration.world import Budget, Scenario

ONE = ("A",)
TWO = ("A", "B")
THREE = ("A", "B", "C")

SHORT: dict[str, Scenario] = {
    "two members, one task": Scenario(TWO, 1),
    "a member dies and starts again": Scenario(TWO, 1, Budget(crash=1, start=1)),
}
