"""Random lives of governed groups: whatever happens, no partition has two owners, and all settle.

``MUSTER_ADOPT_LIVES=1000`` plays more of them.
"""

from __future__ import annotations

import os
import random

import pytest
from support.adopt.classic_group import Follower
from support.adopt.governed import GovernedWorld
from support.suite.examples import examples

from muster.adopt.model import Seat, State

LIVES = int(os.environ.get("MUSTER_ADOPT_LIVES", examples(27)))
KEPT = (987,)
"""Lives that found a fault, since mended: a governor behind another one still spoke for members."""
EVENTS = 14
PROTOCOLS = {
    "cooperative": (("cooperative-sticky",),),
    "eager": (("range",),),
    "mixed": (("cooperative-sticky", "range"), ("cooperative-sticky",)),
}


class Life:
    """One life: `play` it, then `settle` it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._protocols = PROTOCOLS[self._random.choice(sorted(PROTOCOLS))]
        self.world = GovernedWorld({"orders": self._random.randint(1, 14)})
        self._number = 0
        for _ in range(self._random.randint(0, 3)):
            self.joins()
        self.world.time.run(self._random.randint(0, 20_000))
        self.world.adopt(self._name())

    def _name(self) -> str:
        self._number += 1
        return f"muster-governor-{self._number}"

    def _live(self) -> list[Follower]:
        return [each for each in self.world.followers if each.alive]

    def joins(self) -> None:
        """A consumer joins."""
        self._number += 1
        self.world.follower(
            f"W{self._number}",
            protocols=self._random.choice(self._protocols),
            static=self._random.random() < 0.3,
            beat_ms=self._random.choice((500, 1_000, 3_000)),
        )

    def leaves(self) -> None:
        """A consumer leaves, or dies."""
        if there := self._live():
            each = self._random.choice(there)
            each.kill() if self._random.random() < 0.5 else each.leave()

    def drains(self) -> None:
        """An operator drains a consumer, or undoes it."""
        if there := [each for each in self._live() if each._id]:
            self.world.drain(self._random.choice(there), on=self._random.random() < 0.6)

    def grows(self) -> None:
        """A topic grows."""
        self.world.grow("orders", self.world.topics["orders"] + self._random.randint(1, 4))

    def coordinator(self) -> None:
        """Muster's coordinator is lost, or comes back."""
        self.world.log.runs = not self.world.log.runs

    def governor(self) -> None:
        """The governor is killed, frozen, woken up, or replaced."""
        newest = self.world.governors[-1]
        match self._random.choice(("kill", "freeze", "thaw", "stand by")):
            case "kill":
                newest.alive = False
            case "freeze":
                newest.frozen = True
            case "thaw":
                newest.thaw()
            case "stand by":
                self.world.adopt(self._name(), Seat.STAND_BY)

    def play(self) -> None:
        """Let things happen."""
        deeds = [self.joins] * 4 + [self.leaves] * 3 + [self.drains, self.grows]
        deeds += [self.coordinator, self.governor]
        for _ in range(EVENTS):
            self._random.choice(deeds)()
            self.world.time.run(self._random.choice((0, 50, 700, 3_000, 12_000)))

    def settle(self) -> None:
        """End all faults; then each partition has one owner, records agree, and no round begins."""
        world = self.world
        world.log.runs = True
        for governor in world.governors:
            governor.frozen = False
            governor.thaw()
        if not self._live():
            self.joins()
        if not any(s.alive and s.governor.state is not State.ENDED for s in world.governors):
            world.adopt(self._name(), Seat.STAND_BY)
        world.time.run(200_000)
        for each in self._live():  # a group whose members are all drained owns nothing
            world.drain(each, on=False)
        world.time.run(60_000)
        assert world.all_owned(), world.shares()
        assert world.books_agree()
        leads = [s for s in world.governors if s.alive and s.governor.state is State.LEADING]
        assert len(leads) == 1
        loads = [len(each.owned) for each in self._live()]
        assert max(loads) - min(loads) <= 1
        before = world.group.generation
        world.time.run(60_000)
        assert world.group.generation == before, "the group rebalances without a cause"


@pytest.mark.parametrize("seed", sorted({*range(LIVES), *KEPT}))
def test_a_random_life(seed):
    """Owners are checked at every assignment (`classic_group.Violation`)."""
    life = Life(seed)
    life.play()
    life.settle()
