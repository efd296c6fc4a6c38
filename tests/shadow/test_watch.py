"""`muster shadow --all --watch` goes on with the other groups when one ends."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from muster.cli import shadow
from muster.errors import NotFound
from muster.kafka.client_settings import client_settings

CLIENTS = client_settings("127.0.0.1:1")


class Ended(Exception):
    """The test has seen enough."""


def watched(name: str) -> Any:  # stands for a `ShadowedGroup`
    """A group that rebalances, so that the watch only looks at its name."""
    kind = SimpleNamespace(group=name, is_hidden=True)
    return SimpleNamespace(description=kind)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names that each look asks for; `gone` is not there any more."""
    names_asked: list[list[str]] = []

    def read(_: object, names: Sequence[str], **__: object) -> list[Any]:
        names_asked.append([*names])
        if "gone" in names:
            raise NotFound("Kafka has no group 'gone'")
        raise Ended

    monkeypatch.setattr(shadow, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(shadow, "read_groups", read)
    monkeypatch.setattr(shadow, "listed", lambda _: [SimpleNamespace(group="orders")])
    return names_asked


def test_a_group_that_ends_ends_no_watch_of_all(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says that it is gone; the next look asks for the others."""
    options = argparse.Namespace(group=[], connect_url=None, format="text")
    with pytest.raises(Ended):
        shadow._watch(CLIENTS, [watched("gone"), watched("orders")], {}, options)
    assert asked == [["gone", "orders"], ["orders"]]
    assert capsys.readouterr().err == "muster shadow: Kafka has no group 'gone'\n"


def test_a_named_group_that_ends_is_an_error(asked: list[list[str]]) -> None:
    """Who names a group wants to know that it is gone."""
    options = argparse.Namespace(group=["gone"], connect_url=None, format="text")
    with pytest.raises(NotFound):
        shadow._watch(CLIENTS, [watched("gone")], {}, options)
    assert asked == [["gone"]]
