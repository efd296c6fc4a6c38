"""Ids of groups, members and tasks, what they may contain, and the roles.

A task id looks as in Kafka: ``0_3`` is partition 3 of subtopology 0, ``c1`` is connector c1 itself,
``c1-0`` is its task 0. The partition of a plain topic is a task of a subtopology with the topic's
name.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, NewType

from muster.protocol.errors import DecodeError

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)

GROUP_ID_CHARS_MAX = 249
"""The limit of a Kafka topic name: group ids appear in metrics, file names and similar places."""
MEMBER_ID_CHARS_MAX = 128
NAME_CHARS_MAX = 512
"""Longest name of a rack, an instance and the like."""
UNIT_CHARS_MAX = 8_192
"""Longest name of a unit, which may be a whole expression."""
SEPARATOR = "|"
"""Between the fields of a record key, so no id contains it."""
TASK_NUMBERS = 2**31 - 2
"""Task numbers are below this, so that with the connector itself they fit 31 bits."""
CONNECTOR_ITSELF = -1
"""`Task.number` of the connector itself, as in Connect's wire format (S3-F13)."""


class Role(IntEnum):
    """What a member does with a task. Its text is ``active``, ``standby`` or ``learner``.

    The numbers are part of the digest on the wire (GRAMMAR.md).
    """

    ACTIVE = 1
    """It runs the task. At most one member does at any time."""
    STANDBY = 2
    """It keeps a warm copy."""
    LEARNER = 3
    """It restores a copy in order to take over (KIP-441's warm-up)."""

    def __str__(self) -> str:
        return self.name.lower()


class Task(NamedTuple):
    """One task, the unit of assignment. `str` gives its id, `parse_task` reads one.

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
        """`number`, for units that are topics: ``orders_3`` is partition 3 of orders."""
        return self.number

    def __str__(self) -> str:
        if not self.connector:
            return f"{self.unit}_{self.number}"
        return self.unit if self.number == CONNECTOR_ITSELF else f"{self.unit}-{self.number}"


def _is_number(text: str) -> bool:
    # Ids may be hostile: int() refuses thousands of digits, and numpy numbers above 32 bits.
    short = len(text) <= 10 and text.isascii() and text.isdigit()
    return short and int(text) < TASK_NUMBERS


def parse_task(text: str) -> Task:
    """Read a task id without the group's task table.

    A final ``_<digits>`` or ``-<digits>`` is the number; an id without either is a connector. A
    config whose tasks have equal ids is refused, so within a group the answer is unique;
    `TaskTable.index` finds the task in its table.

    Raises:
        ValueError: the text is empty.
    """
    if not text:
        raise ValueError("a task id must not be empty")
    for separator, connector in (("_", False), ("-", True)):
        unit, parted, number = text.rpartition(separator)
        if parted and unit and _is_number(number):
            return Task(unit, int(number), connector)
    return Task(text, CONNECTOR_ITSELF, connector=True)


def group_fault(group: str) -> str | None:
    """What is wrong with a group id; None if it is valid."""
    return _id_fault("group id", group, GROUP_ID_CHARS_MAX)


def as_option(name: str, value: str) -> str:
    """An option and its value as an operator types them into a shell.

    Ids come from members and may have spaces, quotes, semicolons, or a hyphen in front.
    """
    return f"{name}{'=' if value.startswith('-') else ' '}{shlex.quote(value)}"


def member_fault(member: str) -> str | None:
    """What is wrong with a member id; None if it is valid."""
    return _id_fault("member id", member, MEMBER_ID_CHARS_MAX)


def member_from(text: str) -> MemberId:
    """A member id from a value, checked.

    Raises:
        DecodeError: it is not valid.
    """
    fault = member_fault(text)
    if fault is not None:
        raise DecodeError(fault)
    return MemberId(text)


def check_names(noun: str, names: Iterable[str | None], chars_max: int = NAME_CHARS_MAX) -> None:
    """Refuse names that do not print or are too long; None is skipped. `noun` is such as "a rack".

    Names are stored and shown in terminals and logs, where control characters do harm.

    Raises:
        DecodeError: names the first invalid one.
    """
    for name in names:
        if name is None:
            continue
        if len(name) > chars_max:
            raise DecodeError(f"{noun} of {len(name)} characters; at most {chars_max} are accepted")
        if not name.isprintable():
            raise DecodeError(f"{noun} {name[:40]!r} with a character that does not print")


def _id_fault(noun: str, text: str, chars_max: int) -> str | None:
    if not 1 <= len(text) <= chars_max:
        return f"{noun} of {len(text)} characters; 1 to {chars_max} are accepted"
    if SEPARATOR in text or not text.isprintable():
        return f"{noun} {text[:40]!r} with '|' or a character that does not print"
    return None
