"""A crew: real ``muster worker`` processes of one group, and what their own logs say.

Each task is a process of its own below the worker's guard, which notes every start and stop. Where
a worker is killed or frozen, its guard ends the tasks and says so: the logs are all one needs.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from support import overlap
from support.brokers import Topics
from support.waiting import until

from muster.broker.tether import Tethered
from muster.protocol.events import Drain, GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import GroupSnapshot, GroupState
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import TaskTable, Unit
from muster.protocol.topics import TopicKind

LEAVE_TIMEOUT_S = 60
TASK = "exec sleep 90000"


class Crew:
    """The workers of one group; a context manager that leaves no process behind.

    Args:
        topics: of the cluster, past any proxy.
        folder: where they log.
        group: group id.
        assignor: name of its assignor.
        unit: its tasks.
        config: its settings.
        addresses: member → bootstrap servers it is given.
        pins: member → the jobs it names (`--static`); a group of assignor `static` has them.
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
        """What an operator does first: configure the group."""
        self.topics.write(TopicKind.CONFIG, self.config)

    def delete(self) -> None:
        """`muster config delete --force`: members are to stop what they run."""
        self.topics.write(TopicKind.CONFIG, GroupDeleted(group=self.config.group))

    def drain(self, name: str, *, on: bool) -> None:
        """`muster drain`, or its `--cancel`."""
        order = Drain(group=self.config.group, member=MemberId(name), on=on)
        self.topics.write(TopicKind.MEMBERSHIP, order)

    # ---- what is done to members

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
        """SIGTERM: it stops its tasks, leaves the group and ends."""
        member = self.members.pop(name)
        member.send(signal.SIGTERM)
        code = member.wait(LEAVE_TIMEOUT_S)
        assert code == 0, f"{name} ended with {code}:\n{self.said(name)}"

    def kill(self, name: str) -> None:
        """SIGKILL: its guard is left, and ends what it ran."""
        self.members.pop(name).kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT."""
        self.members[name].send(number)

    # ---- what can be seen

    def tenures(self) -> list[overlap.Tenure]:
        """Who had what and when, by the logs."""
        return overlap.tenures(overlap.lines(self.folder))

    def misplaced(self) -> list[overlap.Tenure]:
        """Jobs that ran where the group had no leave to put them: on a worker that names others."""
        if not self.pins:
            return []
        return [one for one in self.tenures() if one.task not in self.pins[one.member]]

    def backward(self) -> list[tuple[overlap.Tenure, overlap.Tenure]]:
        """Owners of a task that were given a token below the owner's before them.

        One member that is back under its name is the same owner and may have the token it had.
        """
        found: list[tuple[overlap.Tenure, overlap.Tenure]] = []
        for one, other in pairwise(self.tenures()):
            is_new = one.task == other.task and one.member != other.member
            older = (other.generation, other.epoch) <= (one.generation, one.epoch)
            if (is_new and older) or (one.task == other.task and other.generation < one.generation):
                found.append((one, other))
        return found

    def rests(self, name: str) -> bool:
        """Whether a drained member is back in the group and runs nothing."""
        snapshot = self.newest()
        known = {} if snapshot is None else {str(m.id): m for m in snapshot.members}
        return name in known and known[name].draining and name not in self.held()

    def held(self) -> dict[str, set[str]]:
        """Who runs what right now, by the logs."""
        found: dict[str, set[str]] = {}
        for tenure in self.tenures():
            if tenure.stop_ns == overlap.FOREVER:
                found.setdefault(tenure.member, set()).add(tenure.task)
        return found

    def is_whole(self, without: str | None = None) -> bool:
        """Whether every task runs exactly once, and none at the member named."""
        held = self.held()
        count = Counter(task for tasks in held.values() for task in tasks)
        return count == Counter(self.tasks) and without not in held

    def is_settled(self) -> bool:
        """Whether the published group is stable, and the logs say what it says."""
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

    def said(self, name: str) -> str:
        """The end of what a worker said."""
        return (self.folder / f"{name}.err").read_text(errors="replace")[-1500:]

    def story(self) -> str:
        """What everybody says, for a failure."""
        snapshot = self.newest()
        published = "nothing"
        if snapshot is not None:
            published = (
                f"generation {snapshot.generation} {snapshot.state.value} ({snapshot.cause}) "
                f"{_held(snapshot)}"
            )
        lines = [f"{self.group}: running {sorted(self.members)}", f"published: {published}"]
        lines += [f"held: {self.held()}", *(f"{n}: {self.said(n)}" for n in sorted(self.addresses))]
        return "\n".join(lines)

    def close(self) -> None:
        """End every worker, and see that no task is left."""
        for member in self.members.values():
            member.send(signal.SIGCONT)
            member.kill()
        self.members.clear()
        until(lambda: not self.held(), f"every task of {self.group} has ended", story=self.held)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _held(snapshot: GroupSnapshot) -> dict[str, set[str]]:
    table = TaskTable(snapshot.tasks)
    name = {entry.slot: str(entry.id) for entry in snapshot.members}
    found: dict[str, set[str]] = {}
    for index, slot in enumerate(snapshot.holder.tolist()):
        if slot in name:
            found.setdefault(name[slot], set()).add(str(table.task(index)))
    return found
