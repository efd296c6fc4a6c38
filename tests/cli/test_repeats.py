"""Kafka's client repeats log lines: each is logged once a minute."""

from __future__ import annotations

import logging

import pytest

from muster import logs
from muster.kafka.log_filter import PAUSE_S, RepeatFilter
from muster.worker import kafka_link

FAILED = (
    "FAIL [{client}] [thrd:{broker}/bootstrap]: {broker}/bootstrap: Connect to "
    "ipv4#10.0.0.1:9092 failed: Connection refused (after {ms}ms in state CONNECT)"
)


def line(text: str) -> logging.LogRecord:
    """A record as a logger makes it."""
    return logging.LogRecord("k", logging.ERROR, "", 0, text, None, None)


def failed(client: str = "consumer-1", broker: str = "k1:9092", ms: int = 0) -> logging.LogRecord:
    """A connection that was refused."""
    return line(FAILED.format(client=client, broker=broker, ms=ms))


def test_once_a_minute() -> None:
    """The same line of any client passes once a minute; another broker's and muster's own pass."""
    now_s = 0.0
    repeats = RepeatFilter(clock_s=lambda: now_s)
    assert repeats.filter(failed())
    assert not any(repeats.filter(failed("producer-2", ms=ms)) for ms in range(100))
    assert repeats.filter(failed(broker="k2:9092"))
    assert repeats.filter(line("m: no coordinator has answered yet"))
    assert repeats.filter(line("m: no coordinator has answered yet"))
    now_s = PAUSE_S - 1
    assert not repeats.filter(failed())
    now_s = PAUSE_S
    assert repeats.filter(failed())
    assert not repeats.filter(failed())


@pytest.mark.parametrize("logger", [logs.KAFKA, kafka_link.log])
def test_both_halves_filter(logger: logging.Logger) -> None:
    """The loggers of the job's and of a worker's Kafka client drop the repeated line."""
    first, again = failed(broker=f"{logger.name}:1"), failed(broker=f"{logger.name}:1")
    assert logger.filter(first)
    assert not logger.filter(again)
