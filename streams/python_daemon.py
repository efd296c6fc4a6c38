"""The process from which Spark forks its Python workers, with the operator's code loaded.

Spark ends workers that are idle for a minute. A new one would import everything in the batch that
it is needed for; one that is forked from this process has it. Nothing imported here may start a
thread, because threads do not survive the fork; so pyarrow is left to the workers.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401  # for the workers
from pyspark.daemon import manager

import muster.assignor.registry
import muster.streams.operator_envelope
import muster.streams.processor  # noqa: F401  # for the workers
from muster.streams import state_calls, worker_input, worker_output

if __name__ == "__main__":
    worker_input.install()
    worker_output.install()
    state_calls.install()
    manager()
