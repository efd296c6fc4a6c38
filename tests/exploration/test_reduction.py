"""What searches leave out, they leave out rightly: they reach what an exact search reaches."""

from __future__ import annotations

import pytest
from exploration.coordinator import Batch
from exploration.exact import Exact, moved
from exploration.explore import Exploration
from exploration.model import Budget, Scenario
from exploration.reduction import Blocks
from exploration.scenarios import FRESH_MS, ONE, SCENARIOS
from exploration.steps import PASSES, System
from exploration.values import Values

from muster.protocol.records import GroupSnapshot

CRASH, LOSS = "1 × 1, it dies", "1 × 1, the checkpoint is lost"
CLAIM = "1 × 1, a second coordinator"
SMALL = {
    CRASH: Scenario(ONE, 1, Budget(crash=1)),
    LOSS: Scenario(ONE, 1, Budget(lose=1), rebuild_ms=FRESH_MS),
    CLAIM: Scenario(ONE, 1, Budget(usurp=1), rebuild_ms=FRESH_MS),
}
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


def later(
    scenario: Scenario, kind: type[System], target: Blocks
) -> tuple[set[tuple[bytes, str | None]], int]:
    """The states right after time has passed, with why each has not settled; and all states.

    `target` gives the keys, so that they can be compared with those of another search.
    """
    search = Exploration(scenario, kind)
    system, found = search.system, set[tuple[bytes, str | None]]()
    steps = system.steps

    def watched(state):  # type: ignore[no-untyped-def]
        given = steps(state)
        for what, then in given:
            if PASSES in what and not isinstance(then, str):
                same = target.without_silent(moved(then, system, target))
                found.add((target.key(same), target.unsettled(same)))
        return given

    system.steps = watched  # type: ignore[method-assign]
    result = search.run()
    assert result.complete
    assert not result.law
    return found, result.states


@pytest.mark.parametrize(
    "name",
    [CRASH, *(pytest.param(name, marks=pytest.mark.slow) for name in (LOSS, CLAIM, *LARGE))],
)
def test_blocks_reach_what_the_exact_search_reaches(name: str) -> None:
    """Whenever time has passed the states are the same ones; blocks visit fewer in between."""
    scenario = {**SMALL, **LARGE}[name]
    target = Blocks(scenario)
    exact, all_states = later(scenario, Exact, target)
    blocks, fewer = later(scenario, Blocks, target)
    print(f"{name}: {all_states:,} states, {fewer:,} in blocks, {len(blocks):,} after time")
    assert blocks == exact
    assert fewer < all_states


@pytest.mark.parametrize(
    "name",
    [
        "2 × 1, all goes well",
        *(pytest.param(name, marks=pytest.mark.slow) for name in (LOSS, "2 × 1, one dies")),
    ],
)
def test_a_batch_does_the_same_without_its_silent_event(name: str) -> None:
    """A batch that begins with a silent event: the event first, and then the others."""
    scenario = {**SMALL, **LARGE}[name]
    search = Exploration(scenario, Exact)
    search.run()
    coordinators, values, seen = search.system.coordinators, search.system.values, 0
    for group, events, epoch, obeys in [*coordinators.taken]:
        after = coordinators.silent(group, events[0], epoch, 0) if obeys else None
        if after is None or len(events) == 1:
            continue
        seen += 1
        whole = coordinators.batch(group, events, epoch, 0)
        rest = coordinators.batch(after, events[1:], epoch, 0)
        assert _alike(values, _read(values, whole), _read(values, rest))
    assert seen > 10


def _read(values: Values, batch: Batch) -> tuple[int, ...]:
    """The group after a batch, and its records without snapshots, which no step reads here."""
    records = (n for n in batch.records if not isinstance(values[n], GroupSnapshot))
    return (batch.group, *records)


def _alike(values: Values, ones: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether values are equal, but for counts of records, and those have the same order."""
    if [values.relative(n, 0) for n in ones] != [values.relative(n, 0) for n in others]:
        return False
    pairs = [
        pair
        for one, other in zip(ones, others, strict=True)
        for pair in zip(values.counts(one), values.counts(other), strict=True)
    ]
    first, second = ([abs(n) for n in side] for side in zip(*pairs, strict=True))
    return _order(first) == _order(second)


def _order(counts: list[int]) -> list[int]:
    return [sorted(set(counts)).index(n) for n in counts]
