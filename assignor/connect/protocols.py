"""`cooperative` and `static`: one round, by the protocol that the group speaks.

Every worker offers protocols, best first. The group uses the best one that all of them offer
(S0-F02, U-01), so one old worker sets the whole group back: static lists are ignored until the last
worker speaks ``static`` (S0-09, S0-11, S0-21, U-02). ``sessioned`` differs from ``compatible`` only
in how workers sign their internal requests.

| protocol | algorithm |
| --- | --- |
| static | cooperative rounds with static assignments (KIP-987) |
| sessioned, compatible | cooperative rounds: one round stops jobs, a later one starts them |
| eager | round robin |

`connect.protocol` says which is the best that a group may speak. Rounds of ``static`` are plain
cooperative ones if no worker names a job (S0-22).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from muster.assignor.connect.eager import dealt_round_robin
from muster.assignor.connect.jobs import require_connect
from muster.assignor.connect.leader_memory import Memory
from muster.assignor.connect.pinned_jobs import no_pins, pins_of
from muster.assignor.connect.round import play
from muster.assignor.errors import AssignorError
from muster.assignor.model import NO_MEMBER, GroupView, Placement
from muster.protocol.settings import CONNECT_PROTOCOLS

ALIASES = {"default": "eager"}
"""Names on the wire: Kafka calls its eager protocol ``default``."""


class Cooperative:
    """Kafka Connect's default: IncrementalCooperativeAssignor."""

    name = "cooperative"

    def assign(self, view: GroupView) -> Placement:
        """One round.

        Raises:
            AssignorError: no protocol in common, or a member restricts its topics.
        """
        require_connect(view)
        mismatch = _config_mismatch(view)
        if mismatch is not None:
            return mismatch
        protocol = negotiated(view)
        if protocol == "eager":
            return dealt_round_robin(view)
        return play(view, pins_of(view) if protocol == "static" else no_pins(view))


class Static(Cooperative):
    """KIP-987: workers name jobs that they run; the other workers share the other jobs.

    The default of `connect.protocol` is all that differs: for this assignor it is ``static``.
    """

    name = "static"


def negotiated(view: GroupView) -> str:
    """The best protocol that every member speaks, those without a list all, and the group may use.

    Raises:
        AssignorError: the members have no protocol in common.
    """
    best = CONNECT_PROTOCOLS.index(view.settings.connect_protocol)
    allowed = CONNECT_PROTOCOLS[best:]
    for protocol in allowed:
        if all(_speaks(spoken, protocol) for spoken in view.protocols):
            return protocol
    offers = ", ".join(
        f"{member}: {'/'.join(spoken)}"
        for member, spoken in zip(view.members, view.protocols, strict=True)
        if spoken
    )
    raise AssignorError(
        f"no protocol among {', '.join(allowed)} is spoken by every member ({offers})"
    )


def _speaks(spoken: tuple[str, ...], protocol: str) -> bool:
    return not spoken or protocol in spoken or protocol in [ALIASES.get(s) for s in spoken]


def _config_mismatch(view: GroupView) -> Placement | None:
    """The answer if a member has read a newer config than its group: nothing changes (S3-F11)."""
    newest = int(view.config_offsets.max(initial=-1))
    if view.config_offset < 0 or newest <= view.config_offset:
        return None
    member = view.members[int(np.argmax(view.config_offsets))]
    return Placement(
        active=view.active,
        destination=view.active,
        unassigned=np.flatnonzero(view.active == NO_MEMBER).astype(np.int32),
        memory=_unplanned(view),  # the group asks again when it has read a newer config
        warnings=(
            f"CONFIG_MISMATCH: {member} has read the config up to {newest}, the group up to"
            f" {view.config_offset}; nothing changes until it has caught up",
        ),
    )


def _unplanned(view: GroupView) -> Mapping[str, object] | None:
    """The memory of a round that made no plan."""
    if view.memory is None:
        return None
    memory = Memory.of(view.memory, view.tasks)
    memory.reached = memory.has_reached(view)
    return memory.as_json(view.tasks)
