"""A console without Kafka, and a group that lives while the page is open.

The group is the simulation's: the real coordinator's function and simulated members. Its time is
the machine's, shifted, so that the page counts seconds as an operator sees them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from support.console.played import PREFIX, PublishingWorld

from muster.console.app import Options
from muster.console.drains_and_settings import Writes
from muster.console.request_guard import Access
from muster.console.server import Console, ListenAddress
from muster.console.store import Store
from muster.documents.scenario import parse_scenario
from muster.kafka.client_settings import client_settings
from muster.output import wall_ms
from muster.protocol.records import GroupSnapshot
from muster.simulation.scenario_player import BEGINNING_MS

START_S = 15.0


@contextmanager
def in_thread(console: Console) -> Iterator[str]:
    """Run a console in a thread while the ``with`` block runs; gives its URL."""
    server = console._server
    serving = threading.Thread(target=console.run, name="muster-console", daemon=True)
    serving.start()  # in a thread other than the main one it leaves signals alone
    until = time.monotonic() + START_S
    while not server.started and serving.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    try:
        yield console.url
    finally:
        server.should_exit = True
        serving.join(START_S)


@contextmanager
def served(
    store: Store,
    access: Access | None = None,
    listen_on: ListenAddress | None = None,
    **options: Any,
) -> Iterator[str]:
    """A console that shows a store; gives its URL."""
    store.caught_up = True
    made = Options(client_settings("localhost:9092"), version="0.1.0", **options)
    console = Console(
        store, nullcontext(), made, access or Access(), listen_on or ListenAddress(port=0)
    )
    with in_thread(console) as url:
        yield url


def may(*what: str) -> Writes:
    """A console that may write these."""
    return Writes(frozenset(what))


class LiveGroup:
    """A group whose events a test causes one by one, each at the present time.

    Args:
        store: where its records go.
        told: the scenario of its life until now.
        name: the group's id.
    """

    def __init__(self, store: Store, life: dict[str, Any], name: str = "orders") -> None:
        self._store = store
        self._told = life
        self._taken = 0
        self._shift_ms = wall_ms() - BEGINNING_MS - life["until_ms"]
        self.name = name
        self._play()

    def happen(self, *events: dict[str, Any], after_ms: int = 0) -> None:
        """Let events happen now, and play what follows from them within `after_ms`."""
        now_ms = max(wall_ms() - BEGINNING_MS - self._shift_ms, self._told["until_ms"] + 1)
        self._told["events"] = [
            *self._told["events"],
            *({"at_ms": now_ms, **event} for event in events),
        ]
        self._told["until_ms"] = now_ms + after_ms
        self._play()

    def _play(self) -> None:
        """Play the whole life, and publish what was not published before: it is deterministic."""
        made: list[tuple[GroupSnapshot, int, bytes]] = []
        world = PublishingWorld(
            publish=lambda *record: made.append(record), name=self.name, shift_ms=self._shift_ms
        )
        world.play(parse_scenario(self._told))
        for record, at_ms, value in made[self._taken :]:
            self._store.take(PREFIX, record, at_ms, value)
        self._taken = len(made)
