"""Which topics patterns mean, and what becomes of a pattern that would match for ever."""

from __future__ import annotations

import threading
import time

import pytest

from muster.discovery import patterns as module
from muster.discovery.patterns import Patterns

ENDLESS = "([a-z0-9]+-?)+[.]events"
"""Python needs years to see that it does not match `LONG`."""
LONG = "orders-payments-settlement-archive-of-all-regions-2026-eu"
SHOP = "shop[.].*"


def test_whole_names() -> None:
    """A pattern must match a whole name, as with Kafka's own subscriptions."""
    patterns = Patterns()
    patterns.look({"orders[.].*"}, ["orders.eu", "my.orders.eu", "orders"])
    assert patterns.topics("orders[.].*") == {"orders.eu"}


def test_topics_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair of a pattern and a name is matched once."""
    asked: list[tuple[str, list[str]]] = []
    ask = module._asked

    def counted(lines: list[tuple[str, list[str]]]) -> tuple[list[list[int] | str], int]:
        asked.extend(lines)
        return ask(lines)

    monkeypatch.setattr(module, "_asked", counted)
    patterns = Patterns()
    patterns.look({SHOP}, ["shop.a", "b"])
    patterns.look({SHOP}, ["shop.a", "b"])
    patterns.look({SHOP}, ["shop.c", "b"])
    assert patterns.topics(SHOP) == {"shop.c"}
    patterns.look({SHOP, ".*"}, ["shop.c", "b"])
    assert patterns.topics(".*") == {"shop.c", "b"}
    assert asked == [(SHOP, ["b", "shop.a"]), (SHOP, ["shop.c"]), (".*", ["b", "shop.c"])]
    patterns.look({".*"}, ["b"])
    assert (patterns.topics(".*"), patterns.topics(SHOP)) == ({"b"}, None)


def test_a_pattern_that_takes_too_long() -> None:
    """It is a fault, and the process goes on meanwhile; other patterns are answered."""
    beats: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.01):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    patterns = Patterns()
    try:
        patterns.look([ENDLESS, SHOP], [LONG, "shop.a"])
    finally:
        over.set()
        thread.join()
    assert len(beats) > 10
    assert patterns.fault(ENDLESS) == "it takes more than 1 s"
    assert patterns.topics(ENDLESS) is None
    assert (patterns.topics(SHOP), patterns.fault(SHOP)) == ({"shop.a"}, "")


def test_many_patterns_that_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look tries three of them; the others, and a good one behind them, are known after more."""
    tried: list[str] = []

    def first_fails(lines: list[tuple[str, list[str]]]) -> tuple[list[list[int] | str], int]:
        tried.append(lines[0][0])
        return ([[0]], 0) if lines[0][0] == SHOP else ([], -27)

    monkeypatch.setattr(module, "_asked", first_fails)
    patterns = Patterns()
    wanted = ["a", "b", "c", "d", SHOP]
    patterns.look(wanted, ["shop.a"])
    assert tried == ["a", "b", "c"]
    assert (patterns.topics(SHOP), patterns.fault(SHOP)) == (None, "")
    patterns.look(wanted, ["shop.a"])
    assert tried == ["a", "b", "c", "d", SHOP]
    assert patterns.topics(SHOP) == {"shop.a"}


def test_what_is_no_pattern() -> None:
    """Another writer than muster may put anything into a config."""
    patterns = Patterns()
    patterns.look(["(", SHOP], ["shop.a"])
    assert patterns.fault("(").startswith("it is no regular expression: ")
    assert patterns.topics(SHOP) == {"shop.a"}
    patterns.look([SHOP], ["shop.a"])
    assert patterns.fault("(") == ""


def test_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine is too busy for an answer, the next look asks again."""
    patterns = Patterns()
    with monkeypatch.context() as context:
        context.setattr(module, "WALL_S", 0.0)
        with pytest.raises(TimeoutError, match="were not matched"):
            patterns.look([SHOP], ["shop.a"])
    assert patterns.topics(SHOP) is None
    patterns.look([SHOP], ["shop.a"])
    assert patterns.topics(SHOP) == {"shop.a"}
