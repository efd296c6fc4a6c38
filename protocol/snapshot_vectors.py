"""Codecs of a snapshot's owner vectors, flags and (task, slot) pairs.

A vector that nearly equals another one, its *base* (holders nearly equal the target), is written as
`SAME`, as `CHANGED` (the differing entries and their values) or in `FULL`.

Pairs are written in layers: the tasks with at least one pair and the first slot of each, then the
tasks with a second pair, and so on. A layer is a segment of the task-set codec and an owner vector.
Where thousands of members are paired with the same few tasks, each slot has a layer instead: one
more member then changes one layer, and the others are in the cache.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from muster.protocol.bits import put_varint, take_varint
from muster.protocol.errors import DecodeError, EncodeError
from muster.protocol.owner_vectors import decode_owners, encode_owners
from muster.protocol.tasks import IntArray
from muster.protocol.taskset import decode_segment, encode_segment

SAME, FULL, CHANGED = range(3)
LAYERS_MAX = 1 << 14
"""Limit of the pairs of a task: every member of a large fleet may report something about it."""
PAIRS_MAX = 1 << 25
MANY_LAYERS = 64
"""If a task is in more pairs than this, each slot may have a layer."""
FEW_PAIRS = 4
LAYERS_KEPT = 1 << 14
"""A process caches this many layers of at most `FEW_PAIRS`, each at most 400 bytes."""
FEW_BYTES = 32
"""A layer of at most `FEW_PAIRS` has fewer bytes."""
_NO_PAIRS = bytes((FULL, 0))


def encode_vector(owners: IntArray, base: IntArray) -> bytes:
    """The bytes of an owner vector, against a base of the same length."""
    changed = np.flatnonzero(owners != base)
    if len(changed) == 0:
        return bytes((SAME,))
    full = bytes((FULL,)) + encode_owners(owners)
    if 2 * len(changed) > len(owners):
        return full
    out = bytearray((CHANGED,))
    put_varint(out, len(changed))
    part = (
        bytes(out)
        + encode_segment(changed, len(owners), len(owners))
        + encode_owners(owners[changed])
    )
    return part if len(part) < len(full) else full


def decode_vector(data: bytes, base: IntArray) -> IntArray:
    """Read what `encode_vector` wrote with the same base."""
    form = data[0] if data else -1
    if form == SAME:
        owners, end = base, 1
    elif form == FULL:
        owners, end = decode_owners(data, 1, len(base))
    elif form == CHANGED:
        count, at = take_varint(data, 1)
        changed, at = decode_segment(data, at, len(base), len(base))
        if len(changed) != count:
            raise DecodeError(f"{len(changed)} changes; {count} were announced", at)
        values, end = decode_owners(data, at, count)
        owners = base.copy()
        owners[changed] = values
    else:
        raise DecodeError(f"a vector of form {form}")
    _check_end(data, end)
    return owners


def encode_flags(flags: NDArray[np.bool_]) -> bytes:
    """The bytes of a bool vector."""
    return encode_segment(np.flatnonzero(flags), len(flags), len(flags))


def decode_flags(data: bytes, count: int) -> NDArray[np.bool_]:
    """Read what `encode_flags` wrote."""
    positions, end = decode_segment(data, 0, count, count)
    flags = np.zeros(count, dtype=np.bool_)
    flags[positions] = True
    _check_end(data, end)
    return flags


def encode_pairs(pairs: IntArray, tasks: int, base: IntArray | None = None) -> bytes:
    """The bytes of pairs int32[K, 2] of (task, slot), ascending; `tasks` is the number of tasks.

    Raises:
        EncodeError: a task is in more pairs than a reader accepts.
    """
    if len(pairs) == 0 and (base is None or len(base) == 0):  # the common case
        return _NO_PAIRS if base is None else bytes((SAME,))
    code, known = _code(pairs), _code(base)
    if base is not None and np.array_equal(code, known):
        return bytes((SAME,))
    removed = np.flatnonzero(~np.isin(known, code, assume_unique=True))
    added = code[~np.isin(code, known, assume_unique=True)]
    full = bytes((FULL,)) + _layers(code, tasks)
    if 2 * len(added) > len(code):
        return full
    changes = encode_segment(removed, len(known), len(known)) + _layers(added, tasks)
    part = bytes((CHANGED,)) + changes
    return part if len(part) < len(full) else full


def decode_pairs(data: bytes, tasks: int, base: IntArray | None = None) -> IntArray:
    """Read what `encode_pairs` wrote with the same base."""
    if data == _NO_PAIRS:
        return np.empty((0, 2), dtype=np.int32)
    known = _code(base)
    form = data[0] if data else -1
    if form == SAME:
        code, end = known, 1
    elif form == FULL:
        code, end = _read_layers(data, 1, tasks)
    elif form == CHANGED:
        removed, at = decode_segment(data, 1, len(known), len(known))
        added, end = _read_layers(data, at, tasks)
        code = np.union1d(np.delete(known, removed), added)
    else:
        raise DecodeError(f"pairs of form {form}")
    pairs = np.column_stack((code >> 32, code & 0xFFFFFFFF)).astype(np.int32)
    _check_end(data, end)
    return pairs


def _check_end(data: bytes, end: int) -> None:
    if end != len(data):
        raise DecodeError(f"{len(data) - end} bytes behind a vector", end)


def codes(pairs: IntArray) -> NDArray[np.int64]:
    """int64[K]: task and slot of each pair in one number."""
    return pairs[:, 0].astype(np.int64) << 32 | pairs[:, 1].astype(np.int64)


def _code(pairs: IntArray | None) -> NDArray[np.int64]:
    if pairs is None or len(pairs) == 0:
        return np.empty(0, dtype=np.int64)
    code = codes(pairs)
    return code if bool((np.diff(code) > 0).all()) else np.unique(code)


def _layers(code: NDArray[np.int64], tasks: int) -> bytes:
    task, slot = code >> 32, (code & 0xFFFFFFFF).astype(np.int32)
    firsts = np.flatnonzero(np.diff(task, prepend=-1))
    rank = np.arange(len(task)) - np.repeat(firsts, np.diff(firsts, append=len(task)))
    layers = int(rank.max()) + 1 if len(rank) else 0
    if layers > LAYERS_MAX:
        raise EncodeError(f"{layers} pairs of one task; {LAYERS_MAX} can be written")
    if layers > MANY_LAYERS:
        slots, number_of_slot = np.unique(slot, return_inverse=True)
        if len(slots) <= min(2 * layers, LAYERS_MAX):
            layers, rank = len(slots), number_of_slot
    out = bytearray()
    put_varint(out, layers)
    order = np.argsort(rank, kind="stable")
    task, slot = task[order], slot[order]
    # To slice a list is quicker than to slice an array; with few layers a list is not worth making.
    few = (task.tolist(), slot.tolist()) if layers > MANY_LAYERS else (task, slot)
    ends = np.cumsum(np.bincount(rank, minlength=layers)).tolist()
    for first, end in zip([0, *ends], ends, strict=False):
        if end - first <= FEW_PAIRS:
            out += _few_pairs(*(tuple(map(int, each[first:end])) for each in few), tasks)
            continue
        out += encode_segment(task[first:end], tasks, tasks) + encode_owners(slot[first:end])
    return bytes(out)


@functools.lru_cache(LAYERS_KEPT)
def _few_pairs(task: tuple[int, ...], slot: tuple[int, ...], tasks: int) -> bytes:
    """A layer of few pairs; it is cached, because the next snapshot has nearly the same pairs."""
    segment = encode_segment(np.array(task, dtype=np.int64), tasks, tasks)
    return segment + encode_owners(np.array(slot, dtype=np.int32))


@functools.lru_cache(LAYERS_KEPT)
def _few_read(data: bytes, tasks: int) -> tuple[NDArray[np.int64], int] | None:
    """The layer of few pairs with which `data` begins, and its length; None = it may be another.

    It is cached for the next snapshot, as in `_few_pairs`.
    """
    try:
        task, at = decode_segment(data, 0, tasks, FEW_PAIRS)
        slot, at = decode_owners(data, at, len(task))
    except DecodeError:  # cut off, of many pairs, or invalid: `_read_layers` finds out
        return None
    return None if (slot < 0).any() else (task << 32 | slot, at)


def _read_layers(data: bytes, at: int, tasks: int) -> tuple[NDArray[np.int64], int]:
    layers, at = take_varint(data, at)
    if layers > LAYERS_MAX:
        raise DecodeError(f"{layers} pairs of one task; {LAYERS_MAX} are accepted", at)
    parts = [np.empty(0, dtype=np.int64)]
    total = 0
    for _ in range(layers):
        few = _few_read(data[at : at + FEW_BYTES], tasks) if layers > 1 else None
        if few is not None:
            parts.append(few[0])
            total, at = total + len(few[0]), at + few[1]
            continue
        task, at = decode_segment(data, at, tasks, tasks)
        slot, at = decode_owners(data, at, len(task))
        total += len(task)
        if total > PAIRS_MAX or (len(slot) and int(slot.min()) < 0):
            raise DecodeError("too many pairs, or a pair without a member", at)
        parts.append(task << 32 | slot)
    code = np.concatenate(parts)
    return code if layers < 2 else np.unique(code), at
