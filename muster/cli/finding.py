"""What `muster doctor` finds: one thing looked at, how it is, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a thing is. Only FAIL makes the command's exit code 1."""

    OK = "ok"
    SKIPPED = "skipped"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what kind of thing: kafka, topic, rights, claim, job, clock, group, rejected,
            certificate or keys.
        subject: which one.
        level: how it is.
        what: what was found, for a person.
        action: what to do, where something is to be done.
    """

    check: str
    subject: str
    level: Level
    what: str
    action: str = ""

    def as_json(self) -> dict[str, object]:
        """For ``--format json``."""
        return {
            "check": self.check,
            "subject": self.subject,
            "level": self.level.value,
            "what": self.what,
            "action": self.action or None,
        }
