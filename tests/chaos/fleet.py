"""A fleet: real ``muster worker`` processes of one group, and what their logs show.

Each task is a child process of the worker's guard, which logs every start and stop. When a worker
is killed or frozen, its guard ends the tasks and logs that, so the logs show every owner.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from support.kafka.brokers import Topics
from support.suite.waiting import until
from support.worker import overlap

from muster.broker.ends_with_parent import Tethered
from muster.protocol.events import Drain, GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import TaskTable, Unit
from muster.protocol.topics import TopicKind

LEAVE_TIMEOUT_S = 60
TASK = "exec sleep 90000"


class Fleet:
    """The workers of one group; a context manager that leaves no process behind.

    Args:
        topics: of the cluster, not through a proxy.
        folder: for their logs.
        group: group id.
        assignor: name of its assignor.
        unit: its tasks.
        config: its settings.
        addresses: member → its bootstrap servers.
        pins: member → jobs it names (`--static`), for the assignor `static`.
    """

    def __init__(
        self,
        topics: Topics,
        folder: Path,
        group: str,
        assignor: str,
        unit: Unit,
        config: Mapping[str, object],
        addresses: Mapping[str, str],
        pins: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.group = group
        self.pins = pins
        self.folder = folder / group
        self.folder.mkdir(parents=True)
        self.addresses = dict(addresses)
        self.members: dict[str, Tethered] = {}
        self.topics = topics
        table = TaskTable([unit])
        self.tasks = {str(table.task(index)) for index in range(len(table))}
        self.config = GroupConfig(
            group=GroupId(group),
            assignor=assignor,
            settings=parse_settings(config, assignor),
            tasks=(unit,),
        )

    def declare(self) -> None:
        """Configure the group, as an operator does first."""
        self.topics.write(TopicKind.CONFIG, self.config)

    def delete(self) -> None:
        """`muster config delete --force`: members must stop their tasks."""
        self.topics.write(TopicKind.CONFIG, GroupDeleted(group=self.config.group))

    def drain(self, name: str, *, on: bool) -> None:
        """`muster drain`, or its `--cancel`."""
        order = Drain(group=self.config.group, member=MemberId(name), on=on)
        self.topics.write(TopicKind.MEMBERSHIP, order)

    # ---- actions on members

    def start(self, name: str) -> None:
        """Start a worker; it joins by itself."""
        command = [
            *(sys.executable, "-m", "muster.cli.main", "worker", "--group", self.group),
            *("--bootstrap-server", self.addresses[name]),
            *("--topic-prefix", self.topics.prefix, "--member-id", name),
            *("--log", str(self.folder / f"{name}.jsonl"), "--stop-timeout-ms", "500"),
            *(f"--static={job}" for job in self.pins.get(name, ())),
            *("--exec", TASK),
        ]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.members[name] = Tethered(command, output=errors, cwd=self.folder)

    def leave(self, name: str) -> None:
        """Send SIGTERM: it stops its tasks, leaves the group and ends."""
        member = self.members.pop(name)
        member.send(signal.SIGTERM)
        code = member.wait(LEAVE_TIMEOUT_S)
        assert code == 0, f"{name} ended with {code}:\n{self.log_tail(name)}"

    def kill(self, name: str) -> None:
        """Send SIGKILL: its guard survives and ends its tasks."""
        self.members.pop(name).kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT."""
        self.members[name].send(number)

    # ---- observations

    def tenures(self) -> list[overlap.Tenure]:
        """Which member ran which task and when, from the logs."""
        return overlap.tenures(overlap.lines(self.folder))

    def misplaced(self) -> list[overlap.Tenure]:
        """Jobs that ran on a worker that does not name them."""
        if not self.pins:
            return []
        return [tenure for tenure in self.tenures() if tenure.task not in self.pins[tenure.member]]

    def backward(self) -> list[tuple[overlap.Tenure, overlap.Tenure]]:
        """Pairs of owners of a task, of which the later one has no greater token.

        A member that returns under its name is the same owner and may get the token it had.
        """
        pairs: list[tuple[overlap.Tenure, overlap.Tenure]] = []
        for one, other in pairwise(self.tenures()):
            is_new = one.task == other.task and one.member != other.member
            older = (other.generation, other.epoch) <= (one.generation, one.epoch)
            if (is_new and older) or (one.task == other.task and other.generation < one.generation):
                pairs.append((one, other))
        return pairs

    def rests(self, name: str) -> bool:
        """Whether a drained member is in the group again and runs nothing."""
        snapshot = self.newest()
        known = {} if snapshot is None else {str(m.id): m for m in snapshot.members}
        return name in known and known[name].draining and name not in self.held()

    def held(self) -> dict[str, set[str]]:
        """Member → tasks that it runs now, from the logs."""
        held: dict[str, set[str]] = {}
        for tenure in self.tenures():
            if tenure.stop_ns == overlap.FOREVER:
                held.setdefault(tenure.member, set()).add(tenure.task)
        return held

    def is_whole(self, without: str | None = None) -> bool:
        """Whether every task runs exactly once, and none on the member `without`."""
        held = self.held()
        count = Counter(task for tasks in held.values() for task in tasks)
        return count == Counter(self.tasks) and without not in held

    def is_settled(self) -> bool:
        """Whether the published group is stable, and the logs agree with it."""
        snapshot = self.newest()
        if snapshot is None or snapshot.state is not GroupState.STABLE:
            return False
        held = self.held()
        members = {str(entry.id) for entry in snapshot.members}
        return members == self.members.keys() and self.is_whole() and held == _held(snapshot)

    def snapshots(self) -> list[GroupSnapshot]:
        """Every state the coordinator published, oldest first."""
        records = self.topics.records(TopicKind.GROUPS)
        return [r for r in records if isinstance(r, GroupSnapshot) and r.group == self.group]

    def newest(self) -> GroupSnapshot | None:
        """The newest state published."""
        published = self.snapshots()
        return published[-1] if published else None

    def log_tail(self, name: str) -> str:
        """The end of a worker's log."""
        return (self.folder / f"{name}.err").read_text(errors="replace")[-1500:]

    def story(self) -> str:
        """The group, its tasks and the workers' logs, for the message of a failure."""
        snapshot = self.newest()
        published = "nothing"
        if snapshot is not None:
            published = (
                f"generation {snapshot.generation} {snapshot.state.value} ({snapshot.cause}) "
                f"{_held(snapshot)}"
            )
        lines = [f"{self.group}: running {sorted(self.members)}", f"published: {published}"]
        lines.append(f"held: {self.held()}")
        lines += [f"{name}: {self.log_tail(name)}" for name in sorted(self.addresses)]
        return "\n".join(lines)

    def close(self) -> None:
        """End every worker, and check that no task is left."""
        for member in self.members.values():
            member.send(signal.SIGCONT)
            member.kill()
        self.members.clear()
        until(lambda: not self.held(), f"every task of {self.group} has ended", story=self.held)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _held(snapshot: GroupSnapshot) -> dict[str, set[str]]:
    table = TaskTable(snapshot.tasks)
    name = {entry.slot: str(entry.id) for entry in snapshot.members}
    held: dict[str, set[str]] = {}
    for index, slot in enumerate(snapshot.holder.tolist()):
        if slot in name:
            held.setdefault(name[slot], set()).add(str(table.task(index)))
    return held
