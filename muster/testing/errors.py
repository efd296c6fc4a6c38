"""Errors of the test kit."""

from __future__ import annotations

from muster.protocol.errors import MusterError


class AssignorBroken(MusterError, AssertionError):
    """An assignor breaks a law; the message names a file that shows it.

    Operator action: none, it is the failure of a test.
    """


class EnvironmentFailed(MusterError, AssertionError):
    """Something that the test asked for does not hold; the message has the story.

    Operator action: none, it is the failure of a test.
    """
