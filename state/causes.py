"""The cause of a generation, in one line: "W2 joined", "W2, W3 and 40 more joined"."""

from __future__ import annotations

import re

JOINED = "joined"
RETURNED = "returned"
LEFT = "left"
EXPIRED = "expired"
FENCED = "fenced"
CHANGED = "changed"
REJOINED = "rejoined"
DRAINING = "draining"
UNDRAINED = "no longer draining"
READY = "ready"
FOLLOW_UP = "follow-up"
"""The time of an assignor's follow-up has come."""

_ORDER = (JOINED, RETURNED, REJOINED, CHANGED, LEFT, EXPIRED, FENCED, DRAINING, UNDRAINED)
_LISTED_MAX = 3


class Causes:
    """Collects what happened in a batch; what `add` is given is told in the order of its calls."""

    __slots__ = ("_events", "_members", "_ready")

    def __init__(self) -> None:
        self._members: dict[str, set[str]] = {}
        self._ready: set[tuple[str, str, str]] = set()
        self._events: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._members or self._ready or self._events)

    def member(self, what: str, member: str) -> None:
        """Add what happened to a member, a word such as `JOINED`."""
        self._members.setdefault(what, set()).add(member)

    def ready(self, what: str, task: str, member: str) -> None:
        """Add that a copy has caught up; `what` is "learner", "standby" or "copy"."""
        self._ready.add((task, member, what))

    def has_members(self, what: str) -> bool:
        """Whether this happened to at least one member."""
        return what in self._members

    def add(self, text: str) -> None:
        """Add what happened to the group, in words."""
        if text not in self._events:
            self._events.append(text)

    def __str__(self) -> str:
        words = [what for what in _ORDER if what in self._members]
        parts = [*self._events, *(f"{_listed(sorted(self._members[w]))} {w}" for w in words)]
        if len(self._ready) == 1:
            task, member, what = next(iter(self._ready))
            parts.append(f"{what} of {task} on {member} ready")
        elif self._ready:
            members = _listed(sorted({member for _, member, _ in self._ready}))
            parts.append(f"{len(self._ready)} {self._kind_of_copy()} on {members} ready")
        return "; ".join(parts)

    def _kind_of_copy(self) -> str:
        kinds = {what for _, _, what in self._ready}
        return {"learner": "learners", "standby": "standbys"}.get(
            kinds.pop() if len(kinds) == 1 else "", "copies"
        )

    def absorb(self, other: Causes) -> None:
        """Add all that another one has collected."""
        for what, members in other._members.items():
            self._members.setdefault(what, set()).update(members)
        self._ready |= other._ready
        for text in other._events:
            self.add(text)


def _listed(members: list[str]) -> str:
    if len(members) <= _LISTED_MAX:
        return ", ".join(members)
    return f"{members[0]}, {members[1]} and {len(members) - 2} more"


def without(cause: str, word: str) -> str:
    """A cause without the parts that end with this word."""
    return "; ".join(part for part in cause.split("; ") if not part.endswith(f" {word}"))


_FAILURE = re.compile(r"(?:^|; )(assignor \S+ failed, the target stays: .*)", re.DOTALL)


def parted(cause: str) -> tuple[str, str]:
    """A cause, and the assignor's failure at its end; each may be empty."""
    failure = _FAILURE.search(cause)
    return (cause, "") if failure is None else (cause[: failure.start()], failure[1])


def added(cause: str, more: str) -> str:
    """A cause with more causes in front of the assignor's failure, which the next one replaces."""
    causes, failure = parted(cause)
    return "; ".join(filter(None, (causes, more, failure)))


def count_of(number: int, thing: str) -> str:
    """A number and a noun: "1 task", "12 tasks"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


OTHER = "other"
_KINDS: tuple[tuple[str, str], ...] = (
    # (how a part of a cause ends, kind): the first row that fits a part names the kind
    (EXPIRED, EXPIRED),
    (FENCED, FENCED),
    (LEFT, LEFT),
    ("drained for scale.down.timeout.ms", "drained"),
    (UNDRAINED, "undrained"),
    (DRAINING, DRAINING),
    (JOINED, JOINED),
    (RETURNED, RETURNED),
    (REJOINED, REJOINED),
    (READY, READY),
    (CHANGED, CHANGED),
    ("delay ended", "delay"),
    ("all releases acknowledged", "released"),
    (FOLLOW_UP, "followup"),
)
_CONFIG = re.compile(r"assignor .* → |config (changed|read)|\d+ tasks? |tasks declared anew")


def kind_of(cause: str) -> str:
    """The kind of a cause that `Causes` made, one of a fixed set of words, as a metric label."""
    parts = cause.split("; ")
    for ending, kind in _KINDS:
        if any(part == ending or part.endswith(f" {ending}") for part in parts):
            return kind
    return "config" if any(_CONFIG.match(part) for part in parts) else OTHER
