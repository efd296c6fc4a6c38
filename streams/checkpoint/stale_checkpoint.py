"""The jobs that ran on a checkpoint: their ids, in a file in the checkpoint.

A coordinator that was superseded ends, and its supervisor may start it again on its old checkpoint.
If the job that took over has another checkpoint, the old one is behind: its groups lack the newer
generations and owners, so fencing tokens would go back. The claims show this: the file does not
name the job that wrote one of them.

A job looks at the claims, writes its id into the file, and claims. Another job may claim between
the look and the claim, and then the newest claim does not show it. So the file also has the epochs
of the claims that were looked at, and all claims behind them count: `claimed_between` looks at them
once more when the job has claimed, and so does the next start, if that job was killed before.

Jobs that share a checkpoint (a replaced driver) write their ids into one file. A checkpoint without
the file (from before the file existed) is accepted and gets one; one without the epochs is judged
by the newest claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from muster.kafka.client_settings import ClientSettings
from muster.protocol.records import CoordinatorClaim
from muster.streams import claims
from muster.streams.checkpoint import older_than_published
from muster.streams.checkpoint.files import Checkpoint
from muster.streams.errors import StaleCheckpoint

_log = structlog.get_logger("muster.streams")

FILE = "muster-jobs.json"
JOBS_MAX = 100
"""Number of newest ids that are kept, besides those of the newest claims."""
_JOBS, _LOOKED_AT = "jobs", "looked_at"


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the claims has found. A checkpoint that no job has used gets an empty one.

    Attributes:
        newest: prefix → epoch of the newest claim, -1 = there is none.
        jobs: the jobs of these claims.
        overtaken_by: a claim of a job with another checkpoint; None = there is none.
    """

    newest: Mapping[str, int] = field(default_factory=dict)
    jobs: frozenset[str] = frozenset()
    overtaken_by: CoordinatorClaim | None = None


def check(
    checkpoint: Checkpoint, clients: ClientSettings, prefixes: Iterable[str], job: str
) -> Checkpoint:
    """Check, before the claim, that the checkpoint is not behind; write this job's id into it.

    A new checkpoint that is behind is emptied: a first batch was begun in it and never committed.
    Otherwise Spark would begin that batch again, with everything since then in it. One that lacks
    what its own job has published is emptied, too.

    Returns:
        The checkpoint with which the job claims.

    Raises:
        StaleCheckpoint: a job with another checkpoint was the coordinator since.
        KafkaUnreachable: the claims, or the published records, could not be read.
    """
    found = look(checkpoint, clients, prefixes)
    if found.overtaken_by is not None and checkpoint.is_new:
        checkpoint, found = checkpoint.emptied(), Look()
    if found.overtaken_by is not None:
        is_newest = found.overtaken_by.job in found.jobs
        raise stale(checkpoint, found.overtaken_by, is_newest=is_newest)
    if why := older_than_published.story(checkpoint, clients, prefixes):
        return emptied(checkpoint, job, why=why)
    note(checkpoint, job, found)
    return checkpoint


def emptied(checkpoint: Checkpoint, job: str, **why: str) -> Checkpoint:
    """The checkpoint without what is in it, but with this job's id; the log says `why`."""
    _log.info("checkpoint emptied", checkpoint=checkpoint.folder, **why)
    checkpoint = checkpoint.emptied()
    note(checkpoint, job, Look())
    return checkpoint


def stale(checkpoint: Checkpoint, claim: CoordinatorClaim, *, is_newest: bool) -> StaleCheckpoint:
    """The error for a checkpoint that is behind a claim; only the newest one's own is not."""
    other = "; or the folder of that job" if is_newest else ""
    return StaleCheckpoint(
        f"the checkpoint {checkpoint.folder} is behind: job {claim.job} on "
        f"{claim.host} has been the coordinator since, on another checkpoint. From "
        "here, fencing tokens would go back. Give --checkpoint a new folder: the groups "
        f"are read back from Kafka, and no task moves{other}"
    )


def look(checkpoint: Checkpoint, clients: ClientSettings, prefixes: Iterable[str]) -> Look:
    """Look at the newest claims, and at all behind those that the last job had looked at.

    Raises:
        KafkaUnreachable: the claims could not be read.
    """
    content = checkpoint.read(FILE)
    known, looked_at = jobs(content), _looked_at(content)
    if checkpoint.is_new and not known:
        return Look()
    newest: dict[str, int] = {}
    newest_jobs: set[str] = set()
    overtaken_by: CoordinatorClaim | None = None
    for prefix in prefixes:
        latest = claims.read(clients, prefix, looked_at.get(prefix))
        newest[prefix] = latest.newest
        if latest.newest in latest.read:
            newest_jobs.add(latest.read[latest.newest].job)
        overtaken_by = overtaken_by or _foreign(latest.read.values(), known)
    return Look(newest, frozenset(newest_jobs), overtaken_by)


def claimed_between(
    checkpoint: Checkpoint, clients: ClientSettings, epochs: Mapping[str, int]
) -> CoordinatorClaim | None:
    """The claim of a job with another checkpoint between `look` and this job's claims, if any.

    A new checkpoint is filled from what is published after the claim, so it cannot be behind.

    Raises:
        KafkaUnreachable: the claims could not be read.
    """
    if checkpoint.is_new:
        return None
    content = checkpoint.read(FILE)
    known, looked_at = jobs(content), _looked_at(content)
    for prefix, epoch in epochs.items():
        after = looked_at.get(prefix, epoch)
        if after + 1 < epoch:
            latest = claims.read(clients, prefix, after).read
            between = (claim for at, claim in latest.items() if after < at < epoch)
            if foreign := _foreign(between, known):
                return foreign
    return None


def note(checkpoint: Checkpoint, job: str, found: Look) -> None:
    """Write a job's id into the file, and what it has found before it claims."""
    known = [*jobs(checkpoint.read(FILE)), job]
    kept = [each for each in known[:-JOBS_MAX] if each in found.jobs] + known[-JOBS_MAX:]
    looked_at = {_LOOKED_AT: dict(found.newest)} if found.newest else {}
    checkpoint.write(FILE, {_JOBS: kept, **looked_at})


def _foreign(found: Iterable[CoordinatorClaim], known: Collection[str]) -> CoordinatorClaim | None:
    """The newest claim of a job that the file does not name; None if it names no job at all."""
    foreign = [claim for claim in found if claim.job not in known]
    return foreign[-1] if foreign and known else None


def _looked_at(content: Mapping[str, object]) -> dict[str, int]:
    """Prefix → epoch of the newest claim when the last job looked; older versions note none."""
    listed = content.get(_LOOKED_AT)
    return {k: int(str(v)) for k, v in listed.items()} if isinstance(listed, dict) else {}


def jobs(content: Mapping[str, object]) -> list[str]:
    """The job ids in the file's JSON object, oldest first."""
    listed = content.get(_JOBS)
    return [str(each) for each in listed] if isinstance(listed, list) else []
