"""Fuzz every decoder: ``python tests/protocol/fuzz.py [--seconds N] [--atheris]``.

Hostile bytes may give a value or a `DecodeError`, and nothing else. The suite asks this of
hypothesis; this script asks for longer. With --atheris the search is guided by coverage (the
package `atheris`); without it, golden bytes and test vectors are mutated at random, by seed. What
it finds it prints as hexadecimal, ready for a test.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from muster.protocol.codec import decode, decode_record
from muster.protocol.errors import DecodeError
from muster.protocol.events import NOWHERE
from muster.protocol.framing import PREFIX
from muster.protocol.heartbeats import heartbeats
from muster.protocol.parts import Joiner
from muster.protocol.topics import INPUTS, TopicKind

ROOT = Path(__file__).parent.parent.parent
Target = Callable[[bytes], object]


def everything(data: bytes) -> None:
    """Give the bytes to every decoder there is: as they are, and behind every frame."""
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


def corpus() -> list[bytes]:
    """Good values to start from."""
    found = [json.loads(p.read_text())["value"] for p in (ROOT / "tests/golden").glob("*.json")]
    for name in ("events", "assignments", "hostile", "dictionary"):
        rows = json.loads((ROOT / f"protocol/vectors/{name}.json").read_text())
        found += [row["value"] for row in rows]
    return [bytes.fromhex(text) for text in sorted(found)]


def mutate(value: bytes, chance: random.Random) -> bytes:
    """Cut, repeat, overwrite or flip some bytes."""
    data = bytearray(value)
    for _ in range(chance.randint(1, 4)):
        at, size = chance.randint(0, len(data)), chance.randint(0, 6)
        new = (
            chance.randbytes(chance.randint(0, 6)),
            b"\xff" * size,
            bytes(size),
            bytes(data[at : at + size]) * 2,
        )
        data[at : at + size] = chance.choice(new)
    return bytes(data)


def at_random(seconds: float, seed: int) -> int:
    """Mutate until the time is over; how many values were tried."""
    chance, values, tried = random.Random(seed), corpus(), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = mutate(chance.choice(values), chance)
        try:
            everything(value)
        except Exception:
            print(f"seed {seed}, value {tried}: {value.hex()}", file=sys.stderr)
            raise
        tried += 1
    return tried


def guided(seconds: float) -> None:
    """Let atheris search; it ends the process."""
    import atheris

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}"], everything)
    atheris.Fuzz()


def main() -> None:
    """Run the search asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true")
    args = parser.parse_args()
    if args.atheris:
        guided(args.seconds)
    else:
        print(f"{at_random(args.seconds, args.seed)} values tried, nothing found")


if __name__ == "__main__":
    main()
