"""Dead letters within limits: what one group, and one batch, may write of what it refuses.

Who may write to an input topic may write a million records that are refused. A letter quotes the
record and says why, so it is larger than the record; without a limit the answer to rubbish takes
more of Kafka, of the batch and of memory than the rubbish. So a group has `GROUP_LETTERS_MAX`
letters in a batch and a batch has `BATCH_LETTERS_MAX`; a value is quoted whole as long as there is
room for it, and by its beginning then. What is left out is counted, and the count is told in a
letter of its own: a group's at once, a batch's with the next batch of the same process, for until
then it grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Origin
from muster.protocol.records import Rejected

GROUP_LETTERS_MAX = 100
GROUP_QUOTED_BYTES_MAX = 1 << 20
"""Bytes of keys and values that the letters of a group quote in a batch."""
BATCH_LETTERS_MAX = 1_000
BATCH_QUOTED_BYTES_MAX = 8 << 20
QUOTED_BYTES_MIN = 256
"""So much of a key or a value is quoted in any case."""
MESSAGE_CHARS_MAX = 8_000

_untold: dict[str, tuple[Counter[str], Origin]] = {}
"""Prefix → what this process left out in batches that have ended, and where the first was read."""


def of_group(letters: Sequence[Rejected]) -> list[Rejected]:
    """The letters of a group in a batch, within its limits; the last one counts the rest."""
    kept, left, _ = _within(letters, GROUP_LETTERS_MAX, GROUP_QUOTED_BYTES_MAX)
    if left:
        kept.append(_rest("of this group in this batch", _counted(left), left[0].origin))
    return kept


class Post:
    """The letters of all groups of one batch, as far as one task works on them."""

    def __init__(self) -> None:
        self._letters = BATCH_LETTERS_MAX
        self._bytes = BATCH_QUOTED_BYTES_MAX

    def admitted(self, prefix: str, letters: Sequence[Rejected]) -> list[Rejected]:
        """The letters of a group that are still written, within the limits of both."""
        found = self._told(prefix)
        within = of_group(letters) if letters else []
        if not within:
            return found
        kept, left, quoted = _within(within, self._letters, self._bytes)
        self._letters -= len(kept)
        self._bytes -= quoted
        if left:
            counts, first = _untold.get(prefix, (Counter(), left[0].origin))
            _untold[prefix] = (counts + _counted(left), first)
        return found + kept

    def _told(self, prefix: str) -> list[Rejected]:
        """What batches before this one left out."""
        if not _untold or self._letters < BATCH_LETTERS_MAX or prefix not in _untold:
            return []
        counts, first = _untold.pop(prefix)
        return [_rest("of the batches before", counts, first)]


def _within(
    letters: Iterable[Rejected], most: int, room: int
) -> tuple[list[Rejected], list[Rejected], int]:
    """Letters that are written, letters that are not, and how many bytes the former quote."""
    kept: list[Rejected] = []
    left: list[Rejected] = []
    quoted = 0
    for letter in letters:
        if len(kept) >= most:
            left.append(letter)
            continue
        size = len(letter.key) + len(letter.value)
        if quoted + size > room and size > 2 * QUOTED_BYTES_MIN:
            note = f" (of {size} bytes the beginning is quoted)"
            letter = replace(
                letter,
                key=letter.key[:QUOTED_BYTES_MIN],
                value=letter.value[:QUOTED_BYTES_MIN],
                message=letter.message[: MESSAGE_CHARS_MAX - len(note)] + note,
            )
            size = len(letter.key) + len(letter.value)
        quoted += size
        kept.append(letter)
    return kept, left, quoted


def _counted(letters: Iterable[Rejected]) -> Counter[str]:
    return Counter(str(letter.reason) for letter in letters)


def _rest(where: str, counts: Counter[str], first: Origin) -> Rejected:
    by_reason = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    message = f"{counts.total()} more dead letters {where} are left out: {by_reason}"
    return Rejected(origin=first, reason=DeadLetter.LEFT_OUT, message=message)
