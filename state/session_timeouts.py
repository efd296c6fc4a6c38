"""When a changed `session.timeout.ms` counts for a member.

A longer timeout counts at once. A shorter one counts when the member has reported on a record that
has it: until then its process believes in a longer lease, and another member may not get its tasks
earlier. From then on it counts from that report, which is also where the process counts it from
(`muster.worker.lease`).
"""

from __future__ import annotations

from muster.state.draft import Draft


def lengthen(draft: Draft, slot: int) -> None:
    """Use the group's timeout for a member at once if it is longer than the member's."""
    if draft.settings.session_timeout_ms > draft.member(slot).session_timeout_ms:
        _use(draft, slot)


def adopt(draft: Draft, slot: int, *, has_read_it: bool) -> None:
    """Use the group's timeout for a member that has read the newest record.

    An answer to a new coordinator's question does not prove that, because its revision is not new;
    such a member gets another record and is asked to report. Nor does a report in the batch that
    changes the timeout, because no record has it yet.
    """
    if draft.member(slot).session_timeout_ms == draft.settings.session_timeout_ms:
        return
    is_published = draft.settings.session_timeout_ms == draft.group.settings.session_timeout_ms
    if has_read_it and is_published:
        _use(draft, slot)
    else:
        draft.ask(slot)


def _use(draft: Draft, slot: int) -> None:
    timeout_ms = draft.settings.session_timeout_ms
    draft.update(slot, session_timeout_ms=timeout_ms)
    draft.sessions.set_timeout(slot, timeout_ms)
