"""The exploration can fail: rules of the coordinator and of members, broken, are found."""

from __future__ import annotations

import pytest
from exploration.explore import Exploration
from exploration.mutants import MUTANTS, Mutant, break_rule
from exploration.mutants_apart import APART
from exploration.mutants_failover import FAILOVER
from exploration.reduction import Blocks
from exploration.walks import walks
from support.suite.broken_rules import broken_source

RULES = (*MUTANTS, *APART, *FAILOVER)


def test_each_rule_is_where_the_tables_say() -> None:
    """A rule that moved within the source is seen here, before the long search breaks it."""
    for mutant in RULES:
        broken_source(mutant.function, mutant.old, mutant.new)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", RULES, ids=lambda mutant: mutant.rule)
def test_a_broken_rule_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of a small scenario, or walks through it, end at a law that the rule keeps."""
    break_rule(mutant, monkeypatch)
    if mutant.walks:
        walked = [*walks(mutant.scenario, 0, mutant.walks)]
        law, tried = walked[-1].law, f"{len(walked):,} walks"
    else:
        found = Exploration(mutant.scenario, Blocks).run(mutant.states)
        law, tried = found.law, f"{found.states:,} states"
    print(f"{tried}: {law}")
    assert law, f"{tried}, and all laws hold: {mutant.rule}"
