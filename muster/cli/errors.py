"""Errors of the command line that no room below it has."""

from __future__ import annotations

from muster.protocol.errors import MusterError


class BadInput(MusterError):
    """What the user gave cannot be used: a file, an argument, a line. Exit code 2.

    Operator action: the message names the place and says what would be right.
    """


class NotFound(MusterError):
    """A group or member that is asked for does not exist.

    Operator action: `muster groups list` says which groups there are.
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
