"""Assignors that each break one law, for the check of assignors."""

from __future__ import annotations

import itertools
import threading

import numpy as np

from muster.assignor.model import NO_MEMBER, GroupView, Placement

_CALLS = itertools.count()


def _to(view: GroupView, member: int) -> Placement:
    """Everything to one member, or to the next one that is not drained."""
    able = (
        np.flatnonzero(~view.draining) if not view.draining.all() else np.arange(len(view.members))
    )
    active = np.full(len(view.tasks), able[member % len(able)], dtype=np.int32)
    return Placement(active=active, destination=active)


class Good:
    """Everything to the first member."""

    name = "good"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        return _to(view, 0)


class Raises:
    """Raises in groups of three or more members."""

    name = "raises"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        if len(view.members) >= 3:
            raise IndexError("more members than I thought of")
        return _to(view, 0)


class Changes:
    """Answers by the number of the call."""

    name = "changes"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        return _to(view, next(_CALLS))


class NeverRests:
    """Always gives the first task's owner's work to the member behind it."""

    name = "never-rests"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        owner = int(view.active[0])
        return _to(view, 0 if owner == NO_MEMBER else owner + 1)


class Postpones:
    """Says that all tasks belong to the last member, and never moves one there."""

    name = "postpones"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        first, last = _to(view, 0), _to(view, -1)
        return Placement(active=first.active, destination=last.active)


class Forgets:
    """Leaves the last task without an owner."""

    name = "forgets"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        placement = _to(view, 0)
        placement.active[-1] = NO_MEMBER
        return placement


class Hangs:
    """Does not answer in groups of three or more members."""

    name = "hangs"

    def assign(self, view: GroupView) -> Placement:
        """Assign."""
        if len(view.members) >= 3:
            threading.Event().wait()
        return _to(view, 0)
