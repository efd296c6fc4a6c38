"""The learner examples of single placements: EX-L3b, EX-L5 and EX-L7 to EX-L10.

`tests/cli/test_simulate_learners.py` plays the others. Which of several equal tasks or members is
chosen is free, so tests carry the choice through the rounds and assert roles, counts and order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.assignor.placing import Held, Member, group, holdings, stateful

from muster.assignor import check
from muster.assignor.learner_assignor import Learner
from muster.assignor.model import GroupView, Placement
from muster.protocol.tasks import Subtopology


class Story:
    """A group of about five stateful tasks, round by round."""

    def __init__(self, tasks: int, members: dict[str, Member], **config: object) -> None:
        self.tasks, self.members, self.config = tasks, members, config

    def round(self, **config: object) -> Held:
        """Place once, and let the members hold the result."""
        view, placement = self.placed(**config)
        held = holdings(view, placement)
        for name, (active, standby, learner) in held.items():
            ready = set(self.members[name].ready) & set(learner)
            self.members[name] = replace(
                self.members[name], active=active, standby=standby, learner=learner, ready=ready
            )
        return held

    def placed(self, **config: object) -> tuple[GroupView, Placement]:
        """Place once without carrying it out."""
        view = group(stateful(self.tasks), self.members, "learner", **(self.config | config))
        placement = Learner().assign(view)
        check.valid(view, placement)
        return view, placement

    def ready(self, *names: str) -> None:
        """Make the learners of these members ready."""
        for name in names:
            self.members[name] = replace(self.members[name], ready=self.members[name].learner)


def _counts(held: Held) -> dict[str, tuple[int, int]]:
    return {name: (len(active), len(learner)) for name, (active, _, learner) in held.items()}


T1, T2, T3, T4, T5 = (f"0_{n}" for n in range(5))


def test_EX_L3b_learner_goes_to_the_standby() -> None:
    """The member with the standby learns the task of the member that leaves."""
    members = {
        "S1": Member(active=[T1, T2]),
        "S2": Member(active=[T3, T4], draining=True),
        "S3": Member(active=[T5], standby=[T3]),
    }
    first = Story(5, members).round()
    assert T3 in first["S3"][2]
    assert first["S1"][2] == [T4]


def test_EX_L5_members_are_replaced() -> None:
    """Members are replaced: newcomers learn, the old ones leave, the newcomers take over."""
    story = Story(4, {"S1": Member(active=[T1, T2]), "S2": Member(active=[T3, T4])})
    story.members |= {"S3": Member(), "S4": Member()}
    first = story.round()
    assert _counts(first) == {"S1": (2, 0), "S2": (2, 0), "S3": (0, 1), "S4": (0, 1)}
    for name in ("S1", "S2"):
        story.members[name] = replace(story.members[name], draining=True)
    second = story.round()
    assert _counts(second) == {"S1": (2, 0), "S2": (2, 0), "S3": (0, 2), "S4": (0, 2)}
    assert set(first["S3"][2]) < set(second["S3"][2])
    assert set(first["S4"][2]) < set(second["S4"][2])
    story.ready("S3", "S4")
    assert _counts(story.round()) == {"S1": (0, 0), "S2": (0, 0), "S3": (2, 0), "S4": (2, 0)}


@pytest.mark.parametrize(
    ("counts", "moves"),
    [((12, 18, 23, 27), 0), ((13, 18, 22, 27), 1), ((12, 15, 24, 29), 1), ((7, 20, 23, 30), 1)],
)
def test_EX_L7_tolerated_imbalance(counts: tuple[int, ...], moves: int) -> None:
    """Within 20 percent of 10, 20, 20, 30 nothing moves; beyond, only as much as necessary."""
    owner = np.repeat(np.arange(4), counts)
    members = {
        f"S{n + 1}": Member(capacity=c, active=[f"0_{t}" for t in np.flatnonzero(owner == n)])
        for n, c in enumerate((5, 10, 10, 15))
    }
    view = group(stateful(80), members, "learner", stream_imbalance_percentage=20)
    placement = Learner().assign(view)
    assert len(placement.learner) == moves
    assert np.array_equal(placement.active, view.active)


def test_EX_L8_newcomers_keep_coming() -> None:
    """Far fewer tasks than members, and more join: no task is ever learned twice."""
    story = Story(2, {"S0": Member(active=["0_0", "0_1"])})
    seen: set[tuple[str, str]] = set()
    for step in range(6):
        newcomers = {f"S{step}{n}": Member() for n in "ab"}
        story.members |= newcomers
        for _ in range(3):
            before = {name: set(member.learner) for name, member in story.members.items()}
            held = story.round()
            learned = [task for _, _, learner in held.values() for task in learner]
            assert len(learned) == len(set(learned))
            for name, (_, _, learner) in held.items():
                for task in set(learner) - before[name]:
                    assert name in newcomers
                    assert (task, name) not in seen
                    seen.add((task, name))
            story.ready(*story.members)
        assert story.placed()[1].reasons == ()
    assert len(seen) == 1  # one task is enough for balance


def test_EX_L9_priorities() -> None:
    """The order of owners: ready learner, previous owner, unready learner, standby, free member."""
    candidates = {
        "R": Member(learner=[T1], ready=[T1]),
        "P": Member(active=[T1]),
        "U": Member(learner=[T1]),
        "B": Member(standby=[T1]),
        "F": Member(),
    }
    order = []
    while candidates:
        view = group(stateful(1), candidates, "learner")
        placement = Learner().assign(view)
        [name] = [n for n, three in holdings(view, placement).items() if three[0]]
        order.append(name)
        del candidates[name]
    assert order == ["R", "P", "U", "B", "F"]


def test_EX_L10_standby_goes_to_the_former_owner() -> None:
    """A task moves from S1 to S4 in this round: its standby goes to S1, whose state is warm."""
    members = {
        "S1": Member(active=[T1, T2]),
        "S2": Member(active=[T3], standby=[T2, T4]),
        "S3": Member(active=[T4], standby=[T3]),
        "S4": Member(learner=[T1], ready=[T1]),
    }
    held = Story(4, members, num_standby_replicas=1).round()
    assert held["S4"][0] == [T1]
    assert held["S1"][1] == [T1]


def test_a_learned_task_takes_room_where_it_is_learned() -> None:
    """S2 has died with T2 and T4 while S3 learns T3: each survivor gets one, and neither moves."""
    members = {"S1": Member(active=[T1, T3]), "S3": Member(learner=[T3])}
    held = Story(4, members).round()
    assert held == {"S1": ([T1, T2, T3], [], []), "S3": ([T4], [], [T3])}


def test_of_two_members_with_room_the_one_that_runs_less_gets_a_task() -> None:
    """S1 would have one task left and S3 one learned: T3 goes to S3, which runs none yet."""
    members = {"S1": Member(active=[T1, T2]), "S3": Member(learner=[T2])}
    held = Story(3, members).round()
    assert held == {"S1": ([T1, T2], [], []), "S3": ([T3], [], [T2])}


def test_stateless_tasks_move_without_learning() -> None:
    """A newcomer gets its share of stateless tasks at once."""
    members = {"S1": Member(active=["0_0", "0_1"]), "S2": Member()}
    view = group([Subtopology("0", 2)], members, "learner")
    placement = Learner().assign(view)
    assert placement.active.tolist() == [0, 1]
    assert len(placement.learner) == 0


def test_upgrading_learns_nothing() -> None:
    """In `upgrading` mode tasks move at once, as before KIP-441 (S2-F10)."""
    members = {"S1": Member(active=[T1, T2]), "S2": Member()}
    view = group(stateful(2), members, "learner", stream_rebalancing_mode="upgrading")
    placement = Learner().assign(view)
    assert placement.active.tolist() == [0, 1]
    assert len(placement.learner) == 0


def test_S2_30_stateful_and_stateless_tasks_are_balanced_apart() -> None:
    """S1 has all stateful tasks, S2 as many stateless ones: both kinds are shared out."""
    units = [Subtopology("0", 4, stateful=True), Subtopology("1", 4)]
    stateful_ones, stateless_ones = ([f"{unit}_{n}" for n in range(4)] for unit in "01")
    members = {"S1": Member(active=stateful_ones), "S2": Member(active=stateless_ones)}
    view = group(units, members, "learner")
    placement = Learner().assign(view)
    assert sorted(placement.active[4:].tolist()) == [0, 0, 1, 1]
    assert placement.active[:4].tolist() == [0, 0, 0, 0]
    assert placement.learner.member.tolist() == [1, 1]


def test_S2_F04_one_learner_for_every_task_on_its_way() -> None:
    """Ten tasks of one member, four newcomers: each task that moves has one learner."""
    members = {"S1": Member(active=[f"0_{n}" for n in range(10)])}
    members |= {f"S{n}": Member() for n in range(2, 6)}
    placement = Learner().assign(group(stateful(10), members, "learner"))
    assert placement.active.tolist() == [0] * 10
    moving = np.flatnonzero(placement.destination != placement.active)
    assert placement.learner.task.tolist() == moving.tolist()
    assert placement.learner.member.tolist() == placement.destination[moving].tolist()
    assert len(moving) == 8
