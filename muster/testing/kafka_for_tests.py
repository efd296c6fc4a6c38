"""Starts Kafka in a container with Testcontainers, from the published image.

``MUSTER_TEST_BROKER`` and ``MUSTER_TEST_BOOTSTRAP`` choose the Kafka of tests (`choice`).
``KAFKA_IMAGE`` names the image. Testcontainers' own Kafka class supports only Confluent's image;
Apache's takes its properties from ``KAFKA_*`` variables. The broker's advertised address must be
known before it starts, so the host's port is chosen first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from muster.broker.embedded_kafka import HOST, PROPERTIES, VERSION, free_port
from muster.testing.errors import EnvironmentFailed

ADDRESS = "MUSTER_TEST_BOOTSTRAP"
KIND = "MUSTER_TEST_BROKER"
KINDS = ("", "container", "embedded")
IMAGE = os.environ.get("KAFKA_IMAGE") or f"apache/kafka:{VERSION}"
START_TIMEOUT_S = 120
_PORT = 19092
"""The port inside the container."""


def choice(environment: Mapping[str, str], has_engine: Callable[[], bool]) -> str:
    """``container``, ``embedded``, or the address of a Kafka that already runs.

    `has_engine` is called only if its answer decides, because it may take seconds.

    Raises:
        EnvironmentFailed: an unknown kind.
    """
    kind, given = environment.get(KIND, ""), environment.get(ADDRESS)
    if kind not in KINDS:
        raise EnvironmentFailed(f"{KIND}={kind}: not one of {', '.join(KINDS[1:])}")
    return kind or given or ("container" if has_engine() else "embedded")


@contextmanager
def kafka_container() -> Iterator[str]:
    """A broker in its own container; yields its address."""
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = free_port()
    started = LogMessageWaitStrategy(r".*Kafka Server started.*")
    container = DockerContainer(IMAGE).with_bind_ports(_PORT, port)
    container.waiting_for(started.with_startup_timeout(START_TIMEOUT_S))
    for name, value in _variables(port).items():
        container.with_env(name, value)
    with container:
        yield f"{HOST}:{port}"


def _variables(port: int) -> dict[str, str]:
    """The embedded broker's properties, with the listeners that a container needs."""
    properties = {
        **PROPERTIES,
        "listeners": f"PLAINTEXT://0.0.0.0:9092,HOST://0.0.0.0:{_PORT},CONTROLLER://localhost:9093",
        "advertised.listeners": f"PLAINTEXT://localhost:9092,HOST://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.voters": "1@localhost:9093",
    }
    return {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in properties.items()}
