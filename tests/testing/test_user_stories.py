"""Three mistakes of users, each found with the kit in under ten lines."""

from __future__ import annotations

import time

import pytest

from muster.testing import Environment, EnvironmentFailed


def test_a_consumer_that_commits_after_it_lost_a_task() -> None:
    """Without `on_lost`, `on_revoked` is called for a loss too, and commits what is not its own."""
    with Environment(tasks={"orders": 2}) as env:
        env.worker("W1", on_revoked=lambda tasks, _: [env.use(task) for task in tasks])
        env.worker("W2")
        env.settle()
        env.expire("W1")
        env.settle()
        with pytest.raises(EnvironmentFailed, match=r"W1 used orders_\d .*; W2 runs it"):
            env.assert_never_two_owners()


def test_a_restore_that_never_gets_ready() -> None:
    """The task stays where it is, and the kit says which copy it waits for."""
    tasks = [{"subtopology": "orders", "partitions": 2, "stateful": True}]
    with Environment(tasks, "high-availability") as env:
        env.worker("W1")
        env.settle()
        env.worker("W2", on_learn=lambda tasks, _: None)
        with pytest.raises(EnvironmentFailed, match=r"orders_\d waits for W2: it has not said"):
            env.settle(within=60)


def test_an_on_revoked_that_takes_too_long() -> None:
    """The group gives the task away when the rebalance timeout and the session are over."""
    with Environment(tasks={"orders": 2}, config={"rebalance.timeout.ms": 20_000}) as env:
        env.worker("W1", on_revoked=lambda tasks, _: time.sleep(300))
        env.settle()
        env.worker("W2")
        env.assert_owned()
        env.advance(200)
        with pytest.raises(EnvironmentFailed, match=r"orders_\d had two owners .* W1 ran it"):
            env.assert_never_two_owners()
