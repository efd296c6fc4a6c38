"""The tests' JVMs start with half of the CPU time that Java's defaults take.

Each lives for seconds or minutes, so code made by the second compiler never pays, and a service
test spends most of its time on starts. From start to a settled group the driver's JVM takes 33 CPU
seconds with Java's defaults and 18 with `SMALL`.

Set ``SPARK_SUBMIT_OPTS`` to have other options for the driver's JVM.
"""

from __future__ import annotations

import os

SMALL = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""With one compiler Java reserves 48 MB for compiled code. A coordinator fills them in two minutes,
and from then on Java only interprets what it has not compiled."""

os.environ.setdefault("SPARK_SUBMIT_OPTS", SMALL)
