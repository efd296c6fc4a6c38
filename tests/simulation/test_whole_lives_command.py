"""The command that plays many whole lives says what it played, and fails if something broke."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from exploration.mutants import MUTANTS, break_rule
from fault_injection import whole_lives

from muster.simulation.lives import ASSIGNORS


def command(monkeypatch: pytest.MonkeyPatch, file: Path, **given: int) -> tuple[int, str]:
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
