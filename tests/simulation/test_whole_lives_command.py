"""The command that plays many whole lives says what it played, and fails if something broke."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from exploration.mutants import MUTANTS, break_rule
from fault_injection import whole_lives
from support.repository.sources import ROOT
from support.suite.waiting import until

from muster.simulation.lives import ASSIGNORS


def command(monkeypatch: pytest.MonkeyPatch, file: Path, **given: object) -> tuple[int, str]:
    """The exit code and the report."""
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(
        sys, "argv", ["whole_lives", "--processes", "1", "--report", str(file), *words]
    )
    return whole_lives.main(), file.read_text()


def test_the_report_has_every_assignor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A few runs and lives: all laws and promises hold, and every assignor came to rest."""
    code, report = command(monkeypatch, tmp_path / "report", generations=20, lives=20)
    assert code == 0, report
    assert "20 of 20 lives kept every promise" in report
    assert all(name in report for name in ASSIGNORS)
    assert report.endswith("every law and every promise held\n")


def test_a_broken_law_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a broken rule the report has the small story, and the exit code is 1."""
    (mutant,) = (
        each
        for each in MUTANTS
        if each.rule == "a revoked task stays with its holder until it is released"
    )
    break_rule(mutant, monkeypatch)
    monkeypatch.setattr("fault_injection.runs.PLAYS_MAX", 3)
    code, report = command(monkeypatch, tmp_path / "report", generations=500, lives=0)
    assert code == 1
    assert "a law is broken: seed" in report


def test_it_goes_on_where_it_was_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two commands, the second from the file of the first, play what one plays in one go."""
    keep = tmp_path / "kept"
    one, parts = tmp_path / "one", tmp_path / "parts"
    command(monkeypatch, one, generations=60, lives=0)
    command(monkeypatch, parts, generations=20, lives=0, keep=keep)
    code, report = command(monkeypatch, parts, generations=60, lives=0, keep=keep)
    assert code == 0
    runs = [line for line in report.splitlines() if " processes" not in line]
    assert runs == [line for line in one.read_text().splitlines() if " processes" not in line]


def test_its_processes_end_with_it(tmp_path: Path) -> None:
    """SIGTERM ends the command; the processes that play the runs end, too."""
    words = ["--generations", "1000000", "--lives", "0", "--every", "0"]
    module = [sys.executable, "-m", "fault_injection.whole_lives", *words]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(module, stdout=log, env={**os.environ, "PYTHONPATH": path}) as lives,
    ):
        children = psutil.Process(lives.pid)
        until(lambda: (tmp_path / "log").stat().st_size > 0, "the first run was played")
        pool = children.children(recursive=True)
        lives.send_signal(signal.SIGTERM)
    assert len(pool) >= 2
    assert psutil.wait_procs(pool, timeout=60)[1] == []
