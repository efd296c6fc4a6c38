"""The search in blocks finds what the search of single steps finds."""

from __future__ import annotations

import pytest
from exploration.explore import Exploration
from exploration.model import Budget, Scenario
from exploration.reduction import Blocks
from exploration.scenarios import ONE, SCENARIOS
from exploration.world import PASSES, System

CRASH = "1 × 1, it dies"
SMALL = {CRASH: Scenario(ONE, 1, Budget(crash=1))}
LARGE = {
    name: SCENARIOS[name]
    for name in (
        "1 × 1, it dies and starts again",
        "2 × 1, all goes well",
        "2 × 1, one dies",
        "2 × 1, an event not stored",
        "2 × 1, a plug-in",
        "2 × 2 with standbys",
    )
}


def later(scenario: Scenario, kind: type[System]) -> tuple[set[tuple[bytes, str | None]], int]:
    """The states right after time has passed, with why each has not settled; and all states."""
    search = Exploration(scenario, kind)
    system, found = search.system, set[tuple[bytes, str | None]]()
    steps = system.steps

    def watched(world):  # type: ignore[no-untyped-def]
        given = steps(world)
        for what, then in given:
            if PASSES in what and not isinstance(then, str):
                found.add((system.key(then), system.unsettled(then)))
        return given

    system.steps = watched  # type: ignore[method-assign]
    result = search.run()
    assert result.complete
    assert not result.law
    return found, result.states


@pytest.mark.parametrize(
    "name", [CRASH, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]
)
def test_blocks_and_single_steps_reach_the_same(name: str) -> None:
    """Whenever time has passed the states are the same ones; blocks visit fewer in between."""
    scenario = {**SMALL, **LARGE}[name]
    single, all_states = later(scenario, System)
    blocks, fewer = later(scenario, Blocks)
    assert blocks == single
    assert fewer < all_states
