"""The sentences: why a task is where it is, or why it does not run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.console.played import PREFIX, demo_life, fleet_of, play, scenario
from support.state.snapshots import orders

from muster.console.explanations import Explainer, generation_with_moves, task_json
from muster.console.history import History
from muster.console.store import GroupKey, Store
from muster.protocol.codec import encode
from muster.protocol.ids import MemberId
from muster.protocol.records import GroupSnapshot, Quarantine
from muster.published.holdups import PendingReleases
from muster.published.snapshots import Published

BEGIN_MS = 1_700_000_000_000


def why(record: GroupSnapshot, *, asked_ms: int = BEGIN_MS, now_ms: int = BEGIN_MS) -> Explainer:
    """The sentences about a record that was published at `asked_ms`."""
    pending = PendingReleases()
    pending.take(Published(record, asked_ms))
    return Explainer(record, pending, now_ms)


def played(life: dict) -> History:
    """The history of a life."""
    store = Store([PREFIX])
    play(store, life)
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    return history


def test_a_task_that_is_being_given_up() -> None:
    """It names the member that was asked, since when, the next owner, and when the wait ends."""
    record = orders()
    asked = replace(record.members[0], deadline_ms=BEGIN_MS + 60_000)
    record = replace(record, members=(asked, record.members[1]))
    said = why(record, now_ms=BEGIN_MS + 12_000).sentence(1)
    assert said == (
        "0_1: W1 has been asked to stop it 12 s ago, for W2, and has not answered; "
        "the coordinator waits until 22:14:35 UTC"
    )


def test_a_task_that_runs_where_it_belongs() -> None:
    """The task runs, and the sentence names the member."""
    assert why(orders()).sentence(2) == "0_2 runs on W2"


def test_a_member_that_was_fenced() -> None:
    """Its tasks wait for its answer, or for the end of its session."""
    said = why(orders(), now_ms=BEGIN_MS + 5_000).sentence(1)  # no deadline: it was fenced
    assert said == (
        "0_1: W1 did not stop it in time and was fenced 5 s ago; the task moves on when the member "
        "answers, or when its session ends"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "c1-0 has no owner: the assignor gives it to no member; no member takes its topic, "
             "or a static assignment names a member that is not in the group"),
        ({"members": ()}, "c1-0 has no owner: the group has no members"),
        ({"target_generation": 6}, "c1-0 has no owner: generation 7 has not been placed yet"),
        ({"recovering": (0, 2)}, "c1-0 has no owner: the coordinator has lost its checkpoint and "
                                 "asks every member what it holds; it waits for W1, W2"),
        ({"delay_until_ms": BEGIN_MS + 60_000},
         "c1-0 has no owner: it is kept for its last owner until 22:14:20 UTC"),
        ({"target": np.array([0, 2, 2, 0, 2], dtype=np.int32)},
         "c1-0 has no owner: W2 gets it next"),
        ({"target": np.array([0, 2, 2, 0, 0], dtype=np.int32)},
         "c1-0 has no owner: W1 gets it when it has stopped 0_1, 0_2"),
        ({"quarantine": Quarantine(BEGIN_MS, "its process was killed")},
         "c1-0 has no owner: the group is quarantined, its process was killed"),
    ],
)  # fmt: skip
def test_a_task_without_an_owner(change: dict, sentence: str) -> None:
    """One sentence for each cause that leaves a task without an owner."""
    assert why(replace(orders(), **change)).sentence(4) == sentence


def test_a_task_that_waits_for_a_learner() -> None:
    """It runs where it is until the copy at its destination has caught up."""
    record = orders()
    target = record.target.copy()
    target[1] = 0
    record = replace(record, target=target, revoking=np.zeros(5, dtype=np.bool_))
    assert why(record).sentence(1) == (
        "0_1 runs on W1. 0_1 waits for W2: its copy is 40 offsets behind"
    )


def test_the_groups_notes_begin_with_the_worst() -> None:
    """What the group waits for: who owes a release, what has no owner, what restores."""
    levels = [note["level"] for note in why(orders()).notes()]
    assert levels[0] == "bad"
    assert levels == sorted(levels, key=["bad", "warn", "info"].index)


def test_every_task_of_a_life_has_a_sentence() -> None:
    """At every moment of a life with copies and crashes each task gets one sentence."""
    life = scenario(
        [{"subtopology": "0", "partitions": 6, "stateful": True}],
        [
            *fleet_of(3, restore_ms=5_000, ack_ms=700),
            {"at_ms": 20_000, "join": {"id": "W4", "restore_ms": 5_000}},
            {"at_ms": 40_000, "crash": "W1"},
            {"at_ms": 90_000, "drain": "W2"},
        ],
        assignor="high-availability",
    )
    history = played(life)
    for moment in history.moments:
        snapshot = history.snapshot(moment)
        sentences = Explainer(snapshot, moment.pending, moment.at_ms)
        for task in range(len(snapshot.holder)):
            said = sentences.sentence(task)
            assert said.startswith(f"0_{task}")
            assert "\n" not in said
            is_owned = snapshot.holder[task] >= 0
            assert is_owned == ("has no owner" not in said)


def test_a_tasks_moves_have_reasons_and_loads() -> None:
    """0_9 went to W4 when it joined: why, and the loads of both before and after."""
    history = played(demo_life())
    shown = task_json(history, history.moments[-1], "0_9", BEGIN_MS)
    assert shown is not None
    assert shown["sentence"] == "0_9 runs on W4"
    newest = shown["moves"][0]
    assert {key: newest[key] for key in ("generation", "from", "to", "reason")} == {
        "generation": 2,
        "from": "W1",
        "to": "W4",
        "reason": "balance 4/0 -> 3/3",
    }
    assert (newest["load_from"], newest["load_to"]) == ([4.0, 3.0], [0.0, 3.0])
    assert [move["generation"] for move in shown["moves"]] == [2, 1]


def test_as_it_was_later_moves_are_not_known() -> None:
    """At a moment of generation 1 the move of generation 2 has not happened."""
    history = played(demo_life())
    first = next(m for m in history.moments if m.generation == 1)
    shown = task_json(history, first, "0_9", BEGIN_MS)
    assert shown is not None
    assert [move["generation"] for move in shown["moves"]] == [1]


def test_a_generation_lists_its_moves() -> None:
    """Its moves with reasons, at most as many as asked for; unknown ones are None."""
    history = played(demo_life())
    shown = generation_with_moves(history, 4, BEGIN_MS, most=3)
    assert shown is not None
    assert [(m["from"], m["reason"]) for m in shown["shown"]] == [("W3", "W3 expired")] * 3
    assert shown["left_out"] == 1
    assert generation_with_moves(history, 99, BEGIN_MS) is None
    assert task_json(history, history.moments[-1], "9_9", BEGIN_MS) is None


def test_hostile_names_do_not_get_into_sentences() -> None:
    """Marks that turn the direction of text are escaped."""
    record = orders()
    members = (record.members[0], replace(record.members[1], id=MemberId("W\u202e2")))
    said = why(replace(record, members=members)).sentence(2)
    assert said == "0_2 runs on W\\u202e2"
    assert encode(record).value
