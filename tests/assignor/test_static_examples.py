"""Worked examples of eager rounds, level filling (EX-B) and static assignments (EX-S0, KIP-987)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.assignor.connect_rounds import DELAY_MS, ConnectGroup

JOBS = {"c1": 3, "c2": 2}


def group_g(assignor: str = "static", **about: object) -> ConnectGroup:
    """Base group G: two wildcard workers that run all jobs."""
    group = ConnectGroup(dict(JOBS), assignor, **about)  # type: ignore[arg-type]
    group.join("w1", runs=["c1", "c1-0", "c1-1", "c2-0"])
    group.join("w2", runs=["c2", "c1-2", "c2-1"])
    group.round()
    assert group.runs() == {"w1": ["c1", "c1-0", "c1-1", "c2-0"], "w2": ["c1-2", "c2", "c2-1"]}
    return group


def group_g3() -> ConnectGroup:
    """Group G3: G after w3 joined, pinned to c1-0."""
    group = group_g()
    group.join("w3", static=("c1-0",))
    group.settle(2)
    assert group.runs()["w3"] == ["c1-0"]
    return group


def test_EX_S0_1_eager_baseline() -> None:
    """The k-th job goes to worker k mod n, on every run."""
    group = ConnectGroup({"c": 7}, "eager")
    group.join("w0", "w1", "w2")
    for _ in range(2):
        group.round()
        # Kafka deals the connector itself first, so the tasks start with w1.
        assert group.runs() == {
            "w0": ["c", "c-2", "c-5"],
            "w1": ["c-0", "c-3", "c-6"],
            "w2": ["c-1", "c-4"],
        }
    jobs = ConnectGroup({f"c{n}": 0 for n in range(7)}, "eager")
    jobs.join("w0", "w1", "w2")
    jobs.round()
    assert jobs.runs() == {"w0": ["c0", "c3", "c6"], "w1": ["c1", "c4"], "w2": ["c2", "c5"]}


def test_EX_S0_2_pin_a_task() -> None:
    """It stops in round 1 and starts in round 2; no other job moves or comes to w3."""
    group = group_g()
    group.join("w3", static=("c1-0",))
    first = group.round()
    assert (len(first.revoked), first.again) == (1, True)
    assert group.runs() == {"w1": ["c1", "c1-1", "c2-0"], "w2": ["c1-2", "c2", "c2-1"], "w3": []}
    settled = {"w1": ["c1", "c1-1", "c2-0"], "w2": ["c1-2", "c2", "c2-1"], "w3": ["c1-0"]}
    for _ in range(3):
        group.round()
        assert group.runs() == settled


@pytest.mark.parametrize("base", [group_g, group_g3])
def test_EX_S0_3_pin_a_connector(base: object) -> None:
    """c2 moves to the worker that names it; no task moves and c1 stays where it is."""
    assert callable(base)
    group = base()
    before = group.runs()
    group.join("w4", static=("c2",))
    group.round()
    assert group.runs() == {**before, "w2": ["c1-2", "c2-1"], "w4": []}
    group.round()
    assert group.runs() == {**before, "w2": ["c1-2", "c2-1"], "w4": ["c2"]}


def test_EX_S0_4_duplicates() -> None:
    """Two workers name c1-0: it stays; unassigned, it goes to the less loaded, or lower id."""
    group = group_g3()
    before = group.runs()
    group.join("w5", static=("c1-0",))
    group.settle(2)
    assert group.runs() == {**before, "w5": []}
    fresh = group_g()
    fresh.workers["w1"].runs.remove("c1-0")
    fresh.forget()
    fresh.join("w3", "w5", static=("c1-0",))
    fresh.round()
    assert (fresh.runs()["w3"], fresh.runs()["w5"]) == (["c1-0"], [])


def test_EX_S0_5_wrong_static_worker() -> None:
    """Lists change: both jobs stop in round 1 and start on the workers naming them in round 2."""
    group = group_g3()
    w2 = group.runs()["w2"]
    group.workers["w3"].static = ("c1-1",)
    group.join("w5", static=("c1-0",))
    group.round()
    assert group.runs() == {"w1": ["c1", "c2-0"], "w2": w2, "w3": [], "w5": []}
    group.round()
    assert group.runs() == {"w1": ["c1", "c2-0"], "w2": w2, "w3": ["c1-1"], "w5": ["c1-0"]}


def test_EX_S0_6_wildcard_job_on_static_worker() -> None:
    """A worker that gets a list gives the jobs that are not on it to the least loaded."""
    group = ConnectGroup(dict(JOBS), "static")
    group.join("w1", runs=["c1", "c1-1", "c2-0"])
    group.join("w2", runs=["c2", "c1-2"])
    group.join("w3", runs=["c1-0", "c2-1"], static=("c1-0",))
    group.round()
    assert group.runs()["w3"] == ["c1-0"]
    group.round()
    assert group.runs() == {
        "w1": ["c1", "c1-1", "c2-0"],
        "w2": ["c1-2", "c2", "c2-1"],
        "w3": ["c1-0"],
    }


def test_a_worker_that_names_only_unknown_jobs_runs_no_others() -> None:
    """The named job may be created later; the worker is static already, and gives up its jobs."""
    group = ConnectGroup(dict(JOBS), "static")
    group.join("w1", runs=["c1", "c1-1", "c2-0", "c2"])
    group.join("w2", runs=["c1-0", "c1-2", "c2-1"], static=("c9-0",))
    group.settle(2)
    assert group.runs() == {"w1": ["c1", "c1-0", "c1-1", "c1-2", "c2", "c2-0", "c2-1"], "w2": []}


@pytest.mark.parametrize("delay_ms", [DELAY_MS, 0])
def test_EX_S0_7_static_worker_leaves(delay_ms: int) -> None:
    """A job that no worker names any longer is a wildcard job: after the delay it goes to w1."""
    group = group_g3()
    group.delay_ms = delay_ms
    group.leave("w3")
    assert group.round().delay_ms == delay_ms
    if delay_ms:
        assert "c1-0" not in group.runs()["w1"]
        group.sleep()
        group.round()
    assert group.runs()["w1"] == ["c1", "c1-0", "c1-1", "c2-0"]


def test_EX_S0_8_mixed_protocols() -> None:
    """One worker without `static`: lists are ignored, every round equals pure `sessioned`."""
    mixed, pure = group_g("static"), group_g("cooperative")
    mixed.workers["w1"].static = ("c1-0",)
    speaks = ("static", "sessioned", "compatible", "eager")
    for worker in mixed.workers.values():
        worker.protocols = speaks
    for group in (mixed, pure):
        group.join("w3", protocols=speaks[1:])
    for _ in range(3):
        mixed.round()
        pure.round()
        assert mixed.runs() == pure.runs()
    assert len(mixed.runs()["w3"]) == 1


def test_EX_S0_9_opt_in_identity() -> None:
    """No worker names a job: `static` and `sessioned` give the same answers in every round."""
    static, sessioned = group_g("static"), group_g("cooperative")
    for event in ("join w3", "", "leave w1", "sleep", "join w1", "", ""):
        answers = []
        for group in (static, sessioned):
            verb, _, name = event.partition(" ")
            if verb == "join":
                group.join(name)
            elif verb == "leave":
                group.leave(name)
            elif verb == "sleep":
                group.sleep()
            placement = group.round()
            answers.append(
                (
                    placement.delay_ms,
                    placement.memory,
                    placement.revoked.code.tolist(),
                    group.runs(),
                )
            )
        assert answers[0] == answers[1]


def test_EX_S0_10_uncovered_jobs() -> None:
    """All workers are static and none names c2-1: reported in every round, placed in none."""
    group = ConnectGroup(dict(JOBS), "static")
    group.join("w1", static=("c1", "c1-0", "c1-1"))
    group.join("w2", static=("c2", "c1-2", "c2-0"))
    for _ in range(3):
        placement = group.round()
        named = [str(group.view().tasks.task(t)) for t in placement.unassigned.tolist()]
        assert named == ["c2-1"]
        assert all("c2-1" not in jobs for jobs in group.runs().values())
        assert placement.warnings


def test_EX_S0_11_empty_list_is_a_wildcard() -> None:
    """A worker with an empty list gets a share."""
    group = group_g()
    group.join("w3", static=())
    group.settle(2)
    assert len(group.runs()["w3"]) == 1


def test_EX_S0_12_drain() -> None:
    """Naming workers join one by one: two rounds each, and the wildcard workers end up empty."""
    group = group_g()
    jobs = ["c1", "c1-0", "c1-1", "c1-2", "c2", "c2-0", "c2-1"]
    for number, job in enumerate(jobs):
        group.join(f"s{number}", static=(job,))
        group.settle(2)
        assert group.runs()[f"s{number}"] == [job]
        assert group.round().again is False
    assert (group.runs()["w1"], group.runs()["w2"]) == ([], [])
    before = {name: runs for name, runs in group.runs().items() if name.startswith("s")}
    group.leave("w1")
    group.leave("w2")
    group.settle(2)
    assert group.runs() == before


def test_EX_S0_13_stickiness_of_the_wildcard_part() -> None:
    """Pinning moves no more wildcard jobs than balance needs, and none to the new worker."""
    for pinned in (("c1-0",), ("c2",), ("c1-0", "c1-1"), ("c1", "c2", "c2-0")):
        group = group_g()
        group.join("w3", static=pinned)
        before = {job: name for name, jobs in group.runs().items() for job in jobs}
        group.settle(4)
        after = {job: name for name, jobs in group.runs().items() for job in jobs}
        assert set(group.runs()["w3"]) == set(pinned)
        moved = [j for j in after if j not in pinned and after[j] != before[j]]
        needed = sum(
            max(_spread(before, pinned, kind) // 2, 0) for kind in (_is_connector, _is_task)
        )
        assert len(moved) <= needed


def _is_connector(job: str) -> bool:
    return "-" not in job


def _is_task(job: str) -> bool:
    return "-" in job


def _spread(owner: dict[str, str], pinned: tuple[str, ...], kind: object) -> int:
    """Difference of the two wildcard workers' counts of wildcard jobs of a kind."""
    assert callable(kind)
    free = [owner[job] for job in owner if job not in pinned and kind(job)]
    low, high = sorted((free.count("w1"), free.count("w2")))
    return high - low


# ---------------------------------------------------------------- the blog's examples


def test_EX_B0_two_connectors_start_together() -> None:
    """Two connectors of three tasks on five empty workers: each kind level by level."""
    group = ConnectGroup({"a": 3, "b": 3})
    group.join(*"vwxyz")
    group.round()
    assert group.counts() == ((0, 0, 0, 1, 1), (1, 1, 1, 1, 2))


@pytest.mark.parametrize(
    ("held", "numbers", "expected"),
    [
        ([(), (), (), (), ()], range(7), [(0, 5), (1, 6), (2,), (3,), (4,)]),
        ([(), (), (), (), ()], range(8), [(0, 5), (1, 6), (2, 7), (3,), (4,)]),
        ([(0, 1), (2, 3), (4, 5)], range(11), [(0, 1, 6, 9), (2, 3, 7, 10), (4, 5, 8)]),
        ([(), (1,), (2, 3)], range(1, 7), [(4, 5), (1, 6), (2, 3)]),
    ],
    ids=["EX-B1", "EX-B1 with 8", "EX-B2", "EX-B3"],
)
def test_EX_B1_EX_B2_EX_B3_levels_fill_from_the_lowest(
    held: list[tuple[int, ...]], numbers: range, expected: list[tuple[int, ...]]
) -> None:
    """New tasks go one by one to the workers with the fewest, in order of id."""
    job = {number: f"c-{place}" for place, number in enumerate(numbers)}
    group = ConnectGroup({"c": len(numbers)})
    for place, mine in enumerate(held):
        group.join(f"w{place}", runs=[job[n] for n in mine])
    group.round()
    tasks = [[j for j in worker.runs if "-" in j] for worker in group.workers.values()]
    assert tasks == [[job[n] for n in mine] for mine in expected]


def test_balance_of_ids_wraps() -> None:
    """A wide group fills whole levels before it starts the next one."""
    group = ConnectGroup({"c": 25})
    group.join(*(f"w{n:02}" for n in range(10)))
    group.round()
    counts = [len([j for j in w.runs if "-" in j]) for w in group.workers.values()]
    assert counts == [3] * 5 + [2] * 5
    assert all(a >= b for a, b in pairwise(counts))
