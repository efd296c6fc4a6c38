"""What discovery writes, given what Kafka has: grace, topics made again, weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from muster.discovery.measured_weights import smoothed
from muster.discovery.topic_changes import Look, Memory, find
from muster.discovery.topics import Topic
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Subtopology

GRACE_MS = 60_000
SHOP = Source(pattern="shop[.].*")
RACKS = ("r1", "r2")


def topic(name: str, partitions: int, topic_id: str = "id") -> Topic:
    """A topic whose partitions lead in turns in both racks."""
    return Topic(
        name,
        f"{name}-{topic_id}",
        tuple(RACKS for _ in range(partitions)),
        tuple(RACKS[number % 2] for number in range(partitions)),
    )


def look(*topics: Topic, at_ms: int = 0, loads: dict | None = None) -> Look:
    """A look at these topics."""
    return Look({each.name: each for each in topics}, loads, at_ms)


def discovered(
    source: Source, before: Found | None, seen: Look, memory: Memory | None = None
) -> Found:
    """What is found; nothing is wrong."""
    each, faults = find(source, before, seen, memory or Memory(), GRACE_MS)
    assert faults == []
    return each


def test_topics_of_a_pattern():
    """Each topic is a unit, with its racks; ids tell topics of one name apart."""
    each = discovered(SHOP, None, look(topic("shop.b", 2), topic("shop.a", 1)))
    assert each.units == (
        Subtopology("shop.a", 1, source_racks=((RACKS,),)),
        Subtopology("shop.b", 2, source_racks=((RACKS,), (RACKS,))),
    )
    assert each.ids == (("shop.a", "shop.a-id"), ("shop.b", "shop.b-id"))


def test_leader_racks():
    """With racks: leader, only the leader's rack is near."""
    source = Source(topics=("shop.a",), racks="leader")
    each = discovered(source, None, look(topic("shop.a", 2)))
    assert each.units[0].source_racks == ((("r1",),), (("r2",),))


def test_unknown_racks():
    """If a replica's rack is not known, nothing is said of racks."""
    bare = replace(topic("shop.a", 1), replica_racks=((),))
    assert discovered(SHOP, None, look(bare)).units[0].source_racks is None


def test_a_broker_is_away():
    """Its rack counts on, so that a rolling restart of Kafka makes no generation of any group."""
    before = discovered(SHOP, None, look(topic("shop.a", 2)))
    restarts = replace(topic("shop.a", 2), replica_racks=(("r2",), ("r2",)), away=frozenset({0, 1}))
    assert discovered(SHOP, before, look(restarts)) == before
    alone = replace(restarts, replica_racks=((), ("r2",)))
    assert discovered(SHOP, before, look(alone)) == before
    moved = replace(restarts, replica_racks=(("r3",), ("r2",)))
    assert discovered(SHOP, before, look(moved)).units[0].source_racks == (
        (("r3",),),
        (RACKS,),
    )
    grown = replace(topic("shop.a", 3), replica_racks=(("r2",),) * 3, away=frozenset({0, 1, 2}))
    assert discovered(SHOP, before, look(grown)).units[0].source_racks == (
        (RACKS,),
        (RACKS,),
        (("r2",),),
    )
    without = replace(restarts, away=frozenset())
    assert discovered(SHOP, before, look(without)) != before, "its replicas were moved away"


def test_grace():
    """A topic that vanishes stays for the grace time, also for a process that starts meanwhile."""
    memory = Memory()
    before = discovered(SHOP, None, look(topic("shop.a", 1), topic("shop.b", 2)))
    only = topic("shop.a", 1)
    assert discovered(SHOP, before, look(only, at_ms=5_000), memory) == before
    assert discovered(SHOP, before, look(only, at_ms=64_999), memory) == before
    after = discovered(SHOP, before, look(only, at_ms=65_000), memory)
    assert [unit.name for unit in after.units] == ["shop.a"]
    assert discovered(SHOP, before, look(only, at_ms=65_000), Memory()) == before


def test_grace_begins_anew():
    """A topic that comes back within its grace time has all of it the next time."""
    memory = Memory()
    both = (topic("shop.a", 1), topic("shop.b", 2))
    before = discovered(SHOP, None, look(*both))
    discovered(SHOP, before, look(both[0], at_ms=0), memory)
    discovered(SHOP, before, look(*both, at_ms=50_000), memory)
    assert discovered(SHOP, before, look(both[0], at_ms=70_000), memory) == before


def test_a_topic_that_was_made_again():
    """Another id: its tasks are dropped at once, and found at the next look."""
    before = discovered(SHOP, None, look(topic("shop.a", 4)))
    again = topic("shop.a", 2, "new")
    dropped = discovered(SHOP, before, look(again))
    assert (dropped.units, dropped.ids) == ((), ())
    assert discovered(SHOP, dropped, look(again)).units[0].partitions == 2


PAIR = Source(topics=("a", "b"), co_partitioned=True)


def test_co_partitioned():
    """Partition n of both topics is one task, near where all that it reads is near."""
    each = discovered(PAIR, None, look(topic("a", 2), topic("b", 2)))
    assert each.units == (Subtopology("a+b", 2, source_racks=((RACKS, RACKS), (RACKS, RACKS))),)


def test_co_partitioned_topics_that_do_not_fit():
    """While sizes differ, what was found before stays, and the fault says the sizes."""
    before = discovered(PAIR, None, look(topic("a", 2), topic("b", 2)))
    each, faults = find(PAIR, before, look(topic("a", 4), topic("b", 2)), Memory(), GRACE_MS)
    assert each == before
    assert faults == ["co-partitioned topics need as many partitions each: a has 4, b has 2"]
    assert discovered(PAIR, before, look(topic("a", 4), topic("b", 4))).units[0].partitions == 4
    missing, faults = find(PAIR, None, look(topic("a", 4)), Memory(), GRACE_MS)
    assert missing.units == ()
    assert faults == ["co-partitioned topics do not exist: b"]


MEASURED = Source(topics=("a",), measure="records")


def test_weights():
    """The mean partition weighs 1; idle ones weigh a little; two digits are enough."""
    loads = {("a", 0): 60.0, ("a", 1): 30.0, ("a", 2): 0.0}
    each = discovered(MEASURED, None, look(topic("a", 3), loads=loads))
    assert each.units[0].weights == (2.0, 1.0, 0.05)


def test_weights_that_say_nothing_new():
    """Equal growth, small changes and looks without a measurement keep the weights."""
    loads = {("a", 0): 60.0, ("a", 1): 30.0}
    before = discovered(MEASURED, None, look(topic("a", 2), loads=loads))
    assert before.units[0].weights == (1.3, 0.67)
    twice = {place: 2 * load for place, load in loads.items()}
    for later in (twice, {("a", 0): 60.0, ("a", 1): 36.0}, None):
        assert discovered(MEASURED, before, look(topic("a", 2), loads=later)) == before
    swapped = discovered(
        MEASURED, before, look(topic("a", 2), loads={("a", 0): 3.0, ("a", 1): 6.0})
    )
    assert swapped.units[0].weights == (0.67, 1.3)


def test_weights_while_a_topic_is_missing():
    """They are relative to all topics: without one, all others would weigh more."""
    source, memory = Source(topics=("a", "b"), measure="records"), Memory()
    topics = topic("a", 1), topic("b", 2)
    loads = {("a", 0): 80.0, ("b", 0): 10.0, ("b", 1): 15.0}
    before = discovered(source, None, look(*topics, loads=loads), memory)
    less = {place: load for place, load in loads.items() if place[0] == "b"}
    assert discovered(source, before, look(topics[1], loads=less), memory) == before
    gone = look(topics[1], loads=less, at_ms=GRACE_MS)
    [alone] = discovered(source, before, gone, memory).units
    assert alone.weights == (0.8, 1.2)


def records_of(lags: list[dict[tuple[str, int], float]]) -> list[tuple[float, ...] | None]:
    """The weights of each record that is written while these lags are looked at in turn."""
    source, written = Source(topics=("a",), measure="lag"), []
    before: Found | None = None
    seen: Mapping[tuple[str, int], float] = {}
    for lag in lags:
        seen = smoothed(seen, lag)
        each = discovered(source, before, look(topic("a", 2), loads=dict(seen)))
        if each != before:
            written.append(each.units[0].weights)
        before = each
    return written


def test_a_lag_that_goes_up_and_down_says_nothing_new():
    """Smoothed, it changes no weight; a lag that stays where it is does, within a few looks."""
    jumps = [{("a", 0): 5.0 if n % 2 else 25.0, ("a", 1): 15.0} for n in range(40)]
    source = Source(topics=("a",), measure="lag")
    assert discovered(source, None, look(topic("a", 2), loads=jumps[1])).units[0].weights == (
        0.5,
        1.5,
    )
    assert records_of(jumps) == [None]
    stays = [*jumps, *({("a", 0): 90.0, ("a", 1): 15.0} for _ in range(12))]
    assert 2 <= len(records_of(stays)) <= 5
    assert records_of(stays)[-1][0] > 1.5


def test_weights_of_a_topic_that_grows():
    """New partitions weigh like a mean one until the next measurement."""
    loads = {("a", 0): 60.0, ("a", 1): 30.0}
    before = discovered(MEASURED, None, look(topic("a", 2), loads=loads))
    assert discovered(MEASURED, before, look(topic("a", 3))).units[0].weights is None


def test_an_idle_topic():
    """Nothing is written, so all partitions weigh the same."""
    each = discovered(MEASURED, None, look(topic("a", 2), loads={("a", 0): 0.0, ("a", 1): 0.0}))
    assert each.units[0].weights is None
