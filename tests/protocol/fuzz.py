"""Fuzz every reader: ``python tests/protocol/fuzz.py [--target T] [--seconds N] [--atheris]``.

=========  ======================================================  =================================
target     reads                                                   allowed results
=========  ======================================================  =================================
values     every decoder, and `Joiner`                             a value, or a `DecodeError`
lines      input of `muster decode`                                lines, or a `MusterError`
problems   input of `muster assign`, which it places               an answer, or a `MusterError`
scenarios  input of `muster simulate`                              a scenario, or a `MusterError`
=========  ======================================================  =================================

Any other result is a bug. The test suite runs the first inputs; this script runs for longer. With
--atheris, coverage guides the search (package `atheris`); without it, valid inputs are mutated at
random, by seed. It prints a failing input as hexadecimal, ready for a test.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from muster.cli.assign import solve
from muster.cli.decode import _items, _Reader
from muster.documents.json_files import parsed
from muster.documents.scenario import parse_scenario
from muster.output import one_line
from muster.protocol.codec import decode, decode_record
from muster.protocol.errors import DecodeError, EncodeError, MusterError
from muster.protocol.events import NOWHERE
from muster.protocol.framing import KNOWN, PREFIX, write
from muster.protocol.heartbeat_columns import heartbeats
from muster.protocol.split_records import Joiner
from muster.protocol.topics import DEFAULT_PREFIX, INPUTS, TopicKind

ROOT = Path(__file__).parent.parent.parent
Target = Callable[[bytes], object]


def values(data: bytes) -> None:
    """Give the bytes to every decoder, as they are and behind every frame."""
    heartbeats([data])
    for value in (data, *(prefix + data for prefix in PREFIX.values())):
        for kind in TopicKind:
            with suppress(DecodeError):
                if kind in INPUTS:
                    decode(kind, b"g", value, NOWHERE)
                else:
                    decode_record(kind, b"g|m", value)
        joiner = Joiner()
        for key in (b"g", b"g||a1", value[:20]):
            with suppress(DecodeError):
                joiner.feed(key, value)


def lines(data: bytes) -> None:
    """Print the input as `muster decode` does, as one value and as lines of text."""
    for each in (data, data.hex().encode(), b"g\t" + data.hex().encode()):
        with suppress(MusterError):
            reader = _Reader(KNOWN, lambda group: {}, DEFAULT_PREFIX)
            for item in _items(io.BufferedReader(io.BytesIO(each)), "-"):
                reader.shown(item)


def problems(data: bytes) -> None:
    """Place the problem if it is small. An answer is JSON; an error is one line that says why."""
    if len(data) >= 4_000:
        return
    try:
        json.dumps(solve(parsed(data, "line")), ensure_ascii=False).encode()
    except MusterError as error:
        message = one_line(str(error))
        assert message.isprintable()
        assert 10 < len(message) < 3_000


def scenarios(data: bytes) -> None:
    """Parse the scenario."""
    with suppress(ValueError, RecursionError):
        raw = json.loads(data)
        with suppress(MusterError):
            parse_scenario(raw)


def good_values() -> list[bytes]:
    """Golden bytes and test vectors."""
    hex_values = [
        json.loads(p.read_text())["value"] for p in (ROOT / "tests/golden").glob("*.json")
    ]
    for name in ("events", "assignments", "hostile", "dictionary"):
        rows = json.loads((ROOT / f"protocol/vectors/{name}.json").read_text())
        hex_values += [row["value"] for row in rows]
    return [bytes.fromhex(text) for text in sorted(hex_values)]


def good_lines() -> list[bytes]:
    """Golden records as lines of JSON, of text, and as they are."""
    golden = [json.loads(p.read_text()) for p in sorted((ROOT / "tests/golden").glob("*.json"))]
    as_text = [f"{g['key']}\t{g['value']}\n".encode() for g in golden]
    return [*(json.dumps(g).encode() for g in golden), *as_text, *good_values()]


STREAMS = {
    "config": {
        "num.standby.replicas": 1,
        "acceptable.recovery.lag": 100,
        "rack.aware.assignment.strategy": "min_traffic",
        "rack.aware.assignment.tags": ["z"],
    },
    "tasks": [
        {
            "subtopology": "0",
            "partitions": 3,
            "stateful": True,
            "weight": 1,
            "source_racks": [["a"], ["b"], [["a"], ["b"]]],
            "changelog_racks": [["b"], ["a"], ["b"]],
        },
        {"subtopology": "1", "partitions": 2},
    ],
    "members": [
        {"id": "A", "capacity": 2, "rack": "a", "tags": {"z": "1"}, "active": ["0_0"]},
        {"id": "B", "rack": "b", "tags": {"z": "2"}, "standby": ["0_1"], "lag": {"0_1": 10}},
        {"id": "C", "rack": "b", "learner": ["0_2"], "ready": ["0_2"], "topics": ["0"]},
        {"id": "D", "rack": "a", "draining": True},
    ],
    "now_ms": 0,
}
CONNECT = {
    "config": {"scheduled.rebalance.max.delay.ms": 300},
    "tasks": [
        {"connector": "c1", "tasks": 2, "weight": 2, "connector_weight": 0.5},
        {"connector": "c-2", "tasks": 0},
    ],
    "members": [
        {"id": "w1", "capacity": 1, "active": ["c1", "c9-0"], "protocols": ["static", "eager"]},
        {"id": "w2", "static": ["c1-0"], "protocols": ["static", "eager"]},
    ],
}
LIFE = [
    {"at_ms": 0, "join": {"id": "A", "capacity": 2, "restore_ms": 5, "instance_id": "i"}},
    {"at_ms": 9, "leave": "A", "temporary": True},
    {"at_ms": 9, "lag": {"member": "A", "0_1": 10}},
    {"at_ms": 9, "ready": {"member": "A", "task": "0_1"}},
    {"at_ms": 9, "config": {"num.standby.replicas": 1}},
    {"at_ms": 9, "tasks": STREAMS["tasks"]},
    {"at_ms": 9, "undelivered": ["A"]},
]


def good_problems() -> list[bytes]:
    """A problem for every assignor, one that starts from what members hold, and one to check."""
    streams = ("sticky", "high-availability", "fallback", "learner")
    documents = [{"assignor": name, **STREAMS} for name in streams]
    documents += [{"assignor": name, **CONNECT} for name in ("eager", "cooperative", "static")]
    documents.append({**STREAMS, "start": "previous"})
    documents.append({**STREAMS, "validate": {"members": {"A": {"active": ["0_0"]}}}})
    return [json.dumps(each).encode() for each in documents]


def good_scenarios() -> list[bytes]:
    """Scenarios with an event of every kind."""
    group = {"assignor": "sticky", "config": STREAMS["config"], "tasks": STREAMS["tasks"]}
    pieces = ([event] for event in LIFE)
    whole = {"group": group, "defaults": {"ack_ms": 0}, "until_ms": 20}
    return [json.dumps({**whole, "events": events}).encode() for events in (LIFE, *pieces)]


class Subject(NamedTuple):
    """A reader to fuzz, and valid inputs to start from."""

    read: Target
    corpus: Callable[[], list[bytes]]


SUBJECTS = {
    "values": Subject(values, good_values),
    "lines": Subject(lines, good_lines),
    "problems": Subject(problems, good_problems),
    "scenarios": Subject(scenarios, good_scenarios),
}


def mutate(value: bytes, rng: random.Random) -> bytes:
    """Cut, repeat, overwrite or flip some bytes."""
    data = bytearray(value)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randint(0, len(data)), rng.randint(0, 6)
        new = (
            rng.randbytes(rng.randint(0, 6)),
            b"\xff" * size,
            bytes(size),
            bytes(data[at : at + size]) * 2,
        )
        data[at : at + size] = rng.choice(new)
    return bytes(data)


ODD_TEXTS = (
    "",
    "|",
    "9" * 5000,
    "0_" + "9" * 5000,
    "_",
    "-",
    "\x00",
    "\ud7ff",
    "é" * 200,
    "9" * 19,
)
ODD_BYTES = (b"", b"\x01\x80", b"\x02\x80\x80", b"\x01\x02\xff\xff\xff\xff\x07\x00\x20", bytes(9))
ODD_NUMBERS = (0, -1, 1, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63))


def mutate_row(value: bytes, rng: random.Random) -> bytes:
    """Put odd values into some fields of a record, or mutate its bytes."""
    try:
        name, row = KNOWN.read(value)
    except DecodeError:
        return mutate(value, rng)
    for _ in range(rng.randint(1, 3)):
        at, key = rng.choice(places_in(row))
        at[key] = odd(at[key], rng)
    with suppress(EncodeError):
        return write(name, row)
    return mutate(value, rng)


def random_bytes(_: bytes, rng: random.Random) -> bytes:
    """Any bytes; `values` puts every frame before them."""
    return rng.randbytes(rng.randint(0, 60))


def places_in(document: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Every value in a document at any depth, as (its container, its key or index)."""
    places: list[tuple[Any, Any]] = [(document, key) for key in document]
    for at, key in places:
        inner = at[key]
        if isinstance(inner, dict | list):
            keys = inner if isinstance(inner, dict) else range(len(inner))
            places += [(inner, each) for each in keys]
    return places


def odd(value: object, rng: random.Random) -> object:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice(ODD_NUMBERS)
        case float():
            return rng.choice((0.0, -1.0, 1e308, float("nan"), float("inf")))
        case str():
            return rng.choice(ODD_TEXTS)
        case bytes() if rng.random() < 0.5:
            return mutate(value, rng)
        case bytes():
            return rng.choice(ODD_BYTES)
        case list() if value:
            return value * rng.choice((0, 2))
        case _:
            return value


def mutate_json(value: bytes, rng: random.Random) -> bytes:
    """Replace, drop or repeat one or two values of a JSON text, or mutate its bytes."""
    if rng.random() < 0.2:
        return mutate(value, rng)
    raw = json.loads(value)
    for _ in range(rng.randint(1, 2)):
        places = places_in(raw)
        at, key = rng.choice(places)
        odd = (
            None,
            True,
            -1,
            0.5,
            2**31,
            2**63,
            1e308,
            float("nan"),
            "",
            "a\nb",
            "\u0663",
            [[]],
            {},
        )
        there, name = rng.choice(places)
        copied = json.loads(json.dumps(there[name]))
        match rng.choice(("other", "other", "other", "lost", "twice")):
            case "lost":
                del at[key]
            case "twice" if isinstance(at, list):
                at.append(copied)
            case _:
                texts = ("x" * 300, "c1-0", "::", "os:path", "learner", "min_traffic")
                at[key] = rng.choice((*odd, *texts, copied, [None], ["0_0", "0_0"], {"0_0": 1}))
    return json.dumps(raw).encode()


def inputs(name: str, seed: int) -> Iterator[bytes]:
    """Endless inputs for a subject: mutated valid ones, and any bytes where those are read."""
    of_json = name in ("problems", "scenarios")
    changes = (mutate_json,) if of_json else (mutate, mutate_row, random_bytes)
    rng, good = random.Random(seed), SUBJECTS[name].corpus()
    while True:
        yield rng.choice(changes)(rng.choice(good), rng)


def at_random(name: str, seconds: float, seed: int) -> int:
    """Try inputs until the time is over; returns their number."""
    tried, until = 0, time.monotonic() + seconds
    for tried, each in enumerate(inputs(name, seed)):
        if time.monotonic() > until:
            break
        try:
            SUBJECTS[name].read(each)
        except Exception:
            print(f"{name}, seed {seed}, input {tried}: {each.hex()}", file=sys.stderr)
            raise
    return tried


def guided(name: str, seconds: float) -> None:
    """Let atheris search, starting with the valid inputs; it ends the process."""
    import atheris

    folder = Path(tempfile.mkdtemp(prefix="muster-fuzz-"))
    for number, each in enumerate(SUBJECTS[name].corpus()):
        (folder / str(number)).write_bytes(each)
    atheris.instrument_all()
    limits = [f"-max_total_time={int(seconds)}", "-max_len=4096"]
    atheris.Setup([sys.argv[0], str(folder), *limits], SUBJECTS[name].read)
    atheris.Fuzz()


def main() -> None:
    """Run the requested search."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--target", choices=SUBJECTS, help="only this one (default: all in turn)")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true")
    args = parser.parse_args()
    if args.atheris:
        guided(args.target or "values", args.seconds)
    for name in [args.target] if args.target else SUBJECTS:
        tried = at_random(name, args.seconds, args.seed)
        print(f"{name}: {tried} inputs tried, nothing found", flush=True)


if __name__ == "__main__":
    main()
