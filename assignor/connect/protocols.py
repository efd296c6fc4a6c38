"""Connect's protocols: which one a group speaks, and the algorithm that it implies.

Every worker offers protocols, best first. The group uses the best one that all of them offer
(S0-F02, U-01), so one old worker sets the whole group back: static lists are ignored until the last
worker speaks ``static`` (S0-09, S0-11, S0-21, U-02). ``sessioned`` differs from ``compatible`` only
in how workers sign their internal requests.

| protocol | algorithm |
| --- | --- |
| static | cooperative rounds with static assignments (KIP-987) |
| sessioned, compatible | cooperative rounds |
| eager | round robin |
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


def negotiated(view: GroupView, best: str) -> str:
    """The best protocol that every member speaks and the group may use.

    Args:
        view: members without protocols speak all.
        best: the best the group may use (`connect.protocol`).

    Raises:
        AssignorError: the members have no protocol in common.
    """
    allowed = CONNECT_PROTOCOLS[CONNECT_PROTOCOLS.index(best) :]
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


def by_protocol(view: GroupView, best: str) -> Placement:
    """One round by the protocol the group agrees on.

    Raises:
        AssignorError: no protocol in common, or a member restricts its topics.
    """
    require_connect(view)
    mismatch = _config_mismatch(view)
    if mismatch is not None:
        return mismatch
    protocol = negotiated(view, best)
    if protocol == "eager":
        return dealt_round_robin(view)
    return play(view, pins_of(view) if protocol == "static" else no_pins(view))


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
    memory.reached = memory.has_reached(whole=view.whole_generation)
    return memory.as_json(view.tasks)
