"""Members by the thousand, for tests: modules of `bench`, loaded from its folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "bench"))

# bench is a folder of scripts, not a package
from machines import Crew, Crowd
from ownership import Ownership

__all__ = ["Crew", "Crowd", "Ownership"]
