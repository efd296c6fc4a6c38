"""The envelope in which the processor travels: light outside, whole in a worker."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from muster.streams.batch.group_batch import Publisher
from muster.streams.operator_envelope import Operator
from muster.streams.processor import GroupProcessor

ASKED = """
import pickle, sys
operator = pickle.loads(sys.stdin.buffer.read())
class Handle:
    def getValueState(self, name, schema):
        print(name, schema.simpleString())
operator.init(Handle())
operator.close()
print([name for name in sys.modules if name.startswith(("muster.streams.proc", "muster.state"))])
"""


def test_it_is_asked_for_its_values_without_the_processor() -> None:
    """A new process learns both values and loads no code that processes rows."""
    publisher = Publisher(1, {"muster.groups": 1}, 1)
    processor = GroupProcessor({"muster": publisher}, ("muster.membership",))
    asked = subprocess.run(
        [sys.executable, "-c", ASKED],
        input=pickle.dumps(Operator(processor)),
        capture_output=True,
        check=True,
    )
    assert asked.stdout.decode().splitlines() == [
        "liveness struct<value:binary>",
        "snapshot struct<value:binary>",
        "[]",
    ]


class Noting(StatefulProcessor):
    """Notes its calls."""

    def init(self, handle: object) -> None:
        """Note the handle."""
        self.calls = [("init", handle)]

    def handleInitialState(self, *args: object) -> None:
        """Note the group."""
        self.calls.append(("initial", *args))

    def handleInputRows(self, *args: object) -> Iterator[object]:
        """Note the rows, and return one."""
        self.calls.append(("rows", *args))
        return iter([7])

    def close(self) -> None:
        """Note the end."""
        self.calls.append(("close",))


def test_a_worker_opens_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task every call reaches the processor, with its arguments and its result."""
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    operator = pickle.loads(pickle.dumps(Operator(Noting())))
    operator.init("handle")
    operator.handleInitialState(("k",), "row", "timers")
    assert [*operator.handleInputRows(("k",), iter(()), "timers")] == [7]
    operator.close()
    inside = operator._processor
    assert [call[0] for call in inside.calls] == ["init", "initial", "rows", "close"]
    assert inside.calls[1] == ("initial", ("k",), "row", "timers")
