"""The first stop signal asks a command to end; the second ends it at once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster.stop_signals import STOP_SIGNALS, stop_signals

PATIENCE_S = 50


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_asks_the_command_to_stop(number: signal.Signals) -> None:
    """`wait` returns True after a signal, and the old handlers are back after the block."""
    before = [signal.getsignal(each) for each in STOP_SIGNALS]
    with stop_signals() as stop:
        assert not stop.wait(0)
        os.kill(os.getpid(), number)
        assert stop.wait(PATIENCE_S)
        assert stop.wait(0)
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_a_signal_that_does_not_interrupt_the_main_thread_ends_its_wait() -> None:
    """A signal in another thread, or just before the wait: Python's handler runs only after it."""
    sender = threading.Timer(
        0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    )
    with stop_signals() as stop:
        sender.start()
        assert stop.wait(PATIENCE_S)
    sender.join()


def test_a_signal_does_not_end_a_wait_for_a_thread() -> None:
    """A signal during `Thread.join` neither ends the wait nor makes the thread look ended."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait, args=(PATIENCE_S,))
    with stop_signals() as stop:
        thread.start()
        ender = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        ender.start()
        while not stop.wait(0):
            thread.join(0.2)
        assert thread.is_alive()
        is_over.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_second_signal_ends_the_command() -> None:
    """A command that does not end at the first signal is ended by the second."""
    code = (
        "import time\n"
        "from muster.stop_signals import stop_signals\n"
        "with stop_signals() as stop:\n"
        "    print('waits', flush=True)\n"
        "    stop.wait()\n"
        "    print('ignores it', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        try:
            assert command.stdout.readline() == "waits\n"
            command.send_signal(signal.SIGTERM)
            assert command.stdout.readline() == "ignores it\n"
            command.send_signal(signal.SIGTERM)
            assert command.wait(PATIENCE_S) == -signal.SIGTERM
        finally:
            command.kill()


FIRST_PROCESS = ("unshare", "--pid", "--fork", "--kill-child")
"""Runs a command as process 1 of a namespace, as a container without an init does."""


@pytest.mark.parametrize(
    ("code", "signals"),
    [
        (
            "import time\n"
            "from muster.cli import main\n"
            "def imported(name):\n"
            "    print('ready', flush=True)\n"
            "    time.sleep(600)\n"
            "main._load = imported\n"
            "main.main(['worker'])\n",
            1,
        ),
        (
            "import time\n"
            "from muster.stop_signals import stop_signals\n"
            "with stop_signals() as stop:\n"
            "    print('ready', flush=True)\n"
            "    stop.wait()\n"
            "    print('ignores it', flush=True)\n"
            "    time.sleep(600)\n",
            2,
        ),
    ],
    ids=["while the command is imported", "the second signal"],
)
def test_a_container_without_an_init_can_be_stopped(code: str, signals: int) -> None:
    """The kernel drops a signal to process 1 that has no handler, so there has to be one."""
    if shutil.which("unshare") is None or subprocess.run([*FIRST_PROCESS, "true"]).returncode:
        pytest.skip("this user may not make a namespace of processes")
    with subprocess.Popen(
        [*FIRST_PROCESS, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        try:
            for _ in range(signals):
                assert parent.stdout.readline()
                children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text()
                os.kill(int(children), signal.SIGTERM)
            assert parent.wait(PATIENCE_S) == 128 + signal.SIGTERM
        finally:
            parent.kill()
