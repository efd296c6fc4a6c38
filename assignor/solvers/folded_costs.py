"""Several figures of a placement, in order of weight, folded into one cost for the flow solver.

Figures that no longer fit into the number are left out, the least important ones first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from muster.assignor.solvers.flow import Longs
from muster.assignor.solvers.spread import Spread

_MAX_COST = 1 << 42
"""The solver multiplies costs by the number of nodes; beyond this it would overflow."""


def folded(figures: Iterable[Longs]) -> Longs:
    """Fold figures into one cost: a lower earlier figure outweighs any difference in later ones.

    Args:
        figures: int64[T, M] each, at least 0, most important first. Figures that no longer fit
            into the number are left out.
    """
    cost: Longs | None = None
    for figure in figures:
        if cost is None:
            cost = figure.astype(np.int64)
            continue
        base = int(figure.max(axis=1).sum()) + 1
        if (int(cost.max(axis=1, initial=0).sum()) + 1) * base > _MAX_COST:
            break
        cost = cost * base + figure
    assert cost is not None
    return cost


class Table(NamedTuple):
    """What a flow minimises.

    Attributes:
        price: int64[K, M], of each choice; below 0 = forbidden.
        spread: how units are spread; None = steps have no prices.
        step: factor of the steps' prices.
        upper_bound: a number above the cost of any placement.
    """

    price: Longs
    spread: Spread | None
    step: int
    upper_bound: int

    @classmethod
    def of(
        cls, cost: Longs, tie: Longs, spread: Spread | None, last: Longs | None, need: int
    ) -> Table:
        """Fold figures in order of weight; those that no longer fit are left out."""
        folded_price, step = folded([np.maximum(cost, 0), tie]), 0
        if spread is not None:
            base = spread.range * len(cost) * need + 1
            if highest(folded_price, need) * base <= _MAX_COST:
                folded_price, step = folded_price * base, 1
            elif spread.window is None:
                spread = None
        if last is not None:
            base = highest(last, need)
            if (highest(folded_price, need) + step * len(cost) * need) * base <= _MAX_COST:
                folded_price, step = folded_price * base + last, step * base
        return cls(np.where(cost < 0, -1, folded_price), spread, step, highest(cost, need))


def highest(price: Longs, need: int) -> int:
    """A number above the cost of any placement."""
    return int(np.maximum(price, 0).max(axis=1, initial=0).sum()) * need + 1
