"""Random lives of governed groups: whatever happens, no partition has two owners, and all settle.

``MUSTER_ADOPT_LIVES=1000`` plays more of each kind.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
from support.adopt.classic_group import Follower
from support.adopt.governed import GROUP, SETTINGS, GovernedWorld, GovernorProcess
from support.suite.examples import examples

from muster.adopt.model import AssignableUnits, Seat, State
from muster.protocol.events import GroupConfig
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology

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

    def __init__(self, seed: int | str) -> None:
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

    def deeds(self) -> list[Callable[[], None]]:
        """What may happen, the usual things more than once."""
        deeds = [self.joins] * 4 + [self.leaves] * 3 + [self.drains, self.grows]
        return [*deeds, self.coordinator, self.governor]

    def play(self) -> None:
        """Let things happen."""
        deeds = self.deeds()
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


class BusyLife(Life):
    """A life in which operators and brokers do more; it has two topics."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"busy/{seed}")
        self._found("audit", self._random.randint(1, 5))

    def deeds(self) -> list[Callable[[], None]]:
        """What may happen; the usual things are still half of it."""
        more = [self.returns] * 3 + [self.all_leave, self.topic_goes, self.topic_comes]
        more += [self.broker, self.moves, self.silence, self.blinds, self.rights]
        return [*super().deeds(), *more, self.configures, self.releases, self.restarts]

    @property
    def _newest(self) -> GovernorProcess:
        return self.world.governors[-1]

    def _found(self, topic: str, partitions: int) -> None:
        if partitions:
            self.world.topics[topic] = partitions
        else:
            self.world.topics.pop(topic, None)
        for governor in self.world.governors:
            if not self.world.blind:
                governor.post(AssignableUnits(self.world.units()))

    def grows(self) -> None:
        """A topic grows."""
        topic = self._random.choice(sorted(self.world.topics))
        self._found(topic, self.world.topics[topic] + self._random.randint(1, 4))

    def topic_goes(self) -> None:
        """A topic is deleted."""
        self._found("audit", 0)

    def topic_comes(self) -> None:
        """A topic is made, or made anew."""
        self._found("audit", self._random.randint(1, 8))

    def returns(self) -> None:
        """A static consumer starts again under its instance id."""
        static = {each.name: each for each in self.world.followers if each._instance}
        if not static:
            return
        before = static[self._random.choice(sorted(static))]
        if before.alive:
            before.kill()
            self.world.time.run(self._random.choice((0, 400, 5_000)))
        protocols = self._random.choice(self._protocols)
        self.world.follower(before.name, protocols=protocols, static=True)

    def all_leave(self) -> None:
        """All consumers leave or die; some come back later."""
        for each in self._live():
            each.kill() if self._random.random() < 0.5 else each.leave()
        self.world.time.run(self._random.choice((0, 700, 9_000)))
        for _ in range(self._random.randint(0, 3)):
            self.joins()

    def broker(self) -> None:
        """The broker that coordinates the group is away for a while."""
        self.world.group.restart(self._random.choice((300, 3_000, 9_000)))

    def moves(self) -> None:
        """Another broker coordinates the group from now on."""
        self.world.coordinator += 1

    def silence(self) -> None:
        """The governor's connection is dead, and neither side has learnt it."""
        self._newest.line.silent = True

    def blinds(self) -> None:
        """Kafka does not say which topics there are, or does again."""
        self.world.blind = not self.world.blind
        self._found("orders", self.world.topics["orders"])

    def rights(self) -> None:
        """The governor loses the right to write the configuration, or has it again."""
        self._newest.lacks_right = not self._newest.lacks_right

    def configures(self) -> None:
        """An operator changes settings, or writes tasks that Kafka does not have."""
        values = self._random.choice(({}, {"rebalance.timeout.ms": "20000"}))
        settings = parse_settings({**SETTINGS, **values}, "sticky")
        tasks = self._random.choice(((), self.world.units(), (Subtopology("orders", 1),)))
        config = GroupConfig(group=GROUP, assignor="sticky", settings=settings, tasks=tasks)
        self.world.log.write(config)

    def releases(self) -> None:
        """The group is handed back, and adopted again after a while."""
        self.world.release(self._newest)
        self.world.time.run(self._random.choice((0, 50, 2_000, 20_000)))
        self.world.adopt(self._name(), self._random.choice((Seat.TAKE, Seat.STAND_BY)))

    def restarts(self) -> None:
        """The governor dies and starts again under its name, within its session or after it.

        Members that it has just evicted learn that within three seconds.
        """
        self._newest.alive = False
        self.world.time.run(self._random.choice((3_100, 7_000)))
        self.world.adopt(self._newest.name)

    def settle(self) -> None:
        """End what only this life knows, then all else."""
        self.world.blind = False
        for governor in self.world.governors:
            governor.lacks_right = False
            governor.thaw()
        self.world.time.run(100)  # one that was released while it was frozen ends
        self._found("orders", self.world.topics["orders"])
        super().settle()


@pytest.mark.parametrize("seed", range(LIVES))
def test_a_busy_life(seed):
    """As `test_a_random_life`, while brokers, topics, rights and settings change."""
    life = BusyLife(seed)
    life.play()
    life.settle()


@pytest.mark.parametrize("seed", sorted({*range(LIVES), *KEPT}))
def test_a_random_life(seed):
    """Owners are checked at every assignment (`classic_group.Violation`)."""
    life = Life(seed)
    life.play()
    life.settle()
