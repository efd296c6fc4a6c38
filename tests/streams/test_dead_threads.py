"""A thread of the coordinator dies: the process ends, so that its supervisor starts it again."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from muster.protocol.records import CoordinatorRole, CoordinatorSign
from muster.streams import query, spark_session, takeover
from muster.streams.errors import ThreadDied
from muster.streams.observability.health import Health


class Running:
    """A query that runs until it is stopped."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_stopped = False

    def awaitTermination(self, _wait_s: float) -> bool:
        """The main loop waits."""
        self.looks += 1
        return self.is_stopped

    def stop(self) -> None:
        """Stop it."""
        self.is_stopped = True


@pytest.fixture
def health() -> Health:
    """A process of which the clock dies at the third look."""
    looks = iter((True, True))
    health = Health(60.0, lambda: True)
    health.depends_on("clock", lambda: next(looks, False))
    return health


def test_a_coordinator_ends(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a probe: a coordinator without its clock lets no member expire."""
    monkeypatch.setattr(SparkSession, "active", lambda: None)
    monkeypatch.setattr(spark_session, "fall_silent", lambda _spark: None)
    running: Any = Running()
    progress: Any = SimpleNamespace(health=health, look=lambda _query: None)
    with pytest.raises(ThreadDied, match="the clock has died; the log above says why"):
        query.await_end(running, threading.Event(), progress)
    assert (running.looks, running.is_stopped) == (3, True)


def test_a_standby_ends(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby whose watch has died would wait for ever."""
    monkeypatch.setattr(spark_session, "has_ended", lambda: False)
    monkeypatch.setattr(takeover.rehearsal, "rehearse", lambda *_: None)
    seen = SimpleNamespace(health=health)
    vigil = SimpleNamespace(is_due=lambda: False, over=Impatient())
    signs = SimpleNamespace(sign=sign_of, stands_by=lambda: None)
    config = SimpleNamespace(clients=SimpleNamespace(bootstrap="k:9092"))
    given: list[Any] = [None, config, "j", signs, vigil, seen, {}, threading.Event()]
    with pytest.raises(ThreadDied, match="the clock has died"):
        takeover.stand_by(*given)


def sign_of(role: CoordinatorRole) -> CoordinatorSign:
    """A sign of life of this process."""
    return CoordinatorSign(job="j", host="h", version="1", role=role)


class Impatient(threading.Event):
    """An event that ends each wait at once."""

    def wait(self, timeout: float | None = None) -> bool:
        """Do not wait."""
        return super().wait(0)
