"""Groups with a new config are processed at a pace where a batch has many of them.

A config may place all tasks of its group, publish the group and tell each member. Where hundreds of
groups get one, all other groups would wait for it. So a batch processes a few of these groups at
once, and the others become due one by one, `GAP_MS` apart. Until a group is due, its rows wait for
a later batch (`waiting_rows`), together with those that come meanwhile. Of the groups that are due
a batch processes at most `DUE_MAX`, and the others become due one by one once more. Otherwise
batches would stay long where they have once become long. The clock wakes as many groups as a batch
processes, and further ones when these have answered (`wake_up_schedule`): a batch that met all due
groups would spend its time on storing their rows once more.

The rows and what is stored decide this, so a batch that Spark repeats processes the same groups.
"""

from __future__ import annotations

from muster.state.deadlines import ASK_AGAIN_MS

AT_ONCE = 16
"""Groups with a config that one Spark task processes in each batch, whether they are due or not."""
DUE_MAX = 32
"""Further ones that are due, in each batch; such a group takes 2 to 5 ms."""
GAP_MS = 5
"""Time between two of them. With longer waits the rows of a group are stored more often, and of
more than four configs the older ones become dead letters."""


class Pace:
    """Which groups with a config are processed in one batch, and when the others are due."""

    def __init__(self) -> None:
        self._groups = self._due = 0

    def due_ms(self, newest_ms: int, was_due_ms: int | None = None) -> int | None:
        """When the next group with a config is due; None = it is processed in this batch.

        All times are broker times, epoch milliseconds.

        Args:
            newest_ms: of the group's newest row.
            was_due_ms: when it was due by an earlier batch; None = it has not waited.
        """
        self._groups += 1
        others = self._groups - AT_ONCE
        if others <= 0:
            return None
        if was_due_ms is not None and was_due_ms > newest_ms:
            return was_due_ms
        if was_due_ms is not None:
            self._due += 1
            others = self._due - DUE_MAX
        return newest_ms + ASK_AGAIN_MS + GAP_MS * others if others > 0 else None
