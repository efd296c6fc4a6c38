"""A keyring that operators change, and when each change reaches each process."""

from __future__ import annotations

import base64
from hashlib import sha512
from random import Random
from typing import Any

from muster.protocol.keyring import Keyring
from muster.signing import rotation
from muster.signing.keyring_file import KEYS, WINDOW, parsed

SPREAD_MS = 1_500
"""Time in which a changed file reaches every process."""
CLOCKS_DIFFER_MS = 200
"""How far a signer's clock may be from the broker's."""
WINDOW_MS = 20_000
EVERY_GROUP = ("*",)


class Keyrings:
    """The keyring as each process has it; every process has a clock of its own, too."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._document: dict[str, Any] = {WINDOW: WINDOW_MS}
        self._versions: list[tuple[float, Keyring]] = []

    @property
    def exist(self) -> bool:
        """Whether there is a keyring."""
        return bool(self._versions)

    def create(self, now: float) -> None:
        """Make the first key; before that there is no file."""
        self._change(rotation.new_key(self._document, int(now)), now)

    def rotate(self, now: float, *, is_compromised: bool) -> None:
        """Make a new key in place of the one that signs."""
        overlap_ms = 0 if is_compromised else None
        changed = rotation.rotated(
            self._document, int(now), spread_ms=SPREAD_MS, overlap_ms=overlap_ms
        )
        self._change(changed, now)

    def require(self, now: float, *, on: bool) -> None:
        """Require signatures of every group after the spread, or end that."""
        change = rotation.required if on else rotation.released
        self._change(change(self._document, EVERY_GROUP, int(now) + SPREAD_MS), now)

    def of(self, process: str, now: float) -> Keyring:
        """The newest keyring that has reached a process."""
        reached = [
            keyring
            for number, (written, keyring) in enumerate(self._versions)
            if not number or written + self._takes_ms(process, number) <= now
        ]
        return reached[-1]

    def clock_ms(self, process: str, now: float) -> int:
        """The time on the clock of a process' machine."""
        return int(now) + Random(f"{process}/{self._seed}").randint(-1, 1) * CLOCKS_DIFFER_MS

    def _takes_ms(self, process: str, number: int) -> float:
        rng = Random(f"{process}/{number}/{self._seed}")
        return rng.uniform(0, SPREAD_MS - 2 * CLOCKS_DIFFER_MS)

    def _change(self, document: dict[str, Any], now: float) -> None:
        for row in document[KEYS]:  # the same secrets each time that the run is played
            secret = sha512(f"{self._seed}/{row['id']}".encode()).digest()[:32]
            row["secret"] = base64.b64encode(secret).decode()
        self._document = document
        self._versions.append((now, parsed(document, "keys.json")))
