"""Kafka's limits for tags of a member (T-01), everywhere tags are given."""

from __future__ import annotations

import pytest

from muster.documents.problem import parse_problem
from muster.errors import BadInput
from muster.protocol.client_tags import checked_tags
from muster.protocol.errors import ConfigError
from muster.worker.worker import Worker

FAULTS = [
    ({f"k{n}": "v" for n in range(6)}, "at most 5 tags, not 6"),
    ({"k" * 21: "v"}, "keys of 1 to 20 characters, not 'kkkkkkkkkkkkkkkkkkkkk'"),
    ({"": "v"}, "keys of 1 to 20 characters, not ''"),
    ({"k": "v" * 31}, "values of at most 30 characters, not 'vvv"),
]


def test_as_much_as_is_allowed() -> None:
    """Five tags, the longest key and the longest value are accepted and sorted by key."""
    tags = {"z": "v" * 30, "k" * 20: "", "b": "1", "c": "2", "a": "3"}
    assert checked_tags(tags) == tuple(sorted(tags.items()))


@pytest.mark.parametrize(("tags", "fault"), FAULTS)
def test_too_much_is_refused_with_what_would_be_right(tags: dict[str, str], fault: str) -> None:
    """The worker refuses them before it connects, and a problem file with their place."""
    with pytest.raises(ConfigError, match=fault):
        Worker(group="g", bootstrap_servers="nowhere:1", tags=tags)
    problem = {"tasks": [], "members": [{"id": "m", "tags": tags}]}
    with pytest.raises(BadInput, match=rf"members\[0\]\.tags: expected {fault}"):
        parse_problem(problem)
