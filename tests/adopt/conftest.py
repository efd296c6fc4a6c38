"""One coordinator for all tests of governed groups on a real Kafka: starting it takes long.

It ends with the last of these tests, because it takes CPU time from the others also at rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.kafka.brokers import Topics, new_topics
from support.streams.job import Job


@pytest.fixture(scope="package")
def kafka(bootstrap: str) -> Iterator[Topics]:
    """Topics for these tests; each has groups of its own."""
    topics = new_topics(bootstrap)
    yield topics
    topics.close()


@pytest.fixture(scope="package")
def job(kafka: Topics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A running coordinator."""
    with Job(kafka, tmp_path_factory.mktemp("job")) as job:
        yield job.start()
