"""A crash loop: one coordinator after another claims, because each of them soon ends.

The events of a group may end the process that works on them. The next start on the same checkpoint
knows which batch that was (`checkpoint.suspect_batch`), and quarantines the group. A coordinator
that starts with a new checkpoint does not know it: a standby coordinator, or a process that
lost its folder. It meets the same events in batches of its own, and ends as well. The claims show
this to the next one, whichever process that is.

So a coordinator with a new checkpoint whose claim is the third within ten minutes is *careful* for
ten minutes from then: it runs every group batch in a child process, which quarantines the group
whose child gives no answer. Each of the processes before it has ended in less than that time. A
process that was stopped in order, as by a deploy, does not count.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import structlog

from muster.output import span
from muster.protocol.records import CoordinatorRole
from muster.streams import claims, coordinator_signs
from muster.streams.checkpoint.files import Checkpoint
from muster.streams.job_settings import JobConfig

_log = structlog.get_logger("muster.streams")

CLAIMS_MS = 600_000
CLAIMS_MAX = 3
"""This many claims within `CLAIMS_MS` may be a crash loop."""
CLAIMS_READ = 30
"""How many claims are looked at: more than are ever made in order within `CLAIMS_MS`."""


def careful_until_ms(checkpoint: Checkpoint, config: JobConfig, epochs: Mapping[str, int]) -> int:
    """Until when the job runs every group batch in a child (epoch milliseconds); 0 = it does not.

    Only a job with a new checkpoint is careful; from another one it knows the suspect batch.

    Raises:
        KafkaUnreachable, Unreachable: the claims, or the signs of life, could not be read.
    """
    until_ms = 0
    for prefix, epoch in epochs.items() if checkpoint.is_new else ():
        latest = claims.read(config.clients, prefix, epoch - CLAIMS_READ)
        claimed_ms = {latest.read[e].job: at_ms for e, at_ms in latest.at_ms.items() if e <= epoch}
        if careful_end_ms(claimed_ms):  # rare, so only now the signs are read
            since_ms = latest.at_ms[epoch] - CLAIMS_MS
            signs = coordinator_signs.read_signs(config.clients, prefix, since_ms)
            stopped = {s.sign.job for s in signs if s.sign.role is CoordinatorRole.STOPPED}
            until_ms = max(until_ms, careful_end_ms(claimed_ms, stopped))
    if until_ms:
        # No warning: a process that was killed counts as well, and `doctor` names a crash loop.
        _log.info(
            "careful: the coordinator may be in a crash loop, so each group is processed in a "
            "child process, which is slower",
            claims=f"{CLAIMS_MAX} or more within {span(CLAIMS_MS)}",
            lasts=span(CLAIMS_MS),
        )
    return until_ms


def careful_end_ms(claimed_ms: Mapping[str, int], stopped: Container[str] = ()) -> int:
    """Until when the newest claimer is careful (epoch milliseconds); 0 = this is no crash loop.

    Args:
        claimed_ms: job → broker timestamp of its claim on one prefix.
        stopped: jobs that were stopped in order.
    """
    newest_ms = max(claimed_ms.values(), default=0)
    recent = [
        job
        for job, at_ms in claimed_ms.items()
        if at_ms > newest_ms - CLAIMS_MS and job not in stopped
    ]
    return newest_ms + CLAIMS_MS if len(recent) >= CLAIMS_MAX else 0
