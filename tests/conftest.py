"""Settings shared by all tests."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from support.suite.examples import examples

pytest_plugins = [
    "support.kafka.brokers",
    "support.suite.jvms",
    "support.suite.leftovers",
    "support.worker.mock_worker",
    "support.streams.operator",
    "support.streams.job",
    "muster.testing.pytest_plugin",
]

LONGEST = (
    "chaos/test_chaos.py",
    "integration/test_lifecycle.py",
    "integration/test_spark_cluster.py",
    "integration/test_coordinator_lost.py",
)
"""Files that take minutes; they run first, so that both processes of `make test` end together."""
TOGETHER = "/tests/adopt/"
"""Files that share a coordinator in each process. They follow, so that it runs for no longer than
they need: a coordinator takes a quarter of a core also at rest. The order of the other
files is random."""

settings.register_profile(
    "ci",
    max_examples=examples(100),
    deadline=None,  # machines are noisy: a slow example is not a wrong one
    derandomize=True,  # a red build must be red again
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", parent=settings.get_profile("ci"), derandomize=False)
settings.load_profile(os.environ.get("MUSTER_HYPOTHESIS", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would everything the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, after pytest-randomly has shuffled them all."""
    paths = {item: item.path.as_posix() for item in items}
    items.sort(key=lambda item: (not paths[item].endswith(LONGEST), TOGETHER not in paths[item]))


@pytest.fixture(autouse=True)
def _logs_end_with_their_test() -> Iterator[None]:
    """A command writes its log to the captured stderr, which is closed when the test is over."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)
