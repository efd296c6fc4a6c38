"""How a Spark worker talks to the state store: it does not wait for replies that only say "done".

PySpark waits for the JVM's reply to each request, five times for a group that changes. `install`
lets the worker go on:

- a key is sent together with the request that follows it;
- a value is sent at once, and the JVM writes it while the worker processes the next group.

The JVM answers in order, so the worker reads these replies before the next one that it needs. The
last call of a task waits for its reply, so a value that could not be written fails the task.

The classes are PySpark's own, so muster asks for one exact version of PySpark, and
`tests/streams/test_state_calls.py` compares what is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

import pyspark.worker
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.streaming.value_state_client import ValueStateClient

_FRAME = Struct(">ii")
"""Before each request: PySpark's version of the format, and the request's length in bytes."""
UNREAD_MAX = 16
"""Replies that a worker leaves unread. The socket holds some hundred; when it is full, both ends
would wait for ever. Groups that are read back ask for no reply at all."""


def install() -> None:
    """Talk to the state store in this way in this process, and in those forked from it."""
    setattr(pyspark.worker, "StatefulProcessorApiClient", Client)  # noqa: B010  mypy
    setattr(stateful_processor, "ValueStateClient", Values)  # noqa: B010  mypy


class Client(StatefulProcessorApiClient):
    """The worker's end of the socket.

    The operator uses values only. Their requests, keys and changes of the handle's state have one
    form of reply, which `_receive_proto_message` reads.
    """

    _unread = 0
    """Replies that are on their way and that nothing has read yet."""
    _goes_on = False
    _sends_later = False

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Within this the reply to a request is left unread."""
        self._goes_on = True
        try:
            yield
        finally:
            self._goes_on = False

    def set_implicit_key(self, key: tuple[bytes]) -> None:
        """Set the key of which the following requests read and write the values."""
        self._sends_later = True
        try:
            with self.going_on():
                super().set_implicit_key(key)
        finally:
            self._sends_later = False

    def _send_proto_message(self, message: bytes) -> None:
        self.sockfile.write(_FRAME.pack(0, len(message)) + message)
        if not self._sends_later:
            self.sockfile.flush()

    def _receive_proto_message(self) -> tuple[int, str, bytes]:
        if self._goes_on and self._unread < UNREAD_MAX:
            self._unread += 1
            return 0, "", b""
        self.sockfile.flush()
        while self._unread:
            self._unread -= 1
            status, message, _ = super()._receive_proto_message()
            if status != 0:
                raise PySparkRuntimeError(f"the state store refused a key or a value: {message}")
        return super()._receive_proto_message()


class Values(ValueStateClient):
    """The requests of one value of the groups."""

    _stateful_processor_api_client: Client

    def update(self, state_name: str, value: tuple[bytes]) -> None:
        """Write the value."""
        with self._stateful_processor_api_client.going_on():
            super().update(state_name, value)

    def clear(self, state_name: str) -> None:
        """Remove the value."""
        with self._stateful_processor_api_client.going_on():
            super().clear(state_name)
