"""What Spark pickles into the query: an envelope that opens only where rows are processed.

Before a query's first batch Spark starts a Python process of its own and asks the operator which
values it keeps. That process has nothing loaded, and the query waits for it: with the processor's
imports a start of the query takes twice as long. So this module imports nothing of muster, and the
processor travels as bytes that only a worker unpickles, which has the code loaded already
(`python_daemon`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator

from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import (
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import BinaryType, Row, StructField, StructType

_VALUE = StructType([StructField("value", BinaryType())])


def values(handle: StatefulProcessorHandle) -> tuple[ValueState, ValueState]:
    """Declare a group's two values in the state store: its liveness and its snapshot."""
    return handle.getValueState("liveness", _VALUE), handle.getValueState("snapshot", _VALUE)


class Operator(StatefulProcessor):
    """A processor in an envelope.

    Args:
        processor: what is called for the rows; it is pickled at once.
    """

    def __init__(self, processor: StatefulProcessor) -> None:
        self._pickled = pickle.dumps(processor)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the envelope in a worker; elsewhere declare the values and do no more."""
        if TaskContext.get() is None:
            values(handle)
            return
        self._processor: StatefulProcessor = pickle.loads(self._pickled)  # noqa: S301  our own
        self._processor.init(handle)

    def handleInitialState(
        self, key: tuple[bytes], initialState: Row, timerValues: TimerValues
    ) -> None:
        """Pass a group on that is read back."""
        self._processor.handleInitialState(key, initialState, timerValues)

    def handleInputRows(
        self, key: tuple[bytes], rows: Iterator[Row], timerValues: TimerValues
    ) -> Iterator[Row]:
        """Pass the rows of a lane on."""
        return self._processor.handleInputRows(key, rows, timerValues)

    def close(self) -> None:
        """Pass the end of the batch on."""
        if TaskContext.get() is not None:
            self._processor.close()
