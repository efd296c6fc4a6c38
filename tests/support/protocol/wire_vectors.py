"""The test vectors of `protocol/vectors/*.json`: their values, and their bytes today."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from support.protocol.event_vectors import HOLDINGS, event_vectors, hex64
from support.protocol.talk_vectors import talk_vectors

from muster.protocol.codec import encode
from muster.protocol.digest import Holding
from muster.protocol.events import GroupDeleted, Heartbeat, Join, Leave
from muster.protocol.framing import write
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.keyring import Caller, Keyring, SigningKey, caller_of
from muster.protocol.keys import key_of, murmur2, part_key, partition_of
from muster.protocol.records import Dictionary, Fault, MemberAssignment
from muster.protocol.signing import Subject, sign
from muster.protocol.split_records import parts
from muster.protocol.tasks import Connector, Subtopology, TaskSet, TaskTable
from muster.protocol.taskset import UnitRef, encode_set, units_of, units_of_table
from muster.signing.keyring_file import parsed


def held(holding: Holding) -> list[tuple[str, int, int]]:
    """A holding as (label, number, role number) triples."""
    return [
        (
            task.unit + ("-" if task.connector else "_"),
            task.number,
            role + (4 if task in holding.releasing else 0),
        )
        for role, tasks in ((1, holding.active), (2, holding.standby), (3, holding.learner))
        for task in tasks
    ]


def keys_vectors() -> list[dict]:
    """Keys and their partitions."""
    keys = [key_of("g"), key_of("fleet", "W1"), key_of("fleet"), key_of("größe", "zoë-1")]
    keys += [key_of("fleet", "W1"[:n]) for n in (1, 2)] + [key_of("x" * n) for n in range(1, 9)]
    whole = [{"key": k.decode(), "murmur2": murmur2(k)} for k in keys]
    made = [part_key(key_of("fleet"), 3, 0), part_key(key_of("fleet", "W1"), 1, 1)]
    made += [key_of("fleet", part="names"), part_key(key_of("fleet", part="names"), 2, 0)]
    named = [{"key": k.decode()} for k in made]
    for row in (*whole, *named):
        for partitions in (1, 3, 16, 50):
            row[f"of_{partitions}"] = partition_of(row["key"].encode(), partitions)
    return [*whole, *named]


def some_sets() -> list[tuple[str, list[UnitRef], TaskSet]]:
    """Sets that together use every form."""
    random = np.random.default_rng(7)

    def drawn(density: float, size: int = 200) -> TaskSet:
        return TaskSet([("0", False, np.flatnonzero(random.random(size) < density))])

    tables = [
        ("empty", TaskSet.of([])),
        ("one task", TaskSet.of(["0_5"])),
        ("a range", TaskSet.of([f"0_{i}" for i in range(3, 90)])),
        ("ranges", TaskSet.of([f"0_{i}" for i in (*range(9), *range(20, 60), *range(61, 99))])),
        ("a stride", TaskSet.of([f"0_{i}" for i in range(7, 200, 10)])),
        ("connector and its tasks", TaskSet.of(["c1", "c1-0", "c1-3"])),
        ("two kinds of units", TaskSet.of(["0_0", "10_2", "topic-x_4", "c1", "c2-7"])),
        *((f"density {d}", drawn(d)) for d in (0.02, 0.1, 0.2, 0.38, 0.5, 0.62, 0.8, 0.98)),
    ]
    cases = [(name, list(units_of([tasks])), tasks) for name, tasks in tables]
    wide = [UnitRef("0_", 200), UnitRef("c1-", 5)]
    cases.append(("all", [UnitRef("0_", 5)], TaskSet.of([f"0_{i}" for i in range(5)])))
    cases.append(("all of one unit", wide, TaskSet.of([f"0_{i}" for i in range(200)])))
    dense, sparse = np.flatnonzero(random.random(900) < 0.5), np.array([7, 800])
    apart = TaskSet([("0", False, dense), ("1", False, sparse)])
    cases.append(("units of unlike density", list(units_of([apart])), apart))
    return cases


def taskset_vectors() -> list[dict]:
    """Task sets."""
    return [
        {
            "name": name,
            "units": [list(unit) for unit in units],
            "bytes": encode_set(tasks, units).hex(),
            "tasks": [str(task) for task in tasks],
        }
        for name, units, tasks in some_sets()
    ]


def digest_vectors() -> list[dict]:
    """Holdings and their digests."""
    return [
        {
            "name": name,
            "held": [
                {"label": label, "number": number, "role": role}
                for label, number, role in held(holding)
            ],
            "digest": hex64(holding.digest()),
        }
        for name, holding in HOLDINGS.items()
    ]


TABLE = TaskTable(
    [Subtopology("0", 300), *(Connector(f"orders-to-warehouse-{i:02d}", 3) for i in range(40))]
)
DICTIONARY = Dictionary(group="fleet", units=units_of_table(TABLE))


def dictionary_vectors() -> list[dict]:
    """A dictionary: whole (packed) and in parts."""
    encoded = encode(DICTIONARY)
    return [
        {
            "key": encoded.key.decode(),
            "value": encoded.value.hex(),
            "parts": [[p.key.decode(), p.value.hex()] for p in parts(DICTIONARY, 300)],
            "version": hex64(DICTIONARY.version),
            "units": [list(unit) for unit in DICTIONARY.units],
        }
    ]


def some_assignments() -> dict[str, MemberAssignment]:
    """The vectors of assignments."""
    plain = {
        "group": "fleet",
        "member": "W1",
        "incarnation": 0x0102030405060708,
        "coordinator_epoch": 41,
        "generation": 7,
        "epoch": 6,
        "revision": 300,
        "session_timeout_ms": 45_000,
        "heartbeat_interval_ms": 5_000,
    }
    scattered = np.sort(np.random.default_rng(1).choice(len(TABLE), 60, replace=False))
    return {
        "nothing": MemberAssignment(**plain),
        "one task": MemberAssignment(**plain, active=TaskSet.of(["0_0"]), message="W1 joined"),
        "all roles": MemberAssignment(
            **plain,
            active=TaskSet.of([f"0_{i}" for i in range(100)]),
            standby=TaskSet.of(["1_7", "1_9"]),
            learner=TaskSet.of(["1_8"]),
        ),
        "a standby that is wanted next": MemberAssignment(
            **plain, standby=TaskSet.of(["1_7", "1_9"]), next=TaskSet.of(["1_9"])
        ),
        "connectors": MemberAssignment(**plain, active=TaskSet.of(["c1", "c1-0", "c2-4"])),
        "report asked for": MemberAssignment(**plain, report=True),
        "with a dictionary": MemberAssignment(
            **plain, active=TABLE.set_of(scattered.astype(np.int32)), dictionary=DICTIONARY
        ),
        **{
            f"fault {fault.value}": MemberAssignment(**plain, fault=fault, message="why")
            for fault in Fault
        },
        "fault for anyone": MemberAssignment(
            **{**plain, "incarnation": 0, "revision": 0}, fault=Fault.UNKNOWN_MEMBER_ID
        ),
        "in parts": MemberAssignment(**plain, active=TABLE.set_of(scattered.astype(np.int32))),
    }


def assignment_vectors() -> list[dict]:
    """Assignments as bytes and as values; the last one in parts."""
    rows = []
    for name, record in some_assignments().items():
        encoded = encode(record)
        shown = {
            field: getattr(record, field)
            for field in (
                *("coordinator_epoch", "generation", "epoch", "revision", "report"),
                *("session_timeout_ms", "heartbeat_interval_ms", "message"),
            )
        }
        for role in ("active", "standby", "learner"):
            shown[role] = [str(task) for task in getattr(record, role)]
        if record.next:
            shown["next"] = [str(task) for task in record.next]
        rows.append(
            {
                "name": name,
                "key": encoded.key.decode(),
                "value": encoded.value.hex(),
                "incarnation": hex64(record.incarnation),
                "fault": record.fault.value if record.fault else "",
                **shown,
            }
        )
    rows.insert(2, _in_a_sized_block(rows[1]))
    names = rows[-1]["name"]
    cut = parts(some_assignments()[names], 600)
    assert len(cut) > 1
    rows[-1]["parts"] = [[part.key.decode(), part.value.hex()] for part in cut]
    return rows


def _in_a_sized_block(row: dict) -> dict:
    """One task; its units are in a block with a negative count, which has its size in bytes."""
    item = b"\x04" + b"0_" + b"\x02"
    plain, sized = b"\x02" + item + b"\x00", b"\x01\x08" + item + b"\x00"
    value = bytes.fromhex(row["value"])
    assert value.count(plain) == 1
    return row | {"name": "a negative block count", "value": value.replace(plain, sized).hex()}


def hostile_vectors() -> list[dict]:
    """Values of assignments that readers must refuse, and why."""
    good = encode(some_assignments()["one task"]).value

    def crafted(size: int, data: bytes, *more_sizes: int) -> bytes:
        sizes = (size, *more_sizes)
        units = [{"label": f"{n}_", "size": size} for n, size in enumerate(sizes)]
        return write("MemberAssignment", {"units": units, "active": data})

    return [
        {"name": name, "value": value.hex()}
        for name, value in {
            "no frame": b"",
            "cut in the frame": good[:7],
            "another marker": b"\xc3\x02" + good[2:],
            "unknown schema": good[:2] + bytes(8) + good[10:],
            "cut in the body": good[:-3],
            "bytes behind the body": good + b"\x00",
            "text that is not UTF-8": good.replace(b"W1 joined", b"W\xff joined"),
            "a length of 2^62": good[:41] + b"\xfe" * 8 + b"\x7f",
            "2^31 tasks in ten bytes": crafted(
                2**31 - 1, b"\x01\x02\xff\xff\xff\xff\x07\x00\x00\x20"
            ),
            "all of 2^31 tasks": crafted(2**31 - 1, b"\x01\x80"),
            "all of two units, one task too many": crafted(2**22, b"\x02\x80\x80", 1),
            "a range beyond its size": crafted(10, b"\x01\x01\x01\x00\x04\x01\xff"),
            "a bitmap cut short": crafted(100, b"\x01\x04\xff"),
            "an unknown set codec": crafted(10, b"\x63\x00"),
            "an unknown form": crafted(10, b"\x01\x7f"),
            "a Rice parameter of 64": crafted(10, b"\x01\x02\x02\x00\x00\x40\xff"),
            "bytes behind a set": crafted(10, b"\x01\x02\x01\x05\x00"),
            "no runs": crafted(10, b"\x01\x01\x00\x00\x00"),
            "no gaps": crafted(10, b"\x01\x02\x00\x00"),
        }.items()
    ]


def signature_vectors() -> list[dict]:
    """Records and their signatures: every algorithm, a tombstone, a long secret."""
    join = Join(group=GroupId("fleet"), member=MemberId("W1"), incarnation=7)
    leave = Leave(group=GroupId("größe"), member=MemberId("W1"), incarnation=7)
    beat = Heartbeat(group=GroupId("fleet"), member=MemberId("W1"), epoch=3, digest=2**64 - 1)
    gone = GroupDeleted(group=GroupId("fleet"))
    cases = [
        ("muster.membership", join, "HmacSHA256", bytes(range(32))),
        ("muster.membership", beat, "HmacSHA256", bytes(range(32))),
        ("acme.membership", beat, "HmacSHA384", bytes(range(16))),
        ("muster.membership", leave, "HmacSHA512", bytes(range(200))),
        ("muster.config", gone, "HmacSHA256", bytes(range(100))),
    ]
    rows = []
    for number, (topic, event, algorithm, secret) in enumerate(cases):
        key = SigningKey(id=f"k-{number}", secret=secret, algorithm=algorithm)
        record = encode(event)
        subject = Subject(topic, record.key, record.value)
        signed_ms = 1_795_240_800_000 + number
        ring = Keyring(keys=(key,))
        signature = sign(ring, event.group, caller_of(event), subject, signed_ms)
        rows.append(
            {
                "topic": topic,
                "key": record.key.decode(),
                "value": None if record.value is None else record.value.hex(),
                "key_id": key.id,
                "algorithm": algorithm,
                "secret": secret.hex(),
                "signed_ms": signed_ms,
                "signature": signature.hex(),
            }
        )
    return rows


def keyring_vectors() -> list[dict]:
    """Keyrings, and the key that signs for a member of a group at a time; null = none."""
    secret = base64.b64encode(bytes(range(16))).decode()

    def key(name: str, **more: Any) -> dict:
        return {"id": name, "secret": secret, **more}

    members = {"callers": ["member"]}
    narrow = key("narrow", from_ms=5, groups=["orders*", "eu"], **members)
    cases: dict[str, tuple[list[dict], str, int]] = {
        "all defaults": ([key("only")], "fleet", 0),
        "the newest that has begun": (
            [key("old"), key("new", from_ms=10), key("next", from_ms=20)],
            *("fleet", 19),
        ),
        "begins now": ([key("old", from_ms=9), key("new", from_ms=10)], "fleet", 10),
        "the greater id of two as new": ([key("b"), key("c"), key("a")], "fleet", 7),
        "ends now": ([key("old"), key("new", from_ms=5, until_ms=10)], "fleet", 10),
        "has ended": ([key("old"), key("new", from_ms=5, until_ms=10)], "fleet", 11),
        "of another part": ([key("all"), key("ops", from_ms=5, callers=["operator"])], "fleet", 9),
        "all groups that begin so": ([key("all"), narrow], "orders-eu", 9),
        "the name itself": ([key("all"), narrow], "orders", 9),
        "another group": ([key("all"), narrow], "europe", 9),
        "none for this group": ([narrow], "fleet", 9),
        "none yet": ([key("new", from_ms=10)], "fleet", 9),
    }
    rows = []
    for name, (keys, group, at_ms) in cases.items():
        document = {"keys": keys}
        signer = parsed(document, "vector").signer(group, Caller.MEMBER, at_ms)
        rows.append(
            {
                "name": name,
                "keyring": document,
                "group": group,
                "at_ms": at_ms,
                "signer": None if signer is None else signer.id,
            }
        )
    return rows


VECTORS = {
    "keys": keys_vectors,
    "tasksets": taskset_vectors,
    "digest": digest_vectors,
    "dictionary": dictionary_vectors,
    "events": event_vectors,
    "talk": talk_vectors,
    "assignments": assignment_vectors,
    "hostile": hostile_vectors,
    "signatures": signature_vectors,
    "keyrings": keyring_vectors,
}
