"""The command that plays many whole lives says what it played, and fails if something broke."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from exploration.mutants import MUTANTS, break_rule
from fault_injection import whole_lives
from fault_injection.runs import Tally
from support.repository.sources import ROOT
from support.suite.waiting import until

from muster import parallel
from muster.protocol.settings import CONNECT_ASSIGNORS
from muster.random_lives.random_scenario import ASSIGNORS

NO_MORE = {"days": 0, "set-aside": 0, "lives": 0}
"""Only runs with faults."""


def command(monkeypatch: pytest.MonkeyPatch, file: Path, **given: object) -> tuple[int, str]:
    """The exit code and the report."""
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(
        sys, "argv", ["whole_lives", "--processes", "1", "--report", str(file), *words]
    )
    return whole_lives.main(), file.read_text()


def test_the_report_has_every_assignor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few runs and lives: all laws and promises hold, and every assignor came to rest."""
    lives = {
        "days": 10,
        "set-aside": 10,
        "lives": 7,
        "seed": 3_000_874,
        "every": 0,
    }  # one life of each assignor
    code, report = command(monkeypatch, tmp_path / "report", generations=20, **lives)
    assert code == 0, report
    assert "runs with faults, seeds 3,000,874 to" in report
    assert "days of a fleet, seeds 3,000,874 to" in report
    assert "lives with quarantines and keys, seeds 3,000,874 to" in report
    assert "7 of 7 lives kept every promise" in report
    assert all(name in report for name in (*ASSIGNORS, *CONNECT_ASSIGNORS))
    assert report.endswith("every law and every promise held\n")
    told = capsys.readouterr().out
    assert "of 20 generations, 1 runs, " in told
    assert "  7 of 7 lives, " in told


def test_a_broken_law_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a broken rule the report has the small story; with the rule mended it goes on."""
    (mutant,) = (
        each
        for each in MUTANTS
        if each.rule == "a revoked task stays with its holder until it is released"
    )
    more = {**NO_MORE, "keep": tmp_path / "kept"}
    with monkeypatch.context() as broken:
        break_rule(mutant, broken)
        broken.setattr("fault_injection.runs.PLAYS_MAX", 3)
        code, report = command(monkeypatch, tmp_path / "report", generations=500, **more)
    assert code == 1
    assert "a law is broken: seed" in report
    code, report = command(monkeypatch, tmp_path / "report", generations=1, **more)
    assert code == 0, report


def test_it_goes_on_where_it_was_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two commands, the second from the file of the first, play what one plays in one go."""
    keep = tmp_path / "kept"
    one, parts = tmp_path / "one", tmp_path / "parts"
    command(monkeypatch, one, generations=60, **NO_MORE)
    command(monkeypatch, parts, generations=20, **NO_MORE, keep=keep)
    code, report = command(monkeypatch, parts, generations=60, **NO_MORE, keep=keep)
    assert code == 0
    runs = [line for line in report.splitlines() if " processes" not in line]
    assert runs == [line for line in one.read_text().splitlines() if " processes" not in line]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    """Its processes end with it, the report says what was played, and the next one goes on."""
    keep, file = tmp_path / "kept", tmp_path / "report"
    words = ["--generations", "1000000", "--lives", "0", "--every", "0"]
    module = [sys.executable, "-m", "fault_injection.whole_lives", *words]
    module += ["--keep", str(keep), "--report", str(file)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            module,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        ) as lives,
    ):
        children = psutil.Process(lives.pid)
        until(lambda: (tmp_path / "log").stat().st_size > 0, "the first run was played")
        pool = children.children(recursive=True)
        os.killpg(lives.pid, number)  # as a terminal does, and `timeout`
    said = (tmp_path / "log").read_text()
    assert lives.returncode == 128 + number, said
    assert len(pool) >= 2
    assert psutil.wait_procs(pool, timeout=60)[1] == []
    assert "Traceback" not in said
    assert f"ended by {number.name}; the same command goes on from here" in file.read_text()
    (runs,) = re.findall(r"generations in ([\d,]+) runs", file.read_text())
    kept = whole_lives.Progress(whole_lives.SEED, Tally(), keep / "faults.kept")
    assert kept.tally.runs == kept.seed - whole_lives.SEED == int(runs.replace(",", "")) > 0


def test_ctrl_c_reaches_no_process_of_a_pool_that_still_starts() -> None:
    """A terminal sends it to all; the process goes on, and the caller decides when it ends."""
    with parallel.pool(1) as pool:
        before = set(psutil.Process().children())
        number = pool.submit(os.getpid)
        for started in set(psutil.Process().children()) - before:
            os.kill(started.pid, signal.SIGINT)  # one is the resource tracker, which ignores it
        assert number.result(timeout=60) != os.getpid()
