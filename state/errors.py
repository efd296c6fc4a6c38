"""Errors of the group's rules. Outside faults are records, not exceptions; these are bugs."""

from __future__ import annotations


class InvariantViolation(AssertionError):
    """A group broke a law of its own: our bug.

    Operator action: report it with the story; the group is parked until then.

    Attributes:
        law: which law, in words.
        story: group, generation, and what happened last, one line each.
    """

    def __init__(self, law: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(law, story)
        self.law = law
        self.story = story

    def __str__(self) -> str:
        return "\n  ".join((self.law, *self.story))
