"""As much of the target as is free: what each member is answered in a round."""

from __future__ import annotations

import random

import pytest
from support.suite.examples import examples

from muster.adopt.join_metadata import KafkaMember
from muster.adopt.owned_and_free_tasks import answers
from muster.protocol.ids import Task
from muster.protocol.tasks import EMPTY, TaskSet


def member(
    name: str, *owned: str, generation: int = 5, topics: tuple[str, ...] = ("t",)
) -> KafkaMember:
    return KafkaMember(name, name, topics=topics, owned=TaskSet.of(owned), generation=generation)


def test_what_another_owns_waits_a_round():
    """Round one takes it from its owner, round two gives it."""
    target = {"A": TaskSet.of(["t_0"]), "B": TaskSet.of(["t_1"])}
    first = answers([member("A", "t_0", "t_1"), member("B")], target)
    assert first["A"].revoked == TaskSet.of(["t_1"])
    assert first["B"].assigned == EMPTY
    second = answers([member("A", "t_0"), member("B")], target)
    assert second["B"].added == TaskSet.of(["t_1"])
    assert second["A"].assigned == TaskSet.of(["t_0"])


def test_an_eager_protocol_needs_one_round():
    """Members of an eager protocol own nothing during a round, so each gets all at once."""
    target = {"A": TaskSet.of(["t_0"]), "B": TaskSet.of(["t_1"])}
    given = answers([member("A"), member("B")], target)
    assert {name: each.assigned for name, each in given.items()} == target


def test_a_claim_of_a_later_generation_counts():
    """A member that was away still claims a partition that another member got meanwhile."""
    target = {"A": TaskSet.of(["t_0"]), "B": EMPTY}
    given = answers([member("A", "t_0", generation=9), member("B", "t_0", generation=4)], target)
    assert given["A"].assigned == TaskSet.of(["t_0"])
    assert given["B"].revoked == TaskSet.of(["t_0"])


def test_two_owners_of_one_generation_both_stop():
    """If two members claim one partition for one generation, both stop it."""
    target = {"A": TaskSet.of(["t_0"])}
    given = answers([member("A", "t_0"), member("B", "t_0")], target)
    assert given["A"].assigned == given["B"].assigned == EMPTY
    assert given["A"].revoked == given["B"].revoked == TaskSet.of(["t_0"])


def test_only_subscribed_topics():
    """No member gets a topic that it has not subscribed: a Java consumer would rejoin for ever."""
    target = {"A": TaskSet.of(["t_0", "u_0"])}
    assert answers([member("A")], target)["A"].assigned == TaskSet.of(["t_0"])


@pytest.mark.parametrize("seed", range(examples(60)))
def test_random_rounds_never_give_twice_and_reach_the_target(seed):
    """Cooperative members that obey own exactly the target after two rounds."""
    rng = random.Random(seed)
    names = [f"M{n}" for n in range(rng.randint(1, 6))]
    tasks = [Task("t", n) for n in range(rng.randint(1, 20))]
    owned = {name: set[Task]() for name in names}
    for _ in range(6):
        target = {name: set[Task]() for name in names}
        for task in tasks:
            target[rng.choice(names)].add(task)
        wanted = {name: TaskSet.of(each) for name, each in target.items()}
        for _ in range(2):
            said = [member(n, *map(str, owned[n])) for n in names]
            for name, given in answers(said, wanted).items():
                for other in names:
                    assert other == name or not set(given.assigned) & owned[other]
                owned[name] = owned[name] & set(given.assigned) | set(given.added)
        assert owned == target
