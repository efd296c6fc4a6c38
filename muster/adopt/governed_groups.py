"""Governs any number of groups in one process: makes, starts and stops all their parts."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from muster.adopt.connectors import Connectors
from muster.adopt.coordinator_connections import Network
from muster.adopt.eligibility import is_governed
from muster.adopt.governor import FAREWELL_MS
from muster.adopt.governor_thread import Runner
from muster.adopt.join_metadata import Kind
from muster.adopt.model import BEAT_MAX_MS, GovernorPresence, Options
from muster.adopt.muster_topics import MusterTopics
from muster.adopt.partitions import Partitions
from muster.errors import BadInput
from muster.kafka.client_settings import ClientSettings
from muster.protocol.errors import MusterError
from muster.signing.followed_key_file import KeyFile
from muster.state.causes import count_of

log = logging.getLogger("muster.adopt")

CLOSE_S: Final = FAREWELL_MS / 1_000 + 1
"""How long all groups together may take to be handed back while no broker answers."""
LEAST_S: Final = 0.1
"""What each part has for its end at least; it ends within that when the brokers answer."""
WATCHERS: Final = 2
BEAT_MIN_MS: Final = 200
BEATS_PER_S: Final = 100
"""Heartbeats a second of one process for all its groups; more if `BEAT_MAX_MS` requires it."""


def beat_ms(groups: int) -> int:
    """Time between two heartbeats of a group, in ms, in a process that governs `groups` groups."""
    return min(max(BEAT_MIN_MS, groups * 1_000 // BEATS_PER_S), BEAT_MAX_MS)


class SeveralFailed(MusterError):
    """Several groups could not be governed any more.

    Operator action: the message says of each group why; the others were governed on.
    """


class Governors:
    """The governors of one process. `open` it once, `close` it once.

    A group that cannot be governed any more is logged and left to Kafka; the others are governed
    on.
    """

    def __init__(
        self,
        clients: ClientSettings,
        prefix: str,
        keys: KeyFile | None,
        governed: Sequence[Options],
        *,
        config_topic: str = "connect-configs",
    ) -> None:
        self._clients = clients
        self._network = Network(clients)
        self._topics = MusterTopics(clients, prefix, keys)
        self._partitions = Partitions(clients)
        self._connectors: dict[str, Connectors] = {}
        self._ended: set[str] = set()
        self._looks: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.runners: dict[str, Runner] = {}
        for options in governed:
            self.runners[options.group] = self._runner(options, config_topic)

    def _runner(self, options: Options, config_topic: str) -> Runner:
        group = options.group
        runner = Runner(
            options,
            self._network.line(group),
            self._topics,
            watch_partitions=lambda topics: self._partitions.want(
                group, topics, runner.post, options.measure
            ),
            look_for_governor=lambda: self._looks.put(group),
        )
        if options.kind is Kind.CONNECT:
            self._connectors[group] = Connectors(self._clients, config_topic, runner.post)
        return runner

    def _watch(self) -> None:
        """Look for governors; a thread that ends with the process, also while Kafka is silent."""
        while True:
            self._look(self._looks.get())

    def _look(self, group: str) -> None:
        governed: bool | None = None
        try:
            governed = is_governed(self._clients, group)
        except MusterError as error:
            log.info("%s: %s", group, error)
        self.runners[group].post(GovernorPresence(governed))

    def open(self) -> None:
        """Begin to govern."""
        self._topics.open()
        self._partitions.open()
        for follower in self._connectors.values():
            follower.open()
        for runner in self.runners.values():
            runner.start()
        for number in range(WATCHERS):
            name = f"muster-watch-{number}"
            threading.Thread(target=self._watch, name=name, daemon=True).start()

    def are_running(self) -> bool:
        """Whether a group is governed still: it has not been handed back, and has not failed."""
        ended = {group for group, runner in self.runners.items() if runner.join(0)}
        left = len(self.runners) - len(ended)
        for group in sorted(ended - self._ended):
            self._drop(group, left)
        self._ended = ended
        return left > 0

    def _drop(self, group: str, left: int) -> None:
        """Do no more for a group that has ended, and log why if it failed."""
        self._partitions.forget(group)
        if (follower := self._connectors.pop(group, None)) is not None:
            follower.close()
        failure = self.runners[group].failure
        if failure is not None and left:  # of the last group the command itself says it
            log.error(
                "cannot be governed any more, and goes on with its own assignor: %s; this process"
                " governs %s on",
                failure,
                count_of(left, "other group"),
                extra={"group": group},
            )

    @property
    def failure(self) -> MusterError | None:
        """Why groups could not be governed any more; None = none has failed."""
        why = {group: runner.failure for group, runner in self.runners.items()}
        failures = {group: failure for group, failure in why.items() if failure is not None}
        if len(failures) < 2:
            return next(iter(failures.values()), None)
        text = f"{len(failures)} of {len(why)} groups could not be governed any more: " + "; ".join(
            f"{group}: {failure}" for group, failure in failures.items()
        )
        is_input = all(isinstance(failure, BadInput) for failure in failures.values())
        return BadInput(text) if is_input else SeveralFailed(text)

    def close(self) -> None:
        """Hand every group back, and stop; within `CLOSE_S`, whether a broker answers or not."""
        until_s = time.monotonic() + CLOSE_S

        def left_s() -> float:
            return max(until_s - time.monotonic(), LEAST_S)

        for runner in self.runners.values():
            runner.stop()
        for runner in self.runners.values():
            runner.join(left_s())
        for follower in self._connectors.values():
            with suppress(RuntimeError):
                follower.close(left_s())
        with suppress(RuntimeError):
            self._partitions.close(left_s())
        self._topics.close(left_s())
        self._network.close(left_s())
