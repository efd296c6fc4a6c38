"""What clients without the right key can write where signatures are required, and what it costs.

They write forgeries, which are not signed or are signed with another key, and copies: records of
others, written again with their signatures.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.protocol.bombs import kind_of
from support.streams.operator import INPUT, LANE, Operator, config, of_kind
from support.streams.packed_rows import pack

from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import (
    Event,
    GroupConfig,
    GroupDeleted,
    Lag,
    LagReport,
    Origin,
    Report,
)
from muster.protocol.ids import GroupId, MemberId, Task
from muster.protocol.keyring import Caller, Keyring, SigningKey, caller_of
from muster.protocol.records import Rejected
from muster.protocol.signing import Subject, sign
from muster.protocol.tasks import Subtopology, TaskSet
from muster.signing import keyring_file
from muster.state.group import Group
from muster.streams import processor
from muster.streams.batch import byte_limits
from muster.streams.batch.inbox import open_lane
from muster.streams.batch.work_limits import EVENT_TASKS_MIN, Limits

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

G, M = GroupId("g"), MemberId("m")
NOW_MS = 1_000_000
HOUR_MS = 3_600_000
OWN = SigningKey(id="o", secret=b"o" * 32)
CLOCK = SigningKey(id="c", secret=b"c" * 32, callers=frozenset({Caller.CLOCK}))


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """The path of a keyring with both keys, which requires signatures of all groups."""
    rows = [
        {"id": key.id, "secret": base64.b64encode(key.secret).decode(), "callers": [*key.callers]}
        for key in (OWN, CLOCK)
    ]
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": rows, "signature.required": [{"groups": ["*"]}]}))
    return str(path)


def row(
    event: Event,
    offset: int,
    *,
    by: SigningKey | None = OWN,
    at_ms: int | None = None,
    signed_ms: int | None = None,
) -> bytes:
    """An event as the source packs it; by default it is signed when it is written."""
    at_ms = NOW_MS + offset if at_ms is None else at_ms
    key, value, _ = codec.encode(event)
    origin = Origin(f"muster.{kind_of(event)}", 0, offset, at_ms)
    if by is None:
        return pack(origin, value, INPUT, b"")
    secret = Keyring(keys=(SigningKey(id=by.id, secret=by.secret),))  # whatever the key covers
    subject = Subject(origin.topic, key, value)
    when_ms = at_ms if signed_ms is None else signed_ms
    return pack(origin, value, INPUT, sign(secret, G, caller_of(event), subject, when_ms))


def holding(tasks: int) -> Holding:
    """So many tasks in each role."""
    run = TaskSet([("0", False, np.arange(tasks, dtype=np.int32))])
    return Holding(active=run, standby=run, learner=run)


def report(tasks: int) -> Report:
    """A member's report on so many tasks in each role."""
    return Report(group=G, member=M, incarnation=1, epoch=1, revision=1, holding=holding(tasks))


def lag_report(count: int) -> LagReport:
    """Lags of so many copies."""
    return LagReport(group=G, member=M, lags=tuple(Lag(Task("0", n), 5) for n in range(count)))


def letters(records: Sequence[object]) -> list[tuple[str, int]]:
    """Reason and offset of each dead letter."""
    return [(r.reason, r.origin.offset) for r in records if isinstance(r, Rejected)]


def group() -> Group:
    """The group in memory."""
    return processor._cache[LANE].group


@pytest.mark.parametrize(
    ("forged", "real"),
    [([report(EVENT_TASKS_MIN)] * 40, report(3)), ([lag_report(16_384)] * 2, lag_report(3))],
    ids=["reports", "lags"],
)
def test_forgeries_use_up_nothing_that_others_may_ask_for(
    forged: list[Event], real: Event, keys: str
) -> None:
    """Forty forged reports have 3 KB and name all the tasks that a batch may name.

    The members' reports behind them count all the same; so do lags behind forged lags.
    """
    rows = [row(event, n, by=None) for n, event in enumerate(forged)]
    keyring, limits = keyring_file.read(keys), Limits(tasks_known=8)
    inbox = open_lane(LANE, [*rows, row(real, 100)], INPUT, keyring=keyring, limits=limits)
    assert [type(event) for event in inbox.events if event.origin.offset == 100] == [type(real)]
    assert 100 not in {letter.origin.offset for letter in inbox.rejected}


def test_large_forgeries_leave_room_for_large_reports(keys: str) -> None:
    """Five megabytes of forgeries come first; the large report behind them is read all the same."""
    operator = Operator(signing_keys=keys)
    operator.batch(LANE, [row(config(4), 0)])
    large = LagReport(
        group=G, member=M, lags=tuple(Lag(Task("0", n), 10**15 + n) for n in range(1_000))
    )
    real = row(large, 100)
    assert len(real) > byte_limits.LARGE_BYTES
    junk = b"x" * 1_000_000
    forged = [pack(Origin("muster.lag", 0, n, NOW_MS + n), junk, INPUT, b"") for n in range(1, 6)]
    told = letters(operator.batch(LANE, [*forged, real]))
    assert ("TOO_MUCH_AT_ONCE", 5) in told
    assert ("UNKNOWN_MEMBER_ID", 100) in told  # the group has no member yet


@pytest.mark.parametrize("units", [1, 400], ids=["small", "large"])
def test_copies_take_the_place_of_no_config(units: int, keys: str) -> None:
    """An operator writes two configs, a client copies the first, and one batch has all of them."""
    first, second = (sized(units, partitions) for partitions in (4, 6))
    copies = [row(first, 10 + n, signed_ms=NOW_MS + 1) for n in range(6)]
    operator = Operator(signing_keys=keys)
    operator.batch(LANE, [*copies, row(first, 1), row(second, 2)])
    assert set(group().table.units) == set(second.tasks)


def sized(units: int, partitions: int) -> GroupConfig:
    """A config of so many subtopologies with long names."""
    tasks = tuple(Subtopology(f"{'x' * 200}-{n}", partitions) for n in range(units))
    return replace(config(), tasks=tasks)


def test_a_key_of_clocks_keeps_no_config_out(keys: str) -> None:
    """Configs signed with a key of clocks do not displace the operator's config."""
    operator = Operator(signing_keys=keys)
    forged = [row(config(4), n, by=CLOCK) for n in range(1, 60)]
    told = letters(operator.batch(LANE, [row(config(6), 0), *forged]))
    assert len(group().table) == 6
    assert ("KEY_NOT_ALLOWED", 59) in told


def test_copies_change_no_group_that_was_deleted(keys: str) -> None:
    """A group without a member is deleted; neither copies of its config nor of the deletion count.

    Nothing of it is kept once the signatures are stale.
    """
    operator = Operator(signing_keys=keys)
    operator.batch(LANE, [row(config(4), 1)])
    operator.batch(LANE, [row(GroupDeleted(group=G), 2)])
    told = operator.batch(LANE, [row(config(4), 3, signed_ms=NOW_MS + 1)])
    assert letters(told) == [("REPEATED_SIGNATURE", 3)]
    operator.batch(LANE, [row(config(6), 4)])
    told = operator.batch(LANE, [row(GroupDeleted(group=G), 5, signed_ms=NOW_MS + 2)])
    assert letters(told) == [("REPEATED_SIGNATURE", 5)]
    assert len(group().table) == 6
    operator.batch(LANE, [row(GroupDeleted(group=G), 6)])
    assert operator.stored(LANE) != (None, None)
    operator.batch(LANE, [row(lag_report(1), 7, at_ms=NOW_MS + HOUR_MS)])
    assert operator.stored(LANE) == (None, None)


def test_a_new_checkpoint_knows_no_signature(keys: str) -> None:
    """After a start with a new checkpoint, a copy of a fresh config counts once more."""
    before = Operator(signing_keys=keys)
    before.batch(LANE, [row(config(4), 1)])
    before.batch(LANE, [row(config(6), 2)])
    after = started_anew(before, keys)
    assert letters(after.batch(LANE, [row(config(4), 3, signed_ms=NOW_MS + 1)])) == []
    assert len(group().table) == 4
    told = after.batch(LANE, [row(config(4), 4, signed_ms=NOW_MS + 1)])
    assert letters(told) == [("REPEATED_SIGNATURE", 4)]


def started_anew(before: Operator, keys: str) -> Operator:
    """A later coordinator with a new checkpoint, which reads the group back from its snapshot."""
    snapshot = before.stored(LANE)[1]
    assert snapshot is not None
    processor._cache.clear()
    return Operator(epoch=8, initial=[(LANE, snapshot)], signing_keys=keys)


def test_on_another_cluster_a_copied_config_is_too_old(keys: str) -> None:
    """The broker there stamps the copy anew, so its signature is stale. The snapshot has it.

    The next config of an operator counts.
    """
    before = Operator(signing_keys=keys)
    before.batch(LANE, [row(config(4), 1)])
    after = started_anew(before, keys)
    copied = row(config(4), 9, at_ms=NOW_MS + HOUR_MS, signed_ms=NOW_MS + 1)
    told = after.batch(LANE, [copied])
    assert [letter.reason for letter in of_kind(told, Rejected)] == ["STALE_SIGNATURE"]
    after.batch(LANE, [row(config(6), 10, at_ms=NOW_MS + HOUR_MS + 1)])
    assert len(group().table) == 6
