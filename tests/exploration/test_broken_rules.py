"""The exploration can fail: rules of the coordinator and of members, broken, are found."""

from __future__ import annotations

import pytest
from exploration.explore import Exploration
from exploration.mutants import MUTANTS, Mutant, break_rule


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_broken_rule_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of a small scenario ends at a law that the broken rule breaks."""
    break_rule(mutant, monkeypatch)
    found = Exploration(mutant.scenario).run(mutant.states)
    print(f"{found.states:,} states: {found.law}")
    assert found.law, f"{found.states:,} states, and all laws hold: {mutant.rule}"
