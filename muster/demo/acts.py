"""The acts of `muster demo`: each changes the fleet, and ends when the fleet has settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TypeVar

from muster.broker.jars import jars
from muster.broker.java import java_home
from muster.demo import startup, task_runs
from muster.demo.demo_processes import GROUP, DemoProcesses
from muster.demo.startup import Part, StartUp
from muster.demo.story import News, Story
from muster.demo.summary import Rows, summary_of
from muster.demo.watcher import Watcher
from muster.errors import DemoFailed
from muster.protocol.records import GroupState
from muster.protocol.topics import DEFAULT_PREFIX

ACTS = 7
PATIENCE_S = 180
LOOK_S = 0.05
T = TypeVar("T")


class Show:
    """How the demo is shown: live in a terminal (`RichShow`), or as lines (`PlainShow`).

    What a show does not define has no effect.
    """

    def act(self, number: int, title: str) -> None:
        """An act begins."""

    def note(self, text: str) -> None:
        """The demo itself did something."""

    def news(self, news: News) -> None:
        """The coordinator published a generation or a new state."""

    def starts(self, parts: StartUp, part: Part) -> None:
        """One of the parts is being started."""

    def settled(self, owners: dict[str, str]) -> None:
        """The fleet has settled; `owners`: task -> member."""

    def watch(self, watcher: Watcher, processes: DemoProcesses) -> None:
        """Kafka runs, and the watcher follows the group from now on."""

    def breathe(self) -> None:
        """Pause if a person is reading."""

    def summary(self, rows: Rows) -> None:
        """Show the figures at the end."""

    def close(self) -> None:
        """Give the terminal back."""


def prepare() -> None:
    """Find Java and fetch all jars before the live view, which their progress bars would disturb.

    Raises:
        ModuleNotFoundError: pyspark is not installed.
        MusterError: there is no Java, or a jar cannot be fetched.
    """
    if find_spec("pyspark") is None:
        raise ModuleNotFoundError("the job needs it", name="pyspark")
    java_home()
    jars("kafka")
    jars("spark")


def play(processes: DemoProcesses, show: Show) -> None:
    """Play the acts; each begins when the one before has settled.

    Raises:
        DemoFailed: a process has ended, or a step took longer than `PATIENCE_S`.
    """
    parts = StartUp()

    @contextmanager
    def starting(name: str) -> Iterator[None]:
        with parts.part(name) as part:
            show.starts(parts, part)
            yield

    show.act(1, "a real Kafka starts, and muster's topics are created")
    with starting(startup.KAFKA):
        processes.start_kafka()
    show.note(f"Kafka answers on {processes.kafka.bootstrap_server}")
    with starting(startup.TOPICS):
        processes.create_topics()
    processes.start_console()
    if processes.console_url:
        show.note(f"see it in the browser: {processes.console_url}group?g={GROUP}")
    story = Story(GROUP, DEFAULT_PREFIX)
    with Watcher(processes.clients, story, show.news) as watcher:
        show.watch(watcher, processes)
        show.act(2, "the coordinator starts: one Spark Structured Streaming query")
        with starting(startup.SPARK):
            processes.start_job()
            _until(processes.job_answers, processes, "Spark has started")
        with starting(startup.QUERY):
            _until(processes.job_is_ready, processes, "the Spark query runs")
        with starting(startup.GROUP):
            processes.configure_group()
            _until(lambda: story.snapshot is not None, processes, "the group is known")
        parts.keep()
        show.note("the query runs, and the group has its 12 tasks")
        since_ms = story.publications[-1].at_ms
        _fleet(processes, show, watcher)
        show.act(7, "the end")
        show.summary(summary_of(story, since_ms, task_runs.lines(processes.logs)))


def _fleet(processes: DemoProcesses, show: Show, watcher: Watcher) -> None:
    """Acts 3 to 6: workers join, one is drained, one is killed."""

    def settle(*members: str) -> None:
        owners = _until(
            lambda: _settled(watcher, processes, members), processes, "the fleet has settled"
        )
        show.settled(owners)
        show.breathe()

    show.act(3, "three workers join and share the tasks")
    for member in ("W1", "W2", "W3"):
        processes.start_worker(member)
    settle("W1", "W2", "W3")
    show.act(4, "a fourth worker joins")
    processes.start_worker("W4")
    settle("W1", "W2", "W3", "W4")
    show.act(5, "W2 is drained before it is stopped")
    processes.drain("W2")
    settle("W1", "W3", "W4")
    show.act(6, "W3 is killed, without a word")
    show.note(f"kill -9 {processes.kill_worker('W3')}")
    settle("W1", "W4")


def _settled(
    watcher: Watcher, processes: DemoProcesses, holders: tuple[str, ...]
) -> dict[str, str] | None:
    """Task -> owner, once coordinator and workers agree that exactly these hold all tasks."""
    with watcher.lock:
        snapshot = watcher.story.snapshot
    if snapshot is None or snapshot.state is not GroupState.STABLE:
        return None
    running = task_runs.owners(task_runs.tenures(task_runs.lines(processes.logs)))
    size = sum(unit.size for unit in snapshot.tasks)
    member = {m.slot: m.id for m in snapshot.members}
    published = [member.get(slot) for slot in snapshot.holder.tolist()]
    if set(published) != set(holders) or len(running) != size:
        return None
    return running if sorted(running.values()) == sorted(map(str, published)) else None


def _until(condition: Callable[[], T | None], processes: DemoProcesses, what: str) -> T:
    """Wait until the condition's answer is true, and return it.

    Raises:
        DemoFailed: a process ended meanwhile, or it took longer than `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        value = condition()
        if value:
            return value
        processes.check()
        if time.monotonic() > deadline:
            raise DemoFailed(f"waited {PATIENCE_S} s in vain until {what}")
        time.sleep(LOOK_S)
