"""Who may take what: the `topics` of members, asked of a view (`muster.assignor.kinds`)."""

from __future__ import annotations

from muster.assignor.model import BoolArray, GroupView
from muster.protocol.tasks import IntArray


def everyone_takes_everything(view: GroupView) -> bool:
    """Whether no member restricts its topics (the common case)."""
    return view.unrestricted


def may_take(view: GroupView, task: IntArray, member: IntArray) -> BoolArray:
    """bool[K]: whether each member of the pairs may take the task beside it."""
    return view.kinds.may_take(view.tasks.unit_of.take(task), member)
