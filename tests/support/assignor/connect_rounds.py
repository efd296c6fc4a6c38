"""A small Connect group: workers report, the leader plays a round, workers carry it out.

It follows the rules of Kafka's workers: all revoked jobs stop before any job starts,
and no job ever starts while another worker runs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from muster.assignor import check
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, Placement, group_view
from muster.assignor.registry import get
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Connector, TaskTable

DELAY_MS = 300_000
Counts = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass
class Worker:
    """One worker: what it runs, in the order of its reports, and its settings."""

    runs: list[str] = field(default_factory=list)
    static: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    capacity: int = 1
    draining: bool = False


@dataclass
class ConnectGroup:
    """A group of Connect workers in simulated time.

    Attributes:
        connectors: name -> number of tasks, or the declared unit.
        assignor: whose rounds are played.
        delay_ms: `scheduled.rebalance.max.delay.ms`.
        told_ms: the delay told in the last round.
    """

    connectors: dict[str, int | Connector]
    assignor: str = "cooperative"
    delay_ms: int = DELAY_MS
    workers: dict[str, Worker] = field(default_factory=dict)
    now_ms: int = 1_000_000
    told_ms: int = 0
    delivered: bool = True
    memory: Mapping[str, object] | None = None
    settings: dict[str, object] = field(default_factory=dict)

    def join(self, *names: str, runs: Iterable[str] = (), **about: object) -> None:
        """Workers join; they claim to run `runs`."""
        for name in names:
            self.workers[name] = Worker(list(runs), **about)  # type: ignore[arg-type]

    def leave(self, name: str) -> list[str]:
        """A worker leaves; return what it ran."""
        return self.workers.pop(name).runs

    def sleep(self, ms: int | None = None) -> None:
        """Let time pass: until the delay has expired, or `ms`."""
        self.now_ms += self.told_ms if ms is None else ms

    def forget(self) -> None:
        """A leader without memory takes over."""
        self.memory = None

    def view(self) -> GroupView:
        """The leader's view, without jobs that are no longer configured."""
        tasks = TaskTable(
            c if isinstance(c, Connector) else Connector(name, c)
            for name, c in self.connectors.items()
        )
        names = tuple(sorted(self.workers))
        owner = np.full(len(tasks), NO_MEMBER, dtype=np.int32)
        place = np.zeros(len(tasks), dtype=np.int32)
        more: list[tuple[int, int]] = []
        for number, name in enumerate(names):
            for position, job in enumerate(self.workers[name].runs):
                task = tasks.index(job)
                if task is not None and owner[task] == NO_MEMBER:
                    owner[task], place[task] = number, position
                elif task is not None:
                    more.append((task, number))
        columns = np.array(more, dtype=np.int32).reshape(len(more), 2)
        ordered = [self.workers[name] for name in names]
        config = {"scheduled.rebalance.max.delay.ms": self.delay_ms, **self.settings}
        return group_view(
            tasks=tasks,
            settings=parse_settings(config, self.assignor),
            members=names,
            capacity=np.array([w.capacity for w in ordered], dtype=np.int64),
            active=owner,
            also_active=Pairs.of(columns[:, 0], columns[:, 1]),
            report_order=place,
            draining=np.array([w.draining for w in ordered], dtype=np.bool_),
            static=tuple(frozenset(w.static) for w in ordered),
            protocols=tuple(w.protocols for w in ordered),
            now_ms=self.now_ms,
            memory=self.memory,
            whole_generation=self.delivered,
        )

    def round(self, *, undelivered: Iterable[str] | None = None) -> Placement:
        """Play one round, check its placement, and carry it out.

        Args:
            undelivered: workers the answer does not reach; None = it reaches all.
        """
        view = self.view()
        placement = get(self.assignor).assign(view)
        check.valid(view, placement)
        # The memory must survive the group's record.
        self.memory = json.loads(json.dumps(placement.memory))
        self.told_ms = placement.delay_ms
        self.delivered = undelivered is None
        self._carry_out(view, placement, set(undelivered or ()))
        return placement

    def settle(self, rounds: int = 2) -> Placement:
        """Several rounds, one right after the other; return the last placement."""
        for _ in range(rounds):
            placement = self.round()
        return placement

    def _carry_out(self, view: GroupView, placement: Placement, unreached: set[str]) -> None:
        known = {str(view.tasks.task(i)): i for i in range(len(view.tasks))}
        stop = {name: set[str]() for name in self.workers}
        for task, member in zip(
            placement.revoked.task.tolist(), placement.revoked.member.tolist(), strict=True
        ):
            stop[view.members[member]].add(str(view.tasks.task(task)))
        if placement.memory is None:  # an eager round: everything stops before it
            stop = {name: set(known) for name in stop}
        for name, worker in self.workers.items():
            if name not in unreached:
                worker.runs = [j for j in worker.runs if j in known and j not in stop[name]]
        for job, task in known.items():
            member = int(placement.active[task])
            if member == NO_MEMBER or view.members[member] in unreached:
                continue
            worker = self.workers[view.members[member]]
            if job not in worker.runs:
                runners = [n for n, w in self.workers.items() if job in w.runs]
                assert not runners, f"{job} starts on {view.members[member]}, runs on {runners}"
                worker.runs.append(job)

    def runs(self) -> dict[str, list[str]]:
        """Worker → jobs that it runs, sorted."""
        return {name: sorted(worker.runs) for name, worker in sorted(self.workers.items())}

    def counts(self) -> Counts:
        """Sorted numbers of connectors, and of tasks, that the workers run."""
        connectors = [sum(j in self.connectors for j in w.runs) for w in self.workers.values()]
        totals = [len(w.runs) for w in self.workers.values()]
        tasks = [total - c for total, c in zip(totals, connectors, strict=True)]
        return tuple(sorted(connectors)), tuple(sorted(tasks))
