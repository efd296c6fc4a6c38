"""`muster shadow` of a group that rebalances: Kafka then returns only the ids of its members."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from muster.cli.main import main
from muster.kafka import groups
from muster.kafka.groups import ConnectWorker, Description, Kind, Member
from muster.shadow import group_reader

WORKER = ConnectWorker(2, "http://w1:8083/", 7, {"a": (-1, 0)}, {}, {}, "http://w1:8083/", 0)
REBALANCING = ("PreparingRebalance", "CompletingRebalance")


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states in which Kafka describes the group, one after the other; the last one lasts."""
    coming: list[str] = []

    def described(_client: object, names: list[str]) -> list[Description]:
        state = coming.pop(0) if len(coming) > 1 else coming[0]
        worker = WORKER if state == "Stable" else None
        member = Member("connect-w1-5c2e", None, "c", "/10.0.0.1", connect=worker)
        return [Description(names[0], Kind.CONNECT, state, "sessioned", None, (member,))]

    @contextmanager
    def connected(_clients: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(group_reader, "connected", connected)
    monkeypatch.setattr(groups, "describe_with", described)
    monkeypatch.setattr(groups, "PAUSE_S", 0.0)
    return coming


def test_the_end_of_a_rebalance_is_waited_for(
    states: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A look that falls into a rebalance shows what the workers run after it."""
    states.extend([*REBALANCING, "Stable"])
    assert main(["shadow", "--group", "cluster", "--format", "json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["state"] == "Stable"
    assert [(m["id"], m["active"]) for m in seen["members"]] == [("w1:8083", ["a", "a-0"])]


def test_a_rebalance_without_an_end_is_named(
    states: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No plan is made of a cluster whose workers and tasks Kafka hides, and the output says so."""
    states.append("PreparingRebalance")
    monkeypatch.setattr(groups, "PATIENCE_S", 0.0)
    assert main(["shadow", "--group", "cluster"]) == 0
    text = capsys.readouterr().out
    assert "muster has no plan: the group has been rebalancing for" in text
    assert "- owners: the group is rebalancing (PreparingRebalance), and Kafka returns" in text
