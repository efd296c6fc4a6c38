"""Reads JSON that users give: a file or standard input, one document or one per line.

Every fault is one line that names its place. A repeated key is a fault, because JSON readers keep
only one of its values. Half of a surrogate pair is a fault, because it cannot be written as UTF-8.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from muster.errors import BadInput
from muster.output import one_line, shown
from muster.protocol.errors import MusterError

STDIN = "-"


def load(path: str) -> object:
    """Read a JSON file, or standard input when the path is ``-``.

    Raises:
        BadInput: it cannot be read, or is not JSON; the message names the place.
    """
    with opened(path) as file:
        try:
            text = file.read()
        except OSError as error:
            raise _unreadable(path, error) from None
    return parsed(text, path)


def answer_lines(path: str, answer: Callable[[object], object]) -> None:
    """Print an answer for every line of a file, in order, each as soon as it is computed.

    What `answer` raises becomes ``{"error": "..."}``.
    """
    with opened(path) as lines:
        for line in lines:
            print(json.dumps(_answered(line, answer), ensure_ascii=False), flush=True)


def _answered(line: bytes, answer: Callable[[object], object]) -> object:
    try:
        return answer(parsed(line, "line"))
    except MusterError as error:
        return {"error": one_line(str(error))}
    except Exception as error:  # a bug in one answer must not end the others
        return {"error": one_line(f"{type(error).__name__}: {error}")}


def opened(path: str) -> AbstractContextManager[BinaryIO]:
    """Open a file, or standard input when the path is ``-``.

    Raises:
        BadInput: it cannot be opened.
    """
    if path == STDIN:
        if sys.stdin is None:
            raise BadInput("-: cannot be read (standard input is closed)")
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> BadInput:
    return BadInput(f"{path}: cannot be read ({getattr(error, 'strerror', error)})")


def parsed(text: bytes, where: str) -> object:
    """Parse JSON.

    Raises:
        BadInput: it is not JSON, or has a repeated key or half of a surrogate pair.
    """
    if not text.strip():
        raise BadInput(f"{where}: is empty; expected JSON")
    repeated: list[tuple[dict[str, Any], str]] = []
    try:
        document: object = json.loads(text, object_pairs_hook=_noting_repeats(repeated))
        if b"\\u" in text:  # only an escape can write half of a surrogate pair
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        place = next((place for place, it in _everything(document) if _is_half(it)), "")
        raise BadInput(f"{where}: {place}{half!r} in a text; expected whole characters") from None
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        raise BadInput(f"{where}: not JSON ({error.msg} at {at})") from None
    except RecursionError:
        raise BadInput(f"{where}: nested too deep") from None
    except ValueError as error:
        raise BadInput(f"{where}: not JSON ({error})") from None
    if repeated:
        again = {id(broken): key for broken, key in repeated}
        place, broken = next((p, it) for p, it in _everything(document) if id(it) in again)
        key = shown(again[id(broken)])
        raise BadInput(f"{where}: {place}key {key} appears twice in one object")
    return document


def refuse_unknown(raw: Iterable[str], known: Sequence[str], place: str = "") -> None:
    """Refuse an object that has another key than the known ones.

    Raises:
        BadInput: the message names the place, the key and what is known.
    """
    unknown = sorted(set(raw) - set(known))
    if unknown:
        where = f"{place}: " if place else ""
        raise BadInput(f"{where}unknown key {shown(unknown[0])}; known: {', '.join(known)}")


def _noting_repeats(
    repeated: list[tuple[dict[str, Any], str]],
) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def read(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            again, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            repeated.append((entries, again))
        return entries

    return read


def _everything(document: object) -> Iterator[tuple[str, object]]:
    """(place, value) of each value and key of a document, outer ones first."""
    waiting: list[tuple[str, object]] = [("", document)]
    for place, value in waiting:
        yield f"{place}: " if place else "", value
        if isinstance(value, dict):
            waiting += [(place, key) for key in value]
            waiting += [(f"{place}.{key}" if place else key, it) for key, it in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{place}[{nth}]", it) for nth, it in enumerate(value)]


def _is_half(value: object) -> bool:
    return isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value)
