"""A fleet: worker processes of one group, started, stopped and killed by a test."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.kafka.brokers import Topics
from support.suite.waiting import PATIENCE_S, until
from support.worker import member, overlap

from muster.broker.ends_with_parent import Tethered
from muster.protocol.events import GroupConfig
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, GroupState, Rejected
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology, TaskTable
from muster.protocol.topics import TopicKind

QUICK = {"session.timeout.ms": "3000", "heartbeat.interval.ms": "500"}
"""Settings of a group that notices crashes soon."""


class Workers:
    """Worker processes of one group, and what the group's topics and the workers' logs show.

    Attributes:
        topics: of the group.
        group: group id.
        folder: where the workers log.
        members: the processes that run, by member id.
        tasks: of the group, by printed id.
    """

    def __init__(self, topics: Topics, folder: Path, group: str) -> None:
        self.topics = topics
        self.group = group
        self.folder = folder / group
        self.folder.mkdir(parents=True)
        self.members: dict[str, Tethered] = {}
        self.tasks: set[str] = set()

    def launch(self, name: str, command: list[str]) -> None:
        """Start a worker's process."""
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.members[name] = Tethered(command, output=errors, cwd=self.folder)

    def stop(self, *names: str) -> None:
        """Send SIGTERM: they leave the group; returns when they have ended."""
        for name in names:
            self.members[name].send(signal.SIGTERM)
        for name in names:
            code = self.members.pop(name).wait(PATIENCE_S)
            assert code == 0, f"{name} ended with {code}:\n{self.story(name)}"

    def snapshots(self) -> list[GroupSnapshot]:
        """Every state of the group the coordinator published, oldest first."""
        records = self.topics.records(TopicKind.GROUPS)
        return [r for r in records if isinstance(r, GroupSnapshot) and r.group == self.group]

    def newest(self) -> GroupSnapshot | None:
        """The newest state published."""
        published = self.snapshots()
        return published[-1] if published else None

    def tenures(self) -> list[overlap.Tenure]:
        """Which member ran which task and when, from the logs."""
        return overlap.tenures(overlap.lines(self.folder))

    def held(self) -> dict[str, set[str]]:
        """Member → tasks that it runs now, from the workers' logs."""
        held: dict[str, set[str]] = {name: set() for name in self.members}
        for tenure in self.tenures():
            if tenure.stop_ns == overlap.FOREVER:
                held.setdefault(tenure.member, set()).add(tenure.task)
        return held

    def is_whole(self, without: str | None = None) -> bool:
        """Whether every task runs exactly once, and none on the member `without`."""
        held = self.held()
        count = Counter(task for tasks in held.values() for task in tasks)
        return count == Counter(self.tasks) and not held.get(without or "")

    def is_settled(self) -> bool:
        """Whether the group is stable, every task runs once, and the logs agree."""
        snapshot = self.newest()
        if snapshot is None or snapshot.state is not GroupState.STABLE:
            return False
        members = {str(entry.id) for entry in snapshot.members}
        placed = by_member(snapshot)
        return members == self.members.keys() and self.is_whole() and self.held() == placed

    def check(self) -> list[overlap.Tenure]:
        """Fail if any task ever had two owners; otherwise return all tenures."""
        return overlap.check(self.folder)

    def story(self, *names: str) -> str:
        """Published state and logs, for the message of a failure."""
        snapshot = self.newest()
        published = "nothing"
        if snapshot is not None:
            published = (
                f"generation {snapshot.generation} {snapshot.state.value} ({snapshot.cause}): "
                f"{by_member(snapshot)}"
            )
        lines = [f"{self.group}: published: {published}", f"held: {self.held()}"]
        letters = [r for r in self.topics.records(TopicKind.REJECTED) if isinstance(r, Rejected)]
        lines += [
            f"rejected: {r.origin} {r.reason}: {r.message[-3000:]}"
            for r in letters
            if r.key == self.group.encode()
        ][:3]
        for file in sorted(self.folder.glob("*.err")):
            if not names or file.stem in names:
                text = file.read_text(errors="replace").strip()
                lines.append(f"{file.stem}: {text[-2000:] or '(silent)'}")
        return "\n".join(lines)


class Fleet(Workers):
    """Workers in Python (`member.py`); a context manager that leaves no process behind."""

    def configure(
        self,
        partitions: int,
        assignor: str = "sticky",
        config: Mapping[str, object] = QUICK,
        stateful: bool = False,
    ) -> None:
        """Declare the group: one subtopology "0"."""
        unit = Subtopology("0", partitions, stateful=stateful)
        event = GroupConfig(
            group=GroupId(self.group),
            assignor=assignor,
            settings=parse_settings(config, assignor),
            tasks=(unit,),
        )
        self.expect(partitions)
        self.topics.write(TopicKind.CONFIG, event)

    def expect(self, partitions: int) -> None:
        """Set the tasks of a group declared elsewhere: one subtopology "0"."""
        self.tasks = {f"0_{number}" for number in range(partitions)}

    def start(self, *names: str, **settings: Any) -> None:
        """Start workers; they join by themselves."""
        for name in names:
            given = {
                "group": self.group,
                "member_id": name,
                "bootstrap_servers": self.topics.address,
                "topic_prefix": self.topics.prefix,
                "log": str(self.folder / f"{name}.jsonl"),
                **settings,
            }
            self.launch(name, [sys.executable, member.__file__, json.dumps(given)])

    def kill(self, *names: str) -> None:
        """Send SIGKILL: they end without a leave; log the end of their tasks."""
        for name in names:
            process = self.members.pop(name)
            process.kill()
            with (self.folder / "deaths.jsonl").open("a") as log:
                line = {"at_ns": overlap.now_ns(), "what": "died", "pid": process.pid}
                log.write(json.dumps(line) + "\n")

    def pid(self, name: str) -> int:
        """Process id of a worker."""
        return self.members[name].pid

    def settled(self, timeout_s: float = PATIENCE_S) -> dict[str, set[str]]:
        """Wait until the group has settled; return who runs what."""
        until(self.is_settled, f"{self.group} has settled", timeout_s=timeout_s, story=self.story)
        return self.held()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.members.values():
            process.kill()


def by_member(snapshot: GroupSnapshot) -> dict[str, set[str]]:
    """Member → tasks that it holds as active, in a published state."""
    table = TaskTable(snapshot.tasks)
    name = {entry.slot: str(entry.id) for entry in snapshot.members}
    held: dict[str, set[str]] = {member: set() for member in name.values()}
    for index, slot in enumerate(snapshot.holder.tolist()):
        if slot in name:
            held[name[slot]].add(str(table.task(index)))
    return held
