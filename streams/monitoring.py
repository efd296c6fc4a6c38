"""What can be seen of the coordinator's process from outside, from its start to its end."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import structlog

from muster.protocol.errors import ConfigError
from muster.signing.followed_key_file import KeyFile
from muster.streams import claims, coordinator_signs, standby_coordinator
from muster.streams.canary import Canary
from muster.streams.clock import Clock
from muster.streams.discovery_thread import Discovery, Pace
from muster.streams.job_settings import JobConfig
from muster.streams.observability.group_gauges import GroupsCollector
from muster.streams.observability.group_stats import GroupStats
from muster.streams.observability.health import Health
from muster.streams.observability.http import Port
from muster.streams.observability.late_records import LateRecords
from muster.streams.observability.metrics import Metrics
from muster.streams.observability.observer import Observer
from muster.streams.observability.spark_reports import Progress

_log = structlog.get_logger("muster.streams")


class Seen:
    """Metrics, probes, and whether the process works; `stack` ends what is started here."""

    def __init__(self, config: JobConfig, stack: ExitStack) -> None:
        self._config, self._stack = config, stack
        self._watch: claims.Watch | None = None
        self._metrics = Metrics()
        holds = lambda: self._watch is None or self._watch.story is None  # noqa: E731
        self.health = Health(config.stall_ms / 1000, holds, config.group_cpu_ms / 1000)
        self.progress = Progress(self._metrics, self.health)
        self._metrics.ready.set_function(lambda: self.health.ready(time.monotonic()).fine)
        self._metrics.healthy.set_function(lambda: self.health.well(time.monotonic()).fine)
        self._metrics.standby.set_function(lambda: self.health.is_standby)
        _port(stack, config, self._metrics, self.health)

    @property
    def is_well(self) -> bool:
        """Whether the process works (`Health.works`), so that it writes its sign of life."""
        return self.health.works(
            time.monotonic(),
            has_claimed=self._watch is not None,
            jvm_answered_s=self.progress.looked_s,
        )

    def begins(self, signs: coordinator_signs.Signs, vigil: standby_coordinator.Vigil) -> None:
        """Watch the threads that run before the claim; the vigil only matters to a standby."""
        health = self.health
        health.depends_on("thread that writes signs of life", lambda: signs.alive or signs.is_over)
        health.depends_on("standby's watch", lambda: vigil.alive or not health.is_standby)

    def claims(self, watch: claims.Watch) -> claims.Watch:
        """Start the watch on later claims; from now on each step of the start has a time limit."""
        self._watch = self._stack.enter_context(watch)
        self.gets_on()
        self.health.is_standby = False
        self.health.depends_on("claims watch", lambda: watch.alive or watch.story is not None)
        return watch

    def coordinates(
        self,
        epochs: Mapping[str, int],
        partitions: Mapping[str, int],
        keys: KeyFile | None,
        same_topics: Callable[[], bool],
    ) -> Clock:
        """Start the clock and the observer of a coordinator; the query waits for neither."""
        config, metrics, stack = self._config, self._metrics, self._stack
        metrics.claimed(epochs)
        most = 2 * config.rows_per_batch_max
        clock = Clock(
            *(config.clients, config.prefixes, metrics.ticks.inc, keys),
            is_behind=lambda: observer.rows_behind > most,
            canary=Canary(epochs, lambda prefix, s: metrics.canary.labels(prefix).observe(s))
            if config.canary_ms
            else None,
        )
        pace = Pace(
            interval_ms=config.discovery_ms,
            measure_ms=config.discovery_measure_ms,
            grace_ms=config.discovery_grace_ms,
        )
        discovery = Discovery(config.clients, config.prefixes, pace, keys)
        metrics.asleep.set_function(lambda: clock.asleep)
        metrics.overdue.set_function(clock.overdue_s)
        fold = GroupStats(metrics, epochs, config.metrics_groups_max)
        metrics.registry.register(GroupsCollector(fold, clock.now_ms))
        observer = Observer(
            config.clients,
            partitions,
            config.prefixes,
            metrics=metrics,
            fold=fold,
            health=self.health,
            read=lambda: self.progress.read,
            late=LateRecords(epochs, clock.wake),
            same_topics=same_topics,
        )
        for part, thread in (("clock", clock), ("discovery", discovery), ("observer", observer)):
            stack.enter_context(thread)
            self.health.depends_on(part, lambda thread=thread: thread.alive)  # type: ignore[misc]
        return clock

    def gets_on(self) -> None:
        """Note a step between the claim and `runs`."""
        self.health.gets_on(time.monotonic())

    def runs(self, clock: Clock) -> None:
        """Note that the query runs: the probes say so, and the canary begins."""
        self.progress.looked_s = time.monotonic()  # the JVM has just started the query
        self.health.running(time.monotonic())
        clock.begin_canary()


def _port(stack: ExitStack, config: JobConfig, metrics: Metrics, health: Health) -> None:
    if config.metrics_port is None:
        return
    try:
        port = Port(metrics, health, config.metrics_host, config.metrics_port)
    except OSError as error:
        raise _refused(config, error) from None
    host = f"[{config.metrics_host}]" if ":" in config.metrics_host else config.metrics_host
    _log.info("metrics", address=f"http://{host}:{port.number}/metrics")
    stack.enter_context(port)


def _refused(config: JobConfig, error: OSError) -> ConfigError:
    """The error for a port that cannot be opened: the address is wrong, or the port."""
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        accepted = f"an address of this machine ({error.strerror})"
        return ConfigError("muster.metrics.host", config.metrics_host, accepted)
    return ConfigError(
        "muster.metrics.port", config.metrics_port, f"a free port ({error.strerror})"
    )
