"""Errors of the command line that no room below it has."""

from __future__ import annotations

from muster.protocol.errors import MusterError

_LONGEST = 2_000


def one_line(message: str) -> str:
    """A message as one printable line of bounded length, whatever a user's text brought into it."""
    cut = message if len(message) <= _LONGEST else f"{message[:_LONGEST]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def shown(value: object, most: int = 40) -> str:
    """A user's value for a message: quoted, and cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


class BadInput(MusterError):
    """What the user gave cannot be used: a file, an argument, a line. Exit code 2.

    Operator action: the message names the place and says what would be right.
    """


class NotFound(MusterError):
    """A group or member that is asked for does not exist.

    Operator action: `muster groups list` says which groups there are.
    """


class InUse(MusterError):
    """Members of the group are alive, and would lose what they do.

    Operator action: stop them first, or say that it is meant: the message names them and the way.
    """


class NotDrained(MusterError):
    """A member did not become empty: it was expelled, it went, or the order was undone.

    Operator action: see what its process does before it is stopped; the message says what happened.
    """


class Unreachable(MusterError):
    """Kafka did not answer, or refused.

    Operator action: check --bootstrap-server and --command-config; is the broker up?
    """

    retriable = True


class DemoFailed(MusterError):
    """The demo cannot go on: something it started has ended, or does not do its part.

    Operator action: the message ends with what that process said last.
    """
