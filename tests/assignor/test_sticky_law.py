"""Properties of `sticky`: balanced, fewest moves, deterministic, every move with a reason."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.suite.examples import examples

from muster.assignor import check, registry
from muster.assignor.errors import InvalidPlacement, UnknownAssignor
from muster.assignor.model import NO_MEMBER, GroupView, Pairs, Placement, group_view
from muster.assignor.sticky_assignor import Sticky
from muster.protocol.settings import Settings
from muster.protocol.tasks import Subtopology, TaskTable


def _view(tasks: int, owner: list[int], capacity: list[int], draining: list[bool]) -> GroupView:
    return group_view(
        tasks=TaskTable([Subtopology("0", tasks)]),
        settings=Settings(),
        members=tuple(f"m{i:02}" for i in range(len(capacity))),
        capacity=np.array(capacity, dtype=np.int64),
        active=np.array(owner, dtype=np.int32),
        draining=np.array(draining, dtype=np.bool_),
    )


@st.composite
def groups(draw: st.DrawFn) -> GroupView:
    members = draw(st.integers(1, 6))
    tasks = draw(st.integers(0, 30))
    owner = draw(st.lists(st.integers(NO_MEMBER, members - 1), min_size=tasks, max_size=tasks))
    capacity = draw(st.lists(st.integers(1, 4), min_size=members, max_size=members))
    draining = draw(st.lists(st.booleans(), min_size=members, max_size=members))
    return _view(tasks, owner, capacity, draining)


@settings(max_examples=examples(200), deadline=None)
@given(groups())
def test_every_placement_is_lawful_balanced_and_gives_a_reason(view: GroupView) -> None:
    """Any group: the law holds, loads differ by at most 1, every move has a reason."""
    placement = Sticky().assign(view)
    check.valid(view, placement)
    draining = view.draining & ~view.draining.all()
    capacity = np.where(draining, 0, view.capacity)
    usable = capacity > 0
    count = np.bincount(placement.active, minlength=len(view.members))
    assert not count[~usable].any()
    load = count[usable] / (capacity[usable] // np.gcd.reduce(capacity[usable]))
    assert load.max() - load.min() <= 1 + 1e-9
    moved = {i for i in range(len(view.tasks)) if view.active[i] != placement.active[i]}
    assert {reason.task for reason in placement.reasons} == moved
    assert all(reason.text for reason in placement.reasons)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.lists(st.integers(NO_MEMBER, 3), max_size=9),
)
def test_fewest_moves_where_capacities_differ(capacity: list[int], homes: list[int]) -> None:
    """Shares are the due by capacity, rounded down or up; no such counts keep more tasks."""
    members = len(capacity)
    owner = [min(home, members - 1) for home in homes]
    view = _view(len(owner), owner, capacity, [False] * members)
    due = len(owner) * view.capacity
    least, most = due // view.capacity.sum(), -(-due // view.capacity.sum())
    held = np.bincount(view.active[view.active != NO_MEMBER], minlength=members)
    kept = 0
    for counts in itertools.product(range(len(owner) + 1), repeat=members):
        fair = (least <= counts).all() and (counts <= most).all()
        if sum(counts) == len(owner) and fair:
            kept = max(kept, int(np.minimum(held, counts).sum()))
    active = Sticky().assign(view).active
    assert int(((active == view.active) & (active != NO_MEMBER)).sum()) == kept


@settings(max_examples=examples(100), deadline=None)
@given(groups())
def test_placing_twice_moves_nothing(view: GroupView) -> None:
    """Placing a placement again changes nothing, whatever it started from."""
    first = Sticky().assign(view)
    again = _view(
        len(view.tasks), first.active.tolist(), view.capacity.tolist(), view.draining.tolist()
    )
    assert np.array_equal(Sticky().assign(again).active, first.active)


def test_a_join_takes_one_share_and_nothing_else() -> None:
    """9 tasks on 2 members, a third joins: exactly its 3 tasks move, with the balance as reason."""
    view = _view(9, [0] * 5 + [1] * 4, [1, 1, 1], [False] * 3)
    placement = Sticky().assign(view)
    assert placement.active.tolist() == [0, 0, 0, 2, 2, 1, 1, 1, 2]
    assert [reason.text for reason in placement.reasons] == [
        "balance 5/0 -> 3/3",
        "balance 5/0 -> 3/3",
        "balance 4/0 -> 3/3",
    ]


def test_topics_are_honoured_and_what_no_member_may_take_is_reported() -> None:
    """A may take unit 0, b units 0 and 1, no member unit 2: unit 2 is left out and reported."""
    view = group_view(
        tasks=TaskTable([Subtopology("0", 4), Subtopology("1", 4), Subtopology("2", 2)]),
        settings=Settings(),
        members=("a", "b"),
        topics=(frozenset({"0"}), frozenset({"0", "1"})),
    )
    placement = Sticky().assign(view)
    check.valid(view, placement)
    assert placement.active.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, NO_MEMBER, NO_MEMBER]
    assert placement.unassigned.tolist() == [8, 9]


def _placement(active: list[int], **kwargs: object) -> Placement:
    owner = np.array(active, dtype=np.int32)
    return Placement(active=owner, destination=owner, **kwargs)  # type: ignore[arg-type]


def _pairs(*pairs: tuple[int, int]) -> Pairs:
    array = np.array(pairs, dtype=np.int32).reshape(len(pairs), 2)
    return Pairs(array[:, 0], array[:, 1])


@pytest.mark.parametrize(
    ("placement", "error"),
    [
        (_placement([0, 5]), "UNKNOWN_PROCESS_ID task 0_1 member #5"),
        (_placement([0]), "ILL_FORMED_PLACEMENT"),
        (_placement([0, NO_MEMBER]), "ACTIVE_TASK_NOT_ASSIGNED task 0_1"),
        (_placement([0, 0], standby=_pairs((7, 1))), "UNKNOWN_TASK_ID task #7 member m01"),
        (_placement([0, 0], standby=_pairs((0, 1))), "INVALID_STANDBY_TASK task 0_0 member m01"),
        (_placement([0, 0], standby=_pairs((1, 1), (0, 1))), "ILL_FORMED_PLACEMENT task 0_0"),
        (_placement([0, 2]), "TASK_ASSIGNED_TO_DRAINING_MEMBER task 0_1 member m02"),
    ],
)
def test_the_first_violation_is_named(placement: Placement, error: str) -> None:
    """Invalid placements of a stateless group: the error names kind, task and member."""
    view = _view(2, [0, 0], [1, 1, 1], [False, False, True])
    with pytest.raises(InvalidPlacement) as caught:
        check.valid(view, placement)
    assert str(caught.value).startswith(error)


def test_a_member_has_one_role_of_a_task() -> None:
    """A standby beside its active, or a learner beside its standby, is an error (S4-16)."""
    tasks = TaskTable([Subtopology("0", 1, stateful=True)])
    view = group_view(tasks=tasks, settings=Settings(), members=("m0", "m1"))
    for placement in (
        _placement([0], standby=_pairs((0, 0))),
        _placement([0], learner=_pairs((0, 0))),
        _placement([0], standby=_pairs((0, 1)), learner=_pairs((0, 1))),
    ):
        with pytest.raises(InvalidPlacement, match=check.TWO_ROLES):
            check.valid(view, placement)


def test_unknown_assignors_are_refused_with_the_names_there_are() -> None:
    """A name that is not registered: the message lists the built-in names."""
    with pytest.raises(UnknownAssignor, match="there are eager, cooperative, static, high-avail"):
        registry.get("wishful")


def test_a_class_of_any_module_can_be_named() -> None:
    """`module:Class` loads the class."""
    assert registry.get("muster.assignor.sticky_assignor:Sticky").name == "sticky"
