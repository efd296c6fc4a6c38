"""Functions of the examples, called one by one, without Kafka."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import muster
from muster import Task
from muster.protocol.settings import parse_settings
from muster.worker.assignment import Token

EXAMPLES = Path(__file__).parents[2] / "examples"


class FakeWorker:
    """Takes what `Worker` takes, and ends at once."""

    def __init__(self, **_: object) -> None:
        self.lags: list[dict[Any, int]] = []

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to leave."""

    def wait(self) -> None:
        """Nothing to wait for."""

    def lag(self, offsets: dict[Any, int]) -> None:
        """Store a report."""
        self.lags.append(offsets)


def names_of(example: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> dict[str, Any]:
    """What an example defines, after a run with a `FakeWorker`."""
    monkeypatch.setattr(muster, "Worker", FakeWorker)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", [example, "g", "localhost:1", *more])
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile((EXAMPLES / example).read_text(), example, "exec"), names)
    return names


def test_a_thread_goes_on_when_the_lease_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`holds` may say no after a suspension, and yes once the newest acknowledgement is read."""
    names = names_of("thread_worker.py", monkeypatch)
    answers = [True, False, True]
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda _: answers or stop.set())
    names["worker"].holds = lambda _: answers.pop(0)
    names["work"](Task("0", 0), Token(1, 2), stop)
    assert capsys.readouterr().out.count("0_0: a step, token 1.2") == 2


def test_a_copy_takes_over_only_when_it_is_restored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No lag but 0 is so small that it counts as ready under the default settings."""
    names = names_of("restoring_worker.py", monkeypatch, str(tmp_path))
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda _: False)
    worker, task = names["worker"], Task("0", 0)
    worker.ready = lambda _: stop.set()
    names["restore"](task, stop)
    lags = [lag for report in worker.lags for lag in report.values()]
    acceptable = parse_settings({}, "high-availability").acceptable_recovery_lag
    assert stop.is_set()
    assert [lag for lag in lags if lag <= acceptable] == [0]


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_without_arguments_an_example_says_what_it_needs(example: str) -> None:
    """A usage line names what is missing; no traceback."""
    command = [sys.executable, example]
    ended = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    usage, *_, fault = ended.stderr.splitlines()
    assert usage.startswith(f"usage: {example} [-h] GROUP HOST:PORT")
    assert fault.startswith(f"{example}: error: the following arguments are required: GROUP, HOST")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr
