"""Checks the arguments of `Worker`, so that each mistake is named when the worker is made.

The coordinator refuses a join with a value that events cannot have, and such a worker would ask
again without end. A callback that cannot be called would fail only when a task comes or goes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from operator import index
from typing import Final

from muster.protocol.client_tags import checked_tags
from muster.protocol.errors import ConfigError, DecodeError
from muster.protocol.framing import INT_MAX
from muster.protocol.ids import NAME_CHARS_MAX, Task, check_names
from muster.protocol.tasks import TaskSet

ONE_NAME: Final = "a list of names; one name is a list, too: [{!r}]"


def id_of(key: str, value: str, fault_of: Callable[[str], str | None]) -> str:
    """A group's or member's id; `fault_of` says what is wrong with it.

    Raises:
        ConfigError: something is.
    """
    fault = fault_of(text(key, value))
    if fault is not None:
        raise ConfigError(key, value, f"1 or more printing characters without '|' ({fault})")
    return value


def text(key: str, value: object) -> str:
    """A value that must be a text.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, str):
        raise ConfigError(key, value, "a text (str)")
    return value


def addresses(value: str | None) -> str | None:
    """Kafka's addresses, in one text, or None.

    Raises:
        ConfigError: it is no text.
    """
    return None if value is None else text("bootstrap_servers", value)


def name(key: str, value: str | None) -> str | None:
    """A name that events carry, or None.

    Raises:
        ConfigError: it is no text, too long, or does not print.
    """
    if value is not None:
        _check(key, value, (text(key, value),))
    return value


def names(key: str, value: object) -> tuple[str, ...] | None:
    """Names that events carry, in the order given, or None.

    Raises:
        ConfigError: it is one text, which would count letter by letter, or a name is not accepted.
    """
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(key, value, ONE_NAME.format(value))
    listed = tuple(text(key, item) for item in value)
    _check(key, listed, listed)
    return listed


def sorted_names(key: str, value: object) -> tuple[str, ...] | None:
    """`names`, sorted."""
    listed = names(key, value)
    return None if listed is None else tuple(sorted(listed))


def tags(value: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Tags, sorted by key.

    Raises:
        ConfigError: a key or value is no text, too long, or does not print; or there are too many.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise ConfigError("tags", value, "a mapping of texts, such as {'zone': 'a'}")
    words = tuple(text("tags", word) for tag in value.items() for word in tag)
    _check("tags", dict(value), words)
    return checked_tags(value)


def whole_number(key: str, value: int, least: int) -> int:
    """A whole number that events can have.

    Raises:
        ConfigError: it is below `least`, above 2**31 - 1, or no whole number.
    """
    try:
        whole = index(value)
    except TypeError:
        whole = least - 1
    if not least <= whole <= INT_MAX:
        raise ConfigError(key, value, f"a whole number from {least} to {INT_MAX}")
    return whole


def limit(key: str, value: int | None) -> int | None:
    """A time in ms, 0 or more, or None.

    Raises:
        ConfigError: it is above 2**31 - 1, or no whole number.
    """
    return None if value is None else whole_number(key, value, 0)


def task_set(key: str, value: Iterable[Task | str]) -> TaskSet:
    """Tasks, or their ids.

    Raises:
        ConfigError: it is one id, which would count letter by letter, or an item is no task.
    """
    accepted = "tasks or their ids, such as ['orders_3']"
    if isinstance(value, (str, Task)) or not isinstance(value, Iterable):
        raise ConfigError(key, value, accepted)
    listed = tuple(value)
    if not all(isinstance(item, Task) or (isinstance(item, str) and item) for item in listed):
        raise ConfigError(key, listed, accepted)
    return TaskSet.of(listed)


def check_callable(key: str, value: object, *parameters: str, plain: bool = False) -> None:
    """Refuse what cannot be called with these parameters; None is accepted.

    `plain` also refuses coroutine functions, for calls that nothing would await.

    Raises:
        ConfigError: it cannot be called so.
    """
    if value is None:
        return
    accepted = f"a function of ({', '.join(parameters)})"
    if not callable(value):
        raise ConfigError(key, value, accepted)
    if plain and is_coroutine_function(value):
        raise ConfigError(key, value, f"{accepted} that is not `async`")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some functions of C do not say what they take
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        raise ConfigError(key, value, f"{accepted}, not of {signature}") from None


def check_hooks(on_lease: object, lag_from_changelog: object) -> None:
    """Refuse functions that the worker's own threads cannot call.

    Raises:
        ConfigError: names one, and what would be right.
    """
    check_callable("on_lease", on_lease, "until_ms", "stop_ms", plain=True)
    check_callable("lag_from_changelog", lag_from_changelog, "task", plain=True)


def is_coroutine_function(value: object) -> bool:
    """Whether it is a coroutine function, or an object that is called as one."""
    return inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(
        getattr(value, "__call__", None)  # noqa: B004 — not whether it can be called, but how
    )


def _check(key: str, value: object, words: Iterable[str]) -> None:
    try:
        check_names("a name", words)
    except DecodeError:
        raise ConfigError(key, value, f"at most {NAME_CHARS_MAX} printing characters") from None
