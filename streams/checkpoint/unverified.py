"""Until when a group that is new to this coordinator is *unverified* (`state.recovery`).

A group with members may be missing from what is read back after a checkpoint was lost: the job
crashed between two records of the group's first batch, or the old job still runs for a moment. So
a group first met in events from before the start, or from soon after it, asks every member what it
holds. The file keeps the end of that time, so that a replayed batch decides the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.streams.checkpoint.files import Checkpoint

FILE = "muster-wary.json"
"""The file keeps its former name, so that older versions can read it."""
UNVERIFIED_MS = 60_000
"""A superseded job stops within seconds; the rest is for clocks that differ."""


def until_ms(checkpoint: Checkpoint, epochs: Mapping[str, int], now_ms: int) -> dict[str, int]:
    """Prefix → until when, in broker time, an older coordinator may have met a new group.

    A prefix without an older claim has no entry: no coordinator was there before. If the checkpoint
    is not new, the times that it keeps hold. `now_ms` is when this job claimed (epoch).
    """
    if not checkpoint.is_new:
        return {prefix: int(str(until)) for prefix, until in checkpoint.read(FILE).items()}
    ends = {prefix: now_ms + UNVERIFIED_MS for prefix, epoch in epochs.items() if epoch > 0}
    checkpoint.write(FILE, ends)
    return ends
