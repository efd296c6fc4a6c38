"""`muster groups release`: lets a quarantined group continue.

A record of the group on the config topic releases it. This command writes the group's configuration
again; `muster config set` releases the group with a corrected one. For a group without a
configuration it writes a deletion; the members create the group again when they join again.
"""

from __future__ import annotations

import time

from muster.cli.ages import ago, wall_ms
from muster.cli.config import current
from muster.cli.errors import BadInput, NotFound, StillQuarantined, Unreachable
from muster.cli.kafka import append
from muster.cli.snapshots import snapshot_of
from muster.kafka.settings import ClientSettings
from muster.protocol.events import GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, Quarantine
from muster.protocol.topics import TopicKind, topic_name
from muster.signing.keyring import KeyFile

LOOK_EVERY_S = 0.5
TIMEOUT_S = 60.0


def release(settings: ClientSettings, prefix: str, group: str, keys: KeyFile | None) -> None:
    """Release a group, and wait until it continues or fails again.

    Raises:
        BadInput: the group is not quarantined.
        StillQuarantined: it failed again and is quarantined again.
        Unreachable: no coordinator acted within `TIMEOUT_S`.
    """
    before = snapshot_of(settings, prefix, group).quarantine
    if before is None:
        raise BadInput(f"group {group!r} is not quarantined; see: muster groups describe")
    known = current(settings, prefix, group)
    event: GroupConfig | GroupDeleted = known or GroupDeleted(group=GroupId(group))
    append(settings, topic_name(TopicKind.CONFIG, prefix), event, keys)
    print(f"{group}: asked to go on; it was quarantined {ago(wall_ms(), before.since_ms)}")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        now = _snapshot(settings, prefix, group)
        if now is None or now.quarantine is None:
            print(f"{group}: released" + ("" if known else "; it has no configuration"))
            return
        if now.quarantine.since_ms > before.since_ms:
            raise StillQuarantined(f"{group}: failed again: {now.quarantine.story}")
        if time.monotonic() > deadline:
            raise Unreachable(f"{group}: no coordinator has answered in {TIMEOUT_S:.0f} s")
        time.sleep(LOOK_EVERY_S)


def quarantine_text(group: GroupId, quarantine: Quarantine, now_ms: int) -> str:
    """Why a group is quarantined, what that means, and what to do."""
    return (
        f"{group}: quarantined {ago(now_ms, quarantine.since_ms)}: {quarantine.story}. Its tasks"
        " stay where they are, its events become dead letters. Correct the cause, then: muster"
        f" groups release --group {group}"
    )


def _snapshot(settings: ClientSettings, prefix: str, group: str) -> GroupSnapshot | None:
    try:
        return snapshot_of(settings, prefix, group)
    except NotFound:
        return None
