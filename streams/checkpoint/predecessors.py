"""For which prefixes all earlier coordinators obey this one's ticks (`state.recovery`).

A file keeps the answer of the start without a checkpoint, so that a replayed batch decides the
same.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.streams.checkpoint.files import Checkpoint

FILE = "muster-fenced.json"


def kept(checkpoint: Checkpoint, answers: Mapping[str, bool]) -> dict[str, bool]:
    """Prefix → whether all earlier coordinators obey the ticks of the one that started anew.

    If the checkpoint is not new, the answers that it keeps hold; one of an older version has none.
    """
    if not checkpoint.is_new:
        return {prefix: answer is True for prefix, answer in checkpoint.read(FILE).items()}
    checkpoint.write(FILE, answers)
    return dict(answers)
