"""Records and events in a few words, for the stories of an exploration."""

from __future__ import annotations

from typing import Any


def named(tasks: Any) -> str:
    return " ".join(map(str, tasks)) or "nothing"


def said(value: Any) -> str:
    """A record or an event in a few words."""
    kind = type(value).__name__
    match kind:
        case "MemberAssignment":
            if value.fault is not None:
                return f"{value.member}: {value.fault.value}"
            held = [
                f"{role} {named(tasks)}"
                for role, tasks in zip(
                    ("active", "standby", "learner"),
                    (value.active, value.standby, value.learner),
                    strict=True,
                )
                if tasks
            ]
            asks = ", report" if value.report else ""
            return f"{value.member}: {' and '.join(held) or 'no tasks'} (r{value.revision}{asks})"
        case "MemberGone":
            return f"{value.member}: gone"
        case "GroupSnapshot":
            return f"the group of generation {value.generation}"
        case "WakeUp":
            return "a wake-up"
        case "Tick":
            return "a tick"
        case "Report":
            return f"a report of {value.member} (r{value.revision}: {named(value.holding.active)})"
        case "Leave":
            return f"a leave of {value.member}{' for a while' if value.temporary else ''}"
    return f"a {kind.lower()} of {getattr(value, 'member', '?')}"
