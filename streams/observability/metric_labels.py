"""Which groups have a label of their own in the metrics, where there are more groups than labels.

Groups with tasks come first, because any client with write access can join a group without tasks.
A group without tasks loses its label to one with tasks; the others share one label (`REST`).
"""

from __future__ import annotations

from typing import TypeAlias

from muster.protocol.ids import GroupId

REST = ""
"""Label shared by all groups that have no label of their own."""
PrefixedGroup: TypeAlias = tuple[str, GroupId]
"""Topic prefix and group."""


class GroupLabels:
    """The labels of groups; at most `groups_max` groups have one of their own."""

    def __init__(self, groups_max: int) -> None:
        self._groups_max = groups_max
        self._named: set[PrefixedGroup] = set()
        self._idle: dict[PrefixedGroup, None] = {}
        """Groups that have a label and no tasks, the oldest first."""

    def of(self, place: PrefixedGroup) -> str:
        """The label of a group."""
        return str(place[1]) if place in self._named else REST

    def name(self, place: PrefixedGroup, *, has_tasks: bool) -> PrefixedGroup | None:
        """Give a group a label of its own if there is one.

        Returns:
            The group that loses its label for it, if any.
        """
        if place in self._named:
            self._set_idle(place, is_idle=not has_tasks)
            return None
        gives_up = None
        if len(self._named) >= self._groups_max:
            if not has_tasks or not self._idle:
                return None
            gives_up = next(iter(self._idle))
            self.drop(gives_up)
        self._named.add(place)
        self._set_idle(place, is_idle=not has_tasks)
        return gives_up

    def drop(self, place: PrefixedGroup) -> bool:
        """Take a group's label away; False = it had none of its own."""
        if place not in self._named:
            return False
        self._named.discard(place)
        self._idle.pop(place, None)
        return True

    def _set_idle(self, place: PrefixedGroup, *, is_idle: bool) -> None:
        if is_idle:
            self._idle[place] = None
        else:
            self._idle.pop(place, None)
