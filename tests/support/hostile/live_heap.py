"""The live heap of a JVM, for tests: a module of `bench`, loaded from its folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "bench"))

# bench is a folder of scripts, not a package
from live_heap import live_heap_mb

__all__ = ["live_heap_mb"]
