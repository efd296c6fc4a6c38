"""The digest of a holding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.protocol import wire
from support.suite.examples import examples

from muster.protocol.digest import (
    MANY_UNITS,
    MASK,
    RELEASING,
    Holding,
    fnv1a64,
    fnv1a64_of,
    mixed,
    table_hashes,
)
from muster.protocol.ids import Role
from muster.protocol.tasks import Connector, TaskSet, TaskTable

quick = settings(max_examples=examples(60), deadline=None)


def test_fnv1a_as_published() -> None:
    """Three values of the reference implementation's test suite."""
    hashes = [fnv1a64(text) for text in ("", "a", "foobar")]
    assert hashes == [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8]


@quick
@given(st.lists(st.text(max_size=40), max_size=80))
def test_many_texts_hash_as_each_alone(texts: list[str]) -> None:
    """The hashes of a list are those of its texts, of any lengths, in the same order."""
    hashes = fnv1a64_of([text.encode() for text in texts])
    assert hashes.tolist() == [fnv1a64(text) for text in texts]


def test_a_table_of_many_units_gives_the_same_hashes() -> None:
    """Tables of many units are hashed in another way than small ones."""
    units = tuple(Connector(f"c{n}" * (n % 5 + 1), 2) for n in range(MANY_UNITS))
    table = TaskTable(units)
    every = np.arange(len(table), dtype=np.int32)
    total = int(np.add.reduce(mixed(table_hashes(table), Role.STANDBY)))
    assert total & MASK == Holding(standby=table.set_of(every)).digest()


@quick
@given(wire.holdings)
def test_what_a_digest_depends_on(holding: Holding) -> None:
    """It changes if any task is lost or being given up, and does not depend on readiness."""
    assert replace(holding, ready=TaskSet()).digest() == holding.digest()
    for task in list(holding.active)[:3]:
        one = TaskSet.of([task])
        changed = replace(holding, active=holding.active - one)
        toggled = replace(holding, releasing=(holding.releasing - one) | (one - holding.releasing))
        assert len({holding.digest(), changed.digest(), toggled.digest()}) == 3


@quick
@given(wire.unit_lists())
def test_a_table_gives_the_same_hashes(units: tuple) -> None:
    """The sum of hashes by task index is the digest that the member sends."""
    table = TaskTable(units)
    every = np.arange(len(table), dtype=np.int32)
    kept, going = every[::2], every[1::2]
    hashes = table_hashes(table)
    total = int(np.add.reduce(mixed(hashes[kept], Role.STANDBY)))
    total += int(np.add.reduce(mixed(hashes[going], Role.STANDBY + RELEASING)))
    holding = Holding(standby=table.set_of(every), releasing=table.set_of(going))
    assert total & MASK == holding.digest()
    assert len(holding) == len(table)
