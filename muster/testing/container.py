"""Kafka in a container, by Testcontainers: the published image instead of the jars.

``MUSTER_TEST_BROKER`` and ``MUSTER_TEST_BOOTSTRAP`` choose the Kafka of tests (`choice`).
``KAFKA_IMAGE`` names the image. Testcontainers' own Kafka class knows Confluent's image only; this
one is Apache's, which takes its properties from ``KAFKA_*`` variables. The broker must say where
clients reach it before it starts, so the host's port is chosen first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache

from muster.broker.embedded_kafka import HOST, PROPERTIES, VERSION, free_port
from muster.testing.errors import EnvironmentFailed

ADDRESS = "MUSTER_TEST_BOOTSTRAP"
KIND = "MUSTER_TEST_BROKER"
KINDS = ("", "container", "embedded")
IMAGE = os.environ.get("KAFKA_IMAGE") or f"apache/kafka:{VERSION}"
ENGINE_TIMEOUT_S = 10
PULL_TIMEOUT_S = 300
START_TIMEOUT_S = 120
_PORT = 19092
"""The port inside the container."""


def choice(environment: Mapping[str, str], has_engine: Callable[[], bool]) -> str:
    """``container``, ``embedded``, or the address of a Kafka that already runs.

    An engine is asked for only where that decides: it may take a while to answer.

    Raises:
        EnvironmentFailed: a kind that there is not.
    """
    kind, given = environment.get(KIND, ""), environment.get(ADDRESS)
    if kind not in KINDS:
        raise EnvironmentFailed(f"{KIND}={kind}: not one of {', '.join(KINDS[1:])}")
    return kind or given or ("container" if has_engine() else "embedded")


@cache
def is_at_hand() -> bool:
    """Whether an engine answers and has or gets the image. Returns at once without an engine."""
    if shutil.which("docker") is None or not _docker("version", timeout_s=ENGINE_TIMEOUT_S):
        return False
    return _docker("image", "inspect", IMAGE, timeout_s=ENGINE_TIMEOUT_S) or _docker(
        "pull", "--quiet", IMAGE, timeout_s=PULL_TIMEOUT_S
    )


def _docker(*arguments: str, timeout_s: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, check=False, timeout=timeout_s
        )
        return done.returncode == 0
    return False


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
