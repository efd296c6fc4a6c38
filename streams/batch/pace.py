"""Groups with a new config are processed at a pace where a batch has many of them.

A config may place all tasks of its group, publish the group and tell each member. Where hundreds of
groups get one, all other groups would wait for it. So a batch processes a few of these groups at
once, and the others become due one by one, `GAP_MS` apart. Until a group is due, its rows wait for
a later batch (`waiting_rows`), together with those that come meanwhile.

The rows and what is stored decide this, so a batch that Spark repeats processes the same groups.
"""

from __future__ import annotations

from muster.state.deadlines import ASK_AGAIN_MS

AT_ONCE = 16
"""Groups with a config that one Spark task processes at once in each batch."""
GAP_MS = 8
"""Twice the time that such a group takes, so half of the time is left for other groups."""


class Pace:
    """When groups with a config are due, in one batch."""

    def __init__(self) -> None:
        self._groups = 0

    def due_ms(self, newest_ms: int) -> int:
        """When the next group with a config is due: broker time, epoch milliseconds.

        Args:
            newest_ms: broker time of the group's newest row. If it is due then, it is due now.
        """
        self._groups += 1
        others = self._groups - AT_ONCE
        return newest_ms if others <= 0 else newest_ms + ASK_AGAIN_MS + GAP_MS * others
