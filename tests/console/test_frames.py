"""Frames: what the page draws of a record, and that deltas lead from each to the next."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from support.console.played import PREFIX, demo_life, fleet_of, play, scenario
from support.state.snapshots import orders

from muster.console.explanations import task_json
from muster.console.frames import delta, frame, frame_of, kind_of, text
from muster.console.store import GroupKey, Store
from muster.protocol.client_tags import GOVERNED
from muster.protocol.ids import MemberId

COPIES = scenario(
    [{"subtopology": "0", "partitions": 6, "stateful": True}, {"connector": "c", "tasks": 2}],
    [
        *fleet_of(3, restore_ms=5_000, ack_ms=500),
        {"at_ms": 20_000, "join": {"id": "W4", "restore_ms": 5_000}},
        {"at_ms": 40_000, "crash": "W1"},
        {"at_ms": 150_000, "tasks": [{"subtopology": "1", "partitions": 3}]},
    ],
    assignor="high-availability",
    config={"num.standby.replicas": 1},
)


def applied(page: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """What `static/state.js` makes of a message."""
    change = json.loads(json.dumps(change))
    page = {"head": {}, "members": {}, "tasks": {}, "copies": {}} if change.get("whole") else page
    made = deepcopy(page)
    made["head"] |= change.get("head", {})
    for part in ("members", "copies"):
        for key, row in change.get(part, {}).items():
            if row is None:
                del made[part][key]
            else:
                made[part][key] = row
    for task, *row in change.get("tasks", []):
        made["tasks"][task] = row
    return made


@pytest.mark.parametrize("life", [demo_life(), COPIES], ids=["demo", "copies"])
def test_deltas_lead_from_each_record_to_the_next(life: dict[str, Any]) -> None:
    """A page that applies deltas knows what a page knows that gets the whole frame."""
    store = Store([PREFIX])
    play(store, life)
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    page, before = {}, None
    for moment in history.moments:
        now = frame(history, moment, history.snapshot(moment))
        page = applied(page, delta(before, now))
        assert page == applied({}, now.whole)
        before = now
    assert len(history.moments) > 5


def test_a_frame_has_what_the_record_says() -> None:
    """Members, owners and copies of a small group with a learner that is half full."""
    made = frame_of(orders(), 5_000, {(1, 2): 80}, number=3)
    assert made.head["units"] == [["0", 3, False, 1, True, 0], ["c1", 1, True, 1, False, 1]]
    assert made.rows.tolist() == [
        [0, 0, 0, 0],
        [0, 2, 2, 1],
        [2, 2, 2, 0],
        [0, 0, 0, 0],
        [-1, -1, -1, 0],
    ]
    assert made.members[2] == ["W2", "", 2, "", 0, 0, "i2", 6, 0]
    assert made.copies == {
        (0, 2): [2, 0, None, None],
        (2, 0): [2, 3, None, None],
        (1, 2): [3, 1, 40, 0.5],
    }


def test_hostile_names_are_cut_and_escaped() -> None:
    """A name of 10 kB, with markup and marks that turn the direction of text, is made harmless."""
    name = "<script>alert(1)</script>\u202e\u0000" + "x" * 10_000
    record = orders()
    members = (replace(record.members[0], id=MemberId(name)), record.members[1])
    made = frame_of(replace(record, members=members), 0, {})
    shown = made.members[0][0]
    assert len(shown) < 200
    assert shown.isprintable()
    assert "\\u202e" in shown
    assert text(None) == ""


def test_a_long_text_is_not_kept() -> None:
    """A page of dead letters cuts megabytes; only names are kept for the next frame."""
    letter = "x" * 10_000
    before = sys.getrefcount(letter)
    assert text(letter, 4_000) == "x" * 3_999 + "…"
    assert sys.getrefcount(letter) == before


def test_governed_groups_are_marked() -> None:
    """A group whose members `muster adopt` brings in is governed; others are native."""
    record = orders()
    members = (replace(record.members[0], tags=(GOVERNED,)), record.members[1])
    assert kind_of(replace(record, members=members)) == "governed"
    assert kind_of(record) == "native"


def test_a_quiet_record_costs_nothing() -> None:
    """If nothing differs, the delta is empty."""
    made = frame_of(orders(), 0, {})
    assert delta(made, frame_of(orders(), 0, {})) == {}


def test_ids_are_whole() -> None:
    """Two units and two members differ at their last character: no id on a page is cut."""
    units = [f"{'u' * 8_000}{n}" for n in (1, 2)]
    members = [f"{'m' * 127}{n}" for n in (1, 2)]
    life = scenario(
        [{"subtopology": name, "partitions": 1} for name in units],
        [{"at_ms": 0, "join": {"id": name}} for name in members],
        until_ms=5_000,
    )
    store = Store([PREFIX])
    play(store, life)
    history = store.history(GroupKey(PREFIX, "g"))
    assert history is not None
    moment = history.moments[-1]
    made = frame(history, moment, history.snapshot(moment))
    assert [unit[0] for unit in made.head["units"]] == units
    assert sorted(row[0] for row in made.members.values()) == members
    shown = task_json(history, moment, f"{units[1]}_0", 0)
    assert shown is not None
    assert (shown["task"], shown["unit"]) == (f"{units[1]}_0", units[1])
    assert shown["sentence"].startswith(f"{units[1]}_0 runs on {'m' * 127}")
    assert {move["task"] for move in shown["moves"]} == {f"{units[1]}_0"}
