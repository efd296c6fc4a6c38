"""Numbering codes densely: counting and sorting give the same answer."""

from __future__ import annotations

import numpy as np
import pytest

from muster.assignor.solvers.transport import numbered


@pytest.mark.parametrize("spread", [1, 7, 1 << 40])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_codes_are_numbered_in_ascending_order(spread: int, count: int) -> None:
    """Small codes are counted, large ones sorted; either way as Python's own sets say."""
    codes = [n * n % 11 * spread for n in range(count)]
    some, which, size = numbered(np.array(codes, dtype=np.int64))
    distinct = sorted(set(codes))
    assert [codes[place] for place in some] == distinct
    assert [distinct[number] for number in which] == codes
    assert size.tolist() == [codes.count(code) for code in distinct]
