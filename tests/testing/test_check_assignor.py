"""`muster.testing.check_assignor`: good assignors pass, each broken law is found and made small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.suite.examples import examples
from testing import bad_assignors

from muster.assignor.errors import AssignorError, UnknownAssignor
from muster.cli.assign import solve
from muster.errors import BadInput
from muster.testing import AssignorBroken, check_assignor


@pytest.mark.parametrize("name", ["sticky", "high-availability", bad_assignors.Good])
def test_a_good_assignor_passes(name: str | type, tmp_path: Path) -> None:
    """Groups and lives are counted, and no file is written."""
    checked = check_assignor(name, groups=examples(40), lives=2, folder=tmp_path)
    assert (checked.groups, checked.lives) == (examples(40), 2)
    assert checked.slowest_ms > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "law", "members"),
    [
        (bad_assignors.Raises, "valid: .*more members than I thought of", 3),
        (bad_assignors.Changes, "same: the same group got two different answers", 2),
        (bad_assignors.NeverRests, "rest: after .* still moves m", 2),
        (bad_assignors.Forgets, "valid: .*ACTIVE_TASK_NOT_ASSIGNED", 1),
    ],
)
def test_a_broken_law_is_found(kind: type, law: str, members: int, tmp_path: Path) -> None:
    """The counterexample has the fewest members and tasks that break the law."""
    with pytest.raises(AssignorBroken, match=rf"{law}(?s:.*)muster assign .*counterexample\.json"):
        check_assignor(kind, groups=100, lives=0, folder=tmp_path)
    small = json.loads((tmp_path / "counterexample.json").read_text())
    assert len(small["members"]) == members
    assert [unit["partitions"] for unit in small["tasks"]] == [1]


def test_the_file_shows_the_fault(tmp_path: Path) -> None:
    """`muster assign` fails on the file with the same error."""
    with pytest.raises(AssignorBroken):
        check_assignor(bad_assignors.Raises, groups=100, lives=0, folder=tmp_path)
    small = json.loads((tmp_path / "counterexample.json").read_text())
    with pytest.raises(AssignorError, match="more members than I thought of"):
        solve(small)


def test_lives_find_a_group_that_does_not_settle(tmp_path: Path) -> None:
    """A life that does not settle is written as a scenario."""
    with pytest.raises(AssignorBroken, match=r"lives: (?s:.*)muster simulate .*\.json"):
        check_assignor(bad_assignors.Postpones, groups=0, lives=5, folder=tmp_path)
    scenario = json.loads((tmp_path / "counterexample.json").read_text())
    assert scenario["group"]["assignor"] == "testing.bad_assignors:Postpones"


def test_problems_may_be_changed(tmp_path: Path) -> None:
    """`given` makes problems that the assignor is meant for."""

    def two_members(raw: dict) -> dict:
        return {**raw, "members": raw["members"][:2]}

    check_assignor(bad_assignors.Raises, groups=30, lives=0, given=two_members, folder=tmp_path)


def test_a_local_class_is_refused() -> None:
    """The file names the class, so it has to be importable."""

    class Local(bad_assignors.Good):
        """Not at the top of a module."""

    with pytest.raises(AssignorBroken, match="a class at the top of a module"):
        check_assignor(Local)


def test_an_assignor_that_hangs_is_shown_by_a_group_in_which_it_does(tmp_path: Path) -> None:
    """It is called once: a call that still hangs says nothing of smaller groups."""

    def quick(raw: dict) -> dict:
        return {**raw, "config": {"assignor.timeout.ms": 100}}

    with pytest.raises(AssignorBroken, match="valid: assignor hangs took more than 100 ms"):
        check_assignor(bad_assignors.Hangs, groups=100, lives=0, given=quick, folder=tmp_path)
    small = json.loads((tmp_path / "counterexample.json").read_text())
    assert len(small["members"]) >= 3


def test_a_small_counterexample_is_a_problem(tmp_path: Path) -> None:
    """What `given` adds for each partition shrinks with the partitions; the folder is made."""

    def with_racks(raw: dict) -> dict:
        for unit in raw["tasks"]:
            unit["source_racks"] = [["r0"]] * unit["partitions"]
        return raw

    folder = tmp_path / "new" / "folder"
    with pytest.raises(AssignorBroken, match="more members than I thought of"):
        check_assignor(bad_assignors.Raises, groups=100, lives=0, given=with_racks, folder=folder)
    small = json.loads((folder / "counterexample.json").read_text())
    assert small["tasks"][0]["source_racks"] == [["r0"]]
    assert len(small["members"]) == 3


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        (lambda _: None, "given: expected that it returns a problem"),
        (lambda raw: {**raw, "config": {"no.such": 1}}, "given: .*no.such"),
    ],
)
def test_a_problem_of_the_test_is_no_fault_of_the_assignor(
    returned: object, problem: str, tmp_path: Path
) -> None:
    """The error names `given`, and no file is written."""
    with pytest.raises(BadInput, match=problem):
        check_assignor(bad_assignors.Good, groups=1, lives=0, given=returned, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_assignor_that_there_is_not(tmp_path: Path) -> None:
    """It is no broken law."""
    with pytest.raises(UnknownAssignor, match="no assignor is called 'stiky'"):
        check_assignor("stiky", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
