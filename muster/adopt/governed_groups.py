"""Governs any number of groups in one process: makes, starts and stops all their parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from muster.adopt.connectors import Connectors
from muster.adopt.coordinator_connections import Network
from muster.adopt.eligibility import is_governed
from muster.adopt.governor_thread import Runner
from muster.adopt.join_metadata import Kind
from muster.adopt.model import Options, Round
from muster.adopt.muster_topics import MusterTopics
from muster.adopt.partitions import Partitions
from muster.kafka.settings import ClientSettings
from muster.protocol.errors import MusterError
from muster.signing.keyring import KeyFile

log = logging.getLogger("muster.adopt")

CLOSE_S: Final = 10.0


class Governors:
    """The governors of one process. `open` it once, `close` it once.

    Args:
        clients: how to reach Kafka.
        prefix: of muster's topics.
        keys: sign the events; None = they are not signed.
        governed: the options of each group.
        config_topic: the config topic of Connect clusters.
        on_round: called after each rebalance of a group, from its thread.
    """

    def __init__(
        self,
        clients: ClientSettings,
        prefix: str,
        keys: KeyFile | None,
        governed: Sequence[Options],
        *,
        config_topic: str = "connect-configs",
        on_round: Callable[[str, Round], None] = lambda group, done: None,
    ) -> None:
        self._clients = clients
        self._network = Network(clients)
        self._topics = MusterTopics(clients, prefix, keys)
        self._partitions = Partitions(clients)
        self._connectors: list[Connectors] = []
        self._watchers = ThreadPoolExecutor(2, thread_name_prefix="muster-watch")
        self.runners: dict[str, Runner] = {}
        for options in governed:
            self.runners[options.group] = self._runner(options, config_topic, on_round)

    def _runner(
        self, options: Options, config_topic: str, on_round: Callable[[str, Round], None]
    ) -> Runner:
        group = options.group
        runner = Runner(
            options,
            self._network.line(group),
            self._topics,
            watch_partitions=lambda topics: self._partitions.want(
                group, topics, runner.set_units, options.measure
            ),
            look_for_governor=lambda: self._watch(group),
            on_round=lambda done: on_round(group, done),
        )
        if options.kind is Kind.CONNECT:
            self._connectors.append(Connectors(self._clients, config_topic, runner.set_units))
        return runner

    def _watch(self, group: str) -> None:
        self._watchers.submit(self._look, group)

    def _look(self, group: str) -> None:
        governed: bool | None = None
        try:
            governed = is_governed(self._clients, group)
        except MusterError as error:
            log.info("%s: %s", group, error)
        self.runners[group].set_presence(governed)

    def open(self) -> None:
        """Begin to govern."""
        self._topics.open()
        self._partitions.open()
        for follower in self._connectors:
            follower.open()
        for runner in self.runners.values():
            runner.start()

    def are_running(self) -> bool:
        """Whether a group has not been handed back yet.

        Raises:
            MusterError: a group cannot be governed any more.
        """
        ended = [runner for runner in self.runners.values() if runner.join(0)]
        for runner in ended:
            if runner.failure is not None:
                raise runner.failure
        return len(ended) < len(self.runners)

    def close(self) -> None:
        """Hand every group back, and stop."""
        for runner in self.runners.values():
            runner.stop()
        for runner in self.runners.values():
            runner.join(CLOSE_S)
        for follower in self._connectors:
            with suppress(RuntimeError):
                follower.close()
        with suppress(RuntimeError):
            self._partitions.close()
        self._topics.close()
        self._watchers.shutdown(wait=False, cancel_futures=True)
        self._network.close()
