"""Errors can be pickled, for Spark's processes, and say what is wrong."""

from __future__ import annotations

import pickle

import pytest

from muster.protocol.errors import (
    ConfigError,
    DecodeError,
    EncodeError,
    MusterError,
    UnknownDictionary,
    UnknownRecord,
)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("session.timeout.ms", "soon", "a number"),
        DecodeError("cut short", 12),
        UnknownRecord("unknown schema", 2),
        UnknownDictionary(0xABC),
        EncodeError("too large"),
    ],
)
def test_errors_survive_pickling(error: MusterError) -> None:
    """Class, text and attributes are unchanged after pickling."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
