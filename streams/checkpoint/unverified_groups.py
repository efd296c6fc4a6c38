"""Until when a group is unverified, as the start without a checkpoint decided it.

`state.lost_checkpoint` says what that means for a group.

Files in the checkpoint keep it, so that a replayed batch decides the same:

- until when a group that is new to this coordinator is *unverified*. A group with members may be
  missing from what is read back: the job crashed between two records of the group's first batch, or
  the old job still runs for a moment. So a group first met in events from before the start, or from
  soon after it, asks every member what it holds.
- whether all earlier coordinators obey this one's ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from muster.streams.checkpoint.files import Checkpoint

UNVERIFIED_FILE = "muster-wary.json"
"""The file keeps its former name, so that older versions can read it."""
OBEYING_FILE = "muster-fenced.json"
UNVERIFIED_MS = 60_000
"""A superseded job stops within seconds; the rest is for clocks that differ."""


def unverified_until_ms(
    checkpoint: Checkpoint, epochs: Mapping[str, int], now_ms: int
) -> dict[str, int]:
    """Prefix → until when, in broker time, an older coordinator may have met a new group.

    A prefix without an older claim has no entry: no coordinator was there before. `now_ms` is when
    this job claimed; a time before that would leave groups unasked.
    """
    ends = {prefix: now_ms + UNVERIFIED_MS for prefix, epoch in epochs.items() if epoch > 0}
    return {prefix: int(str(end)) for prefix, end in _kept(checkpoint, UNVERIFIED_FILE, ends)}


def obeying(checkpoint: Checkpoint, answers: Mapping[str, bool]) -> dict[str, bool]:
    """Prefix → whether all earlier coordinators obey the ticks of the one that started anew.

    `answers` are those of this start. A checkpoint of an older version keeps none.
    """
    return {prefix: each is True for prefix, each in _kept(checkpoint, OBEYING_FILE, answers)}


def _kept(
    checkpoint: Checkpoint, file: str, answers: Mapping[str, object]
) -> Iterable[tuple[str, object]]:
    """What a file keeps; in a new checkpoint it keeps these answers from now on."""
    if not checkpoint.is_new:
        return checkpoint.read(file).items()
    checkpoint.write(file, answers)
    return answers.items()
