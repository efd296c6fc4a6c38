"""The pages under docs/requirements/ name only code and tests that exist, and each row once.

The third cell of a row gives its kind: *not ours*, *utility for plug-ins* (code that the job never
calls by itself), or otherwise *live*. The tests check what the sources show: a live row names only
code that the job reaches, and a test that uses such code; a utility is code that plug-ins import. A
built-in assignor counts as reached: `tests/state/test_view.py` shows that the job calls it. Only a
mutation can show whether a test would fail.
"""

import re
from pathlib import Path

import pytest
from support.repository.reach import ROOMS, is_of_the_job, of_the_job, touched
from support.repository.sources import definitions

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "requirements").glob("*.md"))
ROW = re.compile(r"^\| *([A-Z][A-Z0-9]*-[A-Z]?[0-9A-Z-]+) *\|(.*)\|\s*$", re.MULTILINE)
NOT_OURS, UTILITY = "not ours", "utility for plug-ins: "
VALUES = {
    *(f"muster.protocol.{name}" for name in ("ids", "digest", "events", "records", "errors")),
    *(f"muster.assignor.{n}" for n in ("model", "errors", "check", "copy_lags", "reason_arrays")),
}
"""Modules that do not show that a test runs live code; utilities' tests use `check` as well."""
PLUG_INS = ("assignor/kip924/", "assignor/api.py")
NAMED = re.compile(r"`([^`\s]+/[^`\s]+)`")


def rows(page: Path) -> list[tuple[str, list[str]]]:
    """The table rows of a page that begin with a requirement's id: the id and the other cells."""
    matches = ROW.findall(page.read_text(encoding="utf-8"))
    return [(row, [cell.strip() for cell in cells.split("|")]) for row, cells in matches]


def absent(named: str) -> bool:
    """Whether `path` or `path::test[::test]` does not exist."""
    path, *names = named.split("::")
    file = ROOT / path
    if not file.exists():
        return True
    defined = {node.name for node in definitions(file)} if names else set()
    return any(name.split("[")[0] not in defined for name in names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_only_what_exists(page: Path) -> None:
    """Every file and test that a page's tables name exists."""
    cells = [(row, cell) for row, cells in rows(page) for cell in cells]
    missing = [(row, n) for row, cell in cells for n in NAMED.findall(cell) if absent(n)]
    assert missing == []


def test_every_row_is_answered_once() -> None:
    """Each row has four cells with text and is on one page only."""
    every = [(row, cells) for page in PAGES for row, cells in rows(page)]
    names = [row for row, _ in every]
    assert sorted({row for row in names if names.count(row) > 1}) == []
    assert [row for row, cells in every if len(cells) != 3 or not all(cells)] == []


def live_rows() -> list[tuple[str, list[str]]]:
    """The rows that the job, its members or an operator's command must meet."""
    every = [each for page in PAGES for each in rows(page)]
    return [(row, cells) for row, cells in every if not cells[1].startswith((NOT_OURS, UTILITY))]


def core_files(cell: str) -> list[str]:
    """The source files of the coordinator and its core that a cell names."""
    named = [name for name in NAMED.findall(cell) if name.endswith(".py")]
    return [name for name in named if name.split("/")[0] in ROOMS]


def runs_what_is_live(test: str) -> bool:
    """Whether a test uses, itself or through helpers, code that the job reaches, or a command."""
    path, *names = test.split("::")
    used = touched(path, [name.split("[")[0] for name in names])
    live = (used & of_the_job()) - VALUES
    if path.startswith("tests/assignor/"):  # these tests build a view of tasks and settings
        live = {module for module in live if not module.startswith("muster.protocol.")}
    return bool(live) or any(
        name.startswith(("muster.cli.", "muster.simulation.")) for name in used
    )


def test_a_live_row_names_what_the_job_reaches() -> None:
    """A live row names only code that the job, its workers or a built-in assignor import."""
    wrong = [(row, f) for row, c in live_rows() for f in core_files(c[1]) if not is_of_the_job(f)]
    assert wrong == []


def test_a_live_row_names_a_test_of_what_the_job_reaches() -> None:
    """At least one test of a live row uses live code, not only values and utilities."""
    wrong = [row for row, c in live_rows() if not any(map(runs_what_is_live, NAMED.findall(c[2])))]
    assert wrong == []


DRIVERS = {
    "state": ("muster.state.", "muster.streams.", "muster.simulation.", "muster.cli."),
    "streams": ("muster.streams.",),
    "muster/worker": ("muster.worker",),
    "muster/cli": ("muster.cli",),
    "muster/documents": ("muster.documents", "muster.cli"),
}
"""Folder of a source → modules that a test must use to run that source."""
WITH_PROCESSES = ("tests/integration/", "tests/chaos/")
"""Tests that start the job and workers, and therefore need not import them."""


def test_code_that_runs_in_a_room_is_tested_through_that_room() -> None:
    """Code of a live row is tested through its folder: a group's rule not by an assignor alone."""
    wrong = []
    for row, cells in live_rows():
        tests = [name.split("::") for name in NAMED.findall(cells[2])]
        used = {module for path, *names in tests for module in touched(path, names)}
        if any(path.startswith(WITH_PROCESSES) for path, *_ in tests):
            continue
        for room, drivers in DRIVERS.items():
            if f"`{room}/" in cells[1] and not any(name.startswith(drivers) for name in used):
                wrong.append((row, room))
    assert wrong == []


def test_a_utility_is_what_plug_ins_import() -> None:
    """A utility row names code for plug-ins, or code that the job does not reach."""
    every = [each for page in PAGES for each in rows(page)]
    utilities = [(row, core_files(c[1])) for row, c in every if c[1].startswith(UTILITY)]
    wrong = [
        row
        for row, files in utilities
        if all(is_of_the_job(file) and not file.startswith(PLUG_INS) for file in files)
    ]
    assert wrong == []


def test_only_what_is_not_ours_has_no_test() -> None:
    """A row without a test begins with *not ours*."""
    every = [each for page in PAGES for each in rows(page)]
    bare = [(row, cells[1]) for row, cells in every if not NAMED.findall(cells[2])]
    assert [row for row, met in bare if not met.startswith(NOT_OURS)] == []


def test_reach_tells_the_job_from_its_utilities() -> None:
    """The plug-ins' flow network is not live code, and a test of it is not a test of live code."""
    assert is_of_the_job("assignor/targets/racks.py")
    assert not is_of_the_job("assignor/solvers/graph.py")
    examples = "tests/assignor/test_rack_examples.py"
    assert runs_what_is_live(f"{examples}::test_EX_R2_subtopologies_are_spread")
    assert not runs_what_is_live(f"{examples}::test_EX_R1_two_tasks_are_exchanged")
    assert not runs_what_is_live(f"{examples}::test_EX_R6_no_replica_in_one_rack")
