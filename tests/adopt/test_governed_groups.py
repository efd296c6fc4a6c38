"""Governed groups in simulated time: the real governor and `advance`, Kafka's rules, consumers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.adopt.classic_group import Follower
from support.adopt.governed import GROUP, SETTINGS, GovernedWorld, GovernorProcess

from muster.adopt.model import AssignableUnits, Seat, State
from muster.kafka.writer import Place
from muster.protocol.events import GroupConfig, Leave
from muster.protocol.settings import parse_settings

COOPERATIVE, EAGER = ("cooperative-sticky",), ("range",)
BOTH = pytest.mark.parametrize("protocols", [COOPERATIVE, EAGER], ids=["cooperative", "eager"])


def settled(world: GovernedWorld, span_ms: int = 20_000) -> None:
    """Let time pass; then each partition has one owner, records agree, and no round begins."""
    world.time.run(span_ms)
    assert world.all_owned(), world.shares()
    assert world.books_agree()
    before = world.group.generation
    world.time.run(30_000)
    assert world.group.generation == before, "the group rebalances without a cause"


def governed(
    protocols: tuple[str, ...] = COOPERATIVE, names: str = "ABC", partitions: int = 12
) -> tuple[GovernedWorld, GovernorProcess, dict[str, Follower]]:
    """A settled group: its world, its governor, and a consumer for each letter."""
    world = GovernedWorld({"orders": partitions})
    governor = world.adopt()
    followers = {name: world.follower(name, protocols=protocols) for name in names}
    settled(world)
    return world, governor, followers


def owned_by(followers: dict[str, Follower]) -> list[set[object]]:
    """What each consumer has now."""
    return [set(each.owned) for each in followers.values()]


@BOTH
def test_a_fresh_group(protocols):
    """The governor comes first; consumers join one by one; the coordinator decides every round."""
    world = GovernedWorld({"orders": 12})
    governor = world.adopt()
    world.time.run(5_000)
    for name in "ABC":
        world.follower(name, protocols=protocols)
        world.time.run(2_000)
    settled(world)
    assert sorted(world.shares().values()) == [4, 4, 4]
    assert all(played.by_coordinator for played in governor.rounds)


@BOTH
def test_a_running_group_is_taken_over(protocols):
    """The seat is taken, and no more moves than the new balance needs."""
    world = GovernedWorld({"orders": 12})
    followers = [world.follower(name, protocols=protocols) for name in "ABCD"]
    world.time.run(20_000)
    assert world.all_owned()
    governor = world.adopt()
    settled(world)
    assert governor.governor.state is State.LEADING
    assert sorted(world.shares().values()) == [3, 3, 3, 3]
    assert all(each.is_member for each in followers)


@BOTH
def test_joins_leaves_and_deaths(protocols):
    """Each ends in balance; a dead member's partitions move when Kafka's session has ended."""
    world, _, followers = governed(protocols)
    followers["A"].leave()
    settled(world)
    assert world.shares() == {"B": 6, "C": 6}
    followers["B"].kill()
    settled(world)
    assert world.shares() == {"C": 12}
    world.follower("D", protocols=protocols)
    settled(world)
    assert world.shares() == {"C": 6, "D": 6}


@BOTH
def test_a_drain_makes_a_round(protocols):
    """A drained consumer has nothing, stays in the group, and gets its share back later."""
    world, _, followers = governed(protocols)
    world.drain(followers["B"])
    settled(world)
    assert world.shares() == {"A": 6, "B": 0, "C": 6}
    assert followers["B"].is_member
    world.drain(followers["B"], on=False)
    settled(world)
    assert sorted(world.shares().values()) == [4, 4, 4]


def test_a_member_that_is_gone_leaves_once():
    """The log has one leave of it, not another as of a member that an earlier governor knew."""
    world, _, followers = governed()
    followers["A"].leave()
    settled(world)
    left = [event.member for event in world.log.events if isinstance(event, Leave)]
    assert len(left) == 1


@BOTH
def test_a_topic_that_weighs_more(protocols):
    """`--weight orders=4`: who has its one partition has no other."""
    world = GovernedWorld({"orders": 1, "audit": 4})
    world.weights = {"orders": 4}
    world.adopt()
    both = [world.follower(name, protocols=protocols) for name in "AB"]
    settled(world)
    assert sorted(world.shares().values()) == [1, 4]
    [alone] = [each for each in both if len(each.owned) == 1]
    assert {task.unit for task in alone.owned} == {"orders"}


@BOTH
@pytest.mark.parametrize(
    "change",
    [{"weights": (2.0,) * 4}, {"source_racks": ((("r1",),),) * 4}],
    ids=lambda each: min(each),
)
def test_tasks_change_and_no_partition_moves(protocols, change):
    """New weights or racks that move nothing make no member stop."""
    world, governor, followers = governed(protocols, "AB", 4)
    before, rounds = owned_by(followers), len(governor.rounds)
    [unit] = world.units()
    changed = replace(unit, **change)
    world.units = lambda: (changed,)
    governor.post(AssignableUnits(world.units()))
    world.time.run(30_000)
    assert world.log.snapshot.tasks == (changed,)
    assert (owned_by(followers), len(governor.rounds)) == (before, rounds)


def test_only_moved_partitions_stop():
    """A fourth cooperative consumer takes one partition from each of three; nothing else moves."""
    world, _, followers = governed()
    before = {each.name: (set(each.owned), each.moved) for each in followers.values()}
    world.follower("D")
    settled(world)
    for each in followers.values():
        owned, moved = before[each.name]
        assert each.owned < owned
        assert len(owned - each.owned) == 1
        assert each.moved == moved


@BOTH
def test_the_coordinator_is_away(protocols):
    """Groups never wait for it: the governor decides, and the log agrees when it is back."""
    world, governor, followers = governed(protocols)
    world.log.runs = False
    rounds = len(governor.rounds)
    world.follower("D", protocols=protocols)
    world.time.run(20_000)
    assert world.all_owned()
    assert sorted(world.shares().values()) == [3, 3, 3, 3]
    assert not any(played.by_coordinator for played in governor.rounds[rounds : rounds + 1])
    assert governor.rounds[rounds].decided_ms <= 1_100
    followers["A"].kill()
    world.grow("orders", 15)
    world.time.run(20_000)
    assert world.all_owned()
    before = {each.name: set(each.owned) for each in world.followers if each.alive}
    world.log.runs = True
    settled(world, 60_000)
    now = {each.name: set(each.owned) for each in world.followers if each.alive}
    assert sorted(map(len, now.values())) == [5, 5, 5]
    assert now == before, "what was decided here stands"


@BOTH
def test_few_move_while_the_coordinator_is_away(protocols):
    """The governor's own decision moves as little as the coordinator's would."""
    world, _, followers = governed(protocols)
    before = owned_by(followers)
    world.log.runs = False
    world.follower("D", protocols=protocols)
    world.time.run(20_000)
    assert sorted(world.shares().values()) == [3, 3, 3, 3]
    assert all(new < old for old, new in zip(before, owned_by(followers), strict=True))


@BOTH
def test_partitions_are_added(protocols):
    """New partitions are owned a round later; who has the others keeps them."""
    world, _, followers = governed(protocols, "AB", 6)
    before = owned_by(followers)
    world.grow("orders", 10)
    settled(world)
    now = owned_by(followers)
    assert [len(owned) for owned in now] == [5, 5]
    assert all(old < new for old, new in zip(before, now, strict=True))


@BOTH
@pytest.mark.parametrize("span_ms", [300, 4_000, 60_000])
def test_the_configuration_is_not_written(protocols, span_ms, caplog):
    """Members keep their shares, and the governor gives out what is new; the log agrees later."""
    world, governor, followers = governed(protocols, "AB", 6)
    before, tries = owned_by(followers), len(governor.written)
    governor.lacks_right = True
    world.grow("orders", 8)
    for _ in range(span_ms // 100):
        world.time.run(100)
        kept = [old <= new for old, new in zip(before, owned_by(followers), strict=True)]
        assert all(kept) or protocols == EAGER, "an eager member has nothing within a rebalance"
    tried = len(governor.written) - tries
    assert 1 + span_ms // 6_000 <= tried <= 1 + span_ms // 5_000, "it pauses between writes"
    governor.lacks_right = False
    settled(world)
    now = owned_by(followers)
    assert [len(owned) for owned in now] == [4, 4]
    assert all(old < new for old, new in zip(before, now, strict=True))
    assert len(governor.rounds) == 3, "none for two members, two of them, the topic's growth"
    assert caplog.text.count("is not written: no right; the governor decides by it") == 1


@BOTH
def test_a_member_joins_while_the_configuration_is_not_written(protocols):
    """What the governor decides by it stands when it is written: no round follows."""
    world, governor, followers = governed(protocols, "AB", 6)
    governor.lacks_right = True
    world.grow("orders", 9)
    world.time.run(20_000)
    followers["C"] = world.follower("C", protocols=protocols)
    world.time.run(20_000)
    assert sorted(world.shares().values()) == [3, 3, 3]
    before, rounds = owned_by(followers), len(governor.rounds)
    governor.lacks_right = False
    settled(world)
    assert (owned_by(followers), len(governor.rounds)) == (before, rounds)


def test_settings_of_an_operator_meanwhile():
    """A configuration that is written at last has the settings that were changed since."""
    world, governor, _ = governed(names="AB", partitions=6)
    governor.lacks_right = True
    world.grow("orders", 8)
    world.time.run(3_000)
    settings = parse_settings({**SETTINGS, "session.timeout.ms": "46000"}, "sticky")
    tasks = governor.written[0].tasks
    world.log.write(GroupConfig(group=GROUP, assignor="sticky", settings=settings, tasks=tasks))
    world.time.run(3_000)
    governor.lacks_right = False
    settled(world)
    assert world.log.snapshot is not None
    assert world.log.snapshot.settings == settings
    assert sorted(world.shares().values()) == [4, 4]


@BOTH
def test_tasks_of_an_operator_meanwhile(protocols):
    """Tasks of a governed group are what Kafka has: another list is replaced, the settings stay."""
    world, governor, _ = governed(protocols, "AB", 6)
    tasks, tries = world.log.snapshot.tasks, len(governor.written)
    settings = parse_settings({**SETTINGS, "session.timeout.ms": "46000"}, "sticky")
    fewer = (replace(tasks[0], partitions=2),)
    for _ in range(2):
        world.log.write(GroupConfig(group=GROUP, assignor="sticky", settings=settings, tasks=fewer))
        settled(world)
        assert world.log.snapshot.tasks == tasks
        assert world.log.snapshot.settings == settings
    assert sorted(world.shares().values()) == [3, 3]
    assert len(governor.written) == tries + 2


def looks_without_orders(world: GovernedWorld) -> AssignableUnits:
    """What a look at metadata finds that lacks one topic of two."""
    return AssignableUnits(tuple(unit for unit in world.units() if unit.name != "orders"))


@BOTH
def test_one_look_lacks_a_topic(protocols):
    """No member loses a partition of it: the broker that was asked had not caught up."""
    world = GovernedWorld({"orders": 6, "audit": 6})
    governor = world.adopt()
    followers = {name: world.follower(name, protocols=protocols) for name in "AB"}
    settled(world)
    before, rounds = owned_by(followers), len(governor.rounds)
    governor.post(looks_without_orders(world))
    world.time.after(2_000, lambda: governor.post(AssignableUnits(world.units())))
    for _ in range(900):
        world.time.run(100)
        assert owned_by(followers) == before
    assert len(governor.rounds) == rounds
    governor.post(looks_without_orders(world))
    world.time.run(59_000)
    assert owned_by(followers) == before, "the time begins again with each loss"


@BOTH
def test_a_topic_is_deleted(protocols):
    """After the grace time its partitions are taken, in one generation; the others stay."""
    world = GovernedWorld({"orders": 6, "audit": 6})
    governor = world.adopt()
    followers = {name: world.follower(name, protocols=protocols) for name in "AB"}
    settled(world)
    before = owned_by(followers)
    governor.post(looks_without_orders(world))
    world.time.run(59_000)
    assert owned_by(followers) == before
    del world.topics["orders"]
    settled(world)
    assert world.shares() == {"A": 3, "B": 3}


def test_the_first_look_of_a_governor_lacks_a_topic():
    """It takes over a group whose configuration has the topic: members keep its partitions."""
    world = GovernedWorld({"orders": 6, "audit": 6})
    first = world.adopt()
    followers = {name: world.follower(name) for name in "AB"}
    settled(world)
    before = owned_by(followers)
    world.config, world.configured = first.written[-1], Place("muster.config", 0, 0)
    first.alive, world.blind = False, True
    second = world.adopt()
    second.post(looks_without_orders(world))
    world.time.run(30_000)
    assert second.governor.state is State.LEADING
    assert owned_by(followers) == before
    second.post(AssignableUnits(world.units()))
    settled(world)
    assert owned_by(followers) == before


@BOTH
def test_topics_are_not_described_after_a_night_without_members(protocols):
    """The members that come back get the partitions that are known, and keep them."""
    world, governor, followers = governed(protocols)
    for each in followers.values():
        each.leave()
    world.time.run(60_000)
    assert governor.governor.state is State.LEADING
    world.blind = True
    for name in "DEF":
        world.follower(name, protocols=protocols)
    settled(world, 120_000)
    assert sorted(world.shares().values()) == [4, 4, 4]


@BOTH
def test_the_group_is_handed_back(protocols):
    """After a release the consumers assign by themselves, and muster's group is empty."""
    world, governor, followers = governed(protocols)
    world.release(governor)
    world.time.run(20_000)
    assert governor.governor.state is State.ENDED
    assert world.all_owned()
    assert all(each.is_member for each in followers.values())
    assert world.log.snapshot is not None
    assert world.log.snapshot.members == ()


@pytest.mark.parametrize("span_ms", [0, 2, 4, 7, 20])
def test_handed_back_while_it_joins(span_ms):
    """A governor that is stopped before Kafka has answered its first request is no member.

    Kafka answers a JoinGroup when all members have joined, and knows the new member until then. A
    governor that only closed its connection would keep the others waiting for a session timeout.
    """
    world = GovernedWorld({"orders": 12})
    followers = [world.follower(name, protocols=EAGER, beat_ms=3_000) for name in "AB"]
    world.time.run(20_000)
    governor = world.adopt()
    world.time.run(span_ms)
    world.release(governor)
    world.time.run(1_000)
    assert governor.governor.state is State.ENDED
    assert len(world.group.members) == len(followers)
    world.time.run(5_000)
    assert world.all_owned()


@BOTH
@pytest.mark.parametrize("state", [State.LEADING, State.JOINING])
def test_an_operator_removes_the_governor(protocols, state):
    """It ends, also in the midst of a rebalance, and the consumers assign by themselves."""
    world, governor, _ = governed(protocols)
    if state is State.JOINING:
        world.follower("D", protocols=protocols)
    while governor.governor.state is not state:
        world.time.run(10)
    [governor_id] = [m.id for m in world.group.members.values() if m.instance_id == governor.name]
    world.group.remove(governor_id)
    world.time.run(20_000)
    assert governor.governor.state is State.ENDED
    assert world.all_owned()
    assert world.log.snapshot is not None
    assert world.log.snapshot.members == ()


@BOTH
def test_the_governor_dies_and_its_stand_by_governs(protocols):
    """Its stand-by takes the seat when Kafka's session has ended; muster's group lives on."""
    world, first, _ = governed(protocols)
    second = world.adopt("muster-governor-2", Seat.STAND_BY)
    world.time.run(10_000)
    assert second.governor.state is State.WATCHING
    first.alive = False
    settled(world, 40_000)
    assert second.governor.state is State.LEADING
    assert sorted(world.shares().values()) == [4, 4, 4]


@BOTH
def test_the_governor_is_frozen(protocols):
    """The group goes on without it; when it wakes up it takes the seat again."""
    world, governor, _ = governed(protocols)
    governor.frozen = True
    world.follower("D", protocols=protocols)
    world.time.run(20_000)
    assert world.all_owned(), "Kafka's members assign by themselves"
    governor.thaw()
    settled(world, 60_000)
    assert governor.governor.state is State.LEADING


@BOTH
def test_a_frozen_governor_wakes_up_behind_its_stand_by(protocols):
    """The one that governs goes on; the other stands by, and no member notices."""
    world, first, _ = governed(protocols)
    second = world.adopt("muster-governor-2", Seat.STAND_BY)
    first.frozen = True
    world.follower("D", protocols=protocols)
    settled(world, 40_000)
    generation = world.group.generation
    first.thaw()
    settled(world)
    assert world.group.generation == generation
    states = first.governor.state, second.governor.state
    assert states == (State.WATCHING, State.LEADING)
    second.alive = False
    settled(world, 40_000)
    assert first.governor.state is State.LEADING


@BOTH
def test_a_governor_that_another_one_removes_stands_by(protocols):
    """Of two that take the seat the one whose instance id comes first keeps it."""
    world = GovernedWorld({"orders": 12})
    second = world.adopt("muster-governor-2")
    for name in "ABC":
        world.follower(name, protocols=protocols)
    settled(world)
    first = world.adopt("muster-governor-1")
    settled(world, 40_000)
    states = first.governor.state, second.governor.state
    assert states == (State.LEADING, State.WATCHING)
    first.alive = False
    settled(world, 40_000)
    assert second.governor.state is State.LEADING


@BOTH
@pytest.mark.parametrize("span_ms", [2_000, 5_000, 9_000, 30_000])
def test_the_broker_restarts(protocols, span_ms):
    """Governor and members find it again; the group is governed as before."""
    world, governor, _ = governed(protocols, "AB")
    world.group.restart(span_ms)
    world.time.run(span_ms // 2)
    world.follower("C", protocols=protocols)
    settled(world, 60_000)
    assert governor.governor.state is State.LEADING
    assert sorted(world.shares().values()) == [4, 4, 4]


def test_a_governor_restarts_within_its_session():
    """A static member that comes back leads again without letting anybody leave."""
    world, first, followers = governed()
    before = owned_by(followers)
    first.alive = False
    second = world.adopt()
    settled(world)
    assert second.governor.state is State.LEADING
    assert owned_by(followers) == before


def test_a_governor_that_does_not_see_the_topics_yet():
    """What runs goes on until it sees them."""
    world, first, followers = governed()
    before = owned_by(followers)
    first.alive, world.log.runs, world.blind = False, False, True
    second = world.adopt()
    world.follower("D")
    world.time.run(20_000)
    assert owned_by(followers) == before
    generation = world.group.generation
    world.time.run(20_000)
    assert world.group.generation == generation, "it waits without rounds"
    world.grow("orders", 16)
    world.time.run(20_000)
    assert sorted(world.shares().values()) == [4, 4, 4, 4]
    world.log.runs, world.blind = True, False
    settled(world, 40_000)
    assert second.governor.state is State.LEADING


def test_members_without_a_common_protocol():
    """The governor ends and says which names it knows; the group does not notice."""
    world = GovernedWorld({"orders": 12})
    followers = [world.follower(name, protocols=("own",)) for name in "AB"]
    world.time.run(20_000)
    generation = world.group.generation
    governor = world.adopt()
    world.time.run(5_000)
    failure = str(governor.governor.failure)
    assert "no protocol in common with" in failure
    assert "--protocol NAME adds" in failure
    assert len(failure.splitlines()) == 1
    assert (world.group.generation, world.log.snapshot.members) == (generation, ())
    assert all(each.is_member for each in followers)


@BOTH
def test_a_member_of_the_consumer_protocol_joins(protocols):
    """Kafka converts the group and no member leads: the governor ends, says why, asks no more."""
    world, governor, followers = governed(protocols)
    world.group.convert()
    world.time.run(10_000)
    assert governor.governor.state is State.ENDED
    assert "group.protocol=consumer has joined it" in str(governor.governor.failure)
    assert world.log.snapshot.members == ()
    assert all(each.is_member for each in followers.values())


def test_wait_takes_the_seat_when_it_is_free():
    """With `--wait` no member is asked to leave."""
    world = GovernedWorld({"orders": 6})
    first = world.follower("A")
    world.time.run(10_000)
    governor = world.adopt(seat=Seat.WAIT)
    world.time.run(10_000)
    assert governor.governor.state is State.FOLLOWING
    assert world.shares() == {"A": 6}
    first.kill()
    world.time.run(20_000)
    assert governor.governor.state is State.LEADING
    world.follower("B")
    settled(world)
    assert world.shares() == {"B": 6}


def test_rolling_from_eager_to_cooperative():
    """Kafka's two bounces: first both names in a list, then the cooperative one alone."""
    world, _, old = governed(EAGER)
    between = []
    for each in old.values():
        each.leave()
        between.append(world.follower(f"{each.name}2", protocols=(*COOPERATIVE, *EAGER)))
        settled(world)
    for each in between:
        each.leave()
        world.follower(f"{each.name}3", protocols=COOPERATIVE)
        settled(world)
    assert world.group.protocol == "cooperative-sticky"
    assert sorted(world.shares().values()) == [4, 4, 4]
