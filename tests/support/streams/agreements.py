"""Agreements between a coordinator and a clock, as tests need them."""

from __future__ import annotations

import numpy as np

from muster.protocol.expected_heartbeats import Agreement, checksum


def agreeing(until_ms: int, *members: str) -> Agreement:
    """Members with the digest 7, each missing after 10 s without a heartbeat."""
    digests = np.full(len(members), 7, dtype=np.uint64)
    return Agreement(until_ms, 10_000, len(members), checksum(members, digests))
