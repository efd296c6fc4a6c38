"""The errors by which Kafka refuses a governor, in words for an operator."""

from __future__ import annotations

import kafka.errors as errors

from muster.adopt.model import Options
from muster.errors import BadInput
from muster.kafka.access_check import Refused
from muster.protocol.errors import MusterError


def refusal(error: Exception, options: Options, protocols: list[str]) -> MusterError | None:
    """The error for an operator; None = the governor can go on after this error."""
    group = options.group
    match error:
        case errors.GroupAuthorizationFailedError():
            return Refused(
                f"Kafka does not let this login lead group {group!r}; it needs READ on the group"
                " (muster topics create --acls --governor-principal)"
            )
        case errors.InconsistentGroupProtocolError():
            return BadInput(
                f"the members of {group!r} have no protocol in common with {', '.join(protocols)};"
                " --protocol NAME adds the name of their assignor"
            )
        case errors.FencedInstanceIdError():
            return BadInput(
                f"another governor has joined {group!r} as {options.instance_id!r}; give each its"
                " own --instance-id"
            )
        case errors.GroupMaxSizeReachedError() | errors.InvalidSessionTimeoutError():
            return BadInput(f"Kafka does not admit a governor to {group!r}: {error}")
    return None


def broker_assigns(group: str) -> MusterError:
    """The error for a group without a leader: a KIP-848 member has joined it, and converted it."""
    return BadInput(
        f"group {group!r} is of the consumer protocol (KIP-848) now, because a member with"
        " group.protocol=consumer has joined it: the broker assigns, no member leads. muster shadow"
        " works; to govern it again, start its members with group.protocol=classic"
    )
