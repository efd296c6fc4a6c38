"""What counts as a change of a group: every value that its published record is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from support.state.story import Story, config, join

from muster.assignor import registry
from muster.protocol import codec
from muster.protocol.ids import Role
from muster.protocol.records import KeptDrain, Move
from muster.protocol.settings import Settings
from muster.protocol.sources import Found, Source
from muster.protocol.tasks import Subtopology, TaskTable
from muster.state.assignor_outcome import Failure
from muster.state.draft import Draft
from muster.state.group import Group
from muster.state.ownership import Copies, Lags, Orphan

UNITS = Subtopology("0", 4, stateful=True)
PAIR = np.array([1], dtype=np.int64)  # task 0 on the member in slot 1
ZERO = np.array([0], dtype=np.int64)
NOT_SEEN = {"owned.duplicate", "owned.orphans", "found"}
"""A change that this record does not show: a member is asked to give the first two up, and what was
found is written with its source."""
NO_CHANGE = {"recovery.floor"}
"""The record shows it as of `through`; events behind that count again when it is read back."""
OTHERS: dict[str, object] = {
    "settings": Settings(num_standby_replicas=1),
    "table": TaskTable((replace(UNITS, weight=2.0),)),
    "drains": (KeptDrain("W9", None, 1_000_000, False),),
    "sources": (Source(topics=("orders",)),),
    "found": (Found(Source(topics=("orders",)), (UNITS,), ()),),
    "target.moves": (
        Move(task="0_0", role=Role.ACTIVE, from_member=None, to_member="W1", reason="it is new"),
    ),
    "target.memory": {"round": 1},
    "target.deferred": Failure("failed"),
    "timers.drain_until_ms": {0: 2_000_000},
    "recovery.asked": {0},
    "owned.ready": PAIR,
    "owned.duplicate": PAIR,
    "owned.orphans": (Orphan(0, int(Role.ACTIVE), "1", 0, False),),
    "owned.lags": Lags(PAIR, np.array([7], dtype=np.int64), ZERO),
}
"""Another value of each attribute for which `other` finds none by the type."""


def settled() -> Group:
    """W1 and W2 with four tasks."""
    story = Story()
    story.take(config(UNITS), join("W1"), join("W2"))
    return story.group


def attributes() -> Iterator[str]:
    """All that a draft carries of a group: `cause`, `owned.holder` and so on."""
    group = settled()
    for each in fields(group):
        value = getattr(group, each.name)
        if each.name in {"id", "coordinator_epoch", "roster", "sessions"}:
            continue
        is_part = is_dataclass(value) and each.name not in {"settings", "table"}
        names = [part.name for part in fields(value)] if is_part else []
        yield from (f"{each.name}.{name}" for name in names) if is_part else [each.name]


def other(name: str, value: object) -> object:
    """A value that differs."""
    match value:
        case _ if name in OTHERS:
            return OTHERS[name]
        case bool():
            return not value
        case int() | None:
            return (value or 1_000_000) + 1
        case str():
            return "sticky" if name == "assignor" else value + "!"
        case np.ndarray():
            first = np.zeros(len(value), dtype=np.bool_)
            first[0] = True
            return np.where(first, ~value if value.dtype == np.bool_ else 1 - value, value)
        case _:
            raise AssertionError(f"give {name} another value in OTHERS")


def record_of(draft: Draft) -> bytes | None:
    """The bytes of the record that would be published."""
    return codec.encode(draft.finished(changed=True).snapshot()).value


@pytest.mark.parametrize("name", list(attributes()))
def test_a_value_that_differs_in_the_record_is_a_change(name: str) -> None:
    """It is one without a line of code that says so; what only liveness has is none."""
    draft = Draft(settled(), 1, registry.get)
    before = record_of(draft)
    assert not draft.changed
    *parts, last = name.split(".")
    holder = getattr(draft, parts[0]) if parts else draft
    if name == "owned.copies":
        for copies in _other_copies(draft.owned.copies):
            holder.copies = copies
            assert draft.changed
            assert record_of(draft) != before
        return
    setattr(holder, last, other(name, getattr(holder, last)))
    is_change = record_of(draft) != before or name in NOT_SEEN
    assert draft.changed == (is_change and name not in NO_CHANGE)


def _other_copies(copies: Mapping[Role, Copies]) -> Iterator[Mapping[Role, Copies]]:
    for role, each in copies.items():
        for part in Copies._fields:
            yield {**copies, role: each._replace(**{part: PAIR})}


def test_equal_values_are_no_change() -> None:
    """Arrays that are computed again and come out the same publish nothing."""
    draft = Draft(settled(), 1, registry.get)
    draft.owned.holder, draft.owned.ready = draft.owned.holder.copy(), draft.owned.ready.copy()
    draft.owned.copies = {
        role: Copies(*(part.copy() for part in each)) for role, each in draft.owned.copies.items()
    }
    draft.cause = "".join(list(draft.cause))
    assert not draft.changed


@pytest.mark.parametrize(
    "change",
    [
        lambda draft: draft.update(0, capacity=2),
        lambda draft: draft.remove_member(0),
        lambda draft: draft.set_holder(
            np.array([0], dtype=np.int32), int(1 - draft.owned.holder[0])
        ),
        lambda draft: draft.free(np.array([0], dtype=np.int32)),
        lambda draft: draft.own_asked().add(0),
        lambda draft: draft.sessions.offer(0, offered=True, apart=True),
    ],
    ids=["update", "remove", "hand", "free", "ask", "apart"],
)
def test_what_is_written_in_place_is_a_change(change: Callable[[Draft], object]) -> None:
    """Members, vectors of holders, the members that are asked, and those that heartbeat apart."""
    draft = Draft(settled(), 1, registry.get)
    before = record_of(draft)
    change(draft)
    assert draft.changed
    assert record_of(draft) != before
