"""Every interleaving of the real code, in small groups."""

from __future__ import annotations

import pytest
from exploration.explore import Exploration
from exploration.scenarios import SHORT


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_no_law_breaks_in_any_state(name: str) -> None:
    """All states of a scenario are visited; a broken law prints the shortest story to it."""
    found = Exploration(SHORT[name]).run()
    print(f"{name}: {found.states:,} states, {found.steps:,} steps, depth {found.depth}")
    assert not found.law, "\n".join((found.law, *found.story))
    assert found.complete
    assert found.longest > 0
