"""`Cluster`: a real Kafka, muster's topics and the Spark job, for tests from end to end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from muster.demo.local_cluster import JOB, LocalCluster
from muster.kafka.writer import append
from muster.protocol.events import Drain, GroupConfig
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import DEFAULT_ASSIGNOR, parse_settings
from muster.protocol.topics import TopicKind, topic_name
from muster.testing.errors import EnvironmentFailed
from muster.testing.kafka_for_tests import choice, kafka_container
from muster.testing.tasks import Tasks, units_of

START_S: Final = 240.0
LOOK_S: Final = 0.2


class Cluster:
    """A running Kafka and coordinator, which a test session shares.

    Attributes:
        bootstrap_servers: where clients and workers connect.
    """

    def __init__(self, local: LocalCluster) -> None:
        self._local = local
        self.bootstrap_servers = local.bootstrap_servers

    def configure(
        self,
        group: str,
        tasks: Tasks,
        assignor: str = DEFAULT_ASSIGNOR,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Configure a group, as `muster config set` does; use another group for each test.

        Args:
            group: its name.
            tasks: subtopology → partitions, or rows (``docs/formats.md``).
            assignor: a name.
            config: its settings (``docs/settings.md``).

        Raises:
            BadInput, ConfigError: tasks or settings that cannot be used.
        """
        event = GroupConfig(
            group=GroupId(group),
            assignor=assignor,
            settings=parse_settings(dict(config or {}), assignor),
            tasks=units_of(tasks),
        )
        append(self._local.clients, topic_name(TopicKind.CONFIG), event)

    def drain(self, group: str, member: str, *, on: bool = True) -> None:
        """Drain a member, as `muster drain` does, or undo that."""
        order = Drain(group=GroupId(group), member=MemberId(member), on=on)
        append(self._local.clients, topic_name(TopicKind.MEMBERSHIP), order)

    def wait_for(self, what: Callable[[], object], timeout_s: float = 60.0) -> None:
        """Wait in real time until `what()` is true.

        Raises:
            EnvironmentFailed: it was not true in time, or Kafka or the job has ended.
        """
        until = time.monotonic() + timeout_s
        while not what():
            if (ended := self._local.ended()) is not None:
                raise EnvironmentFailed(ended)
            if time.monotonic() > until:
                log = self._local.tail(JOB)
                raise EnvironmentFailed(
                    f"not true after {timeout_s:g} s: {_place(what)}\n{JOB}'s log ends with\n{log}"
                )
            time.sleep(LOOK_S)


def _place(what: Callable[[], object]) -> str:
    """File and line of a function: most are lambdas, which have no name."""
    code = getattr(what, "__code__", None)
    return repr(what) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster; all of it has ended afterwards.

    Raises:
        EnvironmentFailed: it does not start; the message has the last lines of the log.
        MusterError: Kafka does not start (`EmbeddedKafka.start`), or the one named does not answer.
    """
    chosen = choice(os.environ, lambda: False)  # a container only if one is asked for
    if chosen == "container":
        with kafka_container() as address, _started(LocalCluster(address)) as started:
            yield started
        return
    with _started(LocalCluster(None if chosen == "embedded" else chosen)) as started:
        yield started


@contextmanager
def _started(local: LocalCluster) -> Iterator[Cluster]:
    with local:
        local.start_kafka()
        local.create_topics()
        local.start_job()
        started = Cluster(local)
        started.wait_for(local.job_is_ready, START_S)
        yield started
