"""Sets of (task, member) pairs: sorted, distinct, whatever order they are made from."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.suite.examples import examples

from muster.assignor.model import Pairs
from muster.assignor.targets.standby_request import joined

SOME = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


def _pairs(rows: list[tuple[int, int]]) -> Pairs:
    array = np.array(rows, dtype=np.int32).reshape(len(rows), 2)
    return Pairs.of(array[:, 0], array[:, 1])


def _rows(pairs: Pairs) -> list[tuple[int, int]]:
    return list(zip(pairs.task.tolist(), pairs.member.tolist(), strict=True))


@settings(max_examples=examples(200), deadline=None)
@given(SOME, SOME)
def test_pairs_are_a_sorted_set(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """Made from any rows, and joined: what Python's own sets say."""
    assert _rows(_pairs(one)) == sorted(set(one))
    assert _rows(joined(_pairs(one), _pairs(other))) == sorted(set(one) | set(other))
