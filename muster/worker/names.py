"""Checks names of members and groups, and makes a name for a member that has none."""

from __future__ import annotations

import secrets

from muster.protocol.errors import ConfigError


def checked(key: str, value: str, fault: str | None) -> str:
    """Return the value.

    Raises:
        ConfigError: there is a `fault`: what is wrong with the value.
    """
    if fault is not None:
        raise ConfigError(key, value, f"1 or more printing characters without '|' ({fault})")
    return value


def random_member_id() -> str:
    """22 random characters. The first is not a dash: command lines would read it as an option."""
    while (name := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return name
