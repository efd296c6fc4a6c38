"""Tasks that come from Kafka: what a group makes of what was found for its sources."""

from __future__ import annotations

from dataclasses import replace

from support.state.story import GROUP, Story, config, join, report, snapshot

from muster.protocol.codec import decode_record, encode
from muster.protocol.events import GroupDeleted, TopicsFound
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.state.group import Group

ORDERS = Source(topics=("orders",))
SHOP = Source(pattern="shop[.].*")


def discovered(*entries: Found) -> TopicsFound:
    """An event with these entries."""
    return TopicsFound(group=GROUP, found=entries)


def orders(partitions: int, **more: object) -> Found:
    """What was found for `ORDERS`."""
    return Found(ORDERS, (Subtopology("orders", partitions, **more),), (("orders", "id1"),))


def declaring(*sources: Source, tasks: tuple = ()) -> object:
    """A config with sources."""
    return replace(config(*tasks), sources=sources)


def test_a_topic_grows() -> None:
    """A group is Not Ready until its topic is found; more partitions move none of the old ones."""
    story = Story()
    first = snapshot(story.take(declaring(ORDERS), join("W1"), join("W2")))
    assert (str(first.state.value), first.tasks) == ("Not Ready", ())

    assert story.records(discovered(orders(2))) == {
        "W1": "orders_0 | - | - @1",
        "W2": "orders_1 | - | - @1",
    }
    assert story.group.cause.endswith("; W1, W2 joined; orders (2) found")

    grown = snapshot(story.take(discovered(orders(4))))
    assert grown.cause == "orders grew 2 → 4"
    assert [(m.task, m.from_member) for m in grown.moves] == [
        ("orders_2", None),
        ("orders_3", None),
    ]


def test_finding_the_same_again_changes_nothing() -> None:
    """Any number of discoveries may write the same: no generation, no record."""
    story = Story()
    story.take(declaring(ORDERS), join("W1"), discovered(orders(2)))
    generation = story.group.generation
    step = story.take(discovered(orders(2)))
    assert (step.records, step.group.generation) == ((), generation)


def test_other_weights_count_only_if_they_move_something() -> None:
    """New weights open a generation only if the assignor answers otherwise now."""
    story = Story()
    story.take(declaring(ORDERS), join("W1"), join("W2"), discovered(orders(4)))
    generation = story.group.generation

    step = story.take(discovered(orders(4, weights=(1, 1.2, 1, 1.2))))
    assert step.group.generation == generation
    assert snapshot(step).tasks[0].weights == (1, 1.2, 1, 1.2)

    heavy = story.take(discovered(orders(4, weights=(9, 1, 9, 1))))
    assert snapshot(heavy).cause == "orders measured anew"
    assert snapshot(heavy).moves != ()


def test_the_list_and_the_sources_are_independent() -> None:
    """A config keeps what was found for the sources that it declares, and no more."""
    own = Subtopology("own", 1)
    story = Story()
    story.take(declaring(ORDERS, SHOP, tasks=(own,)), join("W1"), discovered(orders(2)))
    assert [u.name for u in story.group.table.units] == ["orders", "own"]

    story.take(declaring(ORDERS, tasks=()))
    assert [u.name for u in story.group.table.units] == ["orders"]
    assert story.group.cause == "1 task removed"

    story.take(declaring(SHOP))
    assert story.group.table.units == ()
    assert story.group.cause.startswith("orders (2) gone; no tasks: none of the topics")


def test_a_unit_of_the_list_wins() -> None:
    """A topic found by pattern under the name of a declared unit is left out."""
    story = Story()
    shop = Found(SHOP, (Subtopology("shop.a", 3), Subtopology("shop.b", 3)))
    story.take(declaring(SHOP, tasks=(Subtopology("shop.a", 1),)), join("W1"), discovered(shop))
    assert [(u.name, u.size) for u in story.group.table.units] == [("shop.a", 1), ("shop.b", 3)]


def test_a_topic_that_was_made_again() -> None:
    """Gone in one record, found in the next: its member stops the task before it has it again."""
    story = Story()
    story.take(declaring(ORDERS), join("W1"), discovered(orders(1)))
    assert story.records(discovered(Found(ORDERS, ()))) == {"W1": "- | - | - @1"}
    assert story.records(discovered(orders(1))) == {}
    [line] = story.records(report("W1", 2)).values()
    assert line.startswith("orders_0 | - | -")


def test_a_group_is_read_back_with_its_sources() -> None:
    """The published record has sources, found topics and weights; the restored group goes on."""
    story = Story()
    weights = (1, 2.5)
    step = story.take(declaring(ORDERS, SHOP), join("W1"), discovered(orders(2, weights=weights)))
    record = snapshot(step)
    encoded = encode(record)
    read = decode_record(TopicKind.GROUPS, encoded.key, encoded.value)
    assert (read.sources, read.found) == ((ORDERS, SHOP), (orders(2, weights=weights),))

    story.group = Group.restore(read, story.group.liveness())
    grown = snapshot(story.take(discovered(orders(3))))
    assert grown.cause == "orders grew 2 → 3"


def test_a_deleted_group_finds_nothing() -> None:
    """An event that comes after the deletion brings no task back."""
    story = Story()
    story.take(declaring(ORDERS), join("W1"), discovered(orders(2)))
    story.take(GroupDeleted(group=GROUP))
    story.take(discovered(orders(2)))
    assert story.group.table.units == ()
