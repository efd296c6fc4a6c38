"""The check for processes left at the end of a session finds one."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
from support.suite.leftovers import MARK, ended, marked

LEAVE_ONE_BEHIND = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
left.stdout.readline()
print(left.pid, flush=True)
"""


def test_what_was_left_behind_is_named_and_ended() -> None:
    """A process in a session of its own whose parent has ended still has the mark."""
    env = {**os.environ, MARK: "a session of its own"}
    command = [sys.executable, "-c", LEAVE_ONE_BEHIND]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    pid = int(done.stdout)
    assert [process.pid for process in marked(env[MARK])] == [pid]
    assert [line.partition(":")[0] for line in ended(env[MARK], grace_s=0)] == [str(pid)]
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)
    assert marked(env[MARK]) == []
