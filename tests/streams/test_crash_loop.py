"""When a coordinator is careful, because the ones before it ended soon after their claims."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.kafka.client_settings import ClientSettings
from muster.protocol import codec
from muster.protocol.codec import Encoded
from muster.protocol.records import CoordinatorClaim, CoordinatorRole, CoordinatorSign
from muster.protocol.topics import TopicKind
from muster.streams import claims, coordinator_signs, crash_loop
from muster.streams.claims import Claims
from muster.streams.coordinator_signs import Signed, Signs
from muster.streams.crash_loop import CLAIMS_MS, CLAIMS_READ, careful_end_ms

P = "muster"
HOUR_MS = 3_600_000


def sign_of(job: str, role: CoordinatorRole) -> CoordinatorSign:
    """The last sign of life of a process."""
    return CoordinatorSign(job=job, host="h", version="1", role=role)


@pytest.mark.parametrize(
    ("claimed_ms", "until_ms"),
    [
        pytest.param([], 0, id="none can be read"),
        pytest.param([HOUR_MS], 0, id="the first coordinator"),
        pytest.param([HOUR_MS - 30_000, HOUR_MS], 0, id="one takeover"),
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
    assert careful_end_ms({str(at): at_ms for at, at_ms in enumerate(claimed_ms)}) == until_ms


def test_a_process_that_was_stopped_in_order_does_not_count() -> None:
    """Two deploys of a pair within ten minutes are no crash loop; a third crash is one."""
    claimed_ms = {"a": HOUR_MS, "b": HOUR_MS + 60_000, "c": HOUR_MS + 120_000}
    assert careful_end_ms(claimed_ms, {"a"}) == 0
    claimed_ms["d"] = HOUR_MS + 180_000
    assert careful_end_ms(claimed_ms, {"a"}) == HOUR_MS + 180_000 + CLAIMS_MS
    assert careful_end_ms(claimed_ms, {"a", "b", "c"}) == 0


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
    signs = [Signed(HOUR_MS, sign_of("job 7", CoordinatorRole.ENDED))]

    def read(clients: object, prefix: str, after: int | None = None) -> Claims:
        asked.append((prefix, after))
        at_ms = {7: HOUR_MS, 8: HOUR_MS + 1, 9: HOUR_MS + 2}
        at_ms |= dict.fromkeys(range(10, 10 + later_claims), 2 * HOUR_MS)
        jobs = {at: "of one job" if is_one_job else f"job {at}" for at in at_ms}
        read = {at: CoordinatorClaim(job=job, host="h", version="1") for at, job in jobs.items()}
        return Claims(9, read, at_ms)

    monkeypatch.setattr(claims, "read", read)
    monkeypatch.setattr(coordinator_signs, "read_signs", lambda *_: signs)
    checkpoint: Any = SimpleNamespace(is_new=is_new)
    config: Any = SimpleNamespace(clients=None)
    until_ms = crash_loop.careful_until_ms(checkpoint, config, {P: 9})
    is_careful = is_new and not is_one_job
    assert until_ms == (HOUR_MS + 2 + CLAIMS_MS if is_careful else 0)
    assert asked == [(P, 9 - CLAIMS_READ)] * is_new
    signs.append(Signed(HOUR_MS, sign_of("job 8", CoordinatorRole.STOPPED)))
    assert crash_loop.careful_until_ms(checkpoint, config, {P: 9}) == 0


@pytest.mark.parametrize(
    ("is_well", "role"), [(True, CoordinatorRole.STOPPED), (False, CoordinatorRole.ENDED)]
)
def test_a_signal_stops_a_process_in_order_if_it_was_well(
    is_well: bool, role: CoordinatorRole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that finds a hung coordinator sends the same signal as a deploy does."""
    written: list[CoordinatorSign] = []

    class Producer:
        def __init__(self, *_: object) -> None: ...
        def serve(self, _: float) -> None: ...
        def close(self, _: float) -> None: ...
        def produce(self, _: str, record: Encoded, __: object) -> None:
            sign = codec.decode_record(TopicKind.CLOCK, record.key, record.value)
            assert isinstance(sign, CoordinatorSign)
            written.append(sign)

    monkeypatch.setattr(coordinator_signs, "LastingProducer", Producer)
    with Signs(ClientSettings(), [P], "a", lambda: is_well) as signs:
        signs.runs({P: 1})
        signs.stops()
    assert (written[-1].role, written[-1].interval_ms) == (role, 0)
