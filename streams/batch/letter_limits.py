"""Limits of the dead letters that one group, and one batch, may write.

A client that may write to an input topic can write a million bad records, and a dead letter is
larger than its record: it quotes the record and gives the reason. So a group has at most
`GROUP_LETTERS_MAX` letters in a batch, and a batch `BATCH_LETTERS_MAX`. The first letter of a group
quotes a large record whole, those behind it quote small ones whole, and only the first bytes of
others. One more letter counts those left out: a group's in the same batch, a batch's in a later
batch of the same process, since the count grows until the batch ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Origin
from muster.protocol.records import Rejected

GROUP_LETTERS_MAX = 20
"""Each letter costs the job, the broker and all readers of dead letters some 0.1 ms together."""
SHARED_LETTERS_MAX = 100
"""Dead letters for rows that are refused before they are decoded. They are counted together,
because their group is not known."""
GROUP_QUOTED_BYTES_MAX = 1 << 20
"""Bytes of key and value that the first letter of a group may quote in a batch."""
MORE_QUOTED_BYTES_MAX = 1 << 16
"""Bytes that all further letters of the group may quote together; beyond them each quotes at most
`QUOTED_BYTES_MIN` of its key and of its value."""
BATCH_LETTERS_MAX = 200
BATCH_QUOTED_BYTES_MAX = 4 << 20
QUOTED_BYTES_MIN = 256
"""Bytes of a key or a value that a letter quotes even when there is no more room."""
MESSAGE_CHARS_MAX = 8_000

_unreported: dict[str, tuple[Counter[str], Origin]] = {}
"""Prefix → letters that this process left out, by reason, and the origin of the first one."""


def of_group(letters: Sequence[Rejected], *, is_shared: bool = False) -> list[Rejected]:
    """The letters of a group in a batch, within its limits; one more letter counts the rest.

    Args:
        letters: the letters.
        is_shared: whether they are of rows that were refused unread, instead of one group's.
    """
    room = GROUP_QUOTED_BYTES_MAX, MORE_QUOTED_BYTES_MAX
    most = SHARED_LETTERS_MAX if is_shared else GROUP_LETTERS_MAX
    kept, left, _ = _within(letters, most, room)
    if left:
        whose = "of rows that were refused unread" if is_shared else "of this group"
        kept.append(_rest(f"{whose} in this batch", _counted(left), left[0].origin))
    return kept


class LetterBudget:
    """What the letters of all groups that one Spark task processes in one batch may still take."""

    def __init__(self) -> None:
        self._letters = BATCH_LETTERS_MAX
        self._bytes = BATCH_QUOTED_BYTES_MAX
        self._counts_earlier = True

    @classmethod
    def apart(cls) -> LetterBudget:
        """The budget of a group batch that is computed aside; others count what they left out."""
        budget = cls()
        budget._counts_earlier = False
        return budget

    def admitted(
        self, prefix: str, letters: Sequence[Rejected], *, is_shared: bool = False
    ) -> list[Rejected]:
        """The letters of a group that are written, within the limits of the group and the batch.

        Args:
            prefix: topic prefix.
            letters: see `of_group`.
            is_shared: see `of_group`.
        """
        earlier = self._count_of_earlier(prefix)
        within = of_group(letters, is_shared=is_shared) if letters else []
        if not within:
            return earlier
        kept, left, quoted = _within(within, self._letters, (self._bytes, self._bytes))
        self._letters -= len(kept)
        self._bytes -= quoted
        if left:
            counts, first = _unreported.get(prefix, (Counter(), left[0].origin))
            _unreported[prefix] = (counts + _counted(left), first)
        return earlier + kept

    def _count_of_earlier(self, prefix: str) -> list[Rejected]:
        """The letter that counts what earlier batches left out, before the batch's first letter."""
        if (
            not self._counts_earlier
            or not _unreported
            or self._letters < BATCH_LETTERS_MAX
            or prefix not in _unreported
        ):
            return []
        counts, first = _unreported.pop(prefix)
        return [_rest("of the batches before", counts, first)]


def _within(
    letters: Iterable[Rejected], most: int, room: tuple[int, int]
) -> tuple[list[Rejected], list[Rejected], int]:
    """Letters that are written, letters that are left out, and the bytes that the first quote.

    `room`: bytes that the first letter may quote, and that all may quote together behind it.
    """
    kept: list[Rejected] = []
    left: list[Rejected] = []
    quoted = 0
    for letter in letters:
        if len(kept) >= most:
            left.append(letter)
            continue
        size = len(letter.key) + len(letter.value)
        if quoted + size > room[bool(kept)] and size > 2 * QUOTED_BYTES_MIN:
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
