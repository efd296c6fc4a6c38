"""Names of things: groups, members, tasks, roles.

A task prints as Kafka prints it: ``0_3`` is partition 3 of subtopology 0, ``c1`` is connector c1
itself, ``c1-0`` is its task 0. A plain topic partition is a task of a subtopology named after
the topic.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, NewType

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)

TASK_NUMBERS = 2**31 - 2
"""Tasks of a unit are numbered below this: with the connector itself they fit 31 bits."""
CONNECTOR_ITSELF = -1
"""`Task.number` of the connector itself (the sentinel of Connect's wire format, S3-F13)."""


class Role(IntEnum):
    """What a member does with a task: prints as a word, ``active``, ``standby`` or ``learner``.

    The numbers are on the wire (digest, GRAMMAR.md).
    """

    ACTIVE = 1
    """Runs it. One member at most at any time."""
    STANDBY = 2
    """Keeps a warm copy for ever."""
    LEARNER = 3
    """Restores a copy in order to take over (KIP-441's warm-up)."""

    def __str__(self) -> str:
        return self.name.lower()


class Task(NamedTuple):
    """One task: the unit of assignment. `str` of it is its id, `parse_task` reads one.

    Tasks are values: equal ones are the same task, and they may be keys of a dictionary.

    Attributes:
        unit: name of the subtopology or connector the task belongs to.
        number: partition, or number of the connector's task; -1 for the connector itself.
        connector: whether `unit` is a connector.
    """

    unit: str
    number: int
    connector: bool = False

    @property
    def partition(self) -> int:
        """`number`, by the name it has where the unit is a topic: ``orders_3`` is partition 3."""
        return self.number

    def __str__(self) -> str:
        if not self.connector:
            return f"{self.unit}_{self.number}"
        return self.unit if self.number == CONNECTOR_ITSELF else f"{self.unit}-{self.number}"


def _is_number(text: str) -> bool:
    # Ids come from anywhere: Python refuses to read thousands of digits, numpy more than 32 bits.
    short = len(text) <= 10 and text.isascii() and text.isdigit()
    return short and int(text) < TASK_NUMBERS


def parse_task(text: str) -> Task:
    """Read a printed task id without knowing the group's tasks.

    The rightmost ``_<digits>`` or ``-<digits>`` decides; without either the id is a connector. A
    group that declares ids which print alike is refused when its config is read, so within one
    group the answer is unique; `TaskTable.index` resolves against that group.

    Raises:
        ValueError: the text is empty.
    """
    if not text:
        raise ValueError("a task id must not be empty")
    for separator, connector in (("_", False), ("-", True)):
        unit, found, number = text.rpartition(separator)
        if found and unit and _is_number(number):
            return Task(unit, int(number), connector)
    return Task(text, CONNECTOR_ITSELF, connector=True)
