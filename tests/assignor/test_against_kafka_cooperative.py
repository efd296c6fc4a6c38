"""`cooperative` and `eager` against Kafka's own classes, round by round, to the last task."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator

import pytest
from support.assignor.connect_lives import compare
from support.assignor.kafka_assignors import Kafka, ours

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK"),
]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """A JVM with Kafka's assignors."""
    with Kafka() as running:
        yield running


@pytest.mark.parametrize("faults", [False, True], ids=["calm", "faults"])
@pytest.mark.parametrize("batch", range(4))
def test_cooperative_equals_kafka_round_by_round(kafka: Kafka, batch: int, faults: bool) -> None:
    """In random lives of a group every worker gets the same tasks, stops and delay as from Kafka.

    The clock is fixed; faults lose answers, make workers claim others' tasks, change the leader.
    """
    for seed in range(250 * batch, 250 * (batch + 1)):
        compare(kafka, seed, faults)


def test_eager_equals_kafka(kafka: Kafka) -> None:
    """200 random groups: every worker gets from `eager` what Kafka's `EagerAssignor` gives it."""
    for seed in range(200):
        rng = random.Random(f"eager/{seed}")
        connectors = rng.sample([f"c{n}" for n in range(12)], rng.randint(0, 6))
        workers = rng.sample([f"w{n}" for n in range(12)], rng.randint(1, 6))
        problem = {
            "assignor": "eager",
            "tasks": [{"connector": c, "tasks": rng.randint(0, 12)} for c in connectors],
            "members": [{"id": w} for w in workers],
        }
        theirs = kafka.ask("eager", problem)["members"]
        mine = ours.answer(problem)["members"]
        assert {w: set(h["active"]) for w, h in mine.items()} == {
            w: set(h["active"]) for w, h in theirs.items()
        }, problem
