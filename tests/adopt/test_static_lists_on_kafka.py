"""KIP-987's examples on a real Connect cluster whose workers know nothing of it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import pytest
from support.adopt.connect import ConnectCluster, Worker
from support.adopt.fleet import MATRIX, Fleet, Running
from support.suite.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.spark]
NEWEST = "sessioned"
ROUND = re.compile(r"round \d+ \(\w+\): (\d+) members?; \d+ tasks? to start, (\d+) to stop; ")
JOBS = ("c1", "c2", "c1-0", "c1-1", "c1-2", "c2-0", "c2-1")
"""Connectors first, as Connect's eager assignor deals them."""


class Lists:
    """A governed cluster whose pins change again and again; each time another governor comes."""

    def __init__(self, cluster: ConnectCluster, fleet: Fleet) -> None:
        self._cluster, self._fleet = cluster, fleet
        self._count = 0
        self._since_ms = 0
        self.governor: Running | None = None

    def change(
        self, pins: Iterable[tuple[str, Worker]], *options: str, expect: Worker | None = None
    ) -> None:
        """Govern with these pins from now on."""
        if self.governor is not None:
            self.governor.process.kill()
        self._count += 1
        words = [word for job, at in pins for word in ("--pin", f"{job}={at.name}")]
        words += [] if expect is None else ["--expect", expect.name]
        words += ["--config-topic", self._cluster.config_topic, *options]
        self.governor = self._fleet.adopt(*words, name=f"governor{self._count}")
        until(self._is_at_rest, "it governs, and no job is to move", pause_s=0.3, story=self.story)

    def _is_at_rest(self) -> bool:
        """Whether the newest round answered every worker and took no job away."""
        assert self.governor is not None
        rounds = ROUND.findall(self.governor.file.read_text(errors="replace"))
        return bool(rounds) and rounds[-1][:2] == (str(len(self._cluster.workers)), "0")

    def joins(self, worker: Worker) -> None:
        """A planned worker starts; returns when it is in the group."""
        self._cluster.begin(worker)
        self._cluster.ready()

    def hold(self, pins: dict[str, Worker], free: Sequence[Worker], story: str) -> None:
        """Wait until pinned jobs are where they belong, and the free workers share all others."""
        names = {worker.name for worker in free}

        def right(places: dict[str, str]) -> bool:
            others = {job: at for job, at in places.items() if job not in pins}
            tasks = Counter(at for job, at in others.items() if "-" in job)
            loads = [tasks[name] for name in names] or [0]
            return (
                all(places.get(job) == worker.name for job, worker in pins.items())
                and set(others.values()) <= names
                and (not names or len(places) == len(JOBS))
                and max(loads) - min(loads) <= 1
            )

        self._until(right, story)

    def stays(self, places: dict[str, str], story: str) -> None:
        """Wait until all jobs are in these places."""
        self._until(lambda running: running == places, story)

    def _until(self, right: Callable[[dict[str, str]], bool], story: str) -> None:
        """Wait until jobs are in the right places; REST tells it later than the workers' logs."""
        cluster = self._cluster
        until(
            lambda: right(running := cluster.running()) and cluster.places() == running,
            story,
            pause_s=0.5,
            story=self.story,
        )

    def started(self) -> list[tuple[str, str]]:
        """(job, worker) of every start since this was asked last."""
        since_ms, self._since_ms = self._since_ms, time.time_ns() // 1_000_000
        return self._cluster.starts(since_ms)

    def story(self) -> object:
        """What happened."""
        return self._cluster.places(), self._fleet.story(), self._cluster.story()


def most_loaded(places: dict[str, str], among: Collection[Worker]) -> tuple[str, Worker]:
    """The first task of the worker that runs most, and that worker."""
    names = {worker.name: worker for worker in among}
    tasks = Counter(at for job, at in places.items() if "-" in job and at in names)
    [(name, _)] = tasks.most_common(1)
    return min(job for job, at in places.items() if at == name and "-" in job), names[name]


class Played:
    """The examples, in the order in which one cluster can play them; what starts is all that may.

    Attributes:
        w1, w2: run from the beginning.
        w3: joins without a list, and speaks `compatible`.
        w4, w5: are in lists before they are there.
    """

    def __init__(self, cluster: ConnectCluster, lists: Lists) -> None:
        self._cluster, self._lists = cluster, lists
        self.w1, self.w2 = cluster.start(), cluster.start()
        self.w3, self.w4, self.w5 = (cluster.planned(p) for p in ("compatible", *2 * (NEWEST,)))
        cluster.ready()
        cluster.connector("c1", 3)
        cluster.connector("c2", 2)
        until(lambda: set(cluster.places()) == set(JOBS), "Connect places", story=lists.story)

    def without_lists(self) -> None:
        """EX-S0-9, -8 and -1: what `static` does where no list counts."""
        w1, w2, w3, lists = self.w1, self.w2, self.w3, self._lists
        lists.change((), "--config", "scheduled.rebalance.max.delay.ms=0")
        lists.hold({}, (w1, w2), "EX-S0-9: no lists")
        lists.started()
        before = self._cluster.places()
        lists.change((), "--assignor", "static")
        lists.stays(before, "EX-S0-9: static without lists is no other")
        assert lists.started() == []

        task, full = most_loaded(before, (w1, w2))
        lists.change([(task, full)], "--config", "connect.protocol=sessioned")
        lists.stays(before, "EX-S0-8: lists are ignored where one worker does not speak static")
        lists.joins(w3)
        lists.hold({}, (w1, w2, w3), "EX-S0-8: what a cooperative round does")
        [(moved, to)] = lists.started()
        assert (before[moved], to) == (full.name, w3.name)

        by_name = sorted(worker.name for worker in (w1, w2, w3))
        dealt = {name: by_name[number % 3] for number, name in enumerate(JOBS)}
        for _ in range(2):
            lists.change((), "--assignor", "eager", "--config", "connect.protocol=static")
            lists.stays(dealt, "EX-S0-1: the k-th job is on worker k mod n")
        lists.started()

    def workers_join_and_leave(self) -> str:
        """EX-S0-2, -13 and -4; returns the job that is pinned to `w5` at the end."""
        w4, w5, lists = self.w4, self.w5, self._lists
        free = (self.w1, self.w2, self.w3)
        pinned, _ = most_loaded(self._cluster.places(), free)
        lists.change([(pinned, w4)], "--assignor", "static", expect=w4)
        lists.hold({}, free, "its worker is not there yet: any may run it")
        assert lists.started() == []
        lists.joins(w4)
        lists.hold({pinned: w4}, free, "EX-S0-2: a task")
        assert lists.started() == [(pinned, w4.name)], "EX-S0-13: no other job moves"

        lists.change([(pinned, w4), (pinned, w5)], expect=w5)
        lists.joins(w5)
        lists.hold({pinned: w4}, free, "EX-S0-4: two workers name it")
        assert lists.started() == []
        self._cluster.stop(w4)
        lists.hold({pinned: w5}, free, "EX-S0-4: the other one takes over")
        assert lists.started() == [(pinned, w5.name)]
        return pinned

    def lists_change(self, pinned: str) -> None:
        """EX-S0-3, -6, -5 and -7: other lists for workers that are there."""
        w3, w5, lists, free = self.w3, self.w5, self._lists, (self.w1, self.w2)
        before = self._cluster.places()
        lists.change([(pinned, w5), ("c2", w3)])
        lists.hold({pinned: w5, "c2": w3}, free, "EX-S0-3, -6: a connector")
        left = {job for job, at in before.items() if at == w3.name and job != "c2"}
        came = {"c2"} if before["c2"] != w3.name else set()
        assert {job for job, _ in lists.started()} == left | came
        lists.change([(pinned, w3), ("c2", w5)])
        lists.hold({pinned: w3, "c2": w5}, free, "EX-S0-5: lists change")
        assert lists.started() == sorted([(pinned, w3.name), ("c2", w5.name)])
        self._cluster.stop(w5)
        lists.hold({pinned: w3}, free, "EX-S0-7: the only worker that names a job leaves")
        assert [job for job, _ in lists.started()] == ["c2"]

    def all_or_none(self, pinned: str) -> None:
        """EX-S0-10, -11 and -12: lists for every worker, for none, and for all but one."""
        w1, w2, w3, lists = self.w1, self.w2, self.w3, self._lists
        uncovered = {"c1": w1, "c2": w2, pinned: w3}
        lists.change(uncovered.items())
        lists.hold(uncovered, (), "EX-S0-10: a job that no worker names is not placed")
        assert self._cluster.places().keys() == uncovered.keys()
        lists.change(())
        lists.hold({}, (w1, w2, w3), "EX-S0-11: workers with empty lists run any job")
        drained = {job: (w2 if job < "c2" else w3) for job in JOBS}
        lists.change(drained.items())
        lists.hold(drained, (w1,), "EX-S0-12: all jobs have left a worker")
        lists.started()
        self._cluster.stop(w1)
        lists.hold(drained, (), "to stop it moves nothing")
        assert lists.started() == []


@MATRIX
def test_examples_of_static_lists(kafka, job, tmp_path):
    """EX-S0 in docs/requirements.

    No released worker speaks a protocol `static`. Where an example has one that does not speak it,
    the group's `connect.protocol` says the same.
    """
    with (
        ConnectCluster(kafka.address, tmp_path / "connect") as cluster,
        Fleet(kafka, tmp_path / "fleet", partitions=1) as fleet,
    ):
        fleet.group = cluster.group
        played = Played(cluster, Lists(cluster, fleet))
        played.without_lists()
        pinned = played.workers_join_and_leave()
        played.lists_change(pinned)
        played.all_or_none(pinned)
        cluster.check_alone()
