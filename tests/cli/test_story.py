"""What the demo computes and draws from records and from workers' logs."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.state.snapshots import orders

from muster.demo import startup, task_runs
from muster.demo.plain import PlainShow, move_text
from muster.demo.startup import StartUp
from muster.demo.story import Generation, Story
from muster.demo.summary import machine, summary_of
from muster.demo.task_runs import Gap, Tenure
from muster.protocol import codec
from muster.protocol.events import Drain, Event, Heartbeat, Origin
from muster.protocol.ids import GroupId, MemberId, Role
from muster.protocol.records import GroupSnapshot, GroupState, MemberEntry, Move
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind

G = GroupId("orders")
MEMBERSHIP = "muster.membership"


def feed(story: Story, kind: TopicKind, record: Event | GroupSnapshot, at: Origin) -> list[object]:
    """Let the story read an event or record."""
    encoded = codec.encode(record)
    return list(story.read(kind, encoded.key, encoded.value, at))


def snapshot(number: int, through: int, revision: int, state: GroupState) -> GroupSnapshot:
    """A record that has read up to offset `through`; its members have this revision."""
    group = orders(number, f"cause {number}")
    members = tuple(replace(m, revision=revision) for m in group.members)
    return replace(group, members=members, state=state, through=((MEMBERSHIP, 1, through),))


def example_story() -> Story:
    """Events at 10, 20 and 30 ms; records at 15 and 90 ms answer the first two."""
    story = Story(G, "muster")
    drain = Drain(group=G, member=MemberId("W1"))
    groups = TopicKind.GROUPS
    for offset, at_ms in ((0, 10), (1, 20), (3, 30)):
        feed(story, TopicKind.MEMBERSHIP, drain, Origin(MEMBERSHIP, 1, offset, at_ms))
    beat = Heartbeat(group=G, member=MemberId("W1"), epoch=1, digest=1)
    feed(story, TopicKind.MEMBERSHIP, beat, Origin(MEMBERSHIP, 1, 2, 25))
    elsewhere = replace(drain, group=GroupId("another"))
    feed(story, TopicKind.MEMBERSHIP, elsewhere, Origin(MEMBERSHIP, 1, 4, 26))
    story.read(TopicKind.MEMBERSHIP, b"orders", b"garbage", Origin(MEMBERSHIP, 1, 5, 27))
    feed(story, groups, snapshot(1, 0, 1, GroupState.STABLE), Origin("g", 0, 0, 15))
    feed(story, groups, snapshot(2, 2, 2, GroupState.RECONCILING), Origin("g", 0, 1, 90))
    feed(story, groups, snapshot(2, 3, 2, GroupState.RECONCILING), Origin("g", 0, 2, 95))
    return story


def test_an_event_waits_for_the_record_that_answers_it() -> None:
    """An event waits for the record that has read it, if that record changed a revision."""
    story = example_story()
    assert [origin.offset for origin in story.events] == [0, 1, 3]
    assert story.waits_ms() == [5, 70]  # the third was read and changed nothing
    assert story.waits_ms(since_ms=15) == [70]


def test_news_are_new_generations_and_states() -> None:
    """News are changes of generation, cause or state against the record before."""
    story = Story(G, "muster")
    first = snapshot(1, 0, 1, GroupState.STABLE)
    assert feed(story, TopicKind.GROUPS, first, Origin("g", 0, 0, 15)) == [
        Generation(1, "cause 1", first.moves),
        GroupState.STABLE,
    ]
    assert feed(story, TopicKind.GROUPS, first, Origin("g", 0, 1, 16)) == []
    moving = snapshot(1, 0, 2, GroupState.RECONCILING)
    assert feed(story, TopicKind.GROUPS, moving, Origin("g", 0, 2, 17)) == [GroupState.RECONCILING]
    placed = replace(moving, cause="W1 joined")
    assert feed(story, TopicKind.GROUPS, placed, Origin("g", 0, 3, 18)) == [
        Generation(1, "W1 joined", first.moves)
    ]
    other = replace(first, group=GroupId("another"))
    assert feed(story, TopicKind.GROUPS, other, Origin("g", 0, 4, 19)) == []
    assert [g.number for g in story.generations] == [1]


def line(at_ms: int, what: str, member: str, task: str | None = None) -> dict[str, object]:
    """A line of a worker's log."""
    rest = {} if task is None else {"task": task}
    return {"at_ns": at_ms * 1_000_000, "what": what, "member": member, **rest}


LOG = [
    line(10, "start", "W1", "0_0"),
    line(10, "start", "W1", "0_1"),
    line(30, "stop", "W1", "0_0"),
    line(35, "start", "W2", "0_0"),
    line(40, "died", "W1"),
    line(940, "start", "W2", "0_1"),
]


def test_tenures_gaps_and_owners() -> None:
    """Starts and stops pair up, a death ends a tenure, and the time between tenures is a gap."""
    task_tenures = task_runs.tenures(reversed(LOG))
    ms = 1_000_000
    assert task_tenures == [
        Tenure("0_0", "W1", 10 * ms, 30 * ms),
        Tenure("0_0", "W2", 35 * ms, None),
        Tenure("0_1", "W1", 10 * ms, 40 * ms, died=True),
        Tenure("0_1", "W2", 940 * ms, None),
    ]
    assert task_runs.gaps(task_tenures) == [
        Gap("0_1", "W1", "W2", 900 * ms, died=True),
        Gap("0_0", "W1", "W2", 5 * ms, died=False),
    ]
    assert task_runs.owners(task_tenures) == {"0_0": "W2", "0_1": "W2"}
    assert task_runs.overlaps(task_tenures) == []


def test_two_owners_are_found() -> None:
    """A task that starts before its owner stops is an overlap, also if the owner never stops."""
    early = [line(20, "start", "W3", "0_0"), line(50, "start", "W3", "0_1")]
    task_tenures = task_runs.tenures(LOG + early)
    assert [(a.member, b.member, a.task) for a, b in task_runs.overlaps(task_tenures)] == [
        ("W1", "W3", "0_0"),
        ("W3", "W2", "0_0"),
        ("W3", "W2", "0_1"),
    ]


def test_lines_cut_off_by_a_kill_are_none(tmp_path: Path) -> None:
    """Only whole lines of *.jsonl files count."""
    (tmp_path / "a.jsonl").write_text(json.dumps(LOG[0]) + "\n" + json.dumps(LOG[1])[:9])
    (tmp_path / "b.log").write_text("else\n")
    assert list(task_runs.lines(tmp_path)) == LOG[:1]


def test_the_figures_of_a_story() -> None:
    """Records give generations, moves and waits; workers' logs give gaps and overlaps."""
    story = example_story()
    assert summary_of(story, 0, LOG) == [
        ("generations", "2"),
        ("moves", "2 (and 0 placements of tasks no member had)"),
        ("event to published assignment", "p50 5 ms, p99 70 ms (2 events, broker timestamps)"),
        ("longest without an owner, planned", "5 ms (0_0, W1 → W2)"),
        ("longest without an owner, kill -9", "900 ms (0_1, W1 → W2)"),
        ("tasks run by two workers at once", "never"),
        ("measured on", machine()),
    ]
    nothing = summary_of(Story(G, "muster"), 0, [])
    assert [text for _, text in nothing] == [
        "0",
        "0 (and 0 placements of tasks no member had)",
        *("no events", "none", "none", "never", machine()),
    ]


def test_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Each event is a line, moves follow their generation, and owners' tasks are sorted."""
    show = PlainShow()
    show.act(1, "begins")
    show.news(Generation(3, "W2 joined", orders().moves))
    show.news(GroupState.NOT_READY)
    show.settled({"0_10": "W1", "0_9": "W1", "0_1": "W2"})
    assert [text[9:] for text in capsys.readouterr().out.splitlines()] == [
        "== 1. begins",
        "generation 3: W2 joined",
        "  0_1 W1 → W2: balance",
        "  0_0 (standby) no member → W2: copy",
        "group is Not Ready",
        "settled: W1 0_9,0_10 | W2 0_1",
    ]


def test_a_task_that_goes_to_no_member() -> None:
    """A move may go to no member."""
    move = Move(task="c1", role=Role.ACTIVE, from_member="W1", to_member=None, reason="removed")
    assert move_text(move) == "c1 W1 → no member: removed"


def test_the_live_view_draws_any_moment(tmp_path: Path) -> None:
    """The live view draws every stage of the demo in terminals of three sizes."""
    kept = tmp_path / "times.json"
    kept.write_text(json.dumps({startup.SPARK: 9.5}))
    from rich.console import Console

    from muster.demo.terminal_view import RichShow

    class Lock:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    class Watcher:
        story = example_story()
        lock = Lock()

    for width, height in ((40, 10), (80, 24), (200, 60)):
        console = Console(width=width, height=height, record=True, file=io.StringIO())
        show = RichShow(7, console)
        parts = StartUp(kept)
        with parts.part(startup.SPARK) as part:
            show.starts(parts, part)
        console.print(show._frame())
        show.watch(Watcher(), None)
        show.act(1, "begins")
        show.note("a note")
        show.news(Generation(3, "W2 joined", orders().moves))
        show.settled({"0_0": "W1"})
        console.print(show._frame())
        moved = replace(orders(), members=orders().members[1:], holder=np.full(5, 2))
        Watcher.story.snapshot = moved
        console.print(show._frame())
        show.summary(summary_of(example_story(), 0, LOG))
        text = console.export_text()
        assert "muster demo" in text
        if width >= 80:
            assert "the streaming query" in text
            assert "last time 9.5 s" in text
            assert "generation 3 W2 joined" in text
            assert "W1 → W2" in text
            assert "gone" in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_whole_board_stays_on_the_screen(width: int, height: int) -> None:
    """With four members and twelve tasks no heading is cut, and the summary fits on the screen."""
    from rich.console import Console

    from muster.demo.terminal_view import RichShow

    class Watcher:
        story = Story(G, "muster")
        lock = nullcontext()

    slots = np.repeat(np.arange(4, dtype=np.int32), 3)
    members = tuple(
        MemberEntry(id=MemberId(f"W{slot + 1}"), slot=slot, incarnation=slot) for slot in range(4)
    )
    tasks = (Subtopology("0", 12),)
    vectors = {"target": slots, "holder": slots, "destination": slots}
    Watcher.story.snapshot = replace(
        orders(), tasks=tasks, members=members, revoking=np.zeros(12, dtype=np.bool_), **vectors
    )
    output = io.StringIO()
    console = Console(width=width, height=height, file=output)
    show = RichShow(7, console)
    show.watch(Watcher(), None)
    for number in range(2 * height):
        show.note(f"note {number}")
    headings = " ".join(f"0_{number}" for number in range(12)).split()
    drawn = Console(width=width, height=height, file=io.StringIO(), record=True)
    drawn.print(show._frame())
    lines = drawn.export_text().splitlines()
    assert lines[2].split()[3:-1] == headings
    assert len(lines) < height
    show.summary(summary_of(example_story(), 0, LOG))
    last_screen = output.getvalue().splitlines()[-(height - 1) :]  # a prompt takes one line
    text = "\n".join(last_screen)
    assert "muster demo" in text
    assert "what you saw" in text
    assert "measured on" in text


def test_a_start_is_remembered(tmp_path: Path) -> None:
    """The next start shows how long each part took last time; a damaged file is ignored."""
    file, now_s = tmp_path / "cache" / "start.json", iter([10.0, 12.5, 20.0, 20.5])
    first = StartUp(file, lambda: next(now_s))
    with first.part(startup.KAFKA) as part:
        assert part.last_s is None
    with first.part(startup.TOPICS):
        pass
    first.keep()
    again = {part.name: part.last_s for part in StartUp(file).parts}
    assert again[startup.KAFKA] == 2.5
    assert again[startup.TOPICS] == 0.5
    assert again[startup.QUERY] is None
    for damage in ("", "[1]", '{"Kafka": "long"}', '{"Kafka": -1}'):
        file.write_text(damage)
        assert {part.last_s for part in StartUp(file).parts} == {None}
