"""A crash loop: one coordinator after another claims, because each of them soon ends.

The events of a group may end the process that works on them. The next start on the same checkpoint
knows which batch that was (`checkpoint.last_run`), and quarantines the group. A coordinator that
starts with a new checkpoint does not know it: a standby that takes over, or a process that lost its
folder. It meets the same events in batches of its own, and ends as well. The claims show this to
the next one, whichever process that is.

So a coordinator with a new checkpoint whose claim is the third within ten minutes is *careful* for
ten minutes from then: it runs every group batch in a child process, which quarantines the group
whose child gives no answer. Each of the processes before it has ended in less than that time. A
process that was stopped in order, as by a deploy, does not count.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

CLAIMS_MS = 600_000
CLAIMS_MAX = 3
"""This many claims within `CLAIMS_MS` may be a crash loop."""
CLAIMS_READ = 30
"""How many claims are looked at: more than are ever made in order within `CLAIMS_MS`."""


def careful_until_ms(claimed_ms: Mapping[str, int], stopped: Container[str] = ()) -> int:
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
