"""Our Streams assignors are not worse than Kafka's on the same random problems.

Kafka "dominates" a problem if its answer is worse in no judged figure and better in at least one
(`bench/quality.py` defines the figures). A list names the seeds where it does, or where a figure
that must never be worse is worse. The list may only get shorter; ``UPDATE_KAFKA_BETTER=1`` rewrites
it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.assignor.kafka_assignors import Kafka, assign, quality

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK"),
]
SEEDS = range(10_000, 10_150)
LIST = Path(__file__).parent / "data" / "kafka_better.json"

HARD = ("cold", "beyond_one", "missing")
"""Never worse in any single problem."""
SUMS = ("rounds", "moved", "warmups", "restored", "cross_rack")
"""Never worse over all of them."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """A JVM with Kafka's assignors."""
    with Kafka() as running:
        yield running


Both = Callable[[assign.Match, int], tuple[quality.Figures, quality.Figures]]


@pytest.fixture(scope="module")
def figures(kafka: Kafka) -> Both:
    """Our figures and Kafka's for a match and a seed; computed once for both tests."""
    played: dict[tuple[str, int], tuple[quality.Figures, quality.Figures]] = {}

    def both(match: assign.Match, seed: int) -> tuple[quality.Figures, quality.Figures]:
        if (match.name, seed) not in played:
            played[match.name, seed] = assign.figures(match, kafka, match.problem(seed), seed)
        return played[match.name, seed]

    return both


@pytest.mark.parametrize("match", assign.MATCHES, ids=lambda m: m.name)
def test_kafka_does_not_dominate(figures: Both, match: assign.Match) -> None:
    """On 150 random problems Kafka's answer dominates ours only at listed seeds."""
    dominated = [seed for seed in SEEDS if quality.dominated(*figures(match, seed))]
    assert set(dominated) <= known(match.name, dominated)


def known(name: str, seeds: list[int]) -> set[int]:
    """The listed seeds of a name; with ``UPDATE_KAFKA_BETTER`` the list is rewritten first."""
    listed = json.loads(LIST.read_text())
    if os.environ.get("UPDATE_KAFKA_BETTER"):
        listed = {k: v for k, v in sorted({**listed, name: seeds}.items()) if v}
        LIST.write_text(json.dumps(listed, indent=1) + "\n")
    return set(listed.get(name, ()))


@pytest.mark.parametrize(
    "match", [m for m in assign.MATCHES if m.assignor == "high-availability"], ids=lambda m: m.name
)
def test_high_availability_is_better_than_kafkas(figures: Both, match: assign.Match) -> None:
    """On 150 random problems, run until converged, no figure that matters is worse."""
    totals = {name: [0.0, 0.0] for name in SUMS}
    worse: dict[str, list[int]] = {name: [] for name in HARD}
    for seed in SEEDS:
        mine, theirs = figures(match, seed)
        for name, seeds in worse.items():
            if getattr(mine, name) > getattr(theirs, name):
                seeds.append(seed)
        for name, total in totals.items():
            total[0] += getattr(mine, name)
            total[1] += getattr(theirs, name)
    for name, seeds in worse.items():
        assert set(seeds) <= known(f"{match.name}: {name}", seeds)
    assert [name for name, (mine, theirs) in totals.items() if mine > theirs] == []
