"""A group's history: generations with their figures, the group as it was, and bounded memory."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace

import pytest
from support.console.played import PREFIX, demo_life, fleet_of, play, scenario
from support.state.snapshots import orders

from muster.console import history as history_module
from muster.console.history import GenerationFigures, History, Moment
from muster.console.store import GroupKey, Store
from muster.kafka.reader import Row
from muster.protocol.codec import encode
from muster.protocol.events import Origin
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupGone, GroupSnapshot, Rejected
from muster.simulation.scenario_player import BEGINNING_MS

KEY = GroupKey(PREFIX, "g")


def history_of(life: dict) -> History:
    """The history of a life."""
    store = Store([PREFIX])
    play(store, life)
    history = store.history(KEY)
    assert history is not None
    return history


def test_generations_have_their_cause_and_their_figures() -> None:
    """A life with a join, a drain and a crash: cause, moves and moments of each generation."""
    history = history_of(demo_life())
    figures = [(r.generation, r.cause, r.moves, r.moved) for r in history.generations]
    assert figures == [
        (0, "", 0, 0),
        (1, "W1, W2, W3 joined", 12, 0),
        (2, "W4 joined", 3, 3),
        (3, "W2 draining", 3, 3),
        (4, "W3 expired", 4, 4),
    ]
    assert [r.ended_ms for r in history.generations] == [
        *(r.at_ms for r in list(history.generations)[1:]),
        None,
    ]
    assert history.moved_since(0) == 10
    assert history.moved_since(history.generations[-1].at_ms) == 4


def test_time_to_settle_is_from_the_first_record_to_the_first_that_is_stable() -> None:
    """W1 takes 4 s to stop what W2 gets; the generation settles 4 s after its first record."""
    events = [
        {"at_ms": 0, "join": {"id": "W1", "ack_ms": 4_000}},
        {"at_ms": 10_000, "join": {"id": "W2"}},
    ]
    history = history_of(scenario([{"subtopology": "0", "partitions": 2}], events))
    joined = history.figures_of(2)
    assert joined is not None
    assert (joined.cause, joined.settled_ms) == ("W2 joined", joined.at_ms + 4_000)


def test_time_without_an_owner_is_summed_over_tasks() -> None:
    """Both members leave, so four tasks have no owner until one returns 30 s later."""
    events = [
        *fleet_of(2),
        {"at_ms": 10_000, "leave": "W1"},
        {"at_ms": 10_000, "leave": "W2"},
        {"at_ms": 40_000, "return": "W1"},
    ]
    history = history_of(scenario([{"subtopology": "0", "partitions": 4}], events))
    empty = next(r for r in history.generations if r.at_ms == BEGINNING_MS + 10_000)
    assert empty.ownerless_ms == 4 * 30_000
    assert history.generations[-1].ownerless_until(BEGINNING_MS + 100_000) == 0


def test_the_newest_generation_counts_what_is_ownerless_now() -> None:
    """While tasks have no owner, their time grows with the time that is asked for."""
    history = history_of(scenario([{"subtopology": "0", "partitions": 4}], [], until_ms=1_000))
    newest = history.generations[-1]
    assert newest.ownerless_until(newest.seen_ms + 2_500) == 4 * 2_500


def test_a_moment_is_the_record_that_was_published() -> None:
    """Every moment decodes to its own bytes, and is found by number and by time."""
    history = history_of(demo_life())
    for moment in history.moments:
        assert encode(history.snapshot(moment)).value == moment.value
        assert history.moment(moment.number) is moment
    last_of_2 = [m for m in history.moments if m.generation == 2][-1]
    assert history.moment_at(last_of_2.at_ms + 1) is last_of_2
    assert history.moment_at(0) is history.moments[0]


def test_an_older_record_is_left_out() -> None:
    """A superseded coordinator's record, and the same record read again, are no news."""
    history = History("orders")
    newest, older = orders(generation=7), orders(generation=6)
    assert history.take(newest, 2_000, encode(newest).value or b"")
    assert not history.take(older, 3_000, encode(older).value or b"")
    assert not history.take(newest, 2_000, encode(newest).value or b"")
    assert [m.generation for m in history.moments] == [7]


def row_of(record: GroupSnapshot | GroupGone, partition: int, offset: int, at_ms: int) -> Row:
    """A record as the console reads it."""
    encoded = encode(record)
    return Row(encoded.key, encoded.value, f"{PREFIX}.groups", partition, offset, at_ms)


def test_the_last_record_of_a_partition_counts_whatever_its_timestamp() -> None:
    """A broker whose clock is behind leads now: its record is the newest, at the time before it."""
    store = Store([PREFIX])
    rows = [row_of(orders(7), 0, 0, 10_000), row_of(orders(8), 0, 1, 9_500)]
    for row in rows * 2:  # the topic is read again after an error
        store.read(row)
    ((_, history),) = store.histories()
    assert [(m.generation, m.at_ms) for m in history.moments] == [(7, 10_000), (8, 10_000)]
    assert history.moment_at(10_000) is history.moments[-1]


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_group_that_ended_after_partitions_were_added(newest_first: bool) -> None:
    """Its tombstone is in another partition than its records, and may be read before them."""
    store = Store([PREFIX])
    rows = [row_of(orders(7), 0, 0, 1_000), row_of(GroupGone(group=GroupId("orders")), 1, 0, 2_000)]
    for row in reversed(rows) if newest_first else rows:
        store.read(row)
    assert store.histories() == []
    store.read(row_of(orders(1), 1, 1, 3_000))  # a new group of that name
    assert [history.newest.generation for _, history in store.histories()] == [1]


def test_a_learner_is_as_full_as_its_lag_has_fallen() -> None:
    """The largest lag of a learner is kept; the first record says 40, the next 10."""
    history = History("orders")
    record = orders()
    history.take(record, 1_000, encode(record).value or b"")
    lags = record.lags.copy()
    lags[0, 2] = 10
    later = replace(record, lags=lags)
    history.take(later, 2_000, encode(later).value or b"")
    assert history.peaks == {(1, 2): 40}


def test_old_records_make_room(monkeypatch) -> None:
    """Above its limit the store drops the oldest records of the largest group, never the newest."""
    store = Store([PREFIX], held_bytes_max=3_000)
    for name in ("a", "b", "g"):
        play(store, demo_life(), name=name)
    assert store.held_bytes <= 3_000
    for key, history in store.histories():
        assert history.newest is not None, key
        assert history.snapshot(history.moments[-1]) is history.newest
        assert history.generations[0].last >= history.moments[0].number
    monkeypatch.setattr(history_module, "MOMENTS_MAX", 3)
    assert len(history_of(demo_life()).moments) == 3


def test_a_group_that_is_gone_takes_no_room() -> None:
    """A tombstone removes the group; a deleted group is not listed, but its history stays."""
    store = Store([PREFIX])
    play(store, demo_life())
    store.take(PREFIX, GroupGone(group=GroupId("g")), BEGINNING_MS + 200_000, b"")
    assert (store.histories(), store.history(KEY), store.held_bytes) == ([], None, 0)


def test_rows_of_topics_are_read_as_records() -> None:
    """The reader's rows become groups and dead letters; what is no record is counted."""
    store = Store([PREFIX, "other"])
    seen: list[tuple[str, str]] = []
    store.listen(seen.append)
    group = encode(orders())
    letter = Rejected(
        origin=Origin("other.membership", 0, 5, 9), reason="UNDECODABLE", message="not ours"
    )
    dead = encode(letter)
    rows = [
        Row(group.key, group.value, "muster.groups", 0, 0, 1_000),
        Row(dead.key, dead.value, "other.rejected", 0, 3, 2_000),
        Row(dead.key, dead.value, "other.rejected", 0, 3, 2_000),
        Row(b"orders", b"junk", "muster.groups", 0, 1, 3_000),
        Row(group.key, group.value, "elsewhere.groups", 0, 0, 1_000),
    ]
    for row in rows:
        store.read(row)
    assert [key for key, _ in store.histories()] == [(PREFIX, "orders")]
    assert [each.record.reason for each in store.letters("other")] == ["UNDECODABLE"]
    assert seen == [(PREFIX, "orders"), ("other", "")]
    assert store.skipped == 1


def test_a_page_that_reads_while_a_record_is_taken_sees_that_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A moment and its record appear together: a page would keep an older one as the newest."""
    history = History("orders")
    seen: list[int] = []
    note = History._note_generation

    def noting(self: History, record: GroupSnapshot, moment: Moment) -> None:
        seen.append(self.snapshot(self.moments[-1]).generation)
        note(self, record, moment)

    monkeypatch.setattr(History, "_note_generation", noting)
    for generation in (7, 8):
        record = orders(generation)
        history.take(record, 1_000 + generation, encode(record).value or b"")
    assert seen == [7, 8]


class ReadWhileWritten(deque):
    """A deque that another thread changes as soon as a page has read its first element."""

    change = None

    def __getitem__(self, place: int) -> object:
        """The element; then comes the change, once."""
        found = super().__getitem__(place)
        change, self.change = self.change, None
        if change is not None:
            change()
        return found


def test_a_moment_is_found_while_the_oldest_is_dropped() -> None:
    """The reader drops a record between two looks of a page: the page gets the one it asked for."""
    history = history_of(demo_life())
    last = history.moments[-1]
    history.moments = ReadWhileWritten(history.moments)
    history.moments.change = history.drop_oldest
    assert history.moment(last.number) is last
    history.moments.change = lambda: [history.drop_oldest() for _ in range(3)]
    assert history.moment(last.number - 1) == history.moments[-2]
    assert history.moment(last.number + 1) is None
    assert history.moment(0) is None


def test_generations_are_read_while_one_is_added() -> None:
    """Pages go through a copy; a deque that grows meanwhile ends an iteration with an error."""
    history = history_of(demo_life())
    added = history.generations[-1]

    class Growing(GenerationFigures):
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            if name in ("generation", "at_ms"):
                history.generations.append(added)
            return super().__getattribute__(name)

    kept = [Growing(**{f.name: getattr(g, f.name) for f in fields(g)}) for g in history.generations]
    history.generations = deque(kept)
    assert history.figures_of(1) is kept[1]
    assert history.moved_since(0) >= 10


def test_a_group_that_ends_does_not_change_under_a_page() -> None:
    """The list of groups was taken before the tombstone came: its rows can still be made."""
    store = Store([PREFIX])
    play(store, demo_life())
    ((key, history),) = store.histories()
    newest, moments = history.newest, [*history.moments]
    store.take(PREFIX, GroupGone(group=GroupId("g")), 9, b"")
    assert store.history(key) is None
    assert (history.newest, [*history.moments]) == (newest, moments)
    assert store.held_bytes == 0
