"""The reasons of dead letters, and the page that lists them."""

from __future__ import annotations

from support.repository.pages import made, markdown

from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import Origin
from muster.protocol.records import Fault, Rejected


def test_the_page_lists_every_reason() -> None:
    """docs/operations.md has the meaning and action of each reason, as the table has them."""
    rows = [(f"`{each}`", each.meaning, each.action) for each in DeadLetter]
    table = markdown(("reason", "what happened", "what to do"), rows)
    on_page, expected = made("operations.md", "reasons: from protocol/dead_letters.py", table)
    assert on_page == expected


def test_a_reason_is_its_name() -> None:
    """A reason on the wire is its name; faults that are also reasons have the same name."""
    assert [str(each) for each in DeadLetter] == list(DeadLetter.__members__)
    assert Rejected(origin=Origin("t", 0, 0, 0), reason="UNSIGNED", message="") == Rejected(
        origin=Origin("t", 0, 0, 0), reason=DeadLetter.UNSIGNED, message=""
    )
    assert {each.name for each in Fault} & set(DeadLetter) == {
        "UNKNOWN_MEMBER_ID",
        "INVALID_REQUEST",
    }
