"""Base classes of muster's errors, and the errors of the protocol.

Every error says what is wrong, where, and what would be right; `retriable` says whether another
attempt may succeed. Errors can be pickled, because Spark sends them between processes.
"""

from __future__ import annotations

from typing import ClassVar

_LONGEST = 120
"""A message quotes at most this many characters of a user's input."""


class MusterError(Exception):
    """Root of every error muster raises on purpose.

    Operator action: read the message; it names the place.
    """

    retriable: ClassVar[bool] = False


class ConfigError(MusterError):
    """A setting has a value that is not accepted.

    Operator action: change the named key to a value that the message accepts.

    Attributes:
        key: the setting, as the user wrote it.
        value: the user's value; None = there is none.
        accepted: the accepted values, in words.
    """

    def __init__(self, key: str, value: object, accepted: str) -> None:
        super().__init__(key, value, accepted)
        self.key = key
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.key[:_LONGEST]}: no value; expected {self.accepted}"
        value = repr(self.value)
        shown = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."
        return f"{self.key[:_LONGEST]}: {shown} is not accepted; expected {self.accepted}"


class UnknownSetting(ConfigError):
    """A key is not a setting; `accepted` says in words what to use instead.

    Operator action: write the key that the message names; `muster config describe` lists all.
    """

    def __str__(self) -> str:
        return f"no setting {self.key[:_LONGEST]!r}: {self.accepted}"


class ProtocolError(MusterError):
    """Bytes or values that break the protocol."""


class DecodeError(ProtocolError):
    """The bytes are not a valid event or record.

    Operator action: find who writes to the topic; the dead letter names topic, partition, offset.

    Attributes:
        reason: what is wrong with the bytes.
        offset: byte offset of the fault within the value, or within the field that the reason
            begins with.
    """

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason, offset)
        self.reason = reason
        self.offset = offset

    def within(self, field: str) -> DecodeError:
        """The same error for a field whose bytes were read on their own."""
        return DecodeError(f"{field}: {self.reason}", self.offset)

    def __str__(self) -> str:
        return f"{self.reason} (at byte {self.offset})" if self.offset else self.reason


class UnknownRecord(DecodeError):
    """A value with a valid frame and a schema that this version does not know."""


class UnknownDictionary(DecodeError):
    """An assignment refers to a dictionary that was not given.

    Operator action: none; the reader finds the dictionary on `muster.groups` under the key
    ``group||names`` and reads the assignment again.
    """

    retriable: ClassVar[bool] = True

    def __init__(self, version: int) -> None:
        super().__init__(f"unknown dictionary {version:016x}")
        self.version = version

    def __reduce__(self) -> tuple[type[UnknownDictionary], tuple[int]]:
        return (UnknownDictionary, (self.version,))


class EncodeError(ProtocolError):
    """A value cannot be written, or exceeds a topic's message limit."""
