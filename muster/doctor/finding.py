"""A finding of `muster doctor`: what was checked, the result, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """The result of a check. Only FAIL makes the command's exit code 1."""

    OK = "ok"
    SKIPPED = "skipped"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    Attributes:
        check: its kind: kafka, topic, rights, claim, signs, job, clock, canary, group, rejected,
            certificate or keys.
        what: what was found, for a person.
        action: what to do if the result is not OK; may be empty.
    """

    check: str
    subject: str
    level: Level
    what: str
    action: str = ""

    def as_json(self) -> dict[str, object]:
        """For ``--format json``."""
        return {**asdict(self), "level": self.level.value, "action": self.action or None}
