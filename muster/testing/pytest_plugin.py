"""Fixtures for pytest. Each loads what it needs when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.testing.cluster import Cluster
    from muster.testing.environment import Environment


@pytest.fixture(scope="session")
def muster_cluster() -> Iterator[Cluster]:
    """A real Kafka with muster's topics and the Spark job, one for the whole run of pytest."""
    from muster.testing.cluster import cluster

    with cluster() as running:
        yield running


@pytest.fixture
def muster_environment() -> Iterator[Callable[..., Environment]]:
    """Makes `muster.testing.Environment` objects, and closes them when the test is over."""
    from muster.testing.environment import Environment

    with ExitStack() as stack:  # one that fails to close leaves no other open

        def environment(*args: Any, **more: Any) -> Environment:  # noqa: ANN401 — as `Environment`
            return stack.enter_context(Environment(*args, **more))

        yield environment
