"""The Kafka of an environment: it keeps the story, and knows what no coordinator has read yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from muster.protocol.events import Drain, Event, GroupConfig, Join, LagReport, Leave, Report
from muster.simulation.jobs import Job
from muster.simulation.kafka import BEGINNING_MS, SimulatedKafka
from muster.simulation.log import topic_of
from muster.testing.history import History
from muster.testing.simulated_link import SimulatedLink

ORDERS: Final = (Drain, GroupConfig)
"""What an operator writes."""
NEWS: Final = (Join, LagReport, Leave, Report)
"""The events that workers write, except heartbeats."""


class KafkaWithHistory(SimulatedKafka):
    """Kafka and the coordinators; their trace goes into the environment's story.

    Attributes:
        links: the connections of all processes of workers.
        history: the story.
    """

    def __init__(self, seed: int, job: type[Job]) -> None:
        super().__init__(seed, traced=True, job=job)
        self.links: list[SimulatedLink] = []
        self._newest_line = ""
        self._orders_on_their_way = 0
        self._orders_end: dict[str, int] = {}  # topic → the offset behind the newest order
        self._news_end: dict[str, int] = {}  # the same of what workers wrote
        self.history = History(BEGINNING_MS)

    def clients(self) -> Iterable[SimulatedLink]:
        """The connections."""
        return self.links

    def send(self, event: Event) -> None:
        """A client outside the group writes an event."""
        self._orders_on_their_way += isinstance(event, ORDERS)
        super().send(event)

    def _append(self, event: Event) -> None:
        super()._append(event)
        topic = topic_of(event)
        if isinstance(event, ORDERS):
            self._orders_on_their_way -= 1
            self._orders_end[topic] = self.log.ends()[topic]
        elif isinstance(event, NEWS):
            self._news_end[topic] = self.log.ends()[topic]

    @property
    def has_unread_orders(self) -> bool:
        """Whether the coordinator has not acted yet on all that an operator wrote."""
        return self._orders_on_their_way > 0 or self._is_unread(self._orders_end)

    @property
    def has_unread_news(self) -> bool:
        """Whether the coordinator has not acted yet on all that workers wrote, but heartbeats."""
        return self._is_unread(self._news_end)

    def _is_unread(self, ends: dict[str, int]) -> bool:
        job = self.jobs.newest
        read = {} if job is None else job.checkpoint.through
        return any(read.get(topic, 0) < end for topic, end in ends.items())

    def trace_line(self, text: str) -> None:
        """Add a line to the story."""
        if text != self._newest_line:  # a coordinator may publish a generation in several batches
            self._newest_line = text
            self.history.add_line(self.now, text)
