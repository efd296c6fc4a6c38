"""`muster replay`: a recorded life is repeated again and compared byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.state.story import GROUP as STORY
from support.state.story import beat, config, join, leave, report, tick
from support.suite.examples import ALL

from muster.cli.main import main
from muster.documents.scenario import parse_scenario
from muster.kafka import reader as topics
from muster.kafka.reader import Row
from muster.plugins import ALLOWED_VARIABLE
from muster.protocol.codec import decode, decode_record, encode
from muster.protocol.events import Event, GroupDeleted, LagReport, Origin
from muster.protocol.ids import GroupId
from muster.protocol.keyring import Keyring, Requirement, SigningKey, caller_of
from muster.protocol.keys import key_of
from muster.protocol.records import (
    Dictionary,
    GroupGone,
    GroupSnapshot,
    MemberAssignment,
    MemberGone,
    Record,
)
from muster.protocol.signature_check import refusal
from muster.protocol.signing import Subject, sign
from muster.protocol.tasks import Connector, Subtopology
from muster.protocol.topics import TopicKind, topic_name
from muster.random_lives.random_scenario import random_scenario
from muster.replay.repeat_and_compare import Repeated, Repetition, recording
from muster.replay.saved_records import from_file, save
from muster.simulation.scenario_player import GROUP, SimulatedGroup
from muster.state.group import Group
from muster.state.machine import advance

FOUR = Subtopology("0", 4)


class Tape:
    """Collects records as Kafka would store them."""

    def __init__(self) -> None:
        self.items: list[Row] = []
        self._offsets: dict[str, int] = {}

    def events(self, events: Iterable[Event]) -> None:
        """Add events at the places that their origins name."""
        for event in events:
            encoded, (topic, partition, offset, at_ms) = encode(event), event.origin
            self.items.append(Row(encoded.key, encoded.value, topic, partition, offset, at_ms))

    def records(self, records: Iterable[Record], at_ms: int) -> None:
        """Add the published records of a group and its members."""
        for record in records:
            if isinstance(record, GroupSnapshot | GroupGone | Dictionary):
                topic = topic_name(TopicKind.GROUPS)
            elif isinstance(record, MemberAssignment | MemberGone):
                topic = topic_name(TopicKind.ASSIGNMENTS)
            else:
                continue
            offset = self._offsets[topic] = self._offsets.get(topic, -1) + 1
            encoded = encode(record)
            self.items.append(Row(encoded.key, encoded.value, topic, 0, offset, at_ms))

    def repetition(self, group: GroupId) -> tuple[Repetition, list[Repeated]]:
        """Repeat the tape."""
        repetition = Repetition(recording(self.items, group, "muster"))
        return repetition, list(repetition.steps())


def lived(seed: int) -> Tape:
    """The tape of a generated life."""
    world, tape = SimulatedGroup(), Tape()
    world.play(parse_scenario(random_scenario(seed)))
    for batch in world.log:
        tape.events(batch)
    tape.records(world.records, world.group.sessions.clock_ms)
    return tape


class Told:
    """A story on tape; its topics have their full names."""

    def __init__(self) -> None:
        self.tape, self.group, self.now_ms, self.offset, self.epoch = (
            Tape(),
            Group.new(STORY),
            1_000_000,
            0,
            1,
        )

    def take(self, *events: Event, ms: int = 100, forged: bool = False) -> tuple[Record, ...]:
        """Process one batch, `ms` later; forged events are refused for their signature."""
        self.now_ms += ms
        placed = []
        for event in events:
            self.offset += 1
            kind = TopicKind.LAG if isinstance(event, LagReport) else TopicKind.MEMBERSHIP
            if type(event).__name__ in ("GroupConfig", "GroupDeleted"):
                kind = TopicKind.CONFIG
            origin = Origin(topic_name(kind), 0, self.offset, self.now_ms)
            placed.append(replace(event, origin=origin))
        self.tape.events(placed)
        at = len(self.tape.items) - len(placed)
        for number, event in enumerate(placed, at):
            self.tape.items[number] = _signed(self.tape.items[number], event, not forged)
        counting = [r for e in placed for r in (refusal(e),) if r] if forged else placed
        step = advance(self.group, counting, coordinator_epoch=self.epoch)
        self.group = step.group
        self.tape.records(step.records, self.now_ms)
        return step.records

    def repeat(self) -> None:
        """Write the story's first membership event once more."""
        self.now_ms += 100
        self.offset += 1
        topic = topic_name(TopicKind.MEMBERSHIP)
        first = next(item for item in self.tape.items if item.topic == topic)
        self.tape.items.append(first._replace(offset=self.offset, at_ms=self.now_ms))


RING = Keyring(keys=(SigningKey(id="k", secret=b"s" * 16),), required=(Requirement(("*",)),))


def _signed(item: Row, event: Event, really: bool) -> Row:
    """A record of the tape with a signature, by an unknown key unless `really`."""
    keys = RING if really else Keyring(keys=(SigningKey(id="x", secret=b"x" * 16),))
    subject = Subject(item.topic, item.key or b"", item.value)
    signature = sign(keys, STORY, caller_of(event), subject, item.at_ms)
    return item._replace(signature=signature)


def test_forged_events_are_left_out_of_a_fold(tmp_path: Path) -> None:
    """With the keyring a signed life with forgeries and a repeated join repeats to the same bytes.

    Without the keyring the forged events seem to count, and the repetition reports differences.
    """
    story = Told()
    story.take(config(FOUR), join("W1"))
    story.take(leave("W1"), join("W9", 9), forged=True)
    story.take(join("W2"))
    story.take(beat("W1", 7), beat("W2", 7), forged=True)
    story.take(report("W1", 2, "0_0", "0_1"))
    story.take(leave("W2"), forged=True)
    story.take(leave("W1"))
    story.repeat()
    story.take(join("W3"))
    file = tmp_path / "life"
    save(str(file), story.tape.items)
    items = [*from_file(str(file))]
    assert items == story.tape.items
    repetition = Repetition(recording(items, STORY, "muster", RING))
    assert [step.difference for step in repetition.steps()] == [""] * 5
    assert (repetition.whole, list(repetition.missing())) == (True, [])
    bare = Repetition(recording(items, STORY, "muster"))
    assert [step for step in bare.steps() if step.difference] != []


def test_a_batch_that_published_two_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that takes a plug-in's answer and a join gives both generations again."""
    story = Told()
    plugin = "support.plugin_assignors:FirstTakesAll"
    monkeypatch.setenv(ALLOWED_VARIABLE, plugin)
    story.take(replace(config(FOUR), assignor=plugin), join("W1"))
    records = story.take(join("W2"))
    assert [r.generation for r in records if isinstance(r, GroupSnapshot)] == [1, 2]
    story.take(report("W1", 2, "0_0", "0_1", "0_2", "0_3"))
    repetition, steps = story.tape.repetition(STORY)
    assert [step.difference for step in steps] == [""] * 4
    assert [len(step.made.moves) for step in steps] == [0, 4, 0, 0]
    assert (repetition.whole, list(repetition.missing())) == (True, [])


@pytest.mark.parametrize("seed", range(5) if ALL else range(2, 5))
def test_a_life_folds_to_equal_records(seed: int) -> None:
    """The repetition gives every snapshot and each member's newest record byte for byte."""
    repetition, steps = lived(seed).repetition(GROUP)
    assert len(steps) > 10
    assert [step.difference for step in steps if step.difference] == []
    assert (repetition.whole, list(repetition.missing())) == (True, [])


@pytest.mark.parametrize("last", [join("W2"), leave("W1")], ids=["joins", "leaves"])
def test_read_while_a_batch_writes(last: Event) -> None:
    """If members' records are there but their snapshot is not yet, nothing differs."""
    story = Told()
    story.take(config(FOUR), join("W1"))
    story.take(last)
    groups = topic_name(TopicKind.GROUPS)
    story.tape.items.remove([item for item in story.tape.items if item.topic == groups][-1])
    repetition, steps = story.tape.repetition(STORY)
    assert [step.difference for step in steps] == [""]
    assert [line for line in repetition.missing() if "differs" in line] == []


def test_a_repetition_without_the_oldest_events() -> None:
    """Without the oldest events it begins with the first snapshot, and the rest is equal."""
    story = Told()
    story.take(config(FOUR), join("W1"))
    cut = len(story.tape.items)
    first = story.tape.items[:cut]
    story.take(join("W2"))
    story.take(report("W1", 2, "0_0", "0_1"))
    story.take(leave("W1"))
    snapshots = [i for i in first if i.topic == topic_name(TopicKind.GROUPS)]
    story.tape.items[:cut] = snapshots
    repetition, steps = story.tape.repetition(STORY)
    assert [(step.began, step.difference) for step in steps] == [(True, "")] + [(False, "")] * 3
    assert not repetition.whole
    assert steps[-1].group.cause == "W1 left"


@pytest.mark.parametrize(
    ("seed", "kept_from"),
    [(24, 2), (5, 5), (9, 15), (31, 1), (8, 2), (14, 2), (1, 9), (6, 19)],
    ids=[
        *("sticky, heartbeats", "learner", "fallback, drained", "high-availability, no members"),
        *("cooperative", "eager", "static", "sticky, the session clock is behind"),
    ],
)
def test_a_life_whose_oldest_events_are_deleted(seed: int, kept_from: int) -> None:
    """Members that only heartbeat, owe a task or are drained go on as they did."""
    tape = lived(seed)
    snapshots = [i for i in rows_of(tape.items, TopicKind.GROUPS) if i.key == key_of(GROUP)]
    oldest = decode_record(TopicKind.GROUPS, *snapshots[kept_from - 1][:2])
    assert isinstance(oldest, GroupSnapshot)
    gone = {(topic, partition): offset for topic, partition, offset in oldest.through}
    tape.items = [
        item
        for item in tape.items
        if item not in snapshots[: kept_from - 1]
        and item.offset > gone.get((item.topic, item.partition), -1)
    ]
    repetition, steps = tape.repetition(GROUP)
    assert [step.began for step in steps] == [True] + [False] * (len(steps) - 1)
    assert [step.difference for step in steps if step.difference] == []
    assert (repetition.whole, list(repetition.missing())) == (False, [])


def test_a_lost_checkpoint_is_followed() -> None:
    """A later coordinator recovers the group and asks its members; the repetition does the same."""
    story = Told()
    story.take(config(FOUR), join("W1"), join("W2"))
    story.group, story.epoch = Group.recover(story.group.snapshot()), 7
    story.take(tick())
    story.take(report("W1", 1, "0_0", "0_1"))
    story.take(report("W2", 1, "0_2", "0_3"))
    story.take(leave("W2"))
    repetition, steps = story.tape.repetition(STORY)
    assert [step.difference for step in steps] == [""] * 5
    assert list(repetition.missing()) == []


def test_a_lost_checkpoint_of_an_empty_group() -> None:
    """A recovery of an empty group shows only when the next member joins and is asked."""
    story = Told()
    story.take(config(FOUR))
    story.group, story.epoch = Group.recover(story.group.snapshot()), 7
    story.take(config(FOUR, group_max_size=9))
    story.take(join("W1"))
    assert story.group.recovery.asked == frozenset({0})
    story.take(report("W1", 1, epoch=0))
    repetition, steps = story.tape.repetition(STORY)
    assert [step.difference for step in steps] == [""] * 4
    assert (repetition.whole, list(repetition.missing())) == (True, [])


def test_a_group_first_seen_after_a_lost_checkpoint() -> None:
    """An unknown group that asks its members after a lost checkpoint repeats to equal records."""
    story = Told()
    story.group, story.epoch = Group.new(STORY, unverified=True), 7
    story.take(config(FOUR))
    story.take(join("W1"), join("W2"))
    story.take(report("W2", 1, epoch=0, coordinator_epoch=7))
    story.take(report("W1", 1, "0_0", "0_3", coordinator_epoch=7))
    story.now_ms += 20_000
    story.take(tick())
    assert story.group.owned.holder.tolist() == [0, 1, 1, 0]
    repetition, steps = story.tape.repetition(STORY)
    assert [step.difference for step in steps] == [""] * len(steps)
    assert (repetition.whole, list(repetition.missing())) == (True, [])


def test_a_batch_that_was_tried_twice() -> None:
    """A batch that two coordinators processed is repeated twice from the same state."""
    story = Told()
    story.take(config(FOUR), join("W1"))
    before, offset, now_ms = story.group, story.offset, story.now_ms
    story.take(join("W2"))
    count = len([i for i in story.tape.items if i.topic == topic_name(TopicKind.MEMBERSHIP)])
    story.group, story.offset, story.now_ms, story.epoch = before, offset, now_ms, 2
    story.take(join("W2"))
    events = [i for i in story.tape.items if i.topic == topic_name(TopicKind.MEMBERSHIP)]
    story.tape.items.remove(events[count])  # the join was written once
    _, steps = story.tape.repetition(STORY)
    assert [step.difference for step in steps] == ["", "", ""]
    assert [step.group.coordinator_epoch for step in steps] == [1, 1, 2]


@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint kept", "checkpoint lost"])
def test_a_group_that_was_deleted(lost: bool) -> None:
    """A deleted group stops and is dead; when it is configured again, its generations continue."""
    story = Told()
    story.take(config(FOUR), join("W1"))
    story.take(GroupDeleted(group=STORY))
    story.take(report("W1", 2), leave("W1"))
    if lost:
        story.group, story.epoch = Group.recover(story.group.snapshot()), 7
    story.take(config(FOUR))
    story.take(join("W3", 3))
    if lost:
        story.take(report("W3", 0, epoch=0, incarnation=3, coordinator_epoch=7))
        story.now_ms += 20_000
        story.take(tick())
    repetition, steps = story.tape.repetition(STORY)
    assert [step.difference for step in steps] == [""] * len(steps)
    # Lost: one more for a batch that may be lost, and one for each event that was read since.
    assert steps[-1].group.generation == (2 + 1 + 4 if lost else 2)
    assert list(repetition.missing()) == []


def of_two_members() -> Told:
    """W1 and W2 join, W1 releases what W2 gets, and leaves: four snapshots, six for members."""
    story = Told()
    story.take(config(FOUR), join("W1"))
    story.take(join("W2"))
    story.take(report("W1", 2, "0_0", "0_1"))
    story.take(leave("W1"))
    return story


def rows_of(items: Iterable[Row], kind: TopicKind) -> list[Row]:
    """The rows of one topic."""
    return [item for item in items if item.topic == topic_name(kind)]


def differences(items: Iterable[Row]) -> list[str]:
    """What differs when these rows are repeated."""
    repetition = Repetition(recording(items, STORY, "muster"))
    said = [step.difference for step in repetition.steps() if step.difference]
    return [*said, *repetition.missing()]


def test_late_records_do_not_count(tmp_path: Path) -> None:
    """What a superseded coordinator wrote again differs from nothing, also in a saved file."""
    items = of_two_members().tape.items
    last = rows_of(items, TopicKind.ASSIGNMENTS)[-1]._replace(generation=3)
    old = rows_of(items, TopicKind.ASSIGNMENTS)[2]
    items += [rows_of(items, TopicKind.GROUPS)[1]._replace(offset=98), last]
    items.append(old._replace(offset=99, generation=2))
    assert old.key == last.key
    assert old.value != last.value
    assert differences(items) == []
    save(str(tmp_path / "life"), items)
    assert differences(from_file(str(tmp_path / "life"))) == []


def test_topics_that_got_more_partitions() -> None:
    """A group's records are in two partitions, and the newer one is read first."""
    items = of_two_members().tape.items
    groups, members = rows_of(items, TopicKind.GROUPS), rows_of(items, TopicKind.ASSIGNMENTS)
    events = [item for item in items if item not in groups and item not in members]
    moved = [row._replace(partition=1) for row in (*groups[2:], *members[3:])]
    assert differences([*moved, *groups[:2], *members[:3], *events]) == []


def test_a_group_whose_tasks_need_a_dictionary() -> None:
    """The records of its members name tasks by a dictionary; some of it may be read too early."""
    units = [Connector(f"orders-to-warehouse-{n * 7919 % 1000:03d}", 1) for n in range(100)]
    story = Told()
    story.take(config(*units), join("W1"))
    story.take(join("W2"))
    assert any(b"||names" in (item.key or b"") for item in story.tape.items)
    assert differences(story.tape.items) == []
    last = rows_of(story.tape.items, TopicKind.GROUPS)[-1]
    assert differences(item for item in story.tape.items if item != last) == []


def test_records_that_this_version_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line names each; behind a snapshot the repetition begins again, a member's differs."""
    items, file = of_two_members().tape.items, tmp_path / "life"
    second = items.index(rows_of(items, TopicKind.GROUPS)[1])
    items[second] = items[second]._replace(value=b"\xc3\x01" + b"\x07" * 20)
    save(str(file), items)
    words = ["replay", "--group", STORY, "--file", str(file)]
    assert main(words) == 0
    shown = capsys.readouterr()
    unread = "unknown schema fingerprint 0707070707070707 (at byte 2)\n"
    assert shown.err == f"muster.groups-0@1 is skipped: {unread}"
    assert "@2: the record before cannot be read; the replay begins here" in shown.out
    assert shown.out.endswith("2 of 3 records of the group are equal, byte for byte\n")
    newest = rows_of(items, TopicKind.ASSIGNMENTS)[-1]
    save(str(file), [*of_two_members().tape.items, newest._replace(value=items[second].value)])
    assert main(words) == 1
    said = "different: assignments, key g|W2: the newest record cannot be read: "
    assert said + unread in capsys.readouterr().out


def test_a_file_that_windows_tools_wrote(tmp_path: Path) -> None:
    """A byte order mark and CRLF change nothing."""
    file, items = tmp_path / "life", lived(2).items
    save(str(file), items)
    lines = file.read_bytes().replace(b"\n", b"\r\n")
    file.write_bytes(b"\xef\xbb\xbf" + lines)
    assert list(from_file(str(file))) == items


def test_a_timestamp_that_is_no_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record may have any timestamp; it is shown as the nearest date there is."""
    rows = rows_of(of_two_members().tape.items, TopicKind.GROUPS)
    save(str(tmp_path / "life"), [rows[0]._replace(at_ms=2**62)])
    assert main(["replay", "--group", STORY, "--file", str(tmp_path / "life")]) == 0
    assert "generation 1, 9999-12-31T23:59:59.999" in capsys.readouterr().out


def test_the_command_shows_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal records give exit code 0; a changed one gives 1, its place and the field."""
    tape = lived(2)
    file = tmp_path / "life"
    save(str(file), tape.items)
    assert list(from_file(str(file))) == tape.items
    words = ["replay", "--group", GROUP, "--file", str(file)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    count = sum(i.topic == topic_name(TopicKind.GROUPS) for i in tape.items)
    assert shown.endswith(f"{count} of {count} records of the group are equal, byte for byte\n")
    assert "M1 joined" in shown
    published = [n for n, i in enumerate(tape.items) if i.topic == topic_name(TopicKind.GROUPS)]
    place = published[5]
    item = tape.items[place]
    record = decode_record(TopicKind.GROUPS, item.key, item.value)
    assert isinstance(record, GroupSnapshot)
    other = encode(replace(record, cause="something else"))
    tape.items[place] = item._replace(value=other.value)
    save(str(file), tape.items)
    assert main([*words, "--format", "json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (difference,) = [text for line in lines for text in line["differences"]]
    assert difference.startswith("muster.groups-0@5: cause: published something else, here ")


def test_a_bad_file_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad file gives exit code 2 and the line; an unknown group gives 1."""
    file = tmp_path / "life"
    file.write_text('{"topic": "muster.groups"}\n')
    assert main(["replay", "--group", "g", "--file", str(file)]) == 2
    assert "line 1: not a record that `muster replay --save` wrote" in capsys.readouterr().err
    file.write_text("")
    assert main(["replay", "--group", "g", "--file", str(file)]) == 1
    assert "no record of group 'g' in" in capsys.readouterr().err


@pytest.mark.broker
def test_replay_reads_kafka(
    kafka: Topics, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A group's life in Kafka replays equal, from Kafka and from the saved file."""
    group = Group.new(STORY)
    kafka.write(TopicKind.CONFIG, config(FOUR))
    for event in (join("W1"), join("W2"), report("W1", 2, "0_0", "0_1")):
        kafka.write(TopicKind.MEMBERSHIP, event)
        events = [
            decode(kind, row.key, row.value, Origin(name, row.partition, row.offset, row.at_ms))
            for kind in (TopicKind.CONFIG, TopicKind.MEMBERSHIP)
            for name in [topic_name(kind, kafka.prefix)]
            for row in topics.read(kafka.clients, name)
        ]
        step = advance(group, events, coordinator_epoch=1)
        group = step.group
        for record in step.records:
            encoded = encode(record)
            kind = TopicKind.GROUPS if isinstance(record, GroupSnapshot) else TopicKind.ASSIGNMENTS
            if isinstance(record, GroupSnapshot | MemberAssignment):
                kafka.write_raw(kind, encoded.key, encoded.value)
    file = tmp_path / "life"
    words = ["replay", "--group", STORY, "--topic-prefix", kafka.prefix]
    assert main([*words, "--bootstrap-server", kafka.address, "--save", str(file)]) == 0
    first = capsys.readouterr().out
    assert first.endswith("3 of 3 records of the group are equal, byte for byte\n")
    assert main([*words, "--file", str(file)]) == 0
    assert capsys.readouterr().out == first
