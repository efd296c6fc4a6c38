"""The state of tasks on a simulated member's disk: caught up, restoring, or old.

A changelog grows by one offset a millisecond, so a copy that was not updated for 5 s is 5,000
offsets behind. A copy with nothing on the disk restores for `restore_ms`. A copy that was not
updated for a shorter time restores for that time. The first owner of a task restores nothing,
because there is no changelog yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from muster.protocol.ids import Task

EVERYTHING = 1_000_000
"""Lag, in offsets, of a copy with nothing on the disk."""


@dataclass(slots=True)
class Disk:
    """The copies of one member, in any role.

    Attributes:
        restore_ms: how long a copy restores from nothing; None = until `create` is called.
        caught_up: tasks whose copy is as new as the changelog, and is kept up to date.
        restoring: task → when its copy will have caught up.
        left: task → when its copy, which has no role any more, was last up to date.
    """

    restore_ms: int | None = 0
    caught_up: set[Task] = field(default_factory=set)
    restoring: dict[Task, int] = field(default_factory=dict)
    left: dict[Task, int] = field(default_factory=dict)

    def open(self, task: Task, now_ms: int) -> bool:
        """A task gets a role: its copy restores. Return whether it had none or an old one."""
        if task in self.caught_up or task in self.restoring:
            return False
        if self.restore_ms is None:
            return True
        duration_ms = min(self.restore_ms, self.behind(task, now_ms))
        if duration_ms:
            self.restoring[task] = now_ms + duration_ms
        else:
            self.create(task)
        return True

    def create(self, task: Task) -> None:
        """A copy is up to date."""
        self.restoring.pop(task, None)
        self.caught_up.add(task)

    def behind(self, task: Task, now_ms: int) -> int:
        """Lag of a task's copy, in offsets."""
        if task in self.caught_up:
            return 0
        since_ms = self.left.get(task)
        return EVERYTHING if since_ms is None else min(now_ms - since_ms, EVERYTHING)

    def catch_up(self, now_ms: int) -> set[Task]:
        """Finish every copy that is due; return their tasks."""
        due = {task for task, at_ms in self.restoring.items() if at_ms <= now_ms}
        for task in due:
            del self.restoring[task]
        self.caught_up |= due
        return due

    def close(self, tasks: Iterable[Task], now_ms: int) -> None:
        """These tasks lose their roles; copies that were up to date stay on the disk unchanged."""
        for task in tasks:
            self.restoring.pop(task, None)
            if task in self.caught_up:
                self.caught_up.discard(task)
                self.left[task] = now_ms

    def stop(self, now_ms: int) -> None:
        """The process ends; its disk keeps the copies."""
        self.close([*self.caught_up, *self.restoring], now_ms)

    @property
    def next_ms(self) -> int | None:
        """When the next copy will have caught up."""
        return min(self.restoring.values(), default=None)
