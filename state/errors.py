"""Exceptions of this package. They mean a bug in muster; faults of clients become records."""

from __future__ import annotations


class InvariantViolation(AssertionError):
    """A group broke an invariant: a bug in muster.

    Operator action: report the message of the dead letter GROUP_FAILED; the group stays parked
    until it is fixed.

    Attributes:
        law: the invariant, in words.
        story: the group's generation, state and members, one line each.
    """

    def __init__(self, law: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(law, story)
        self.law = law
        self.story = story

    def __str__(self) -> str:
        return "\n  ".join((self.law, *self.story))
