"""Large placements are computed by child processes of the worker, a few at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.suite.waiting import until

from muster.state.assignor_outcome import Answer, Outcome, Question
from muster.streams.batch import asides as module
from muster.streams.batch.asides import ASKED_MAX, FORGOTTEN_S, RUNNING_MAX, Asides

NOTHING = np.empty(0, dtype=np.int32)


def question(group: str, asked_ms: int = 1) -> Question:
    """A question of a group."""
    return (group, 1, asked_ms, 0, 0)


def answer(followup_ms: int = 7) -> Answer:
    """An answer that can be told from others."""
    return Answer(active=NOTHING, destination=NOTHING, copies={}, followup_ms=followup_ms)


@pytest.fixture
def asides() -> Iterator[Asides]:
    """What computes; it is left with no child."""
    made = Asides(cpu_s=2.0)
    yield made
    for each in list(made._asked_s):
        made._end(each)


def answered(asides: Asides, asked: Question, work: Callable[[], Outcome]) -> Outcome | str:
    """Ask until there is an answer."""
    outcomes: list[Outcome | str] = []

    def look() -> bool:
        outcome = asides.ask(asked, work)
        outcomes.extend([] if outcome is None else [outcome])
        return bool(outcomes)

    until(look, "the placement is there")
    return outcomes[0]


def blocked() -> Outcome:
    """A placement that never ends."""
    time.sleep(600)
    return answer()


def test_the_first_question_does_not_wait(asides: Asides) -> None:
    """The placement is computed in another process, of the group as it was when it asked first."""
    ours = os.getpid()
    assert asides.ask(question("g"), lambda: answer(os.getpid())) is None
    outcome = answered(asides, question("g"), lambda: answer(0))
    assert isinstance(outcome, Answer)
    assert outcome.followup_ms not in (0, ours)


def test_the_error_says_how_a_child_ended(asides: Asides) -> None:
    """A placement that ends its process, or takes too much CPU time, ends in words."""
    outcome = answered(asides, question("g"), lambda: os._exit(3))
    assert outcome == "it ended its process with exit code 3"

    def forever() -> Outcome:
        while True:
            pass

    outcome = answered(Asides(cpu_s=0.1), question("g"), forever)
    assert outcome == "it took more than 0 s of CPU time"


def test_few_run_at_a_time_in_the_order_of_questions(asides: Asides) -> None:
    """Further groups wait for their turn; a group that asks anew drops what it asked before."""
    for number in range(RUNNING_MAX):
        assert asides.ask(question(f"g{number}"), blocked) is None
    assert asides.ask(question("waits"), answer) is None
    assert len(asides._running) == RUNNING_MAX
    assert asides.ask(question("g0", asked_ms=2), blocked) is None
    assert question("g0") not in asides._running
    assert isinstance(answered(asides, question("waits"), answer), Answer)


def test_slow_batches_do_not_restart_each_other(
    asides: Asides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups keep their children where each asks every 12 s, in whatever order a batch asks.

    A group that stopped asking is still dropped.
    """
    now_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr(module, "time", clock)
    first, second = question("first"), question("second")
    for turn in range(4):
        for asked in (first, second) if turn % 2 else (second, first):
            asides.ask(asked, blocked)
            now_s += 0.1
        now_s += 12.0
        if turn == 0:
            begun = dict(asides._running)
    assert asides._running == begun
    for _ in range(3):
        asides.ask(first, blocked)
        now_s += 12.0
    assert asides._running == {first: begun[first]}


def test_groups_that_stopped_asking_leave_room(
    asides: Asides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many groups may wait, of those that still ask."""
    now_s = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    for number in range(ASKED_MAX):
        assert not asides.is_full
        asides.ask(question(f"g{number}"), blocked)
    assert asides.is_full
    now_s = FORGOTTEN_S
    assert not asides.is_full


def test_a_child_keeps_no_connection_of_the_worker(asides: Asides, tmp_path: Path) -> None:
    """The JVM must see the end of a worker whose children still compute."""
    with (tmp_path / "connection").open("w") as held:
        number = held.fileno()

        def work() -> Outcome:
            return answer(int(Path(f"/proc/self/fd/{number}").exists()))

        outcome = answered(asides, question("g"), work)
    assert isinstance(outcome, Answer)
    assert outcome.followup_ms == 0


def test_prefixes_do_not_meet(asides: Asides) -> None:
    """Groups of one name under two prefixes are two questions."""
    one, other = asides.of("one"), asides.of("other")
    assert one(question("g"), lambda: answer(1)) is None
    assert other(question("g"), lambda: answer(2)) is None
    assert len(asides._running) == 2
