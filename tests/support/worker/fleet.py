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
from support.suite.waiting import until
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


class Fleet:
    """The workers of one group; a context manager that leaves no process behind.

    Attributes:
        group: group id.
        folder: where they log.
    """

    def __init__(self, topics: Topics, folder: Path, group: str) -> None:
        self.group = group
        self.folder = folder / group
        self.folder.mkdir(parents=True)
        self._topics = topics
        self._members: dict[str, Tethered] = {}
        self._tasks: set[str] = set()

    # ---- what the operator does

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
        self._topics.write(TopicKind.CONFIG, event)

    def expect(self, partitions: int) -> None:
        """Set the tasks of a group declared elsewhere: one subtopology "0"."""
        self._tasks = {f"0_{number}" for number in range(partitions)}

    # ---- what members do

    def start(self, *names: str, **settings: Any) -> None:
        """Start workers; they join by themselves."""
        for name in names:
            given = {
                "group": self.group,
                "member_id": name,
                "bootstrap_servers": self._topics.address,
                "topic_prefix": self._topics.prefix,
                "log": str(self.folder / f"{name}.jsonl"),
                **settings,
            }
            with (self.folder / f"{name}.err").open("ab") as errors:
                self._members[name] = Tethered(
                    [sys.executable, member.__file__, json.dumps(given)],
                    output=errors,
                    cwd=self.folder,
                )

    def stop(self, *names: str) -> None:
        """Send SIGTERM: they leave the group; returns when they have ended."""
        for name in names:
            self._members[name].send(signal.SIGTERM)
        for name in names:
            code = self._members.pop(name).wait(60)
            assert code == 0, f"{name} ended with {code}:\n{self.story(name)}"

    def kill(self, *names: str) -> None:
        """Send SIGKILL: they end without a leave; log the end of their tasks."""
        for name in names:
            process = self._members.pop(name)
            process.kill()
            with (self.folder / "deaths.jsonl").open("a") as log:
                line = {"at_ns": overlap.now_ns(), "what": "died", "pid": process.pid}
                log.write(json.dumps(line) + "\n")

    def pid(self, name: str) -> int:
        """Process id of a worker."""
        return self._members[name].pid

    # ---- observations

    def snapshots(self) -> list[GroupSnapshot]:
        """Every state of the group the coordinator published, oldest first."""
        records = self._topics.records(TopicKind.GROUPS)
        return [r for r in records if isinstance(r, GroupSnapshot) and r.group == self.group]

    def held(self) -> dict[str, set[str]]:
        """Member → tasks that it runs now, from the workers' logs."""
        held: dict[str, set[str]] = {name: set() for name in self._members}
        for tenure in overlap.tenures(overlap.lines(self.folder)):
            if tenure.stop_ns == overlap.FOREVER:
                held.setdefault(tenure.member, set()).add(tenure.task)
        return held

    def settled(self, timeout_s: float = 90) -> dict[str, set[str]]:
        """Wait until the group is stable, every task runs once, and the logs agree.

        Returns:
            Who runs what.
        """
        until(self._is_settled, f"{self.group} has settled", timeout_s=timeout_s, story=self.story)
        return self.held()

    def _is_settled(self) -> bool:
        published = self.snapshots()
        if not published or published[-1].state is not GroupState.STABLE:
            return False
        snapshot, held = published[-1], self.held()
        count = Counter(task for tasks in held.values() for task in tasks)
        return (
            {entry.id for entry in snapshot.members} == self._members.keys()
            and count == Counter(self._tasks)
            and held == _by_member(snapshot)
        )

    def check(self) -> list[overlap.Tenure]:
        """Fail if any task ever had two owners."""
        return overlap.check(self.folder)

    def story(self, *names: str) -> str:
        """Published state and logs, for the message of a failure."""
        published = self.snapshots()
        lines = [f"published: {_summary(published[-1]) if published else 'nothing'}"]
        lines.append(f"held: {self.held()}")
        letters = [r for r in self._topics.records(TopicKind.REJECTED) if isinstance(r, Rejected)]
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

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._members.values():
            process.kill()


def _by_member(snapshot: GroupSnapshot) -> dict[str, set[str]]:
    table = TaskTable(snapshot.tasks)
    name = {entry.slot: str(entry.id) for entry in snapshot.members}
    held: dict[str, set[str]] = {member: set() for member in name.values()}
    for index, slot in enumerate(snapshot.holder.tolist()):
        if slot in name:
            held[name[slot]].add(str(table.task(index)))
    return held


def _summary(snapshot: GroupSnapshot) -> str:
    return (
        f"generation {snapshot.generation} {snapshot.state.value} ({snapshot.cause}): "
        f"{_by_member(snapshot)}"
    )
