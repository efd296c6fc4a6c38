"""How the integration tests choose their Kafka."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.kafka import brokers

from muster.testing.kafka_for_tests import ADDRESS, KIND, choice

GIVEN = {ADDRESS: "kafka:9092"}


@pytest.mark.parametrize(
    ("environment", "engine", "chosen"),
    [
        (GIVEN, True, "kafka:9092"),
        ({}, True, "container"),
        ({}, False, "embedded"),
        ({KIND: "container"}, False, "container"),
        ({KIND: "embedded"}, True, "embedded"),
        ({**GIVEN, KIND: "embedded"}, True, "embedded"),
        ({**GIVEN, KIND: ""}, False, "kafka:9092"),
    ],
)
def test_an_address_then_an_engine_then_our_own(
    environment: dict[str, str], engine: bool, chosen: str
) -> None:
    """The kinds are tried in this order, unless one is given."""
    assert choice(environment, lambda: engine) == chosen


def test_a_kind_there_is_not() -> None:
    """A misspelt kind is an error."""
    with pytest.raises(AssertionError, match="not one of container, embedded"):
        choice({KIND: "docker"}, lambda: True)


def test_an_engine_is_asked_only_where_it_decides() -> None:
    """With an address Docker is not asked."""
    asked: list[bool] = []
    choice(GIVEN, lambda: bool(asked.append(True)))
    assert asked == []


@pytest.mark.parametrize(
    ("script", "at_hand"),
    [
        ("exit 0", True),
        ("exit 1", False),
        ('[ "$1" = version ]', False),  # an engine without the image, and no registry
        ('[ "$1" = version ] || [ "$1" = pull ]', True),
    ],
)
def test_an_engine_counts_when_it_has_the_image_or_gets_it(
    script: str, at_hand: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `docker` that answers in several ways, or is missing."""
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\n{script}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert subprocess.run(["docker"], check=False).returncode in (0, 1)
    brokers.is_at_hand.cache_clear()
    try:
        assert brokers.is_at_hand() is at_hand
        docker.unlink()
        monkeypatch.setenv("PATH", str(tmp_path))
        brokers.is_at_hand.cache_clear()
        assert not brokers.is_at_hand()
    finally:
        brokers.is_at_hand.cache_clear()
