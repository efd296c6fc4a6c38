"""The wheel that users install: its contents, and that a worker never loads Spark."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.repository.sources import ROOT, tracked


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the checkout without the links."""
    source = tmp_path_factory.mktemp("source")
    for path in tracked():
        target = source / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    return next(out.glob("*.whl"))


@pytest.mark.slow
def test_wheel_holds_every_module_and_its_data(wheel: Path) -> None:
    """Every code file, schema and lock file of the checkout is in the wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = set()
    for room in ("protocol", "assignor", "state", "streams"):
        for pattern in ("*.py", "schemas/*.avsc", "GRAMMAR.md"):
            expected |= {
                f"muster/{room}/{p.relative_to(ROOT / room)}" for p in (ROOT / room).glob(pattern)
            }
    for pattern in (
        "*.py",
        "*/*.py",
        "py.typed",
        "broker/*.lock",
        "console/[ts]*/*",
        "kafka/*/*.json",
    ):
        expected |= {
            str(p.relative_to(ROOT))
            for p in (ROOT / "muster").glob(pattern)
            if not any(parent.is_symlink() for parent in p.parents)
        }
    assert expected <= names


def test_importing_the_sdk_leaves_spark_and_solvers_alone() -> None:
    """`import muster` and its Worker load no Spark, no solvers and nothing of the coordinator."""
    probe = (
        "import sys, muster; muster.Worker; "
        "print(sorted(m for m in ('pyspark', 'ortools', 'pandas', 'muster.state', "
        "'muster.assignor', 'muster.streams') if m in sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    assert out.stdout.strip() == "[]"


def test_public_names() -> None:
    """`muster` exports exactly the documented names."""
    import muster

    names = ["Assignment", "MusterError", "Role", "Task", "Worker", "__version__", "parse_task"]
    assert sorted(muster.__all__) == names
