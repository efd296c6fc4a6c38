"""A job that is told to stop ends within seconds, also while it waits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster.streams import stopping

PATIENCE_S = 50
"""Less than the minute after which a job gives up on a broker that does not answer."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_starts_while_no_broker_answers_ends_when_it_is_told_to(
    number: signal.Signals, tmp_path: Path
) -> None:
    """A job that waits for a silent broker ends on a signal: exit code 0, no output."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        silent.settimeout(PATIENCE_S)
        command = [sys.executable, "-m", "muster.streams.job"]
        job = subprocess.Popen(
            [*command, "--bootstrap-server", address, "--checkpoint", str(tmp_path / "c")],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        try:
            connection, _ = silent.accept()  # the job has connected
            with connection:
                job.send_signal(number)
                _, said = job.communicate(timeout=PATIENCE_S)
        finally:
            job.kill()
    assert (job.returncode, said.decode()) == (0, "")


def test_a_main_thread_that_hangs_is_ended() -> None:
    """If the block ignores the stop event, the process ends with the exit code of a stop."""
    ended: list[int] = []
    is_over = threading.Event()

    def end(code: int) -> None:
        ended.append(code)
        is_over.set()

    with stopping.signals(end=end) as stop:
        stop.grace_s = 0.0
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_over.wait(PATIENCE_S)
    assert ended == [stopping.STOPPED]
    assert stop.is_set()


def test_a_block_that_ends_leaves_the_signals_as_they_were() -> None:
    """Other signals are no stop; afterwards the old handlers and wake-up pipe are back."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stopping.signals(end=lambda _: pytest.fail("no stop was asked for")) as stop:
        stop.grace_s = 0.0
        old = signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, old)
        assert not stop.is_set()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert signal.set_wakeup_fd(-1) == -1
