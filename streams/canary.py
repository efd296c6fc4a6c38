"""The canary: every few seconds the job sends an event of its own through the whole pipeline.

The clock writes a tick of a group that does not exist, `GROUP`, to ``<prefix>.membership``. The
query answers it with a wake-up on ``<prefix>.clock``. The difference of the two broker times is the
least that any group waits for an answer: for the batch before, for Spark, for Python and for Kafka.
It is known even if no group has a member, and it grows when one group delays the others.

The canary has no state: it is in no store, no cache and no snapshot, and so in no list of groups,
no metric label and no recovery. Its wake-up holds everything:

``at_ms``                        when the next tick is due
``published.coordinator_epoch``  the answering coordinator; answers of another one do not count
``published.taken``              broker time (epoch milliseconds) of the oldest tick it answers

Any client that may write to ``membership`` may write such ticks. They need no signature: the
broker's clock measures each of them, and all ticks of one batch get one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from muster.protocol.events import Mark
from muster.protocol.ids import GroupId
from muster.protocol.records import WakeUp

GROUP = GroupId("__muster_canary")
"""Reserved: an event of this group that is not a tick is refused (`canary_answer`)."""


class Canary:
    """The clock's part of the canary: it decides which answers count.

    `on_answer` is called with the prefix and the seconds from tick to answer.
    """

    def __init__(
        self, epochs: Mapping[str, int], on_answer: Callable[[str, float], object]
    ) -> None:
        self._epochs = dict(epochs)
        self._on_answer = on_answer
        self._first_ms: dict[str, int] = {}

    def begins(self) -> list[tuple[str, Mark]]:
        """Every prefix, and the mark of its first tick."""
        return [(prefix, Mark(epoch, 0)) for prefix, epoch in self._epochs.items()]

    def sent(self, prefix: str, at_ms: int) -> None:
        """Note the broker time of a tick that Kafka has acknowledged."""
        self._first_ms.setdefault(prefix, at_ms)

    def answered(self, prefix: str, wake_up: WakeUp, at_ms: int) -> bool:
        """Take in an answer of this broker time; return whether its `at_ms` sets the next tick.

        False = another coordinator gave the answer. An answer to a tick from before this process
        sets the next tick but is not measured: no process may have run that could answer it.
        """
        mark = wake_up.published
        if mark is None or mark.coordinator_epoch != self._epochs.get(prefix):
            return False
        if mark.taken >= self._first_ms.get(prefix, mark.taken + 1):
            self._on_answer(prefix, max(at_ms - mark.taken, 0) / 1000)
        return True
