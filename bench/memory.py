"""A million tasks in one process: the time of a join, and the process's peak memory.

python bench/memory.py [ASSIGNOR ...]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

import numpy as np

from muster.assignor.model import group_view
from muster.assignor.registry import get
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology, TaskTable

TASKS, UNITS, MEMBERS, CALLS = 1_000_000, 100, 10_000, 3


def main(names: list[str]) -> None:
    """Run one process per assignor, because the peak memory of a process never falls."""
    if len(names) == 1:
        print(_join(names[0]))
        return
    print("| assignor | one join, ms | whole process, MB | of it inputs and Python, MB |")
    print("|---|--:|--:|--:|", flush=True)
    for name in names or ("sticky", "high-availability"):
        subprocess.run([sys.executable, __file__, name], check=True)


def _join(name: str) -> str:
    """9,999 members share the tasks evenly, an empty one joins; stateful for high-availability."""
    tasks = TaskTable(
        Subtopology(str(n), TASKS // UNITS, stateful=name == "high-availability")
        for n in range(UNITS)
    )
    owner = (np.arange(TASKS) % (MEMBERS - 1)).astype(np.int32)
    members = tuple(f"m{n:06d}" for n in range(MEMBERS))
    settings = parse_settings({}, name)
    before = _peak_mb()
    taken = []
    for _ in range(CALLS):
        start = time.process_time_ns()
        get(name).assign(group_view(tasks=tasks, settings=settings, members=members, active=owner))
        taken.append((time.process_time_ns() - start) / 1e6)
    return f"| {name} | {min(taken):.1f} | {_peak_mb():.0f} | {before:.0f} |"


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(sys.argv[1:])
