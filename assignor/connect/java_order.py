"""Java's orders of strings, on which some of Kafka's answers depend.

Kafka's Connect leader visits its workers in the order of a ``HashMap`` over their ids, and that
order decides which worker keeps an extra job. It is a function of the ids alone:
``String.hashCode``, the upper half folded onto the lower, modulo the table size; within a bucket in
order of insertion, here that of sorted ids. Python's own hashes are not used.

Buckets of more than eight ids differ from Java, which widens a small table or makes the bucket a
tree. Only ids that were built to collide fill such a bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from muster.protocol.tasks import IntArray

_SMALLEST_TABLE = 16
_LAST_OF_BASIC_PLANE = "\uffff"


def hash_codes(names: Sequence[str]) -> NDArray[np.uint32]:
    """uint32[N]: ``String.hashCode`` of each name."""
    if not names:
        return np.empty(0, dtype=np.uint32)
    length = np.array([len(name) for name in names])
    text = np.array(names, dtype=np.str_)
    # Java counts two units for a character beyond the basic plane; arrays drop a trailing NUL.
    if not all(map(str.isascii, names)) or bool((np.char.str_len(text) != length).any()):
        return np.array([_hash_code(name) for name in names], dtype=np.uint32)
    units = text.view(np.uint32).reshape(len(names), -1)
    code = np.zeros(len(names), dtype=np.uint32)
    for column in range(units.shape[1]):
        code = np.where(column < length, code * np.uint32(31) + units[:, column], code)
    return code


def _hash_code(name: str) -> int:
    units = np.frombuffer(name.encode("utf-16-le", "surrogatepass"), dtype="<u2")
    code = 0
    for unit in units.tolist():
        code = (31 * code + unit) & 0xFFFFFFFF
    return code


def hash_order(names: Sequence[str]) -> IntArray:
    """int32[N]: iteration order of a ``HashMap`` into which `names` were put in this order."""
    size = _SMALLEST_TABLE
    while 4 * len(names) > 3 * size:
        size *= 2
    code = hash_codes(names)
    bucket = (code ^ (code >> np.uint32(16))) & np.uint32(size - 1)
    return np.argsort(bucket, kind="stable").astype(np.int32)


def text_order(names: Sequence[str]) -> IntArray:
    """int32[N]: indexes of `names` in ``String.compareTo`` order, which is by UTF-16 unit."""
    words = [name.encode("utf-16-be", "surrogatepass") for name in names]
    return np.array(sorted(range(len(words)), key=words.__getitem__), dtype=np.int32)


def sorts_alike(names: Sequence[str]) -> bool:
    """Whether Java sorts these names like Python: no character is beyond the basic plane."""
    return all(name.isascii() or max(name) <= _LAST_OF_BASIC_PLANE for name in names)
