"""KIP-441's worked examples, run on Kafka's own `HighAvailabilityTaskAssignor` and on ours.

The tests show that the examples describe what Kafka does, and that ours gives the same counts per
member. The quality tests cover where ours is better (fewer moves).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from support.assignor.kafka_assignors import Kafka, ours, quality

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK"),
]
Problem = dict[str, Any]
EVERYTHING = 2**63 - 1
"""acceptable.recovery.lag with which every member is caught up."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """A JVM with Kafka's assignors."""
    with Kafka() as running:
        yield running


def tasks(count: int) -> list[str]:
    return [f"0_{n}" for n in range(count)]


def member(
    name: str,
    active: Sequence[str] = (),
    standby: Sequence[str] = (),
    lag: dict[str, int] | None = None,
    capacity: int = 1,
) -> Problem:
    return {
        "id": name,
        "active": list(active),
        "standby": list(standby),
        "lag": lag or {},
        "capacity": capacity,
    }


def problem(count: int, members: list[Problem], *, stateful: bool = True, **config: int) -> Problem:
    names = {
        "lag": "acceptable.recovery.lag",
        "warmups": "max.warmup.replicas",
        "standbys": "num.standby.replicas",
    }
    return {
        "assignor": "high-availability",
        "config": {names[key]: value for key, value in config.items()},
        "tasks": [{"subtopology": "0", "partitions": count, "stateful": stateful}],
        "members": members,
    }


THREE = [
    member("P1", tasks(9)),
    member("P2", standby=tasks(9), lag=dict.fromkeys(tasks(9), 10)),
    member("P3"),
]
TWO = [member("P1", tasks(4)), member("P2")]
BEHIND = [member("P1"), member("P2", lag={"0_0": 1000}), member("P3", lag={"0_0": 500})]
WARM = dict.fromkeys(tasks(9), 0)
THREADS = [member(n, lag=WARM, capacity=c) for n, c in (("P1", 100), ("P2", 50), ("P3", 1))]
OWNERS = [member("P1", ["0_0"]), member("P2", ["0_1"])]

EXAMPLES = {
    # id: problem, held per member (actives and other copies together), probing
    "EX-H1": (problem(9, THREE, lag=11, standbys=1), [9, 9, 2], True),
    "EX-H2": (problem(9, THREE, lag=EVERYTHING, standbys=1), [6, 6, 6], False),
    "EX-H3": (problem(2, [member("P1", tasks(2)), member("P2")]), [2, 1], True),
    "EX-H4": (problem(4, TWO, warmups=1), [4, 1], True),
    "EX-H5": (problem(4, TWO, warmups=1, standbys=1), [4, 4], True),
    "EX-H6": (problem(1, BEHIND, lag=100, standbys=1), [1, 1, 1], True),
    "EX-H7": (problem(2, [member("P1")], standbys=1), [2], False),
    "EX-H8": (problem(2, [member("P1"), member("P2")]), [1, 1], False),
    "EX-H9": (problem(9, [member("P1", capacity=6), member("P2", capacity=3)]), [6, 3], False),
    "EX-H11": (problem(2, OWNERS, standbys=1), [2, 2], False),
    "EX-H12": (problem(4, OWNERS, stateful=False, standbys=1), [2, 2], False),
}


def counts_and_probing(answer: Problem) -> tuple[list[int], bool]:
    """How many tasks each member holds, and whether probing was asked for."""
    held = [answer["members"][name] for name in sorted(answer["members"])]
    counts = [sum(len(h.get(r) or ()) for r in ("active", "standby", "learner")) for h in held]
    return counts, answer["followup_ms"] is not None


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_example_is_what_kafka_does(kafka: Kafka, name: str) -> None:
    """Kafka's class gives the counts of the worked example."""
    given, held, probing = EXAMPLES[name]
    assert counts_and_probing(kafka.ask("high-availability", given)) == (held, probing)


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_example_is_what_ours_does(name: str) -> None:
    """Ours gives the counts of the worked example too."""
    given, held, probing = EXAMPLES[name]
    assert counts_and_probing(ours.answer(given)) == (held, probing)


def test_EX_H10_kafka_gives_every_client_an_active(kafka: Kafka) -> None:
    """EX-H10: capacities 100, 50 and 1, every member warm: no member is without an active."""
    given = problem(9, THREADS)
    for answer in (kafka.ask("high-availability", given), ours.answer(given)):
        assert all(held["active"] for held in answer["members"].values())


@pytest.mark.parametrize("copy", ["on the disk", "standby"])
def test_S2_F28_an_owner_that_restores_keeps_its_task(kafka: Kafka, copy: str) -> None:
    """No member is warm, P2 is less behind than P1, which restores: Kafka moves the task, we wait.

    Of two members without an owner between them both take the one that is least behind.
    """
    standby = tasks(1) if copy == "standby" else []
    owner = member("P1", tasks(1), lag={"0_0": 50_000})
    other = member("P2", standby=standby, lag={"0_0": 20_000})
    given = problem(1, [owner, other], standbys=len(standby))
    assert kafka.ask("high-availability", given)["members"]["P2"]["active"] == ["0_0"]
    assert ours.answer(given)["members"]["P1"]["active"] == ["0_0"]
    free = problem(1, [{**owner, "active": []}, other], standbys=len(standby))
    for answer in (kafka.ask("high-availability", free), ours.answer(free)):
        assert answer["members"]["P2"]["active"] == ["0_0"]


def units(sizes: dict[bool, list[int]]) -> list[Problem]:
    """Subtopologies of at most 5 partitions."""
    flat = [(stateful, size) for stateful, all_sizes in sizes.items() for size in all_sizes]
    return [
        {"subtopology": str(n), "partitions": size, "stateful": stateful}
        for n, (stateful, size) in enumerate(flat)
    ]


CONVERGENCE = {
    "EX-H13": ({True: [5, 5, 1], False: [5, 2]}, 1, ["P1", "P2"], 6),
    **{
        f"EX-H14-without-P{n}": (
            {True: [5, 5, 3], False: [5, 5, 1]},
            7,
            [f"P{m}" for m in range(1, 8) if m != n],
            8,
        )
        for n in range(1, 8)
    },
}


@pytest.mark.parametrize("name", CONVERGENCE)
def test_convergence_within_kafkas_bound_and_no_later_than_kafka(kafka: Kafka, name: str) -> None:
    """After a join or a leave, rounds stay within the bound, and ours within Kafka's."""
    sizes, count, after, bound = CONVERGENCE[name]
    first = {
        "assignor": "high-availability",
        "config": {"max.warmup.replicas": 2},
        "tasks": units(sizes),
        "members": [member(f"P{n}") for n in range(1, count + 1)],
    }
    theirs = quality.life(first, lambda p: kafka.ask("high-availability", p), [after]).rounds - 1
    mine = quality.life(first, ours.answer, [after]).rounds - 1
    assert mine <= theirs <= bound
