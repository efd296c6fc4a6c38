"""A background thread that runs while a ``with`` block does: how it reads, and logs what fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Self

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from muster.kafka.reader import arrived, assign_all

_log = structlog.get_logger("muster.streams")

AGAIN_S = 60.0
"""A fault that goes on is logged again after so long."""
RETRY_S = 0.5
"""Pause after a client has failed."""
FAULTS_MAX = 100
"""Number of distinct faults that are remembered."""
_LOGGED_ELSEWHERE = {
    # No broker answered in time: the Kafka client logs that.
    *(KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT),
    KafkaError._FATAL,  # the producer is replaced, and that is logged
}


class Loop:
    """Runs `_run` in a thread; leaving the block sets `_closing` and waits for the thread's end."""

    def __init__(self, name: str) -> None:
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run_logged, name=name, daemon=True)

    @property
    def name(self) -> str:
        """Name of the thread."""
        return self._thread.name

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _run_logged(self) -> None:
        try:
            self._run()
        except Exception:
            _log.exception("a thread has died", thread=self._thread.name)

    def _run(self) -> None:
        """Work until `_closing` is set."""
        raise NotImplementedError

    def _assigned(
        self, consumer: Consumer, topics: Iterable[str], pause_s: float = RETRY_S
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """`assign_all`, again until Kafka answers; nothing once `_closing` is set."""
        wanted = tuple(topics)
        while not self._closing.is_set():
            try:
                return assign_all(consumer, wanted)
            except KafkaException:
                self._closing.wait(pause_s)
        return {}

    def _arrived(self, consumer: Consumer, wait_s: float) -> list[Message]:
        """The records that are there, without errors; waits for the first one only."""
        try:
            return [each for each in arrived(consumer, wait_s) if each.error() is None]
        except KafkaException:
            self._closing.wait(RETRY_S)
            return []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join()


class Complaints:
    """Logs what fails again and again: each fault at once, then at most once a minute."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], tuple[float, int]] = {}

    def hear(self, what: str, why: str, fault: str | None = None, **where: object) -> None:
        """Log a fault with the number of times that it came since its last line.

        Args:
            what: what was not done.
            why: the reason.
            fault: with `what`, it tells faults apart; None = `why`.
            where: more fields of the line.
        """
        now_s = time.monotonic()
        key = what, why if fault is None else fault
        logged_s, times = self._heard.get(key, (float("-inf"), 0))
        if now_s < logged_s + AGAIN_S:
            self._heard[key] = logged_s, times + 1
            return
        if len(self._heard) >= FAULTS_MAX:
            self._heard.clear()
        self._heard[key] = now_s, 0
        _log.warning(what, why=why, times=times + 1, **where)

    def replaced(self, what: str, error: KafkaException) -> None:
        """Log that a producer has failed for good; another one writes the next records."""
        self.hear(f"{what} is replaced", str(error.args[0].str()))

    def refused(self, what: str, topic: str, error: KafkaError) -> None:
        """Log that a record was not written, unless another line says why."""
        if error.code() not in _LOGGED_ELSEWHERE:
            self.hear(what, str(error.str()), f"{topic} {error.code()}", topic=topic)
