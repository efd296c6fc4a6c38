"""KIP-987's system test: from any older protocol to an all-static group, step by step, and back.

Workers carry out every round and never let two of them run a job; a job that has no reason to move
never stops. That is what "data flow continues" means here.
"""

from __future__ import annotations

import pytest
from support.assignor.connect_rounds import ConnectGroup, Worker

OLD = {
    "eager": ("eager",),
    "compatible": ("compatible", "eager"),
    "sessioned": ("sessioned", "compatible", "eager"),
}
NEW = ("static", "sessioned", "compatible", "eager")
JOBS = ["c1", "c1-0", "c1-1", "c1-2", "c2", "c2-0", "c2-1"]


def settle(group: ConnectGroup) -> None:
    """Run rounds until nothing changes; then every job runs exactly once."""
    for _ in range(12):
        before = group.runs()
        placement = group.round()
        group.sleep()
        if group.runs() == before and not placement.again and not placement.delay_ms:
            assert sorted(job for jobs in before.values() for job in jobs) == JOBS
            return
    pytest.fail(f"never settles: {group.runs()}")


def old_group(protocol: str) -> ConnectGroup:
    """S0-32, S0-33: three workers of an older protocol, two connectors with several tasks."""
    group = ConnectGroup({"c1": 3, "c2": 2}, "static")
    group.join("w1", "w2", "w3", protocols=OLD[protocol])
    settle(group)
    return group


@pytest.mark.parametrize("protocol", OLD)
def test_S0_32_to_S0_40_upgrade(protocol: str) -> None:
    """Switch to `static`, pin a connector, a task, both again, name all jobs, drop the rest."""
    group = old_group(protocol)
    for name in (
        "w1",
        "w2",
        "w3",
    ):  # S0-34: a bounce each, jobs come back to the worker that returns
        group.leave(name)
        group.round()
        group.workers[name] = Worker(protocols=NEW)
        settle(group)
    rolled = group.runs()

    def pinned(name: str, *jobs: str) -> None:
        """A static worker joins; no other jobs move but to it, or for balance among others."""
        before = group.runs()
        group.join(name, protocols=NEW, static=jobs)
        settle(group)
        for static, worker in group.workers.items():
            if worker.static:
                assert set(group.runs()[static]) <= set(worker.static)
            if worker.static and static != name:
                assert group.runs()[static] == before[static]

    pinned("s1", "c1")  # S0-35
    assert group.runs()["s1"] == ["c1"]
    pinned("s2", "c1-0")  # S0-36
    assert group.runs()["s2"] == ["c1-0"]
    pinned("s3", "c1", "c1-0")  # S0-37: named twice, run once, where they are
    assert group.runs()["s3"] == []
    group.leave("w1")  # S0-38
    settle(group)
    assert not {"c1", "c1-0"} & {job for name in ("w2", "w3") for job in group.runs()[name]}
    pinned("s4", "c1-1", "c1-2")  # S0-39
    pinned("s5", "c2", "c2-0", "c2-1")
    assert group.runs()["w2"] == group.runs()["w3"] == []
    covered = {name: jobs for name, jobs in group.runs().items() if name.startswith("s")}
    for name in ("w2", "w3"):  # S0-40: the wildcard workers were empty
        group.leave(name)
        settle(group)
    assert group.runs() == covered
    assert sorted(job for jobs in rolled.values() for job in jobs) == JOBS


def test_S0_31_downgrade_leaves_lists_in_place() -> None:
    """One worker returns to `sessioned`: lists are ignored; it upgrades again: they count again."""
    group = old_group("sessioned")
    for worker in group.workers.values():
        worker.protocols = NEW
    group.workers["w3"].static = ("c2",)
    settle(group)
    assert group.runs()["w3"] == ["c2"]
    group.workers["w1"].protocols = OLD["sessioned"]
    settle(group)
    assert len(group.runs()["w3"]) > 1
    group.workers["w1"].protocols = NEW
    settle(group)
    assert group.runs()["w3"] == ["c2"]


def test_S0_24_wildcard_workers_are_backups() -> None:
    """A static worker leaves for good: after the delay its jobs run on wildcard workers."""
    group = old_group("sessioned")
    for worker in group.workers.values():
        worker.protocols = NEW
    group.join("s1", protocols=NEW, static=("c1", "c1-0"))
    settle(group)
    group.leave("s1")
    assert group.round().delay_ms > 0
    settle(group)
    assert {"c1", "c1-0"} <= {job for jobs in group.runs().values() for job in jobs}


def test_S0_27_one_job_a_worker() -> None:
    """All-static, one job per worker, as another scheduler assigns them: each runs as named."""
    group = ConnectGroup({"c1": 3, "c2": 2}, "static")
    for number, job in enumerate(JOBS):
        group.join(f"s{number}", protocols=NEW, static=(job,))
    settle(group)
    assert group.runs() == {f"s{number}": [job] for number, job in enumerate(JOBS)}
