"""`cooperative` against Kafka's class where Java's hash order of ids decides."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Iterator

import pytest
from support.assignor import connect_history
from support.assignor.connect_lives import compare
from support.assignor.kafka_assignors import Kafka

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK"),
]
RNG = random.Random(11)
IDS = {
    "random": sorted(str(uuid.UUID(int=RNG.getrandbits(128))) for _ in range(20)),
    "counted": [f"connect-worker-{n}" for n in range(20)],
    "accented": [f"10.0.{n}.{7 * n}:8083-é" for n in range(20)],
    "beyond the basic plane": [
        f"{c}{n}" for n in range(5) for c in ("\U0001f600", "\uff5e", "é", "b")
    ],
    "many": [f"w{n:03}-{RNG.getrandbits(20):x}" for n in range(60)],
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """A JVM with Kafka's assignors."""
    with Kafka() as running:
        yield running


@pytest.mark.parametrize("kind", IDS)
def test_random_lives_agree_for_any_ids(
    kafka: Kafka, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java's hash codes decide which worker keeps the extra job; ours agrees to the last task."""
    monkeypatch.setattr(connect_history, "WORKERS", IDS[kind])
    first = 1_000_000 * (1 + list(IDS).index(kind))
    for seed in range(first, first + 60):
        compare(kafka, seed, faults=bool(seed % 2))
