"""When a coordinator is careful, because the ones before it ended soon after their claims."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.protocol.records import CoordinatorClaim
from muster.streams import takeover
from muster.streams.checkpoint import stale_checkpoint
from muster.streams.checkpoint.stale_checkpoint import Claims
from muster.streams.crash_loop import CLAIMS_MS, careful_until_ms

P = "muster"
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("claimed_ms", "until_ms"),
    [
        pytest.param([], 0, id="none can be read"),
        pytest.param([HOUR_MS], 0, id="the first coordinator"),
        pytest.param([HOUR_MS - 30_000, HOUR_MS], 0, id="one take-over"),
        pytest.param(
            [HOUR_MS - CLAIMS_MS, HOUR_MS - 30_000, HOUR_MS], 0, id="the first one lived long"
        ),
        pytest.param(
            [HOUR_MS - 60_000, HOUR_MS - 30_000, HOUR_MS], HOUR_MS + CLAIMS_MS, id="the third soon"
        ),
        pytest.param(
            [0, HOUR_MS - 90_000, HOUR_MS - 60_000, HOUR_MS], HOUR_MS + CLAIMS_MS, id="and later"
        ),
    ],
)
def test_the_third_claim_within_ten_minutes(claimed_ms: list[int], until_ms: int) -> None:
    """Times by the broker; only the claims that are near the newest one count."""
    assert careful_until_ms(claimed_ms) == until_ms


@pytest.mark.parametrize(
    ("is_new", "later_claims", "is_one_job"),
    [(True, 0, False), (False, 0, False), (True, 5, False), (True, 0, True)],
)
def test_only_a_new_checkpoint(
    is_new: bool, later_claims: int, is_one_job: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another checkpoint knows the suspect batch; claims behind the job's own do not count.

    Several claims of one job are one.
    """
    asked: list[Any] = []

    def read(clients: object, prefix: str, after: int | None = None) -> Claims:
        asked.append((prefix, after))
        at_ms = {7: HOUR_MS, 8: HOUR_MS + 1, 9: HOUR_MS + 2}
        at_ms |= dict.fromkeys(range(10, 10 + later_claims), 2 * HOUR_MS)
        jobs = {at: "of one job" if is_one_job else f"job {at}" for at in at_ms}
        read = {at: CoordinatorClaim(job=job, host="h", version="1") for at, job in jobs.items()}
        return Claims(9, read, at_ms)

    monkeypatch.setattr(stale_checkpoint, "read_claims", read)
    checkpoint: Any = SimpleNamespace(is_new=is_new)
    config: Any = SimpleNamespace(clients=None)
    until_ms = takeover.careful_until_ms(checkpoint, config, {P: 9})
    is_careful = is_new and not is_one_job
    assert until_ms == (HOUR_MS + 2 + CLAIMS_MS if is_careful else 0)
    assert asked == [(P, 6)] * is_new
