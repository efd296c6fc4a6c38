"""What members and groups may be called, and a name for a member that has none."""

from __future__ import annotations

import secrets

from muster.protocol.errors import ConfigError


def checked(key: str, value: str, fault: str | None) -> str:
    """The value, if nothing is wrong with it.

    Raises:
        ConfigError: `fault` says what is.
    """
    if fault is not None:
        raise ConfigError(key, value, f"1 or more printing characters without '|' ({fault})")
    return value


def random_member_id() -> str:
    """22 characters; the first is never a dash, which command lines would take for an option."""
    while (name := secrets.token_urlsafe(16)).startswith("-"):
        pass
    return name
