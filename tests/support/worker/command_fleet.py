"""A fleet of ``muster worker --exec`` processes, and what their logs show.

Each task is a child process of the worker's guard, which logs every start and stop. When a worker
is killed or frozen, its guard ends the tasks and logs that, so the logs show every owner.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from support.kafka.brokers import Topics
from support.suite.waiting import until
from support.worker.fleet import QUICK, Workers
from support.worker.overlap import Tenure

from muster.protocol.events import Drain, GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import TaskTable, Unit
from muster.protocol.topics import TopicKind

TASK = "exec sleep 90000"


class CommandFleet(Workers):
    """The workers of one group; a context manager that leaves no process behind.

    Args:
        topics: of the cluster, not through a proxy.
        folder: for their logs.
        group: group id.
        assignor: name of its assignor.
        units: its tasks.
        config: its settings.
        addresses: member → its bootstrap servers; those of `topics` if none are given.
        pins: member → jobs it names (`--static`), for the assignor `static`.
    """

    def __init__(
        self,
        topics: Topics,
        folder: Path,
        group: str,
        assignor: str,
        *units: Unit,
        config: Mapping[str, object] = QUICK,
        addresses: Mapping[str, str] = MappingProxyType({}),
        pins: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        super().__init__(topics, folder, group)
        self.addresses, self.pins = addresses, pins
        table = TaskTable(units)
        self.tasks = {str(table.task(index)) for index in range(len(table))}
        settings = parse_settings(config, assignor)
        self.config = GroupConfig(
            group=GroupId(group), assignor=assignor, settings=settings, tasks=units
        )

    def declare(self, **changed: object) -> None:
        """Configure the group, as an operator does; in a key of `changed` each _ is a dot."""
        given = {key.replace("_", "."): value for key, value in changed.items()}
        if given:
            settings = parse_settings({**QUICK, **given}, self.config.assignor)
            self.config = replace(self.config, settings=settings)
        self.topics.write(TopicKind.CONFIG, self.config)

    def delete(self) -> None:
        """`muster config delete --force`: members must stop their tasks."""
        self.topics.write(TopicKind.CONFIG, GroupDeleted(group=self.config.group))

    def drain(self, name: str, *, on: bool) -> None:
        """`muster drain`, or its `--cancel`."""
        order = Drain(group=self.config.group, member=MemberId(name), on=on)
        self.topics.write(TopicKind.MEMBERSHIP, order)

    def start(self, name: str, task: str = TASK) -> None:
        """Start a worker; it joins by itself."""
        address = self.addresses.get(name, self.topics.address)
        command = [
            *(sys.executable, "-m", "muster.cli.main", "worker", "--group", self.group),
            *("--bootstrap-server", address),
            *("--topic-prefix", self.topics.prefix, "--member-id", name),
            *("--log", str(self.folder / f"{name}.jsonl"), "--stop-timeout-ms", "500"),
            *(f"--static={job}" for job in self.pins.get(name, ())),
            *("--exec", task),
        ]
        self.launch(name, command)

    def kill(self, name: str) -> None:
        """Send SIGKILL: its guard survives and ends its tasks."""
        self.members.pop(name).kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT."""
        self.members[name].send(number)

    def misplaced(self) -> list[Tenure]:
        """Jobs that ran on a worker that does not name them."""
        if not self.pins:
            return []
        return [tenure for tenure in self.tenures() if tenure.task not in self.pins[tenure.member]]

    def backward(self) -> list[tuple[Tenure, Tenure]]:
        """Pairs of owners of a task, of which the later one has no greater token.

        A member that returns under its name is the same owner and may get the token it had.
        """
        pairs: list[tuple[Tenure, Tenure]] = []
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
        return name in known and known[name].draining and not self.held().get(name)

    def close(self) -> None:
        """End every worker, and check that no task is left."""
        for member in self.members.values():
            member.send(signal.SIGCONT)
            member.kill()
        self.members.clear()
        until(lambda: not self.held(), f"every task of {self.group} has ended", story=self.held)

    def __enter__(self) -> CommandFleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
