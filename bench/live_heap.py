"""How much of a JVM's heap is in use after a full collection."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from muster.broker.java import java


def live_heap_mb(jvm_pid: int) -> float:
    """Megabytes that a full collection leaves in a JVM."""
    jcmd = str(Path(java()).resolve().with_name("jcmd"))
    command = [jcmd, str(jvm_pid), "GC.class_histogram"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    total = re.search(r"^Total\s+\d+\s+(\d+)", shown.stdout, re.MULTILINE)
    return int(total[1]) / 1e6 if total else float("nan")
