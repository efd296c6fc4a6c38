"""A config record names an assignor: code runs only if an operator installed or allowed it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.streams.operator import G, M, Operator, config, join, of_kind

from muster import plugins
from muster.assignor.errors import UnknownAssignor
from muster.protocol.events import Tick
from muster.protocol.records import MemberAssignment, Rejected
from muster.streams.job_settings import job_config

pytestmark = pytest.mark.usefixtures("nothing_in_memory")

BOMBS = ("sys:exit", "signal:pause", "os:abort", "builtins:breakpoint", "lying_around:Bomb")


@pytest.mark.parametrize("name", BOMBS)
def test_a_record_cannot_have_code_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that names arbitrary code does not even import it.

    The group keeps its assignment, a dead letter says what an operator can do, and the next config
    with a known assignor places the new member.
    """
    (tmp_path / "lying_around.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    operator = Operator()
    operator.feed(1_000, config(), join())
    operator.feed(2_000, config(assignor=name), join("n"))
    records = operator.feed(2_001, Tick(group=G))
    (letter,) = of_kind(records, Rejected)
    assert (letter.reason, "muster.assignors=module:Class" in letter.message) == (
        "ASSIGNOR_FAILED",
        True,
    )
    assert "lying_around" not in sys.modules
    given = {r.member: len(r.active) for r in of_kind(records, MemberAssignment)}
    assert (given.get(M, 4), given.get("n", 0)) == (4, 0)
    after = {
        r.member: len(r.active) for r in of_kind(operator.feed(3_000, config()), MemberAssignment)
    }
    assert after[M] == 2


def test_the_operator_allows_names_one_by_one() -> None:
    """`muster.assignors` lists module:Class names; any other name or form is refused."""
    allowed = job_config(
        checkpoint="/c", conf=["muster.assignors=support.plugin_assignors:Raises, other:Thing"]
    ).assignors
    assert allowed == {"support.plugin_assignors:Raises", "other:Thing"}
    assert plugins.from_record("support.plugin_assignors:Raises", allowed).name
    assert plugins.from_record("sticky", allowed).name == "sticky"
    with pytest.raises(UnknownAssignor, match="allow it by name"):
        plugins.from_record("support.plugin_assignors:Hangs", allowed)
    with pytest.raises(UnknownAssignor, match="there are"):
        plugins.from_record("no-such-assignor", allowed)
    with pytest.raises(Exception, match="module:Class"):
        job_config(checkpoint="/c", conf=["muster.assignors=pools"])


def test_loading_is_guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allowed plug-in that exits or hangs while it is imported gives an error in time.

    A hanging import is not started again; the plug-in can be used once the import has ended.
    """
    (tmp_path / "ends_at_import.py").write_text("import sys\nsys.exit(4)\n")
    (tmp_path / "hangs_at_import.py").write_text(
        "from support.plugin_assignors import RELEASE, FirstTakesAll as Late\nRELEASE.wait(60)\n"
    )
    from support.plugin_assignors import RELEASE

    RELEASE.clear()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "LOAD_TIMEOUT_S", 0.05)
    with pytest.raises(UnknownAssignor, match="SystemExit: 4"):
        plugins.get("ends_at_import:Any")
    for _ in range(2):
        with pytest.raises(UnknownAssignor, match="took more than"):
            plugins.get("hangs_at_import:Late")
    RELEASE.set()
    assert plugins._loading["hangs_at_import:Late"].ends_within(10)
    assert plugins.get("hangs_at_import:Late").name
