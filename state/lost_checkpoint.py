"""Recovery after a lost checkpoint: what a new coordinator asks before it acts.

- It asks every member of the snapshot for a report (`Group.recover`), and each member that joins
  while the group is *unverified*, because the old coordinator may have admitted it. Until all have
  answered, and while the group is unverified, it places, grants and revokes nothing.
- An answer must name the coordinator that started the group without a checkpoint
  (`Recovery.since_epoch`) or a later one. An older report that is read again does not show what the
  old coordinator did after it.
- The group is unverified until an old coordinator that still ran has read the later claim: two
  heartbeat intervals, and at least `NOTICES_MS`, after the first record that was provably written
  after the start.
- After a quarantine whose events were dropped (`has_lost_events`) the group may not even know the
  joins that were answered. Such a process is told to join again, or its lease ends. So the group is
  unverified for a session more.
- Where the old coordinator obeys ticks (`predecessors_obey`), the group is verified with the batch
  that has the new one's first tick. A coordinator that reads a tick of a later one takes no event
  of that batch or after it (`superseded`), so it admits only members that the new one asks too.
- The question repeats what the snapshot granted. It grants nothing if the snapshot is *doubtful*:
  another coordinator claimed after the one that wrote it, and may have given the tasks away.

DESIGN.md, "A lost checkpoint", says why.
"""

from __future__ import annotations

from muster.protocol.events import Report
from muster.state.draft import Draft
from muster.state.group import UNPROVED, Group

NOTICES_MS = 3_000
"""A running coordinator reads a later claim within this time; usually it takes milliseconds."""
WAITS = "waits until any earlier coordinator has certainly stopped"
"""Part of the cause of a generation that is opened while the group is unverified."""


def begin(draft: Draft) -> None:
    """Ask the members of a group that was read back."""
    snapshot_epoch = draft.recovery.snapshot_epoch
    if snapshot_epoch is not None:
        draft.recovery.snapshot_epoch = None
        coordinators_between = max(draft.coordinator_epoch - snapshot_epoch - 1, 0)
        draft.recovery.is_doubtful = coordinators_between > 0
        draft.recovery.floor += coordinators_between  # the floor of each was one higher
    for slot in draft.recovery.asked:
        draft.ask(slot)
        draft.sessions.demand(slot)


def ask_newcomer(draft: Draft, slot: int) -> None:
    """Ask a joining member for a report while the group is unverified."""
    until_ms = draft.recovery.unverified_until_ms
    if until_ms is None or slot in draft.recovery.asked:
        return
    if draft.sessions.clock_ms >= until_ms:
        draft.recovery.unverified_until_ms = None
        return
    draft.own_asked().add(slot)
    draft.ask(slot)
    draft.sessions.demand(slot)


def raise_floor(draft: Draft) -> None:
    """Count an event for which a superseded coordinator may have opened a generation.

    Such a coordinator reads the same log and opens at most one generation for each event. Its
    grants were written before the member answered the question, or before the member was silent for
    a session. So when a task becomes free here, every event that can have raised its last owner's
    token has been counted. Heartbeats do not count: they open a generation only by a deadline,
    which brings a tick as well. The batch that ends the waiting counts as a whole, because events
    of other topics may stand behind the last answer in it.
    """
    if is_halted(draft.group):
        draft.recovery.floor += 1


def is_unverified(group: Draft | Group) -> bool:
    """Whether a superseded coordinator may have written records that this one reads now."""
    return (
        group.recovery.unverified_until_ms is not None
        and group.sessions.clock_ms < group.recovery.unverified_until_ms
    )


def is_halted(group: Draft | Group) -> bool:
    """Whether the group may not place, grant or revoke anything yet."""
    return bool(group.recovery.asked) or is_unverified(group)


def verify_after_own_tick(draft: Draft) -> None:
    """Verify the group after the batch in which its own tick was read; see `predecessors_obey`.

    The batch counts as a whole: if a broker's clock was set back, a join that stands before the
    tick in the log may be taken in after it.
    """
    if draft.own_tick_is_read:
        draft.recovery.unverified_until_ms = None


def has_ended(draft: Draft) -> bool:
    """Whether this batch ended the time in which the group could not act."""
    return is_halted(draft.group) and not is_halted(draft)


def prove(draft: Draft, coordinator_epoch: int | None, *, by_tick: bool = False) -> None:
    """Set the end of the unverified time if a record names this coordinator or a later one."""
    is_new = coordinator_epoch is not None and coordinator_epoch >= draft.since_epoch
    if is_new and draft.recovery.predecessors_obey:
        draft.own_tick_is_read |= by_tick
    elif is_new and draft.recovery.unverified_until_ms == UNPROVED:
        patience_ms = max(2 * draft.settings.heartbeat_interval_ms, NOTICES_MS)
        if draft.recovery.has_lost_events:
            patience_ms += draft.settings.session_timeout_ms
        draft.recovery.unverified_until_ms = draft.sessions.clock_ms + patience_ms


def is_answer(draft: Draft, slot: int, event: Report) -> bool:
    """Whether a member wrote this report after it had read the coordinator's question."""
    if event.coordinator_epoch is None:  # an older worker: any report of a later batch is accepted
        return slot in draft.group.recovery.asked and draft.group.recovery.since_epoch is not None
    return event.coordinator_epoch >= draft.since_epoch
