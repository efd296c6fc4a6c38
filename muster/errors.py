"""Errors of the command line and of the rooms that it uses."""

from __future__ import annotations

from muster.protocol.errors import MusterError


class BadInput(MusterError):
    """A file, an argument or a line that the user gave cannot be used. Exit code 2.

    Operator action: the message names the place and says what would be right.
    """


class NotFound(MusterError):
    """A group, member or task that is asked for does not exist.

    Operator action: `muster groups list` says which groups there are.
    """


class InUse(MusterError):
    """The group has live members, which would lose their tasks.

    Operator action: stop them first, or give the option that the message names.
    """


class NotDrained(MusterError):
    """A member did not become empty: it was expelled, it left, or the drain was undone.

    Operator action: the message says what happened; check the member's process before stopping it.
    """


class StillQuarantined(MusterError):
    """A group that was released failed again.

    Operator action: the message says how; correct its configuration or its plug-in first.
    """


class ChangedMeanwhile(MusterError):
    """Another operator changed the group at the same moment, and one change replaced the other.

    Operator action: the message says what was lost; set again what should hold.
    """


class Unreachable(MusterError):
    """Kafka did not answer or refused, or the coordinator did not act in time.

    Operator action: check --bootstrap-server and --command-config; is the broker up?
    """

    retriable = True


class DemoFailed(MusterError):
    """The demo cannot continue: a process that it started has ended, or nothing happened in time.

    Operator action: the message has the last lines of a process that ended, or what did not happen.
    """
