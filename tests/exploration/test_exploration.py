"""Every interleaving of the real code, in small groups.

`MUSTER_EXPLORE_STATES` is the number of states at which a search stops; `make long` sets it so high
that most scenarios are visited completely.
"""

from __future__ import annotations

import os

import pytest
from exploration.explore import Exploration, replayed
from exploration.model import Budget, Scenario
from exploration.scenarios import SCENARIOS, TWO

STATES = int(os.environ.get("MUSTER_EXPLORE_STATES", "1500"))
LATE_JOIN = (
    "Kafka stores a join of A",
    "time passes, and something is late",
    "Kafka stores a join of B",
    "time passes, and something is late",
    "A sees the time",  # and sends its join again, within the lease that the first one may give
    "time passes, and something is late",
    "Kafka stores a join of A",  # when the session that began with the first join is over
    "coordinator 1 takes 1 events",
    "A reads A: active 0_0 (r1)",  # the session ended before the second join was acknowledged
    "A has stopped everything",
    "B sees the time",
    "Kafka stores a join of B",
    "coordinator 1 takes 3 events",  # the session of A has ended: 0_0 is another's
)
STRANGER = (
    "Kafka stores a join of B",
    "a second coordinator starts",
    "coordinator 2 takes 2 events",
    "B reads B: no tasks (r0, report)",
    "Kafka stores a report of B (r0: nothing)",
    "Kafka stores a join of A",  # which only the first coordinator reads
    "coordinator 2 takes 1 events",  # all tasks look free to it; it grants none yet
    "coordinator 1 takes 4 events",
    "coordinator 1 publishes late",
    "A reads A: active 0_0 (r1)",  # A has not heard of coordinator 2
    "coordinator 2 takes 1 events",
    "B reads B: no tasks (r1)",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_law_breaks_in_any_state(name: str) -> None:
    """The states of a scenario are visited; a broken law prints the shortest story to it."""
    found = Exploration(SCENARIOS[name]).run(STATES)
    print(
        f"{name}: {found.states:,} states, {found.steps:,} steps, depth {found.depth}, "
        f"{'all' if found.complete else 'cut off'}, {found.seconds:.0f} s of one core"
    )
    assert not found.law, "\n".join((found.law, *found.story))
    assert found.complete or found.states >= STATES


def test_a_join_that_is_stored_after_the_session_extends_no_lease() -> None:
    """A member that was admitted late holds nothing that the group gives away next."""
    assert replayed(Scenario(TWO, 1, Budget(late=3)), LATE_JOIN) == ""


def test_a_member_that_a_superseded_coordinator_admits_is_the_only_owner() -> None:
    """The old coordinator gives a task to a member that the new one has not heard of."""
    scenario = Scenario(TWO, 1, Budget(usurp=1))
    assert replayed(scenario, STRANGER) == ""
