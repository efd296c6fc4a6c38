"""A file in the checkpoint that says how the last run of the job ended.

A job that stops on a signal or a later claim ends *in order* and writes that down. A job that was
killed, or that ended because its query failed, leaves the note of its start. If it also left a
batch unfinished, a group's rows in that batch may have ended it: the batch is *suspect*, and when
it is repeated, each group batch in it runs in a child process (`processor`).
"""

from __future__ import annotations

from muster.streams.checkpoint.files import Checkpoint

FILE = "muster-run.json"
_ENDED = "ended_in_order"


def of(checkpoint: Checkpoint) -> int | None:
    """Number of the suspect batch; None = the last run ended in order or left none unfinished."""
    if checkpoint.read(FILE).get(_ENDED) is not False:
        return None
    begun, committed = checkpoint.newest_batches()
    return begun if begun != committed else None


def run_begins(checkpoint: Checkpoint) -> None:
    """Note that a run begins."""
    checkpoint.write(FILE, {_ENDED: False})


def run_ended(checkpoint: Checkpoint) -> None:
    """Note that the run ended in order."""
    checkpoint.write(FILE, {_ENDED: True})
