"""Large group batches run aside: a child process computes them while batches go on.

A config of thousands of units takes up to a second of CPU time, and so does any config of a group
with thousands of members. All other groups would wait for it. So the group's rows of such a batch
wait (`waiting_rows`), and the operator begins a child process (`asides`). Later batches ask for the
result. Rows that the group gets meanwhile wait behind those that the child processes.

When the child is done depends on the machine, but what is published does not. The result follows
from the stored values and the rows that wait. The batch that takes it over publishes it alone, and
leaves the rows that came meanwhile to the next batch. So a batch that Spark repeats publishes the
same, or publishes it some batches later.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

from muster.protocol.keys import parse_key
from muster.state.assignor_outcome import Question
from muster.streams.batch import waiting_rows
from muster.streams.batch.group_batch import Rows
from muster.streams.batch.stored_values import Stored
from muster.streams.batch.work_limits import LARGE_CONFIG_BYTES
from muster.streams.source import split_lane

LARGE_SNAPSHOT_BYTES = LARGE_CONFIG_BYTES
"""Any config of a group whose snapshot takes more bytes than this is computed aside."""
_SIZE = Struct(">I")
_QUESTION_BYTES = 8


def is_large(rows: Rows) -> bool:
    """Whether a group batch is so large that a child should compute it."""
    if not rows.configs:
        return False
    size = max(map(len, rows.configs))
    is_large_group = len(rows.stored.snapshot or b"") > LARGE_SNAPSHOT_BYTES
    return (is_large_group or size > LARGE_CONFIG_BYTES) and waiting_rows.may_wait(rows)


def question(lane: bytes, before: Stored, entries: Sequence[bytes]) -> Question:
    """Names a group batch: the group, and a hash of its stored values and of its rows."""
    prefix, key = split_lane(lane)
    digest = blake2b(digest_size=_QUESTION_BYTES)
    for part in (before.liveness or b"", *entries):
        digest.update(_SIZE.pack(len(part)))
        digest.update(part)
    return (f"{prefix} {parse_key(key).group}", int.from_bytes(digest.digest()), 0, 0, 0)
