"""Every interleaving of the real code, in small groups.

`MUSTER_EXPLORE_STATES` is the number of states at which a search stops. `make explore` is the long
search.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from exploration.explore import Exploration, replayed
from exploration.model import Budget, Scenario
from exploration.mutants import FENCED, break_rule
from exploration.reduction import Blocks
from exploration.scenarios import ONE, SCENARIOS, TWO
from exploration.stories import LATE_JOIN, READ_AGAIN, STRANGER
from exploration.values import digest
from exploration.walks import walks

STATES = int(os.environ.get("MUSTER_EXPLORE_STATES", "1000"))
WALKS = STATES // 100


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_law_breaks_in_any_state(name: str) -> None:
    """The states of a scenario are visited; a broken law prints the shortest story to it."""
    found = Exploration(SCENARIOS[name], Blocks).run(STATES)
    print(
        f"{name}: {found.states:,} states, {found.steps:,} steps, depth {found.depth}, "
        f"{'all' if found.complete else 'cut off'}, {found.seconds:.0f} s of one core"
    )
    assert not found.law, "\n".join((found.law, *found.story))
    assert found.complete or found.states >= STATES


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SCENARIOS if "apart" in n or "standby takes" in n])
def test_no_law_breaks_in_walks(name: str) -> None:
    """Random walks through clocks and takeovers, which a search to `STATES` hardly reaches."""
    for walk in walks(SCENARIOS[name], 0, WALKS):
        assert not walk.law, "\n".join((walk.law, *walk.story))


def test_a_join_that_is_stored_after_the_session_extends_no_lease() -> None:
    """A member that was admitted late holds nothing that the group gives away next."""
    assert replayed(Scenario(TWO, 1, Budget(late=3)), LATE_JOIN) == ""


def test_a_member_that_a_superseded_coordinator_admits_is_the_only_owner() -> None:
    """The old coordinator gives a task to a member that the new one has not heard of."""
    scenario = Scenario(TWO, 1, Budget(usurp=1))
    assert replayed(scenario, STRANGER) == ""


def test_a_join_that_is_read_again_frees_nothing_of_a_fenced_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fenced session never joins again under its number: such a join is older than the fence."""
    assert replayed(FENCED.scenario._replace(after=()), READ_AGAIN) == ""
    break_rule(FENCED, monkeypatch)
    assert "which the group gave away" in replayed(FENCED.scenario._replace(after=()), READ_AGAIN)


def test_a_search_goes_on_from_its_file(tmp_path: Path) -> None:
    """A search that was cut off, saved and read again visits the same states as one in one go."""
    scenario = Scenario(ONE, 1)
    whole = Exploration(scenario).run()
    part = Exploration(scenario)
    assert not part.run(15).complete
    part.save(tmp_path / "search")
    found = Exploration.resumed(tmp_path / "search").run()
    assert found.complete
    assert found._replace(seconds=0) == whole._replace(seconds=0)


def test_states_that_differ_in_a_small_negative_number_are_two() -> None:
    """Python's hash of -1 and -2 is the same, also within a tuple; the key of a state is not."""
    assert hash((-1,)) == hash((-2,))
    assert digest((-1,)) != digest((-2,))
