"""How a Spark worker talks to the state store: in few messages, and with few waits.

PySpark waits for the JVM's reply to each request, five times for a group that changes. `install`
lets the worker go on:

- a key is sent only with a request about its group, and together with it;
- the first question about a group is asked together with those about the next groups (`Ahead`);
- what a group writes is sent at once, and the JVM writes it while the worker processes the next
  group.

The JVM answers in order, so the worker reads the replies to writes before the next one that it
needs. The last call of a task waits for its reply, so a value that could not be written fails the
task.

When the state store fails, the JVM answers the request with the reason, answers no other request,
and closes the socket. So the first refusal that is read raises, also one of a group whose turn is
later: the task fails, and Spark begins again with all of its groups. If a request cannot be sent
any more, the reason is still among the replies that nothing has read yet.

The classes are PySpark's own, so muster asks for one exact version of PySpark, and
`tests/streams/test_state_calls.py` compares what is read and written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, NoReturn, TypeAlias

import pyspark.worker
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.streaming.value_state_client import ValueStateClient
from pyspark.sql.types import StructType

_FRAME = Struct(">ii")
"""Before each request: PySpark's version of the format, and the request's length in bytes."""
UNREAD_MAX = 16
"""Replies that a worker leaves unread. The socket holds some hundred; when it is full, both ends
would wait for ever. Groups that are read back ask for no reply at all."""
AHEAD_MAX = 32
"""Groups of which the first question is asked together."""
_DONE, _MISSING = 0, 2
"""Statuses of a reply; only the question whether there is a value is answered with the second."""


@dataclass
class Ahead:
    """What the task of this process will ask; a worker process has one task at a time.

    Attributes:
        lanes: which it works on next, in order; `worker_input` writes them here.
        first: lane → the first question about its group; None = nothing is asked. A reply should be
            small, because those about `AHEAD_MAX` groups are in memory at once.
    """

    lanes: deque[bytes] = field(default_factory=deque)
    first: Callable[[bytes], Question | None] = lambda lane: None


ahead = Ahead()
Reply: TypeAlias = tuple[int, str, bytes]
"""Status, error message, value."""


class Question(NamedTuple):
    """A question about one of a group's two values.

    Attributes:
        name: of the value.
        whole: what the value is; False = whether there is one.
    """

    name: str
    whole: bool = True

    def request(self) -> bytes:
        """The message that asks it."""
        call = messages.ValueStateCall(stateName=self.name)
        if self.whole:
            call.get.SetInParent()
        else:
            call.exists.SetInParent()
        return _of_variable(call)

    def checked(self, reply: Reply) -> Reply:
        """The reply to this question.

        Raises:
            PySparkRuntimeError: it is a refusal.
        """
        status, message, _ = reply
        if status == _DONE or (status == _MISSING and not self.whole):
            return reply
        what = "read a value" if self.whole else "look a value up"
        raise PySparkRuntimeError(f"the state store cannot {what}: {message}")


def install() -> None:
    """Talk to the state store in this way in this process, and in those forked from it."""
    setattr(pyspark.worker, "StatefulProcessorApiClient", Client)  # noqa: B010  mypy
    setattr(stateful_processor, "ValueStateClient", Values)  # noqa: B010  mypy


class Client(StatefulProcessorApiClient):
    """The worker's end of the socket.

    The operator uses values only. Their requests, keys and changes of the handle's state have one
    form of reply, which `_receive_proto_message` reads.
    """

    _key: tuple[bytes] = (b"",)
    """Of the group whose turn it is; the JVM has it when `_has_sent_key`."""
    _has_sent_key = True
    _unread = 0
    """Replies to writes and keys that are on their way and that nothing has read yet."""
    _goes_on = False

    def __init__(
        self, state_server_port: int | str, key_schema: StructType, is_driver: bool = False
    ) -> None:
        super().__init__(state_server_port, key_schema, is_driver)
        self._replies: dict[bytes, tuple[Question, Reply]] = {}
        """Lane → its first question and the reply, read ahead."""

    def set_implicit_key(self, key: tuple[bytes]) -> None:
        """Begin with a group: what follows reads and writes its values."""
        self._flush()  # what the group before has written
        self._key, self._has_sent_key = key, False

    def ask(self, question: Question) -> Reply:
        """The reply to a question about the group.

        Raises:
            PySparkRuntimeError: the state store refuses this request, or one on its way.
        """
        lane = self._key[0]
        if lane in ahead.lanes:
            self._ask_ahead(lane)
        asked, reply = self._replies.pop(lane, (None, None))
        if asked == question and reply is not None:
            return reply
        self._send_key()
        self._send_proto_message(question.request())
        return question.checked(self._receive_proto_message())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within this a request is sent with the next one, and its reply is left unread."""
        self._replies.pop(self._key[0], None)  # it would be out of date
        self._send_key()
        self._goes_on = True
        try:
            yield
        finally:
            self._goes_on = False

    def _ask_ahead(self, lane: bytes) -> None:
        """Ask about this group and those after it, then read all replies.

        Nothing else is sent meanwhile, so the replies need not fit into the socket.
        """
        while ahead.lanes[0] != lane:
            ahead.lanes.popleft()
        self._replies = {}
        asked: list[tuple[bytes, Question]] = []
        while ahead.lanes and len(asked) < AHEAD_MAX:
            each = ahead.lanes.popleft()
            question = ahead.first(each)
            if question is not None:
                self._write(self._key_request((each,)))
                self._write(question.request())
                asked.append((each, question))
                self._has_sent_key = False
        self._flush()
        self._read_unread()
        for each, question in asked:
            _check(super()._receive_proto_message())
            self._replies[each] = question, question.checked(super()._receive_proto_message())

    def _send_key(self) -> None:
        if not self._has_sent_key:
            self._write(self._key_request(self._key))
            self._unread += 1
            self._has_sent_key = True

    def _key_request(self, key: tuple[bytes]) -> bytes:
        key_bytes = self._serialize_to_bytes(self.key_schema, key)
        call = messages.ImplicitGroupingKeyRequest(
            setImplicitKey=messages.SetImplicitKey(key=key_bytes)
        )
        return bytes(messages.StateRequest(implicitGroupingKeyRequest=call).SerializeToString())

    def _write(self, message: bytes) -> None:
        try:
            self.sockfile.write(_FRAME.pack(0, len(message)) + message)
        except OSError as error:
            self._raise_refusal(error)

    def _flush(self) -> None:
        try:
            self.sockfile.flush()
        except OSError as error:
            self._raise_refusal(error)

    def _raise_refusal(self, error: OSError) -> NoReturn:
        """Raise why the JVM has closed the socket, by its last reply; without one, the `error`."""
        with suppress(OSError, EOFError):
            while True:
                reply = super()._receive_proto_message()
                if reply[0] != _MISSING:
                    _check(reply)
        raise error

    def _send_proto_message(self, message: bytes) -> None:
        self._write(message)
        if not self._goes_on:
            self._flush()

    def _receive_proto_message(self) -> Reply:
        if self._goes_on and self._unread < UNREAD_MAX:
            self._unread += 1
            return 0, "", b""
        self._flush()
        self._read_unread()
        return super()._receive_proto_message()

    def _read_unread(self) -> None:
        while self._unread:
            self._unread -= 1
            _check(super()._receive_proto_message())


class Values(ValueStateClient):
    """The requests of one value of the groups."""

    _stateful_processor_api_client: Client

    def exists(self, state_name: str) -> bool:
        """Whether there is a value."""
        return self._stateful_processor_api_client.ask(Question(state_name, False))[0] == _DONE

    def get(self, state_name: str) -> tuple[bytes] | None:
        """Read the value; None = there is none."""
        client = self._stateful_processor_api_client
        value = client.ask(Question(state_name))[2]
        return tuple(client._deserialize_from_bytes(value)) if value else None

    def update(self, state_name: str, value: tuple[bytes]) -> None:
        """Write the value."""
        with self._stateful_processor_api_client.writing():
            super().update(state_name, value)

    def clear(self, state_name: str) -> None:
        """Remove the value."""
        with self._stateful_processor_api_client.writing():
            super().clear(state_name)


def _of_variable(call: messages.ValueStateCall) -> bytes:
    request = messages.StateVariableRequest(valueStateCall=call)
    return bytes(messages.StateRequest(stateVariableRequest=request).SerializeToString())


def _check(reply: Reply) -> None:
    status, message, _ = reply
    if status != _DONE:
        raise PySparkRuntimeError(f"the state store refused a key or a value: {message}")
