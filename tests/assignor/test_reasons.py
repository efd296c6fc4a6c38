"""Every move has a reason, and it is true."""

from __future__ import annotations

from hypothesis import given, settings
from support.placing import group
from support.random_groups import placed, problems

from muster.assignor.model import NOBODY


@settings(max_examples=100, deadline=None)
@given(problems(racks=True))
def test_every_move_has_a_reason(problem: tuple) -> None:
    """Whatever is held after and was not before, and nothing else, is given a reason."""
    units, members, config = problem
    view = group(units, members, **config)
    for name in ("high-availability", "sticky", "learner", "fallback"):
        placement = placed(view, name)
        told = {(r.task, int(r.role), r.destination) for r in placement.reasons}
        after = {(t, 1, int(m)) for t, m in enumerate(placement.active) if m != NOBODY}
        before = {(t, 1, int(m)) for t, m in enumerate(view.active)}
        for role, now, then in (
            (2, placement.standby, view.standby),
            (3, placement.learner, view.learner),
        ):
            after |= {(int(t), role, int(m)) for t, m in zip(now.task, now.member, strict=True)}
            before |= {(int(t), role, int(m)) for t, m in zip(then.task, then.member, strict=True)}
        assert told == after - before
        assert all(reason.text for reason in placement.reasons)
