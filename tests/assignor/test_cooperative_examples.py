"""Connect's reference sequences (EX-I, EX-C) round by round, as counts after each round."""

from __future__ import annotations

import pytest
from support.assignor.connect_rounds import DELAY_MS, ConnectGroup

TWO_BY_FOUR = {"connector1": 4, "connector2": 4}
THREE_BY_FOUR = {**TWO_BY_FOUR, "connector3": 4}


def started(connectors: dict[str, int], *workers: str, delay_ms: int = DELAY_MS) -> ConnectGroup:
    """A group whose workers run all jobs."""
    group = ConnectGroup(dict(connectors), delay_ms=delay_ms)
    group.join(*workers)
    group.round()
    return group


def test_EX_I1_worker_joins() -> None:
    """A second worker costs one revoking round and one assigning round, then nothing moves."""
    group = started(TWO_BY_FOUR, "worker1")
    assert group.counts() == ((2,), (8,))
    group.join("worker2")
    assert group.round().again
    assert group.counts() == ((0, 1), (0, 4))
    group.round()
    assert group.counts() == ((1, 1), (4, 4))
    last = group.round()
    assert (group.counts(), last.delay_ms, last.again) == (((1, 1), (4, 4)), 0, False)


def test_EX_I2_joins_right_after_revocations() -> None:
    """Revoking rounds in a row wait 40 ms, then 1,600 ms, and new work is given meanwhile."""
    group = started(THREE_BY_FOUR, "worker1")
    seen = []
    for rested, worker in ((0, 2), (0, 3), (1, 4), (0, 5), (1, 6)):
        if rested:
            group.sleep()
        group.join(f"worker{worker}")
        seen.append((group.round().delay_ms, *group.counts()))
    assert seen == [
        (0, (0, 2), (0, 6)),
        (40, (0, 1, 2), (3, 3, 6)),
        (0, (0, 0, 1, 1), (0, 3, 3, 3)),
        (1_600, (0, 0, 1, 1, 1), (1, 2, 3, 3, 3)),
        (0, (0, 0, 0, 1, 1, 1), (0, 1, 2, 2, 2, 2)),
    ]
    group.round()
    assert group.counts() == ((0, 0, 0, 1, 1, 1), (2, 2, 2, 2, 2, 2))


def test_EX_I3_no_delay_revokes_in_consecutive_rounds() -> None:
    """With a delay of 0 a second revocation follows the first at once."""
    group = started(THREE_BY_FOUR, "worker1", delay_ms=0)
    group.join("worker2")
    group.round()
    assert group.counts() == ((0, 2), (0, 6))
    group.join("worker3")
    group.round()
    assert group.counts() == ((0, 1, 1), (3, 3, 4))
    group.round()
    assert group.counts() == ((1, 1, 1), (4, 4, 4))


def test_EX_I4_delay_of_one_ms_bounds_the_backoff() -> None:
    """The back-off never exceeds the configured delay, be it 1 ms."""
    group = started(THREE_BY_FOUR, "worker1", delay_ms=1)
    group.join("worker2")
    group.round()
    group.join("worker3")
    assert group.round().delay_ms == 1
    assert group.counts() == ((0, 1, 2), (3, 3, 6))


def test_EX_I5_worker_leaves_for_good() -> None:
    """Lost work waits for the whole delay, then goes to the remaining workers."""
    group = started(TWO_BY_FOUR, "worker1", "worker2")
    assert group.counts() == ((1, 1), (4, 4))
    group.leave("worker2")
    assert (group.round().delay_ms, *group.counts()) == (DELAY_MS, (1,), (4,))
    group.sleep(DELAY_MS // 2)
    assert (group.round().delay_ms, *group.counts()) == (DELAY_MS // 2, (1,), (4,))
    group.sleep(DELAY_MS // 2 + 1)
    assert (group.round().delay_ms, *group.counts()) == (0, (2,), (8,))


def test_EX_I6_worker_bounces() -> None:
    """A worker that is back before the delay ends gets its work, and nothing else moves."""
    group = started(TWO_BY_FOUR, "worker1", "worker2")
    kept = group.workers["worker1"].runs[:]
    group.leave("worker2")
    assert group.round().delay_ms == DELAY_MS
    group.sleep(DELAY_MS // 2)
    assert group.round().delay_ms == DELAY_MS // 2
    group.sleep(DELAY_MS // 4)
    group.join("worker2")
    assert (group.round().delay_ms, *group.counts()) == (DELAY_MS // 4, (0, 1), (0, 4))
    group.sleep()
    last = group.round()
    assert (group.counts(), last.delay_ms, len(last.revoked)) == (((1, 1), (4, 4)), 0, 0)
    assert group.workers["worker1"].runs == kept


@pytest.mark.parametrize("leader", ["worker1", "worker2", "worker3"])
def test_EX_I7_leader_leaves_for_good(leader: str) -> None:
    """A new leader knows of no loss: the old one's work counts as new and is placed at once."""
    group = started(TWO_BY_FOUR, "worker1", "worker2", "worker3")
    assert group.counts() == ((0, 1, 1), (2, 3, 3))
    group.leave(leader)
    group.forget()
    assert (group.round().delay_ms, *group.counts()) == (0, (1, 1), (4, 4))
    before = group.runs()
    group.round()
    assert group.runs() == before


def test_EX_I8_leader_bounces() -> None:
    """The old leader comes back as an empty follower: one revoking round, one assigning."""
    group = started(TWO_BY_FOUR, "worker1", "worker2", "worker3")
    group.leave("worker1")
    group.forget()
    group.round()
    group.join("worker1")
    group.round()
    assert group.counts() == ((0, 1, 1), (0, 3, 3))
    group.round()
    assert group.counts() == ((0, 1, 1), (2, 3, 3))


def test_EX_I9_first_assignment_is_lost() -> None:
    """No worker left, so the jobs were never delivered: they are assigned without a delay."""
    group = ConnectGroup(dict(TWO_BY_FOUR))
    group.join("worker1", "worker2")
    group.round(undelivered=("worker1", "worker2"))
    assert group.counts() == ((0, 0), (0, 0))
    assert (group.round().delay_ms, *group.counts()) == (0, (1, 1), (4, 4))


@pytest.mark.parametrize("whole", [True, False])
def test_EX_I10_EX_I11_later_assignment_is_lost(whole: bool) -> None:
    """A revocation that reached no worker is repeated after 40 ms, even if the loss is unknown."""
    group = started(TWO_BY_FOUR, "worker1", "worker2")
    group.join("worker3")
    group.round(undelivered=("worker1", "worker2", "worker3"))
    group.delivered = whole
    assert group.counts() == ((0, 1, 1), (0, 4, 4))
    assert (group.round().delay_ms, *group.counts()) == (40, (0, 1, 1), (0, 4, 4))
    group.sleep()
    assert (group.round().delay_ms, *group.counts()) == (0, (0, 1, 1), (0, 3, 3))
    assert (group.round().delay_ms, *group.counts()) == (0, (0, 1, 1), (2, 3, 3))


def test_EX_I12_connector_is_deleted() -> None:
    """Deleted jobs stop in the same round and nothing else has to move."""
    group = started(THREE_BY_FOUR, "worker1", "worker2")
    assert group.counts() == ((1, 2), (6, 6))
    del group.connectors["connector3"]
    group.round()
    assert group.counts() == ((1, 1), (4, 4))


def duplicated() -> ConnectGroup:
    """worker1 runs everything, worker2 claims connector1 and its tasks too."""
    group = started(TWO_BY_FOUR, "worker1")
    claimed = ["connector1", *(f"connector1-{n}" for n in range(4))]
    group.join("worker2", runs=claimed)
    return group


def test_EX_I13_duplicates() -> None:
    """Jobs that two workers claim stop on both, and start once in the next round."""
    group = duplicated()
    group.round()
    assert group.counts() == ((0, 1), (0, 4))
    group.round()
    assert group.counts() == ((1, 1), (4, 4))
    before = group.runs()
    group.round()
    assert group.runs() == before


def test_EX_I14_duplicates_deleted_at_once() -> None:
    """Duplicates of deleted jobs stop, and the rest is balanced."""
    group = duplicated()
    del group.connectors["connector1"]
    group.round()
    assert group.counts() == ((0, 1), (0, 2))
    group.round()
    assert group.counts() == ((0, 1), (2, 2))
    before = group.runs()
    group.round()
    assert group.runs() == before


def test_EX_I15_imbalanced_fill() -> None:
    """Loads 2, 3, 4 and 0 are filled up to 6 each by 15 new jobs."""
    group = ConnectGroup({"c": 24})
    for name, jobs in (("a", range(2)), ("b", range(2, 5)), ("d", range(5, 9)), ("e", ())):
        group.join(name, runs=[f"c-{n}" for n in jobs])
    group.round()
    assert group.counts()[1] == (6, 6, 6, 6)


def candidates() -> ConnectGroup:
    """Three workers with 2 connectors and 4 tasks each; worker1 is lost and a round noticed it."""
    group = started({f"c{n}": 2 for n in range(6)}, "worker0", "worker1", "worker2")
    assert group.counts() == ((2, 2, 2), (4, 4, 4))
    group.leave("worker1")
    assert group.round().delay_ms == DELAY_MS
    return group


def test_EX_I16_candidates_get_what_was_lost() -> None:
    """Workers without jobs during the delay share the lost work when it ends."""
    group = candidates()
    group.join("worker3")
    group.round()
    assert group.memory is not None
    assert group.memory["candidates"] == ["worker3"]
    group.sleep(DELAY_MS // 2)
    group.join("worker1")
    group.round()
    assert group.memory["candidates"] == ["worker3", "worker1"]
    group.sleep()
    group.round()
    lost = group.runs()
    shares = [
        (sum("-" not in j for j in lost[n]), sum("-" in j for j in lost[n]))
        for n in ("worker1", "worker3")
    ]
    assert shares == [(1, 2), (1, 2)]
    kept = {key: group.memory[key] for key in ("candidates", "delay_ms", "scheduled_ms")}
    assert kept == {"candidates": [], "delay_ms": 0, "scheduled_ms": 0}


def test_EX_I17_candidate_bounces_back_but_leaves() -> None:
    """A candidate that is gone when the delay ends gets nothing: lost work counts as new."""
    group = candidates()
    group.sleep(DELAY_MS // 2)
    group.join("worker1")
    group.round()
    group.leave("worker1")
    group.sleep()
    group.round()
    assert group.counts() == ((3, 3), (6, 6))


def test_EX_I18_loss_without_a_delay() -> None:
    """With a delay of 0 lost work is assigned in the round that notices it."""
    group = started(TWO_BY_FOUR, "worker1", "worker2", delay_ms=0)
    assert group.counts() == ((1, 1), (4, 4))
    group.leave("worker2")
    assert (group.round().delay_ms, *group.counts()) == (0, (2,), (8,))


# ---------------------------------------------------------------- KIP-415


def kip_415() -> ConnectGroup:
    """Connectors A with 2 tasks and B with 1, spread over three workers as in KIP-415."""
    group = ConnectGroup({"A": 2, "B": 1})
    group.join("W1", runs=["A", "A-0"])
    group.join("W2", runs=["A-1", "B"])
    group.join("W3", runs=["B-0"])
    group.round()
    return group


def test_EX_C1_new_members() -> None:
    """Two joins cost two rounds; the jobs the first worker keeps never stop."""
    group = ConnectGroup({"A": 2, "B": 1})
    group.join("W1")
    group.round()
    assert len(group.workers["W1"].runs) == 5
    group.join("W2", "W3")
    first = group.round()
    kept = set(group.workers["W1"].runs)
    assert (first.delay_ms, len(first.revoked), len(kept)) == (0, 3, 2)
    assert group.counts() == ((0, 0, 1), (0, 0, 1))
    assert group.round().delay_ms == 0
    assert kept <= set(group.workers["W1"].runs)
    assert sorted(len(w.runs) for w in group.workers.values()) == [1, 2, 2]


def test_EX_C2_worker_leaves() -> None:
    """After the delay each kind of lost job goes to the worker with the fewest of its kind."""
    group = kip_415()
    group.leave("W2")
    assert group.round().delay_ms == DELAY_MS
    assert group.runs() == {"W1": ["A", "A-0"], "W3": ["B-0"]}
    group.sleep()
    assert group.round().delay_ms == 0
    assert group.runs() == {"W1": ["A", "A-0", "A-1"], "W3": ["B", "B-0"]}


def test_EX_C3_worker_bounces() -> None:
    """The worker that comes back empty gets the lost jobs when the delay ends."""
    group = kip_415()
    group.leave("W2")
    group.round()
    group.sleep(100_000)
    group.join("W2")
    assert group.round().delay_ms == DELAY_MS - 100_000
    assert group.runs()["W2"] == []
    group.sleep()
    group.round()
    assert group.runs() == {"W1": ["A", "A-0"], "W2": ["A-1", "B"], "W3": ["B-0"]}


def test_EX_C4_leader_bounces_and_the_delay_survives() -> None:
    """The group keeps the delay: two workers return in turn and share all lost jobs."""
    group = kip_415()
    group.leave("W2")
    delays = [group.round().delay_ms]
    for leaver, joiner in ((None, "W2"), ("W1", None), (None, "W1")):
        group.sleep(50_000)
        if leaver:
            group.leave(leaver)
        if joiner:
            group.join(joiner)
        delays.append(group.round().delay_ms)
    assert delays == [300_000, 250_000, 200_000, 150_000]
    group.sleep()
    group.round()
    assert group.runs() == {"W1": ["A-1", "B"], "W2": ["A", "A-0"], "W3": ["B-0"]}


def test_EX_C5_member_leaves_and_returns() -> None:
    """D bounces: nothing moves, and at the end of the delay D has its task again."""
    group = ConnectGroup({"T": 3})
    for worker, job in (("A", "T"), ("B", "T-0"), ("C", "T-1"), ("D", "T-2")):
        group.join(worker, runs=[job])
    group.round()
    before = group.runs()
    group.leave("D")
    group.round()
    group.sleep(10_000)
    group.join("D")
    group.round()
    assert group.runs() == {**before, "D": []}
    group.sleep()
    group.round()
    assert group.runs()["D"] == ["T-2"]
