"""Fault scripts: played over callbacks, invented by hypothesis, shrunk to a few faults."""

from __future__ import annotations

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from support.suite.examples import examples

from muster.errors import BadInput
from muster.testing import Environment, EnvironmentFailed, Fault, Script, faults
from muster.testing.fault_scripts import LASTING, NAMES, OF_A_WORKER

SHORT = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000}


def played(script: Script, seed: int = 0, **callbacks: object) -> None:
    """Three workers live through a script; then all tasks are run, and none had two owners."""
    with Environment({"orders": 4}, config=SHORT, seed=seed) as env:
        for name in ("W1", "W2", "W3"):
            env.worker(name, **{n: lambda t, a, c=c: c(env, t) for n, c in callbacks.items()})
        env.settle()
        env.play(script)
        env.settle()
        env.assert_owned()
        env.assert_never_two_owners()


@settings(max_examples=examples(25))
@given(script=faults(lasts_s=20, pause_s=15), seed=st.integers(0, 1000))
def test_workers_survive_every_script(script: Script, seed: int) -> None:
    """With correct callbacks no script gives a task two owners, and the group settles."""
    played(script, seed)


@pytest.mark.parametrize("what", NAMES)
def test_every_fault_can_be_played(what: str) -> None:
    """Each fault alone, with its worker and its length."""
    worker = "W1" if what in OF_A_WORKER else None
    played(Script((Fault(what, worker, 10 if what in LASTING else 0, 3),)))


@pytest.mark.parametrize(
    ("what", "worker", "problem"),
    [
        ("freze", "W1", "fault 'freze': expected one of freeze, "),
        ("freeze", None, "fault 'freeze': worker None: expected the worker's name"),
        ("kafka_away", "W1", "fault 'kafka_away': worker 'W1': expected None"),
    ],
)
def test_a_fault_that_there_is_not(what: str, worker: str | None, problem: str) -> None:
    """A misspelt fault is an error; otherwise its test would pass without it."""
    with pytest.raises(BadInput, match=problem):
        Fault(what, worker, 3)


def _commit(env: Environment, tasks: tuple) -> None:
    for task in tasks:
        env.use(task)


def _is_found(script: Script) -> bool:
    try:
        played(script, on_revoked=_commit)
    except EnvironmentFailed:
        return True
    return False


@pytest.mark.slow
def test_a_failing_script_is_shrunk_to_a_story() -> None:
    """A commit on a loss is found, and the script is made as small as one fault."""
    quick = settings(max_examples=200, phases=[Phase.generate, Phase.shrink], derandomize=True)
    script = find(faults(kinds=["freeze", "drain", "stop"]), _is_found, settings=quick)
    assert len(script.faults) == 1
    assert str(script).startswith("freeze W1 for ")


def test_calm_waits_until_kafka_is_back() -> None:
    """What a dead worker had sent into an outage arrives when Kafka is back, not long after."""
    script = [
        Fault("kill", worker="W1"),
        Fault("kafka_away", lasts_s=31, pause_s=5),
        Fault("kill", worker="W2"),
    ]
    with Environment(tasks={"orders": 3}, seed=0) as env:
        env.worker("W1")
        env.worker("W2")
        env.play(script)
        assert env.now >= 31
        env.assert_owned(within=60)


@pytest.mark.parametrize("what", ["restart", "partition", "freeze"])
def test_calm_ends_a_fault_for_good(what: str) -> None:
    """A fault that `calm` has ended does not end again when its time is over."""
    with Environment({"orders": 2}, config=SHORT) as env:
        env.worker("W1")
        env.settle()
        env.play([Fault(what, "W1", 30)])
        env.settle()
        first, link = env.workers["W1"], env.workers["W1"].link
        env.partition("W1")
        env.freeze("W1")
        env.advance(60)
        assert env.workers["W1"] is first  # no second process was started
        assert link.is_cut
        assert not first.machine.runs


def test_the_longer_of_two_faults_counts() -> None:
    """A partition within a longer one does not end that one early."""
    with Environment({"orders": 2}, config=SHORT) as env:
        env.worker("W1")
        env.settle()
        env.play([Fault("partition", "W1", 30, 1), Fault("partition", "W1", 5, 10)])
        at_s = env.story.partition("* W1 reaches Kafka again")[0].splitlines()[-1].split()[0]
        assert float(at_s) > 11


@pytest.mark.parametrize("is_restarting", [False, True])
def test_the_coordinator_is_away_and_comes_back(is_restarting: bool) -> None:
    """It is away also when it was just restarting, and `calm` ends that."""
    with Environment({"orders": 2}, config=SHORT) as env:
        env.worker("W1")
        env.settle()
        if is_restarting:
            env.restart_coordinator()
        env.coordinator_away(600)
        env.worker("W2")
        with pytest.raises(EnvironmentFailed, match="W2 is not a member"):
            env.settle(within=60)
        env.calm()
        env.settle(within=20)
