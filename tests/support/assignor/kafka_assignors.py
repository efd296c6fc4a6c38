"""Kafka's own assignors for tests: the modules of `bench`, loaded from its folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "bench"))

# bench is a folder of scripts, not a package
import assign
import life
import ours
import problems
import quality
from harness import Kafka

__all__ = ["Kafka", "assign", "life", "ours", "problems", "quality"]
