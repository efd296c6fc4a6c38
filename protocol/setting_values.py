"""The accepted values of a setting: type and bounds in words, and a function that reads a value.

The function takes a user's text or JSON value. It raises ValueError, TypeError, KeyError or
OverflowError for a value that is not accepted; `settings.parse_settings` adds the setting's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from muster.protocol.client_tags import KEY_CHARS_MAX, TAGS_MAX

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The accepted values of a setting.

    Attributes:
        type: in words; empty if the bounds are enough.
        bounds: in words.
        read: the user's value → the setting's value.
    """

    type: str
    bounds: str
    read: Callable[[object], Value]

    def __str__(self) -> str:
        return f"{self.type}, {self.bounds}" if self.type else self.bounds


def milliseconds(low: int, high: int | None = None, more: str = "") -> Accepted:
    """A time in milliseconds."""
    bounds = _between(low, high) + more
    return Accepted("a whole number of milliseconds", bounds, _whole(low, high or LONG_MAX))


def offsets(low: int) -> Accepted:
    """A number of offsets in a partition."""
    return Accepted("a whole number of offsets", _between(low, None), _whole(low, LONG_MAX))


def count(low: int) -> Accepted:
    """A number of things, below 2^31."""
    return Accepted("a whole number", _between(low, INT_MAX), _whole(low, INT_MAX))


def count_or_nothing(low: int = 0) -> Accepted:
    """A number of things, or null."""

    def read(value: object) -> Value:
        return None if value is None or value in ("", "null") else _whole(low, INT_MAX)(value)

    return Accepted("a whole number", f"{_between(low, INT_MAX)}, or null", read)


def percentage(high: int) -> Accepted:
    """A percentage, also with fractions."""

    def read(value: object) -> Value:
        _refuse_python_only(value)
        number = float(value)  # type: ignore[arg-type]  # raises if it is not a number
        if isinstance(value, bool) or not 0 <= number <= high:
            raise ValueError(value)
        return number

    return Accepted("a percentage", f"0 to {high}", read)


def truth() -> Accepted:
    """True or false."""

    def read(value: object) -> Value:
        if isinstance(value, bool):
            return value
        return {"true": True, "false": False}[str(value).lower()]

    return Accepted("", "true or false", read)


def one_of(*words: str) -> Accepted:
    """One of these words."""

    def read(value: object) -> Value:
        if value not in words:
            raise ValueError(value)
        return str(value)

    return Accepted("", f"{', '.join(words[:-1])} or {words[-1]}", read)


def tag_keys() -> Accepted:
    """Tag keys, as a list or separated by commas."""

    def read(value: object) -> Value:
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list | tuple):
            raise ValueError(value)
        if not all(isinstance(part, str) for part in value):
            raise ValueError(value)
        parts = [part.strip() for part in cast("Sequence[str]", value)]
        keys = tuple(part for part in parts if part)
        distinct = len(set(keys)) == len(keys) <= TAGS_MAX
        if not distinct or any(len(key) > KEY_CHARS_MAX for key in keys):
            raise ValueError(keys)
        return keys

    bounds = f"at most {TAGS_MAX} distinct tag keys of at most {KEY_CHARS_MAX} characters"
    return Accepted("", f"{bounds}, comma separated", read)


def _between(low: int, high: int | None) -> str:
    if high is not None:
        return f"{low} to {high}"
    return "0 or more" if low == 0 else f"{low} or more"


def _whole(low: int, high: int) -> Callable[[object], Value]:
    def read(value: object) -> Value:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError(value)
        _refuse_python_only(value)
        number = int(value)  # type: ignore[call-overload]  # raises if it is not a number
        if not low <= number <= high:
            raise ValueError(value)
        return int(number)

    return read


def _refuse_python_only(value: object) -> None:
    """Refuse texts that only Python reads as numbers: 1_0, digits of other scripts."""
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError(value)
