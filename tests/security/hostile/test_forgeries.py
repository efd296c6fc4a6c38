"""Events written in another member's name, without signatures and with them.

Without signatures they move tasks of the group that they name, and of no other. With signatures a
key counts only for its own groups and callers.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from pathlib import Path

import pytest
from support.protocol.bombs import (
    HOSTILE,
    Raw,
    capacities,
    config,
    configured,
    forged,
    kind_of,
    of_one_task,
)
from support.streams.operator import INPUT, Operator, of_kind
from support.streams.packed_rows import pack
from support.suite.examples import examples

from muster.protocol import codec
from muster.protocol.digest import Holding
from muster.protocol.events import (
    Drain,
    Event,
    GroupDeleted,
    Heartbeat,
    Join,
    Leave,
    Origin,
    Refused,
    Report,
    Tick,
)
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import Caller, Keyring, Requirement, SigningKey
from muster.protocol.records import GroupSnapshot, MemberAssignment, Record, Rejected
from muster.protocol.signing import Subject, sign
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import topic_name
from muster.state import invariants
from muster.streams import processor
from muster.streams.batch.inbox import open_lane
from muster.streams.batch.signature_gate import LETTERS_MAX
from muster.streams.source import lane_of

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

INNOCENT = GroupId("innocent")
M = MemberId("m0")
WRITER = SigningKey(
    id="w", secret=b"w" * 32, callers=frozenset({Caller.MEMBER}), groups=("hostile",)
)
OTHERS = SigningKey(id="o", secret=b"o" * 32)
JOB = Keyring(keys=(WRITER, OTHERS), required=(Requirement(("*",)),))


def thrown(operator: Operator, records: list[Raw], first: int = 0) -> dict[bytes, list[Record]]:
    """Process records as one batch; return what is published for each prefix and key."""
    lanes: dict[bytes, list[bytes]] = defaultdict(list)
    for offset, (kind, key, value) in enumerate(records, first):
        origin = Origin(topic_name(kind, "muster"), 0, offset, 1_000 + offset)
        lanes[lane_of("muster", key)].append(pack(origin, value, INPUT))
    return {lane: operator.batch(lane, entries) for lane, entries in lanes.items()}


def raw(event: Event) -> Raw:
    """An event as a client writes it."""
    encoded = codec.encode(event)
    return kind_of(event), encoded.key, encoded.value


def test_a_forger_moves_the_tasks_of_the_group_it_names() -> None:
    """Forged events affect only the member they name, and no other group.

    The stored bytes of the group beside it stay the same, no record of it is published, and every
    invariant holds for both groups.
    """
    operator = Operator()
    innocent = lane_of("muster", INNOCENT.encode())
    join = Join(group=INNOCENT, member=M, incarnation=1)
    thrown(operator, [raw(config(8, group=INNOCENT)), raw(join)])
    before = operator.stored(innocent)
    told = thrown(operator, list(forged(1)), first=100)
    assert set(told) == {lane_of("muster", HOSTILE.encode())}
    assert operator.stored(innocent) == before
    (records,) = told.values()
    assert {r.group for r in records if isinstance(r, MemberAssignment | GroupSnapshot)} == {
        HOSTILE
    }
    assert {r.member for r in of_kind(records, MemberAssignment)} == {M}
    for kept in processor._cache.values():
        invariants.check(kept.group)


@pytest.mark.parametrize(
    "event",
    [
        Leave(group=HOSTILE, member=M, incarnation=1),
        Report(group=HOSTILE, member=M, incarnation=1, epoch=1, revision=1, holding=Holding()),
        Drain(group=HOSTILE, member=M),
        Heartbeat(group=HOSTILE, member=M, epoch=1, digest=0),
        Join(group=HOSTILE, member=M, incarnation=2),
        GroupDeleted(group=HOSTILE),
    ],
    ids=lambda event: type(event).__name__,
)
def test_one_forgery_at_most_moves_tasks_of_its_group(event: Event) -> None:
    """After one forged event of any kind the invariants hold and only its own group is answered."""
    operator = Operator()
    lane = lane_of("muster", HOSTILE.encode())
    joins = [raw(Join(group=HOSTILE, member=MemberId(f"m{n}"), incarnation=1)) for n in range(2)]
    thrown(operator, [raw(config(8)), *joins])
    told = thrown(operator, [raw(event)], first=100)
    assert set(told) == {lane}
    group = processor._cache[lane].group
    invariants.check(group)
    assert (group.owned.holder < 2).all()


def signed(event: Event, offset: int, as_caller: Caller, key: SigningKey = WRITER) -> bytes:
    """A row signed with the secret of a key, whatever the key covers."""
    encoded = codec.encode(event)
    origin = Origin(topic_name(kind_of(event), "muster"), 0, offset, 1_000)
    subject = Subject(origin.topic, encoded.key, encoded.value)
    own = Keyring(keys=(SigningKey(id=key.id, secret=key.secret),))
    return pack(origin, encoded.value, INPUT, sign(own, event.group, as_caller, subject, 1_000))


def test_a_hostile_signer_signs_for_its_key_alone() -> None:
    """A key for one group's members is refused for another group or as an operator."""
    events: list[Event] = [
        Join(group=INNOCENT, member=M, incarnation=9),
        Leave(group=INNOCENT, member=M, incarnation=1),
        Heartbeat(group=INNOCENT, member=M, epoch=1, digest=0),
        Drain(group=INNOCENT, member=M),
        config(1, group=INNOCENT),
        GroupDeleted(group=INNOCENT),
        Drain(group=HOSTILE, member=M),
        config(1),
        GroupDeleted(group=HOSTILE),
    ]
    for group in (INNOCENT, HOSTILE):
        for caller in Caller:
            rows = [signed(e, n, caller) for n, e in enumerate(events) if e.group == group]
            inbox = open_lane(lane_of("muster", group.encode()), rows, INPUT, keyring=JOB)
            assert [e for e in inbox.events if not isinstance(e, Refused)] == []
            assert {r.reason for r in inbox.rejected} == {"KEY_NOT_ALLOWED"}
            assert len(inbox.rejected) == len(rows)


def test_a_flood_of_a_hostile_signer_costs_few_letters() -> None:
    """3,000 joins with a key that does not cover them give no join and few dead letters."""
    rows = [
        signed(Join(group=INNOCENT, member=M, incarnation=n + 1), n, Caller.MEMBER)
        for n in range(3_000)
    ]
    inbox = open_lane(lane_of("muster", INNOCENT.encode()), rows, INPUT, keyring=JOB)
    assert len(inbox.rejected) == LETTERS_MAX
    assert "2980 more events" in inbox.rejected[-1].message
    assert len(inbox.events) == 1  # one `Refused` event
    assert inbox.replay_guard == b""


def test_thousands_of_the_largest_capacity_share_alike() -> None:
    """With capacities of 2^31 - 1 sums do not overflow, and each task has one owner."""
    operator = Operator()
    joins = list(capacities(10 * examples(3_000)))
    batches = [joins[at : at + 1_000] for at in range(0, len(joins), 1_000)]  # its whole credit
    for number, batch in enumerate(batches):
        (records,) = thrown(operator, batch, 4_000 * number).values()  # the credit has grown back
        assert of_kind(records, Rejected) == []
    lane = lane_of("muster", HOSTILE.encode())
    thrown(
        operator, [raw(Tick(group=HOSTILE))], first=4_000 * len(batches) + 8_000
    )  # joins have paused
    group = processor._cache[lane].group
    invariants.check(group)
    held = group.owned.holder[group.owned.holder >= 0].tolist()
    assert (len(held), len(set(held))) == (64, 64)


def test_what_very_many_say_of_one_task_is_read_back() -> None:
    """If 1,030 members claim one task and lag on another, the record can be read after a restart.

    The cache is emptied, so the group is read from the store.
    """
    operator = Operator()
    (records,) = thrown(operator, list(of_one_task(4 * 1_030))).values()
    assert of_kind(records, GroupSnapshot)
    processor._cache.clear()
    tick = raw(Tick(group=HOSTILE))
    (told,) = thrown(operator, [tick], first=90_000).values()
    assert of_kind(told, Rejected) == []
    invariants.check(processor._cache[lane_of("muster", HOSTILE.encode())].group)


@pytest.mark.parametrize("units", [1, 400], ids=["small", "large"])
def test_forged_configs_do_not_keep_the_operators_out(units: int, tmp_path: Path) -> None:
    """A client without a key floods the config topic; the operator's configs count all the same.

    In each batch forged configs come before and behind the operator's, and copies of the one that
    counted in the batch before, which any reader of the topic can write again with its signature.
    """
    secret = base64.b64encode(OTHERS.secret).decode()
    keys = {"keys": [{"id": "o", "secret": secret}], "signature.required": [{"groups": ["*"]}]}
    keyring = tmp_path / "keyring.json"
    keyring.write_text(json.dumps(keys))
    operator = Operator(signing_keys=str(keyring))
    copies: list[Event] = []
    for number in range(6):
        tasks = tuple(Subtopology(f"{'x' * 200}-{n}", 8 + number) for n in range(units))
        real = configured(HOSTILE, tasks)
        rows = [
            signed(event, 1_000 * number + n, Caller.OPERATOR, key)
            for n, (key, event) in enumerate(
                [
                    *((WRITER, forged_one) for forged_one in [config(3)] * 300),
                    (OTHERS, real),
                    *((WRITER, forged_one) for forged_one in [config(5)] * 300),
                    *((OTHERS, copy) for copy in copies * 50),
                ]
            )
        ]
        operator.batch(lane_of("muster", HOSTILE.encode()), rows)
        group = processor._cache[lane_of("muster", HOSTILE.encode())].group
        assert set(group.table.units) == set(tasks)
        copies = [real]
