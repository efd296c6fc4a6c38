"""Late records: a superseded coordinator has overwritten the newest record of a group.

Spark's sink cannot be fenced: a job that was frozen finishes its batch before it reads the later
claim. When the running job reads such a record, it logs a warning and publishes the group again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import structlog

from muster.protocol.events import Mark
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot

_log = structlog.get_logger("muster.streams")

PublishAgain: TypeAlias = Callable[[str, GroupId, Mark], None]
"""Called with the prefix, the group and the older coordinator's mark."""


class LateRecords:
    """Tells late records from others, by the coordinator epochs of each group's records.

    Args:
        epochs: this job's coordinator epochs, by prefix.
        publish_again: has a group published again.
    """

    def __init__(self, epochs: Mapping[str, int], publish_again: PublishAgain) -> None:
        self._own = dict(epochs)
        self._publish_again = publish_again
        self._newest: dict[tuple[str, GroupId], int] = {}
        """Epoch of each group's newest record that is not late, until the group is gone."""

    def overrules(self, prefix: str, record: GroupSnapshot) -> bool:
        """Whether a record is late; if so, the group is published again.

        It is late if an older coordinator wrote it after this job had published the group.
        """
        own, place = self._own.get(prefix, 0), (prefix, record.group)
        if not record.coordinator_epoch < own == self._newest.get(place):
            self._newest[place] = record.coordinator_epoch
            return False
        _log.warning(
            "an older coordinator wrote last; published again",
            prefix=prefix,
            group=str(record.group),
            coordinator_epoch=record.coordinator_epoch,
        )
        self._publish_again(prefix, record.group, Mark(record.coordinator_epoch, 0))
        return True

    def gone(self, prefix: str, group: GroupId) -> None:
        """Forget a group whose record was deleted."""
        self._newest.pop((prefix, group), None)
