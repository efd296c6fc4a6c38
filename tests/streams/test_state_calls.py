"""Requests to the state store: they read and write what PySpark's do, and no reply gets lost."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyspark.worker
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming import stateful_processor
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.streaming.stateful_processor_util import (
    TransformWithStateInPandasFuncMode as Mode,
)
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasUdfUtils
from pyspark.sql.streaming.value_state_client import ValueStateClient
from pyspark.sql.types import BinaryType, StructField, StructType
from support.streams.operator import INPUT, LANE, Operator, config, join, nothing_in_memory
from support.streams.packed_rows import pack

from muster.protocol.codec import encode
from muster.streams import state_calls
from muster.streams.operator_envelope import values

__all__ = ["nothing_in_memory"]

FIRST = state_calls.Question("snapshot", whole=False)
NO_ROOM = messages.StateResponse(statusCode=1, errorMessage="no room")
KEY = StructType([StructField("lane", BinaryType())])


class Store(threading.Thread):
    """The JVM's end of the socket: keeps values by key and name, and answers in order.

    After a refusal it answers nothing more and closes the socket, as Spark's does.

    Attributes:
        requests: what it was asked, in order; bytes.
        written: keys, names and values that it was given, in order; no value = it was removed.
        refuses: a value that it does not write.
        refuses_key: a key that it does not take.
        refuses_about: a key about whose values it answers no question.
        may_answer: while it is not set, the store reads requests and answers none.
    """

    def __init__(self, end: socket.socket) -> None:
        super().__init__(daemon=True)
        self._end = end
        self._file = end.makefile("rwb")
        self.requests: list[bytes] = []
        self.refuses = self.refuses_key = self.refuses_about = b""
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._key = b""
        self.written: list[tuple[bytes, str, bytes]] = []
        self.kept: dict[tuple[bytes, str], bytes] = {}

    def run(self) -> None:
        """Answer until the other end is closed, which may be before it reads the last reply."""
        with suppress(OSError):
            while head := self._file.read(8):
                request = self._file.read(int.from_bytes(head[4:], "big"))
                self.requests.append(request)
                message = messages.StateRequest()
                message.ParseFromString(request)
                answer = self._reply(message)
                reply = answer.SerializeToString()
                self.may_answer.wait()
                self._file.write(len(reply).to_bytes(4, "big") + reply)
                self._file.flush()
                if answer.statusCode == 1:
                    self._end.close()
                    break
        with suppress(OSError):  # what it could not send is still in the file
            self._file.close()

    def _reply(self, message: Any) -> Any:  # Protobuf's classes have no types
        if message.HasField("implicitGroupingKeyRequest"):
            self._key = message.implicitGroupingKeyRequest.setImplicitKey.key
            if self.refuses_key and self.refuses_key in self._key:
                return NO_ROOM
        if message.HasField("stateVariableRequest"):
            call = message.stateVariableRequest.valueStateCall
            place = (self._key, call.stateName)
            if self.refuses_about and self.refuses_about in self._key:
                return NO_ROOM
            if call.HasField("get"):
                return messages.StateResponse(value=self.kept.get(place, b""))
            if call.HasField("exists"):
                return messages.StateResponse(statusCode=0 if place in self.kept else 2)
            value = call.valueStateUpdate.value
            if self.refuses and self.refuses in value:
                return NO_ROOM
            self.written.append((*place, value))
            if call.HasField("clear"):
                self.kept.pop(place, None)
            else:
                self.kept[place] = value
        return messages.StateResponse()


@contextmanager
def connected(kind: type[StatefulProcessorApiClient]) -> Iterator[tuple[Any, Store]]:
    """A client of PySpark's class or of muster's, and the store that answers it."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
    store = Store(theirs)
    store.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda *_: None)
        client = kind("nowhere", KEY)
    client._client_socket.close()
    client.sockfile.close()
    client.sockfile = ours.makefile("rwb")
    try:
        yield client, store
    finally:
        ours.shutdown(socket.SHUT_RDWR)  # also when the test has failed and nothing reads
        with suppress(OSError):
            client.sockfile.close()
        ours.close()
        store.join(30)
        theirs.close()


def a_task(client: Any) -> list[object]:
    """What a task asks for: three groups, one of them twice; returns what it read."""
    liveness, snapshot = values(StatefulProcessorHandle(client))
    read: list[object] = []
    for lane in (b"muster\0a", b"muster\0b", b"muster\0a", b"muster\0c"):
        client.set_implicit_key((lane,))
        read.append((liveness.get(), snapshot.get()))
        liveness.update((lane + b" lives",))
        snapshot.update((b"snapshot of " + lane,))
        if lane.endswith(b"b"):
            snapshot.clear()
            read.append((liveness.get(), snapshot.get()))
        read.append((liveness.exists(), snapshot.exists()))
    client.set_implicit_key((b"muster\0d",))  # a lane of which nothing is read
    client.remove_implicit_key()
    return read


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Muster's classes stand where a worker takes its own from, as `install` puts them."""
    monkeypatch.setattr(pyspark.worker, "StatefulProcessorApiClient", StatefulProcessorApiClient)
    monkeypatch.setattr(stateful_processor, "ValueStateClient", ValueStateClient)
    monkeypatch.setattr(state_calls, "ahead", state_calls.Ahead())
    state_calls.install()


def test_what_is_read_and_written_is_the_same(installed: None) -> None:
    """Each value read and written equals those of PySpark's own classes, with fewer requests."""
    with connected(pyspark.worker.StatefulProcessorApiClient) as (client, ours):
        assert isinstance(client, state_calls.Client)
        read = a_task(client)
    stateful_processor.ValueStateClient = ValueStateClient
    with connected(StatefulProcessorApiClient) as (client, theirs):
        assert read == a_task(client)
    assert (ours.written, ours.kept) == (theirs.written, theirs.kept)
    assert set(ours.requests) < set(theirs.requests)  # the key of which nothing is read
    assert (b"muster\0a lives",) in [lives for lives, _ in read]  # type: ignore[misc]


def lanes_of(count: int) -> list[bytes]:
    """So many lanes that come next."""
    lanes = [b"muster\0%d" % number for number in range(count)]
    state_calls.ahead.lanes = deque(lanes)
    return lanes


def test_the_first_question_is_asked_for_many_groups_at_once(installed: None) -> None:
    """The store gets no request between two groups; each group still gets its own reply."""
    lanes = lanes_of(state_calls.AHEAD_MAX + 5)
    state_calls.ahead.first = lambda lane: None if lane == lanes[1] else FIRST
    with connected(state_calls.Client) as (client, store):
        _, snapshot = values(StatefulProcessorHandle(client))
        for lane in lanes[::3]:
            store.kept[client._serialize_to_bytes(KEY, (lane,)), "snapshot"] = b"kept"
        asked = []
        for lane in lanes:
            client.set_implicit_key((lane,))
            before = len(store.requests)
            assert snapshot.exists() == (lane in lanes[::3])
            asked.append(len(store.requests) - before)
        client.remove_implicit_key()
    # The group without a first question asks by itself; the others ask in two runs.
    assert [count for count in asked if count] == [2 * state_calls.AHEAD_MAX, 2, 2 * 4]
    assert asked[1] == 2


def test_what_is_read_after_a_write_is_what_was_written(installed: None) -> None:
    """A reply that was read ahead does not outlive a write of its group, nor another question."""
    lanes = lanes_of(3)
    state_calls.ahead.first = lambda lane: FIRST
    with connected(state_calls.Client) as (client, store):
        liveness, snapshot = values(StatefulProcessorHandle(client))
        for lane in lanes:
            client.set_implicit_key((lane,))
            assert liveness.get() is None  # not the question that was asked ahead
            snapshot.update((lane,))
            assert snapshot.exists()
            assert snapshot.get() == (lane,)
        client.remove_implicit_key()
    assert [key.count(lane) for lane, (key, _, _) in zip(lanes, store.written, strict=True)] == [
        1
    ] * 3


def test_large_values_beside_questions_asked_ahead(installed: None) -> None:
    """Values that fill the socket in both directions stop neither end."""
    large = b"x" * (4 << 20)
    lanes = lanes_of(2 * state_calls.AHEAD_MAX)
    state_calls.ahead.first = lambda lane: state_calls.Question("liveness")
    read: list[object] = []

    def work(client: Any) -> None:
        liveness, snapshot = values(StatefulProcessorHandle(client))
        for lane in lanes:
            client.set_implicit_key((lane,))
            read.append(liveness.get())
            liveness.update((large,))
            snapshot.update((lane,))
        client.remove_implicit_key()

    with connected(state_calls.Client) as (client, store):
        value = client._serialize_to_bytes(KEY, (large[: 1 << 18],))
        for lane in lanes:
            store.kept[client._serialize_to_bytes(KEY, (lane,)), "liveness"] = value
        worker = threading.Thread(target=work, args=(client,), daemon=True)
        worker.start()
        worker.join(60)
        assert not worker.is_alive(), "the worker and the store wait for each other"
    assert read == [(large[: 1 << 18],)] * len(lanes)
    assert len(store.written) == 2 * len(lanes)


def test_a_value_is_written_without_a_wait(installed: None) -> None:
    """The worker goes on while the store is busy, and waits when it reads a value."""
    with connected(state_calls.Client) as (client, store):
        liveness, _ = values(StatefulProcessorHandle(client))
        store.may_answer.clear()
        client.set_implicit_key((b"muster\0a",))
        liveness.update((b"new",))
        liveness.clear()
        liveness.update((b"newer",))  # PySpark's own would still wait for the first reply
        store.may_answer.set()
        assert liveness.get() == (b"newer",)


def test_values_without_end_are_written(installed: None) -> None:
    """Groups that are read back are written one after another, and the socket does not fill up."""

    def write(client: Any) -> None:
        liveness, _ = values(StatefulProcessorHandle(client))
        for number in range(5_000):
            client.set_implicit_key((b"muster\0%d" % number,))
            liveness.update((b"kept",))
        client.remove_implicit_key()

    with connected(state_calls.Client) as (client, store):
        writer = threading.Thread(target=write, args=(client,), daemon=True)
        writer.start()
        writer.join(30)
        assert not writer.is_alive(), "the worker and the store wait for each other"
    assert len(store.requests) == 2 + 2 * 5_000 + 1


@pytest.mark.parametrize("last", ["get", "remove_implicit_key"])
def test_a_refused_value_fails_the_task(last: str, installed: None) -> None:
    """The error comes with the next reply that is read, at the latest with the last one."""
    with connected(state_calls.Client) as (client, store):
        liveness, snapshot = values(StatefulProcessorHandle(client))
        store.refuses = b"bad"
        client.set_implicit_key((b"muster\0a",))
        liveness.update((b"bad",))
        with pytest.raises(PySparkRuntimeError, match="no room"):
            getattr(snapshot if last == "get" else client, last)()


def failure(task: Callable[[], object]) -> BaseException | None:
    """What a task raises; it must not wait for ever."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            task()
        except BaseException as error:
            raised.append(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(30)
    assert not worker.is_alive(), "the worker waits for a reply that does not come"
    return raised[0] if raised else None


def is_refusal(error: BaseException | None) -> bool:
    """Whether an error is one that gives the store's reason."""
    return isinstance(error, PySparkRuntimeError) and "no room" in str(error)


@pytest.mark.parametrize("refusal", ["refuses_key", "refuses_about"])
@pytest.mark.parametrize("first", [FIRST, state_calls.Question("snapshot")])
@pytest.mark.parametrize("number", [2, state_calls.AHEAD_MAX + 2])
def test_a_refusal_of_a_question_asked_ahead_fails_the_task(
    number: int, first: state_calls.Question, refusal: str, installed: None
) -> None:
    """The error comes as soon as it is read; all groups before got the replies about themselves."""
    lanes = lanes_of(state_calls.AHEAD_MAX + 5)
    state_calls.ahead.first = lambda lane: first
    read: list[object] = []
    with connected(state_calls.Client) as (client, store):
        setattr(store, refusal, lanes[number])
        _, snapshot = values(StatefulProcessorHandle(client))
        kept = dict.fromkeys(lanes[::3], True)
        for lane in kept:
            value = client._serialize_to_bytes(KEY, (lane,))
            store.kept[value, "snapshot"] = value

        def task() -> None:
            for lane in lanes:
                client.set_implicit_key((lane,))
                read.append(snapshot.get() if first.whole else snapshot.exists())

        assert is_refusal(failure(task))
    before = lanes[: number - number % state_calls.AHEAD_MAX]
    assert before == ([] if number < state_calls.AHEAD_MAX else lanes[: state_calls.AHEAD_MAX])
    expected = [
        ((lane,) if lane in kept else None) if first.whole else lane in kept for lane in before
    ]
    assert read == expected


@pytest.mark.parametrize("next_call", ["get", "update", "ask ahead", "end"])
def test_a_refused_value_is_told_when_nothing_can_be_sent_any_more(
    next_call: str, installed: None
) -> None:
    """The store has closed the socket before the worker sends its next request."""
    with connected(state_calls.Client) as (client, store):
        liveness, snapshot = values(StatefulProcessorHandle(client))
        store.refuses = b"bad"
        client.set_implicit_key((b"muster\0a",))
        liveness.update((b"bad",))
        client.set_implicit_key((b"muster\0b",))
        store.join(30)
        assert not store.is_alive()
        if next_call == "ask ahead":
            state_calls.ahead.lanes = deque([b"muster\0b", b"muster\0c"])
            state_calls.ahead.first = lambda lane: FIRST

        def task() -> None:
            if next_call == "get":
                liveness.get()
            if next_call == "ask ahead":
                snapshot.exists()
            liveness.update((b"good",))
            client.remove_implicit_key()

        assert is_refusal(failure(task))
    assert store.written == []


@pytest.mark.parametrize("refusal", ["refuses_about", "refuses"])
def test_a_refusal_reaches_spark_through_the_operator(
    refusal: str, installed: None, nothing_in_memory: None
) -> None:
    """PySpark's calls of the operator raise it, by the end of the task at the latest."""
    operator = Operator()
    udf = TransformWithStateInPandasUdfUtils(operator.processor, "None").transformWithStateUDF
    places = [operator.at(event, 1_000) for event in (config(), join())]
    entries = [pack(place.origin, encode(place).value, INPUT) for place in places]
    state_calls.ahead.lanes = deque([LANE])
    with connected(state_calls.Client) as (client, store):
        setattr(store, refusal, b"g" if refusal == "refuses" else LANE)

        def task() -> None:
            rows = iter([(LANE, entry) for entry in entries])
            list(udf(client, Mode.PROCESS_DATA, (LANE,), rows))
            list(udf(client, Mode.PROCESS_TIMER, None, iter([])))
            list(udf(client, Mode.COMPLETE, None, iter([])))

        assert is_refusal(failure(task))
